"""The arenas of a GPU: one allocation that all regions share, since one of them runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from core.device.driver import Driver, Memory

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

    def missing(self, nbytes: int) -> int:
        """Bytes that `lent` would allocate beyond those that it frees."""
        return max(0, nbytes - self.nbytes)

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
