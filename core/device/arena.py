"""The arenas of a GPU: one allocation that all regions share, since their runs are on one stream."""

from __future__ import annotations

import threading
from functools import cached_property

from core.device.driver import Driver, Memory, Stream
from core.runtime.run import Run

__all__ = ["SharedArena"]


class SharedArena:
    """One arena, as large as the largest that was ever asked for, and the streams of all runs.

    lock: whoever gives work to the stream holds it, which also keeps the launches of a run together.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._memory: Memory | None = None
        self.lock = threading.Lock()

    @cached_property
    def stream(self) -> Stream:
        """The main stream of all runs."""
        return self._driver.stream()

    @cached_property
    def beside(self) -> Stream:
        """A second stream, for launches with `Launch.beside`. The main stream waits for it before a run ends."""
        return self._driver.stream()

    @property
    def nbytes(self) -> int:
        """Bytes that it takes now."""
        return 0 if self._memory is None else self._memory.nbytes

    @property
    def idle_bytes(self) -> int:
        """Bytes that `free_idle` would free."""
        return 0 if self.lock.locked() else self.nbytes

    def make_room(self, nbytes: int, run: Run) -> None:
        """Check that `at_least` may allocate what it lacks for `nbytes` bytes. Raises OutOfMemory.

        An arena that is too small is freed, since both of them may not fit at once.
        """
        if self.nbytes < nbytes:
            self.free_idle()
            run.require(nbytes, "the step")

    def at_least(self, nbytes: int) -> Memory:
        """An arena of at least `nbytes` bytes. The caller holds the lock. Raises DeviceFull."""
        if self._memory is None or self._memory.nbytes < nbytes:
            self._free()  # first: both may not fit at once
            self._memory = self._driver.allocate(max(nbytes, 1))
        return self._memory

    def free_idle(self) -> None:
        """Free the arena, unless a run holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                self._free()
            finally:
                self.lock.release()

    def _free(self) -> None:
        if self._memory is not None:
            self.stream.synchronize()  # runs that were given before may use it
            self._memory = None
