"""Adding rows to the places that an index names. Rows of one place are added in their order, so that the sum of the
same rows has the same bits each time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ops.common.types import working_dtype

__all__ = ["added"]

FEW = 2048
"""Elements below which a sparse matrix takes longer to set up than it saves."""


def added(xp: Any, count: int, index: Any, values: Any) -> Any:
    """An array [count, ...] whose row k is the sum of those rows of `values` [n, ...] with ``index[i] == k``.

    index: [n], each within 0 and count - 1. 16-bit floats are added in float32.
    """
    wide = values.astype(working_dtype(values), copy=False)
    if xp.__name__ == "cupy":
        out = _on_device(xp, count, index, wide)
    elif wide.dtype.kind == "f" and wide.ndim > 1 and wide.size > FEW:
        out = _as_product(count, index, wide)
    else:
        out = np.zeros((count, *wide.shape[1:]), wide.dtype)
        np.add.at(out, index, wide)
    return out.astype(values.dtype, copy=False)


def _as_product(count: int, index: Any, values: Any) -> Any:
    """The matrix whose column i holds a 1 in row ``index[i]``, times the rows.

    SciPy multiplies column by column, which is the order wanted, and some ten times faster than `np.add.at`.
    """
    from scipy.sparse import csc_matrix

    n = len(index)
    ones = np.ones(n, values.dtype)
    matrix = csc_matrix((ones, index, np.arange(n + 1)), shape=(count, n))
    return (matrix @ values.reshape(n, -1)).reshape(count, *values.shape[1:])


def _on_device(xp: Any, count: int, index: Any, values: Any) -> Any:
    import cupyx

    shape = (count, *values.shape[1:])
    if values.dtype.kind in "biu" and values.dtype.itemsize < 4:  # CuPy adds words of four bytes or more, ...
        out = xp.zeros(shape, "int32")
        cupyx.scatter_add(out, index, values.astype("int32"))
        return out.astype(values.dtype)
    out = xp.zeros(shape, values.dtype)
    if values.dtype == xp.int64:  # ... long ones only unsigned, which give the same bits
        cupyx.scatter_add(out.view(xp.uint64), index, values.view(xp.uint64))
    else:
        cupyx.scatter_add(out, index, values)
    return out
