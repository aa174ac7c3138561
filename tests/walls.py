"""Memory whose end is the end of a page, before one that nobody may touch: a read too far ends the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

__all__ = ["before_a_wall"]


def before_a_wall(nbytes: int, margin: int = 0) -> np.ndarray:
    """`margin` bytes and more, then `nbytes` of them up to the wall; zeros."""
    size = -(-max(nbytes + margin, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0) != 0:
        raise OSError("the page behind cannot be protected")
    return np.frombuffer(memory, np.uint8, size)
