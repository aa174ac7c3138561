"""The arenas of a GPU: one allocation that all regions share, since one of them runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.device.driver import Driver, Memory
from core.runtime.run import Run

__all__ = ["SharedArena"]


class SharedArena:
    """One arena, as large as the largest that was ever asked for.

    The lock of its `lent` is also what makes regions run one after the other.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory: Memory | None = None
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        return 0 if self._memory is None else self._memory.nbytes

    @property
    def idle_bytes(self) -> int:
        """Bytes that `free_idle` would free."""
        return 0 if self._lock.locked() else self.nbytes

    def make_room(self, nbytes: int, run: Run) -> None:
        """Check that `lent` may allocate what it lacks for `nbytes` bytes. Raises OutOfMemory.

        An arena that is too small is freed, since both of them may not fit at once.
        """
        if self.nbytes < nbytes:
            self.free_idle()
            run.require(nbytes, "the step")

    @contextmanager
    def lent(self, nbytes: int) -> Iterator[Memory]:
        """At least `nbytes` bytes for exclusive use inside the context. Raises DeviceFull."""
        with self._lock:
            if self._memory is None or self._memory.nbytes < nbytes:
                self._memory = None  # freed first: both may not fit at once
                self._memory = self._driver.allocate(max(nbytes, 1))
            yield self._memory

    def free_idle(self) -> None:
        """Free the arena, unless it is lent."""
        if self._lock.acquire(blocking=False):
            self._memory = None
            self._lock.release()
