"""The memory of a worker: what it may use, what it uses, and the limit that the operating system enforces.

A worker counts its private memory: bytes that its allocator has handed out, and bytes outside of the allocator, such as
interpreter objects. Every step asks before it allocates. A part of the limit, `RESERVE`, is left for allocations that
nothing predicts. The last wall is RLIMIT_DATA, which counts private writable mappings. It is higher than the limit,
because freed memory between two arrays stays mapped, although it is given back. RLIMIT_AS would also count address
space that is only reserved, for thread stacks and for libraries.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from core.ir.errors import OutOfMemory
from core.runtime.memory import free_idle, idle_bytes

__all__ = ["DeviceMemory", "HostMemory", "Memory", "require", "volunteer_for_the_killer"]

RESERVE = 5
"""One part in five of a limit is not given to arrays."""

HOLES = 4
"""The system allows one part in four more mappings than the limit."""

PAGE = resource.getpagesize()

FIRST_TO_DIE = 500
"""Added to the out-of-memory score of the service, so that the system ends a worker before the service."""


class Memory(Protocol):
    """See `core.runtime.memory_limit.MemoryLimit`."""

    @property
    def capacity(self) -> int: ...
    def used(self) -> int: ...
    def available(self, wanted: int, keep_idle: bool = False) -> int: ...


def require(memory: Memory | None, nbytes: int, needed_for: str) -> None:
    """Check that `nbytes` can be allocated outside of a run. Raises OutOfMemory."""
    if memory is None or nbytes <= 0:
        return
    allowed = max(0, memory.available(nbytes))
    if nbytes > allowed:
        raise OutOfMemory(
            f"{needed_for} needs {nbytes} bytes of memory, but only {allowed} of {memory.capacity} are left",
            "too_large" if nbytes > memory.capacity else "out_of_memory",
            wanted=nbytes,
            allowed=allowed,
        )


class _Allocations(ctypes.Structure):
    """`struct mallinfo2` of the C library."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


class HostMemory:
    """The private memory of this process, of which `limit` bytes may be used.

    Create it when the process has loaded its libraries and started its threads.

    answers: bytes of the shared memory that carries answers.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._libc: Any = ctypes.CDLL(None)
        self._allocations = getattr(self._libc, "mallinfo2", None)  # glibc 2.33 and later
        if self._allocations is not None:
            self._allocations.restype = _Allocations
        self.answers: Callable[[], int] = lambda: 0
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._trim()
        self._private, self._data = self._pages()
        allocated, self._free = self._allocated()
        self._base = self._private - allocated  # negative if memory is allocated that was never touched
        self._most = limit - limit // RESERVE

    @property
    def capacity(self) -> int:
        """Bytes that arrays may take together."""
        return max(0, self._most - self._private)

    def enforce(self) -> None:
        """From now on the system refuses mappings beyond the limit and a quarter of it."""
        untouched = max(0, self._data - self._private)  # stacks of threads: mapped, but not in memory
        most = self.limit + self.limit // HOLES + untouched
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    def used(self) -> int:
        """Private bytes in use beyond those of a fresh worker, memory that is allocated but untouched included."""
        allocated, free = self._allocated()
        private, _ = self._pages()
        kept = max(0, free - self._free)  # `_trim` gave back the memory that was free at the start
        grown = max(self._base + allocated, private - kept) - self._private  # negative after memory has been given back
        return max(0, grown) + self.answers()

    def available(self, wanted: int, keep_idle: bool = False) -> int:
        """Bytes that can be allocated now. See `core.runtime.memory_limit.MemoryLimit`."""
        private, data = self._pages()
        # all that is mapped may be in use, and what was mapped in vain at the start may have been unmapped since
        mapped = max(0, data - min(self._data, self._private))
        surely = self.capacity - (mapped + self._free) - self.answers()
        if wanted <= surely:
            return surely
        left = self.capacity - self.used()
        if wanted > left:
            idle = idle_bytes()
            if keep_idle:
                return left + idle
            if idle:
                free_idle()
                left = self.capacity - self.used()
        if private + wanted > self._most:  # give free memory back, so that the process stays within its limit
            self._trim()
        return left

    def _trim(self) -> None:
        if self._allocations is not None:
            self._libc.malloc_trim(ctypes.c_size_t(0))

    def _allocated(self) -> tuple[int, int]:
        """(bytes that the allocator has handed out, bytes that it keeps free)."""
        if self._allocations is None:  # another C library: count what is in memory
            return 0, 0
        found = self._allocations()
        return found.uordblks + found.hblkhd, found.fordblks

    def _pages(self) -> tuple[int, int]:
        """(private bytes in memory, bytes of private writable mappings)."""
        _, resident, shared, _, _, data, _ = os.pread(self._statm, 128, 0).split()
        return (int(resident) - int(shared)) * PAGE, int(data) * PAGE


class IdleMemory(Protocol):
    """Memory that waits for later runs. See `core.device.backend.DeviceBackend`."""

    @property
    def idle_bytes(self) -> int: ...
    def free_idle(self) -> None: ...


class DeviceMemory:
    """The memory pool of a GPU, of which `limit` bytes may be used; by default four fifths of its free memory.

    Other processes may use the same GPU, so its free memory is read for each run.
    """

    def __init__(self, xp: ModuleType, limit: int | None = None, kept: IdleMemory | None = None) -> None:
        """kept: memory of the pool that machine code keeps from one run to the next."""
        self._pool, self._free, self._kept = xp.get_default_memory_pool(), xp.cuda.runtime.memGetInfo, kept
        free, _ = self._free()
        self.limit = min(limit or free, free)
        self._pool.set_limit(size=self.limit)

    @property
    def capacity(self) -> int:
        """Bytes that arrays may take together."""
        return self.limit - self.limit // RESERVE

    def used(self) -> int:
        """Bytes of arrays."""
        return int(self._pool.used_bytes())

    def available(self, wanted: int, keep_idle: bool = False) -> int:
        """Bytes that can be allocated now. See `core.runtime.memory_limit.MemoryLimit`."""
        left = self._left()
        if keep_idle:
            return left + (0 if self._kept is None else self._kept.idle_bytes)
        if wanted > left and self._kept is not None:
            self._kept.free_idle()
            left = self._left()
        if wanted > min(self.limit - int(self._pool.total_bytes()), self._free()[0]):
            self._pool.free_all_blocks()  # blocks of other sizes
        return left

    def _left(self) -> int:
        """Bytes that can be allocated without freeing idle memory."""
        free = self._free()[0] + int(self._pool.free_bytes())
        return min(self.capacity - self.used(), free - self.limit // RESERVE)


def volunteer_for_the_killer() -> None:
    """Let the system end this process before the service if the machine runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "r+") as file:
            score = min(1000, int(file.read()) + FIRST_TO_DIE)
            file.seek(0)
            file.write(str(score))
    except OSError:  # no such file on this system, or a sandbox forbids it: the system then chooses by size
        return
