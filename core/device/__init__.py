"""Training steps on a GPU: a plan as one text of LLVM, which becomes PTX.

A thread of the GPU is a CPU without vectors: the generators of `core.codegen` write the text with one lane, and all
threads of a launch run it together. Every thread follows the control flow of the step by itself. The kernels of
`core.codegen` take a range of units, and each thread has its own; products, passes over rows, stripes, convolutions,
pooling, gathers, scatters, Fourier transforms, Cholesky and LU factors and triangular systems have generators here.
Between two instructions of which one depends on the other all threads of the launch meet at a barrier: those of one
block, of a cluster of blocks, or of all blocks.

`gpu` has the GPU as a target, `rules` what is assumed about its speed, `threads` the numbers of threads and their
barriers, `launches` the form that generator and host agree on. `step` makes the code of a step: `index_patterns`,
`index_orders` and `early_sorts` change its instructions, `segments` has those that share a launch and wait for each
other, `schedule` another order of the segments, `grouping` those that share a launch without waiting, `spread` the
blocks of a launch, and `multiplication` large products as calls of cuBLASLt (`cublaslt`). `device_step` and `flow`
write the step with its loops, `rows`, `product`, `stripes`, `systems` (with `cholesky`, `elimination` and
`substitution`), `indexed`, `scatter` and `kernels` the kernels, the last with those of `convolution`,
`small_convolution`, `pooling`, `fourier`, `transposition`, `row_order`, `merging` and `index_sort`; `row_teams`,
`row_sums` and `column_sums` are parts of row kernels, `row_waits` how long these wait, `tiles`, `patch_tiles` and
`tensor_cores` parts of products, `tiled` says what is one, `ranks`, `buckets` and `merge_sort` are the sorts of ids,
`row_writer` has kernels of their own behind a step. `sharing` has the kernels that several launches share, `ptx` the
way to PTX and cubins, and `parts` the parts in which a step goes there.

The host's part: `backend` compiles plans and keeps machine code on disk, `region` runs them, `words` has the arrays of
a run and what it and the host tell each other, `arena` the memory and the streams that regions share, `beside` the
launches that run beside others. `bind` keeps the values of a training step on the GPU: `bound_step` those of a step
that is one region, whose new rows of tables are written by `table_updates`, `parted_step` those of a step of several
regions. `leaving` has results on their way to the host. They call the GPU through `driver`, which `cupy_driver`
implements, with `early_launch` for launches whose blocks start before the launch before them has ended.
"""
