"""From a block to a plan: a list of instructions over views of memory, as data that a code generator reads.

    plan = plan_block(block, target)      # raises Unsupported if an op cannot be part of generated code
    arena = arrange(plan)                 # an offset for every intermediate array
    region = backend.compile(plan)        # a code generator; see core.runtime.backend

The package knows no device. All assumptions about a machine and its generator are in a `Target`, which callers pass.

The plan, as data:

    target        the planner's assumptions about a machine: dtypes, limits, thresholds, callbacks; capacity of stacks
    plan          a whole plan: instructions, arguments, checks
    instructions  instructions: row kernels on arrays, products, gathers, scatters, other kernels
    row_kernels   the instructions of a row kernel, and its operands
    memory        the memory that instructions work on: roots, views, stacks
    flow          loops, branches, and the stacks and states of loops; tensor arrays
    growing       instructions on tensor arrays that programs write
    geometry      specs of the other kernels: padding, convolution, pooling, transposition
    channel_lanes, filter_sums  specs of convolutions, and of their adjoints to filters, with channels in the lanes
    winograd      specs of convolutions with 3 x 3 filters by the algorithm of Winograd
    patches, covering  specs of convolutions, and of the adjoints of pooling, for kernels that read windows in place
    systems       specs of factorisations, eigenvalues and triangular systems
    merge_specs   specs of the kernels that merge rows by their numbers
    lookups       specs of the kernels that walk tables: rows of sequences, sorted vectors, boxes, scores of labels
    side_by_side  stretches of small instructions whose branches run side by side
    in_place      whether an array may lie in the memory of another one that ends there
    arena         the arena map: offsets of arrays, from the instructions that first write and last read them
    work          operations and bytes of an instruction, for profiles

From ops to instructions:

    build         `plan_block`
    walk          every op of a block in order; ops without generated code are left to the reference executor
    known         the choice between 16-bit floats and float32 for an op on arrays of known sizes
    lowering      functions for all lowerings: values of variables, elementwise ops, checks
    all_lowerings the list of the files with lowerings
    storage       allocation, and the instructions that store, copy and fill
    destinations  memory that results must be written to
    entries       the forms of a value: a number, a pattern of positions, a value inside a fusion, an array
    compose       elementwise work that a lowering writes in terms of the ops of the catalogue
    uses          producers and readers of variables
    unsupported   the exception for ops that a plan cannot contain
    halves        16-bit floats: ops that compute in float32
    unrounded     16-bit results that stay in float32 registers
    empty         ops on arrays with a size of 0
    ranges        positions that grow evenly: a gather at them is a view
    row_major     numbers of elements in row-major order, of arrays whose sizes only the run tells
    code_size     the predicted size of the machine code of nested blocks, and its limit
    derived_sizes open sizes that a block has computed from others, each once
    sizes, sized  arrays whose size only the run tells, in memory for the largest or the expected size
    sized_shapes, sized_reshape, sized_sums, sized_products, sized_indexing, sized_images,
    sized_lattices, sized_ragged, sized_matrices
                  ops on them by kind
    unbounded     lowerings of ops whose results have sizes without a largest value
    meeting_sizes open sizes that meet in one op
    size_multiples  products and multiples of open sizes
    along_open, open_slices
                  lowerings of ops along an axis whose size only the run tells: running results, sorts; slices,
                  borders, joins
    nested_sizes, element_sizes, scan_lengths
                  largest sizes of arrays that loops and branches carry, record and return, of elements of tensor
                  arrays, and of their number
    array_rules   the table of lowerings of ops on tensor arrays
    array_elements  the types of their elements, and the open sizes that these share
    array_memory  tensor arrays that grow: memory, copies, records
    found         lowerings of ops that find positions, whose number only the run tells
    interpreted   an op that the reference executor runs, called from generated code
    registering   a decorator for tables of functions by the types of ops
    partition     regions of generated code, and the single ops between them

Lowerings, one family of ops in each file: shapes, slicing, movement, constants, draws, sampling, reduce, moments,
selecting, ordered, scaling, linear, einsum, factors, spectra, fourier, convolution, windows, pooling, indexing,
segments, merging, ragged, lattices, by_data, dynamic_slices, checked, loops, branches, stacks, tensor_arrays,
open_arrays, open_elements, array_runs. `slabs` has arrays as gathers and scatters take them, `added_rows` sums of rows
at positions that are data, and `paired_convolution` convolutions of bfloat16 numbers as products of pairs.

Fusion:

    fusion            elementwise ops, broadcasts and reductions in one pass over memory
    fused_kernel      the row kernel of a fusion: its axes, and its row
    repeated          cheap values that a fusion computes again
    identities        results that are an operand, because another one is a known bool
    powers            powers with small constant exponents are products and square roots
    elementary        an elementary function of a 16-bit float and of its float32 form is computed once
    rows_at           gathers inside fusions: rows at positions that are data
    gathered_products products of gathered matrices with vectors
    scattered         scatters that gather their rows themselves
    merged_operands   row kernels that add up rows of one number themselves
    made_rows         rows that such a row kernel computes itself, too
    sole_readers      instructions whose work their only reader does: the part that these two rewrites share
    instruction_list  the instructions so far, and the fusion that an op joins
    tails             zeros behind the rows of results that only the run counts
    epilogue          elementwise work on the result of a product, or of a batch of them, moves into the product
    hoist             one product for several trips of a loop
    panels            weights that the products of a loop read in panels
    early             ops on single numbers, and on labels, come before the passes over arrays that need them
    unread            stores that nothing reads are dropped
    narrow            two row kernels divide their work so that the fewest bytes cross memory between them
    least_cut         least cuts of graphs with capacities
    freeing           instructions that free more memory than they take run early
    refine            these rewrites for a whole plan, and for the bodies of its loops and branches
    stripes           attention: a chain of products and row kernels for some rows of its matrices at a time
    dependences       the instructions that must run before each one, and an order that keeps them
    stripe_members    its members: row kernels, and products with the axis that the stripes cut
    striped           the instruction that results from it
    column_windows    columns of a stripe that a mask hides are left out
    masks             the masks that it finds: bands of positions, and arrays
    masked_bounds     bounds of the values of a stripe under a mask: they prove that hidden elements are zeros
    intervals         bounds of the results of ops from those of their operands

How a plan is built. Reshapes, transpositions and slices only change views; nothing is copied that strides can describe.
Elementwise ops, broadcasts and reductions join fusions: passes over the rows of a domain with values in registers. A
reduction along the row, as in softmax or layer_norm, can be used inside the same fusion, also if the row is a short
axis in the middle, such as the classes of each pixel; any other one accumulates into memory. Products, convolutions,
gathers and scatters are instructions of their own. Rows at positions that are data, and slices of them, are read inside
the fusions that use them; short ones are gathered before these fusions. Products of a batch with one shared matrix are
one product if the axes of the batch follow each other in memory; if only some axes do, these become rows. Elementwise
work on the result of a large product (a bias, a relu, an optimiser's update) becomes its epilogue, and a result that
nothing else reads is not stored. A product of which only a transposition is read is computed in the layout of that one:
so the gradient of a weight that is used transposed, as in models of PyTorch, is stored as the weight is.

A chain of products and passes over large batched matrices, as in attention, runs for some rows of the matrices at a
time, so that scores and probabilities are never stored. Columns that a causal mask, a band or a mask that is data hides
from all rows of a stripe are left out, forward and backward.

The bodies of loops and branches get epilogues and stripes like a whole plan. Arrays that instructions around a body
touch, and those that a loop records or carries, are stored in any case.

A loop is an instruction that holds the instructions of one trip. Its states swap buffers. A recorded value goes to a
stack that grows, or to an array if the number of trips is known, so that joining the elements copies nothing. A product
that each trip adds to a state is added in place; if the operands of several trips are adjacent in memory, their
products become one, and so do products that are only recorded. The product of a weight with the next row of a sequence
or element of a stack is computed for several rows ahead. The other products of a loop read large weights in panels,
which are copied before the loop.

An op that reads no data is computed when the plan is made, or becomes a pattern: elements that are computed from their
positions wherever they are read, such as a triangular mask. A random number depends on its position and the key alone,
so a draw is elementwise work inside a fusion.

Rows that are gathered are read inside the fusions that need them, so messages on the edges of a graph, or the sum of
several embeddings, reach no memory of their own.

Every index is checked before it is used. A failed check writes its number to the error word, which ends all loops; the
caller raises the error that the reference executor would have raised.

A tensor array that a program writes is a stack, whose first slots are the elements, and a number of elements. A write
changes it in place if no later op reads the old value, so a loop that appends an element on each trip copies nothing.

An array of tensor arrays is one of runs: each slot refers to adjacent elements of an array. A loop under the memory
policy "sqrt" or "binomial" runs over runs of its elements, and records its results at their places in one array if the
number of elements is known. Sums of runs of different lengths, which are rare, are left to the reference executor when
the code meets them.

A size that only the run tells has a largest value if it is that of a part: of the chosen rows, of a slice. Otherwise
the plan expects some value, and the code checks it. A run with a larger one is left to the reference executor, which
tells the size, and the runtime plans again. A loop carries and records such an array in memory for its largest size,
with a number beside it; a branch returns it so. An array that may be larger after each trip has no largest size, and
the loop is left to the reference executor.

Generated code cannot hold dtypes that the target lacks, tensor arrays whose elements have open sizes, and tensor arrays
of other tensor arrays. For these `partition` splits a block into regions and single ops between them. Usually one
region is the whole step. An op that the target has no code for (a transform, a long decomposition) is called from
inside the region if the target can call back, and ends the region otherwise. `python -m bench.coverage` lists these ops
with the reasons.
"""

from core.plan.arena import ArenaMap, arrange
from core.plan.build import plan_block
from core.plan.plan import Plan
from core.plan.target import Target
from core.plan.unsupported import Unsupported

__all__ = ["ArenaMap", "Plan", "Target", "Unsupported", "arrange", "plan_block"]
