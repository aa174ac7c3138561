"""The memory of machine code beside its arguments: for what it computes on its way, for results, for what loops record.

A service may have compiled hundreds of steps, of which each worker runs one at a time. So what a step needs only while
it runs is lent, and what it gives is made where something like it was.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from core.ir.errors import ExecutionError, InternalError
from core.plan.data import stack_room

__all__ = ["LINE", "Arena", "Arenas", "Rooms", "Stacks", "keeps_result"]

LINE = 64
"""Bytes of a line of the cache: arenas begin at one, for which they have so much more room."""

LENT = 1 << 20
"""Bytes from which on an arena is lent; smaller ones would be looked for longer than small steps take."""

LARGE = 1 << 15
"""Bytes from which on the memory of a result is used again."""


class Arena:
    """So many bytes at the begin of a line of the cache, at `address`."""

    __slots__ = ("_memory", "address", "is_lent", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_lent = False
        self._memory = np.empty(size + LINE, np.uint8)
        self.address = -(-self._memory.ctypes.data // LINE) * LINE


class Arenas:
    """An arena of a size for as long as it is needed. What there is, is lent among all users that live.

    Together they take as much as the largest needs, once for each thread that runs something at the same time.
    """

    _ALL: ClassVar[WeakSet[Arenas]] = WeakSet()
    _LOCK = threading.Lock()

    def __init__(self, size: int) -> None:
        self.is_small = size < LENT
        self._size = size
        self._own = Arena(size) if self.is_small else None

    @contextmanager
    def lent(self) -> Iterator[Arena]:
        """An arena that nobody else uses meanwhile. Whoever makes one keeps it until a larger one is made."""
        if self.is_small:
            yield self.small
            return
        with self._LOCK:
            free = {each: each._own for each in self._ALL if each._own is not None and not each._own.is_lent}
            found = max(free.values(), key=lambda each: each.size, default=None)
            if found is None or found.size < self._size:
                for each in free:
                    each._own = None
                found = self._own = Arena(self._size)
                self._ALL.add(self)
            found.is_lent = True
        try:
            yield found
        finally:
            found.is_lent = False

    @property
    def small(self) -> Arena:
        """The arena of a small size, which is not lent."""
        if self._own is None:
            raise InternalError(f"an arena of {self._size} bytes is lent, not owned: the limit is {LENT}")
        return self._own


def keeps_result(nbytes: int) -> bool:
    """Whether the memory of a result of so many bytes is kept when nobody holds it any more."""
    return nbytes >= LARGE


class _Room:
    """Where a result of one type goes: new memory, or, where it is large, that of an earlier one nobody holds any more.

    The system gives new memory page by page, at the first touch, which costs more than writing it.
    """

    KEPT = 2
    """Arrays for each result of a step: those of one step are often held while the next one runs."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.most = 0
        self._shape, self._dtype = shape, dtype
        self._large = keeps_result(math.prod(shape) * dtype.itemsize)
        self._kept: list[np.ndarray] = []
        self._lock = threading.Lock()

    def array(self) -> np.ndarray:
        if not self._large:
            return np.empty(self._shape, self._dtype)
        with self._lock:
            for i in range(len(self._kept)):
                if sys.getrefcount(self._kept[i]) == 2:  # the list, and the question
                    return self._kept[i]
            fresh = np.empty(self._shape, self._dtype)
            if len(self._kept) < self.most:
                self._kept.append(fresh)
            return fresh


class Rooms:
    """Where the results of one step go. Steps with results of the same type share the memory that is kept for it."""

    _ALL: ClassVar[WeakValueDictionary[tuple[tuple[int, ...], np.dtype], _Room]] = WeakValueDictionary()
    _LOCK = threading.Lock()

    def __init__(self, types: Iterable[tuple[tuple[int, ...], np.dtype]]) -> None:
        self._rooms: list[_Room] = []
        with self._LOCK:
            for type in types:
                room = self._ALL.get(type)
                if room is None:
                    room = self._ALL[type] = _Room(*type)
                self._rooms.append(room)
            for room, count in Counter(self._rooms).items():
                room.most = max(room.most, _Room.KEPT * count)

    def arrays(self) -> list[np.ndarray]:
        """One for each result, which nobody holds."""
        return [each.array() for each in self._rooms]


class Stacks:
    """The table of a region's stacks: (address, bytes) of each. Machine code lets them grow; they are freed here."""

    def __init__(self, slots: Sequence[int]) -> None:
        """slots: the bytes of one slot of each stack."""
        self._libc: Any = ctypes.CDLL(None)
        self._libc.aligned_alloc.restype = ctypes.c_void_p
        self._libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._table = (ctypes.c_int64 * (2 * len(slots)))()
        for i, size in enumerate(slots):
            room = stack_room(size)
            address = self._libc.aligned_alloc(LINE, room)
            if address is None:
                raise ExecutionError("out of memory", "out_of_memory")
            self._table[2 * i], self._table[2 * i + 1] = address, room
        self.address = ctypes.addressof(self._table)

    @property
    def room(self) -> int:
        """The bytes of all of them."""
        return sum(self._table[1::2])

    def __del__(self) -> None:
        for address in self._table[::2]:
            self._libc.free(address)
