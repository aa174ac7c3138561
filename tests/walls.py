"""Arrays that end at a guard page: reading past the end of the array kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

__all__ = ["before_a_wall"]


def before_a_wall(nbytes: int, margin: int = 0) -> np.ndarray:
    """A zeroed buffer of at least `margin` + `nbytes` bytes that ends at a guard page."""
    size = -(-max(nbytes + margin, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0) != 0:
        raise OSError("cannot protect the guard page")
    return np.frombuffer(memory, np.uint8, size)
