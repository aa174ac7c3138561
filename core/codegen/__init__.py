"""From a plan to machine code: LLVM IR as text, through llvmlite.

`llvm` writes IR; `vmath`, `functions` and `scalar` compute single elements or vectors of them; `rows`, `gemm` and the
others write one kind of kernel each, `step` the function that calls them in order; `machine` compiles and keeps the
result.
"""
