"""Training steps on a GPU: a plan as one text of LLVM, which becomes PTX.

A thread of the GPU is a CPU without vectors: the generators of `core.codegen` write the text with one lane, and all
threads of a launch run it together. Every thread follows the control flow of the step by itself. The kernels of
`core.codegen` take a range of units, and each thread has its own; products, passes over rows, stripes, convolutions,
pooling, gathers, scatters, Fourier transforms, Cholesky and LU factors and triangular systems have generators here.
Between two instructions of which one depends on the other all threads of the launch meet at a barrier: those of one
block, of a cluster of blocks, or of all blocks.

The target and the form of the code:

    gpu            the GPU as a target of plans
    rules          assumptions about its speed
    threads        numbers of threads, and their barriers
    launches       the form that generator and host agree on
    ptx            the way to PTX and cubins
    parts          the parts of a step that go there by themselves
    sharing        kernels that several launches share

The code of a step:

    step           the code of a step
    index_patterns, index_orders, early_sorts
                   changes of its instructions
    segments       instructions that share a launch and wait for each other
    schedule       another order of the segments
    grouping       instructions that share a launch without waiting
    spread         the blocks of a launch
    multiplication, cublaslt
                   large products as calls of cuBLASLt
    device_step    the step while it is written: its launches
    kernel_calls   its calls of kernels
    device_writer  its addresses, barriers and scratch memory
    flow           its loops
    extents        the memory that instructions between two barriers touch

Kernels:

    kernels        the table of kernels: convolution, small_convolution, pooling, fourier, transposition, row_order,
                   merging, index_sort
    rows           passes over rows, with present_row, row_teams, row_sums, column_sums; row_waits is how long rows wait
    row_writer     kernels of their own behind a step
    product        products, of tiles, patch_tiles and tensor_cores; tiled says what is one
    stripes        attention, with the columns under a mask (column_windows)
    systems        cholesky, elimination and substitution
    indexed, scatter
                   gathers and scatters
    ranks, buckets, merge_sort
                   sorts of ids

The host's part:

    backend        compiles plans, and keeps machine code on disk
    region         runs them
    words          the arrays of a run, and the words that the GPU and the host exchange
    arena          memory and streams that regions share
    beside         launches that run beside others
    bind           values of a training step that stay on the GPU
    bound_step, table_updates
                   those of a step that is one region, and its new rows of tables
    parted_step    those of a step of several regions
    feeds          what the host gives to each of their steps
    leaving        results on their way to the host
    driver         the functions of a GPU that the host calls; cupy_driver has a GPU
    early_launch   launches whose blocks start before the launch before them has ended
"""
