"""Sums of rows by index. Rows with the same index are added in their order, so that each run gives the same bits.

The rounding error of a sum grows with the number of additions in sequence. So many float32 rows are added in blocks:
first those of each block, then the sums of the blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.ops.common.on_cuda import is_cupy, scatter_add
from core.ops.common.types import working_dtype

__all__ = ["rows_in_block", "scatter_rows"]

LEAST = 1024
"""Fewest rows of a block."""

TIMES = 32
"""Fewest rows of a block for each result, so that adding the sums of the blocks takes a small part of the time."""

FEW = 2048
"""Number of elements below which setting up a sparse matrix takes longer than it saves."""


def scatter_rows(xp: Any, count: int, index: Any, values: Any) -> Any:
    """An array [count, ...] whose row k is the sum of the rows i of `values` [n, ...] with ``index[i] == k``.

    index: [n], each from 0 to count - 1. 16-bit floats are added in float32.
    """
    wide = values.astype(working_dtype(values), copy=False)
    block = rows_in_block(str(wide.dtype), len(index), count)
    if block < len(index):
        blocks = -(-len(index) // block)
        places = xp.array(index, "int64")  # of the sums of the first block, the second one, ...
        for k in range(1, blocks):
            places[k * block : (k + 1) * block] += k * count
        parts = _added(xp, blocks * count, places, wide).reshape(blocks, count, *wide.shape[1:])
        out = xp.sum(parts, axis=0, dtype=wide.dtype)
    else:
        out = _added(xp, count, index, wide)
    return out.astype(values.dtype, copy=False)


def rows_in_block(dtype: str, rows: int, count: int) -> int:
    """Rows of a block, of all `rows`, whose sums have `dtype` and `count` positions; `rows` if one block has all."""
    block = max(LEAST, TIMES * count, math.isqrt(rows))
    return block if dtype == "float32" and rows >= 2 * block else rows


def _added(xp: Any, count: int, index: Any, wide: Any) -> Any:
    """`scatter_rows` one by one, in the dtype of the rows."""
    if is_cupy(xp):
        return _on_device(xp, count, index, wide)
    if wide.dtype.kind == "f" and wide.ndim > 1 and wide.size > FEW:
        return _as_product(count, index, wide)
    out = np.zeros((count, *wide.shape[1:]), wide.dtype)
    np.add.at(out, index, wide)
    return out


def _as_product(count: int, index: Any, values: Any) -> Any:
    """The matrix whose column i has a 1 in row ``index[i]``, times the rows.

    SciPy multiplies column by column, so it adds in the order of the rows, about ten times faster than `np.add.at`.
    """
    from scipy.sparse import csc_matrix

    n = len(index)
    ones = np.ones(n, values.dtype)
    matrix = csc_matrix((ones, index, np.arange(n + 1)), shape=(count, n))
    return (matrix @ values.reshape(n, -1)).reshape(count, *values.shape[1:])


def _on_device(xp: Any, count: int, index: Any, values: Any) -> Any:
    shape = (count, *values.shape[1:])
    if (
        values.dtype.kind in "biu" and values.dtype.itemsize < 4
    ):  # CuPy adds atomically only words of four bytes or more
        out = xp.zeros(shape, "int32")
        scatter_add(out, index, values.astype("int32"))
        return out.astype(values.dtype)
    out = xp.zeros(shape, values.dtype)
    if values.dtype == xp.int64:  # CuPy adds 64-bit integers only unsigned; the bits are the same
        scatter_add(out.view(xp.uint64), index, values.view(xp.uint64))
    else:
        scatter_add(out, index, values)
    return out
