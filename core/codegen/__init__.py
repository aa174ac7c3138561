"""Machine code for the CPU: a plan becomes LLVM IR, the IR a library of functions. README.md here explains the package.

`llvm` writes IR text. `vmath`, `functions` and `scalar` compute elements or vectors of elements. `rows`, `product`,
`convolution` and the other generators each write one kind of kernel. `step` writes the function that calls the kernels
in order. `machine` compiles and caches the result.
"""
