"""Sums over axes as kernels of ops compute them: also of many float32 numbers along axes that come first in memory.

NumPy adds numbers that lie side by side in pairs, but rows one by one. The rounding error of a sum grows with the
number of additions in sequence: a million equal rows of float32 numbers added one by one err by one percent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.ops.common.types import axes_of, working_dtype

__all__ = ["summed"]

BLOCK = 1024
"""Rows that are added one by one, before the sums of blocks are added up."""


def summed(xp: Any, x: Any, axes: tuple[int, ...] | None, keepdims: bool = False) -> Any:
    """The sum of x over `axes`, in the dtype of `working_dtype`. axes: None for all."""
    dtype = working_dtype(x)
    if dtype != np.float32 or x.size <= 2 * BLOCK or xp is not np:
        return xp.sum(x, axis=axes, keepdims=keepdims, dtype=dtype)
    reduced = axes_of(axes, x.ndim)
    beside = _side_by_side(x, reduced)
    rows = sorted(set(reduced) - set(beside), reverse=True)
    if math.prod(x.shape[axis] for axis in rows) <= 2 * BLOCK:
        return np.sum(x, axis=axes, keepdims=keepdims, dtype=dtype)
    total = np.sum(x, axis=beside, keepdims=True, dtype=dtype) if beside else x
    for axis in rows:
        total = _by_blocks(total, axis)
    return total if keepdims else np.squeeze(total, reduced)


def _side_by_side(x: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that NumPy sums in pairs: the last ones, if nothing else comes after them in memory."""
    last = x.ndim
    while x.flags.c_contiguous and last - 1 in axes:
        last -= 1
    return tuple(range(last, x.ndim))


def _by_blocks(x: Any, axis: int) -> Any:
    """The sum along one axis, which stays as one of size 1."""
    count, rest = divmod(x.shape[axis], BLOCK)
    if count < 2:
        return np.sum(x, axis=axis, keepdims=True, dtype=np.float32)
    before = (slice(None),) * axis
    whole = x[(*before, slice(count * BLOCK))].reshape(*x.shape[:axis], count, BLOCK, *x.shape[axis + 1 :])
    total = _by_blocks(np.sum(whole, axis=axis + 1, dtype=np.float32), axis)
    if rest:
        total += np.sum(x[(*before, slice(count * BLOCK, None))], axis=axis, keepdims=True, dtype=np.float32)
    return total
