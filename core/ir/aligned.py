"""Arrays that start at a cache line. Where an array starts elsewhere, half of its vectors span two lines.

NumPy's own large arrays start 16 bytes after a line.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["LINE", "aligned_copy", "aligned_empty", "aligned_zeros", "array_in", "bytes_for"]

LINE = 64
"""Bytes of a cache line."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.empty`."""
    return array_in(np.empty(bytes_for(shape, dtype), np.uint8), shape, dtype)


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `numpy.zeros`: the system maps the memory of a large array when it is first touched."""
    return array_in(np.zeros(bytes_for(shape, dtype), np.uint8), shape, dtype)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """A copy of an array of any layout, in row-major order."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def bytes_for(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """The bytes that `array_in` needs, wherever they start."""
    return math.prod(shape) * dtype.itemsize + LINE


def array_in(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array at the first cache line of `memory`, which has `bytes_for` bytes.

    The array and each of its views hold a reference to `memory`.
    """
    return np.ndarray(shape, dtype, buffer=memory, offset=-memory.ctypes.data % LINE)
