"""Helpers that ops of several families share.

types         rules of types: shapes with unknown sizes, and how they combine
ranges        types of attributes with the values that they accept
lengths       checks of the lengths of the sequences of a batch
windows       windows that slide over the spatial axes
matrices      types, run-time errors and symbols of the ops of linear algebra
elimination   Gaussian elimination and Cholesky factors of matrices with elements that are not finite
halves        products of 16-bit floats, computed in float32
long_sums     sums over axes, also of many float32 numbers
scatter_rows  sums of rows by index, in a fixed order
on_cuda       functions of cupy that NumPy lacks
"""
