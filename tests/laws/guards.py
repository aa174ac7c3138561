"""Arrays between pages that no program may read or write."""

from __future__ import annotations

import numpy as np
import pytest

from core.runtime import memory
from tests.walls import before_a_wall

MARGIN = 512

POISON = 0xFF
"""Bytes of a NaN as float, of -1 as integer, and of neither true nor false as bool."""


class Guarded:
    """An array between a margin and a protected page."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = before_a_wall(size, MARGIN)
        raw[...] = POISON
        self.margin = raw[: raw.size - size]
        self.array = raw[raw.size - size :].view(dtype).reshape(shape)

    @property
    def intact(self) -> bool:
        return bool((self.margin == POISON).all())


@pytest.fixture
def guards(monkeypatch):
    """Guard every array that machine code receives or allocates, including the arena."""
    held: list[Guarded] = []

    def room(self):
        held.append(Guarded(self._shape, self._dtype))
        return held[-1].array

    def arena(self, size):
        held.append(Guarded((-(-size // 64) * 64,), np.dtype(np.uint8)))
        self.address = held[-1].array.ctypes.data

    monkeypatch.setattr(memory._ResultPool, "array", room)
    monkeypatch.setattr(memory.Arena, "__init__", arena)
    monkeypatch.setattr(memory, "LENT", 2**62)
    return held
