"""The signal page: memory through which the service cancels a call and the worker shows that it is alive."""

from __future__ import annotations

import mmap
import time
from array import array

__all__ = ["PAGE_BYTES", "SignalPage"]

PAGE_BYTES = mmap.PAGESIZE
CANCEL_WORD, HEARTBEAT_WORD, DEVICE_WORDS = 0, 1, slice(2, 5)


class SignalPage:
    """One page of memory shared between the service and one worker. Writing to it needs no message and no lock.

    cancelled: number of the call that must stop, written by the service. It is a number and not a flag, so that a late
               cancel cannot stop the next call.
    heartbeat: `time.monotonic_ns()` of the last sign that the worker runs, written by the worker.
    device_memory: bytes of the worker's GPU: all, in use by any process, and free in the worker's own pool; written by
               the worker, and zero without a GPU.
    """

    def __init__(self, descriptor: int) -> None:
        """descriptor: of a file of PAGE_BYTES; it can be closed afterwards."""
        self._map = mmap.mmap(descriptor, PAGE_BYTES)
        self._words = memoryview(self._map).cast("Q")

    @property
    def cancelled(self) -> int:
        return self._words[CANCEL_WORD]

    def cancel(self, call: int) -> None:
        self._words[CANCEL_WORD] = call

    @property
    def heartbeat(self) -> int:
        return self._words[HEARTBEAT_WORD]

    def beat(self) -> None:
        self._words[HEARTBEAT_WORD] = time.monotonic_ns()

    @property
    def device_memory(self) -> tuple[int, int, int]:
        total, used, pool_free = self._words[DEVICE_WORDS]
        return total, used, pool_free

    @device_memory.setter
    def device_memory(self, sizes: tuple[int, int, int]) -> None:
        self._words[DEVICE_WORDS] = memoryview(array("Q", sizes))

    def close(self) -> None:
        self._words.release()
        self._map.close()
