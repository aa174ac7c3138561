"""Integers stored as decimal numbers, which do not have all of them."""

from __future__ import annotations

import numpy as np

__all__ = ["inexact"]


def inexact(integers: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """Where the number in `stored`, an array of floats, is not the integer that it stands for. Both have one shape."""
    wide = stored.astype(np.float64)
    if integers.dtype.itemsize < 8:
        found: np.ndarray = wide != integers
        return found
    signed = integers.dtype.kind == "i"
    high = 2.0 ** (64 - signed)
    inside = (wide >= (-high if signed else 0)) & (wide < high)
    return ~inside | (np.where(inside, wide, 0).astype(integers.dtype) != integers)
