"""The memory of machine code, not counting its arguments: arenas, results, and stacks.

* An arena holds intermediate arrays. Large arenas are shared: a worker may hold hundreds of compiled steps and runs one
  at a time, so all steps together take one arena, as large as the largest step needs.
* Results are fresh arrays. The memory of a large result is used again when nothing refers to it any more. Large results
  start at a cache line, as arenas do.
* Stacks hold the values that loops record. They stay with their step, so that only its first runs allocate.
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

from core.ir.aligned import LINE, aligned_empty, array_in, bytes_for
from core.ir.errors import ExecutionError, InternalError

__all__ = ["Arena", "Arenas", "ResultPools", "Stacks", "free_idle", "idle_bytes", "keeps_result"]

LENT = 1 << 20
"""Fewest bytes of an arena that is shared. Finding a shared arena would take longer than a small step."""

LARGE = 1 << 15
"""Fewest bytes of a result whose memory is used again."""


class Arena:
    """`size` bytes at `address`, which is the start of a cache line."""

    __slots__ = ("_memory", "address", "is_lent", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_lent = False
        self._memory = aligned_empty((size,), np.dtype(np.uint8))
        self.address = self._memory.ctypes.data


class Arenas:
    """Lends an arena of one size for the time of a run. All live objects of this class share the large arenas.

    Together they take as much as the largest needs, once for each thread that runs at the same time.
    """

    _ALL: ClassVar[WeakSet[Arenas]] = WeakSet()
    _LOCK = threading.Lock()

    def __init__(self, size: int) -> None:
        self.is_small = size < LENT
        self._size = size
        self._own = Arena(size) if self.is_small else None

    @contextmanager
    def lent(self) -> Iterator[Arena]:
        """An arena for exclusive use inside the context. Its allocator owns it until a larger one is allocated."""
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
    def missing(self) -> int:
        """Bytes that the next `lent` allocates, not counting the memory that it frees before."""
        if self.is_small:
            return 0
        with self._LOCK:
            sizes = [own.size for each in self._ALL if (own := each._own) is not None and not own.is_lent]
        return 0 if any(size >= self._size for size in sizes) else self._size

    @classmethod
    def idle_bytes(cls) -> int:
        """Bytes of the shared arenas that are not lent."""
        with cls._LOCK:
            return sum(own.size for each in cls._ALL if (own := each._own) is not None and not own.is_lent)

    @classmethod
    def free_idle(cls) -> None:
        """Free the shared arenas that are not lent."""
        with cls._LOCK:
            for each in cls._ALL:
                if each._own is not None and not each._own.is_lent:
                    each._own = None

    @property
    def small(self) -> Arena:
        """The arena of a small size, which is not shared."""
        if self._own is None:
            raise InternalError(f"an arena of {self._size} bytes is shared, not owned: the limit is {LENT}")
        return self._own


def keeps_result(nbytes: int) -> bool:
    """Whether a later result may reuse the memory of a result of `nbytes` that nothing refers to."""
    return nbytes >= LARGE


class _ResultPool:
    """Arrays for results of one type. A large one reuses the memory of an earlier one that nothing refers to.

    The system maps new memory page by page, at the first touch, which takes longer than writing it.
    """

    KEPT = 2
    """Arrays kept for each result of a step: callers often hold the results of one step while the next one runs."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.most = 0
        self._shape, self._dtype = shape, dtype
        self._large = keeps_result(math.prod(shape) * dtype.itemsize)
        self._kept: list[np.ndarray] = []  # memory of arrays, as bytes
        self._lock = threading.Lock()

    def array(self) -> np.ndarray:
        if not self._large:
            return np.empty(self._shape, self._dtype)
        with self._lock:
            for i in range(len(self._kept)):
                if self._is_unused(i):
                    return array_in(self._kept[i], self._shape, self._dtype)
            memory = np.empty(bytes_for(self._shape, self._dtype), np.uint8)
            if len(self._kept) < self.most:
                self._kept.append(memory)
            return array_in(memory, self._shape, self._dtype)

    def _is_unused(self, i: int) -> bool:
        """Whether no array uses the kept memory `i`. Each array in it, and each view, holds a reference to it."""
        return sys.getrefcount(self._kept[i]) == 2  # the list and the argument of getrefcount

    @property
    def nbytes(self) -> int:
        """Bytes of the memory of one array."""
        size = bytes_for(self._shape, self._dtype)
        return size if self._large else size - LINE

    def idle(self, free: bool = False) -> int:
        """Bytes of the kept arrays that nothing else refers to. free: give them up."""
        if not self._kept:
            return 0
        with self._lock:
            unused = [i for i in range(len(self._kept)) if self._is_unused(i)]
            found = len(unused) * self.nbytes
            if free:
                for i in reversed(unused):
                    del self._kept[i]
        return found


class ResultPools:
    """Arrays for the results of one step. Steps with results of the same type share the pool of that type."""

    _ALL: ClassVar[WeakValueDictionary[tuple[tuple[int, ...], np.dtype], _ResultPool]] = WeakValueDictionary()
    _LOCK = threading.Lock()

    def __init__(self, types: Iterable[tuple[tuple[int, ...], np.dtype]]) -> None:
        self._pools: list[_ResultPool] = []
        with self._LOCK:
            for type in types:
                pool = self._ALL.get(type)
                if pool is None:
                    pool = self._ALL[type] = _ResultPool(*type)
                self._pools.append(pool)
            for pool, count in Counter(self._pools).items():
                pool.most = max(pool.most, _ResultPool.KEPT * count)

    def arrays(self) -> list[np.ndarray]:
        """One array for each result, to which nothing else refers."""
        return [each.array() for each in self._pools]

    @property
    def missing(self) -> int:
        """Bytes that the next `arrays` allocates."""
        wanted = sum(each.nbytes for each in self._pools)
        return max(0, wanted - sum(each.idle() for each in set(self._pools)))

    @classmethod
    def idle_bytes(cls, free: bool = False) -> int:
        """Bytes of all kept arrays that nothing else refers to. free: give them up."""
        with cls._LOCK:
            pools = list(cls._ALL.values())
        return sum(each.idle(free) for each in pools)


class Stacks:
    """The table of a region's stacks: (address, bytes) of each. Machine code enlarges them; this class frees them."""

    _ALL: ClassVar[WeakSet[Stacks]] = WeakSet()
    _LOCK = threading.Lock()

    def __init__(self, sizes: Sequence[int]) -> None:
        """sizes: bytes of each stack at first."""
        self.in_use = threading.Lock()
        self._first = list(sizes)
        self._libc: Any = ctypes.CDLL(None)
        self._libc.aligned_alloc.restype = ctypes.c_void_p
        self._libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._table = (ctypes.c_int64 * (2 * len(sizes)))()
        for i, size in enumerate(sizes):
            self._put(i, size)
        self.address = ctypes.addressof(self._table)
        if sizes:
            with self._LOCK:
                self._ALL.add(self)

    def _put(self, i: int, size: int) -> None:
        """Give stack `i` fresh memory of `size` bytes. Raises ExecutionError (out_of_memory)."""
        address = self._libc.aligned_alloc(LINE, size)
        if address is None:
            raise ExecutionError("out of memory", "out_of_memory")
        self._libc.free(self._table[2 * i])
        self._table[2 * i], self._table[2 * i + 1] = address, size

    @property
    def nbytes(self) -> int:
        """The bytes of all stacks together."""
        return sum(self._table[1::2])

    def size(self, i: int) -> int:
        """The bytes of stack `i`."""
        return int(self._table[2 * i + 1])

    def idle(self, free: bool = False) -> int:
        """Bytes beyond the first sizes, if no run uses the stacks. free: shrink the stacks to these sizes."""
        if not self.in_use.acquire(blocking=False):
            return 0
        try:
            grown = [i for i, size in enumerate(self._first) if self.size(i) > size]
            found = sum(self.size(i) - self._first[i] for i in grown)
            for i in grown if free else ():
                self._put(i, self._first[i])
        finally:
            self.in_use.release()
        return found

    @classmethod
    def idle_bytes(cls, free: bool = False) -> int:
        """Bytes that all stacks have grown by and that no run uses. free: free them."""
        with cls._LOCK:
            stacks = list(cls._ALL)
        return sum(each.idle(free) for each in stacks)

    def __del__(self) -> None:
        for address in self._table[::2]:
            self._libc.free(address)


def idle_bytes() -> int:
    """Bytes of the arenas, results and stacks that wait for later runs."""
    return Arenas.idle_bytes() + ResultPools.idle_bytes() + Stacks.idle_bytes()


def free_idle() -> None:
    """Free the memory that `idle_bytes` counts. Later runs allocate it again."""
    Arenas.free_idle()
    ResultPools.idle_bytes(free=True)
    Stacks.idle_bytes(free=True)
