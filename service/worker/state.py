"""What a worker process holds between calls, and what tells a running call to stop."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np

from core.ir.errors import ExecutionError
from core.ir.lru import LRU
from service.worker.compiling import Compilations

__all__ = ["ControlPage", "Handler", "StopSignal", "WorkerState"]

PAGE = mmap.PAGESIZE
CANCEL_WORD, HEARTBEAT_WORD = 0, 1
PROGRAM_ROOM = 400_000  # ops of all programs kept


class ControlPage:
    """One page of memory shared between the service and one worker, written without any message.

    cancelled: number of the call that must stop, written by the service. A number and not a flag: a cancel that
               arrives late cannot hit the next call.
    heartbeat: `time.monotonic_ns()` of the worker's last sign of life, written by the worker.
    """

    def __init__(self, descriptor: int) -> None:
        self._map = mmap.mmap(descriptor, PAGE)
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

    def close(self) -> None:
        self._words.release()
        self._map.close()


class StopSignal:
    """Tells the current call whether to go on. Cheap enough to ask between any two ops (under a microsecond)."""

    __slots__ = ("_call", "_page", "deadline")

    def __init__(self, page: ControlPage, call: int, deadline: float) -> None:
        self._page = page
        self._call = call
        self.deadline = deadline  # a value of time.monotonic()

    def reason(self) -> Literal["canceled", "deadline_exceeded"] | None:
        """Why the call must stop, or None to go on."""
        if self._page.cancelled == self._call:
            return "canceled"
        return "deadline_exceeded" if time.monotonic() >= self.deadline else None

    def should_stop(self) -> bool:
        return self.reason() is not None

    def check(self) -> None:
        """Raises ExecutionError with code canceled or deadline_exceeded when the call must stop."""
        reason = self.reason()
        if reason == "canceled":
            raise ExecutionError("the client disconnected; the call was stopped", reason)
        if reason == "deadline_exceeded":
            raise ExecutionError("the deadline of the call has passed", reason)


@dataclass(slots=True)
class WorkerState:
    """What handlers share in one process. Handlers run one at a time, so nothing here needs a lock.

    worker:   id of this process.
    device:   "cpu" or "cuda".
    xp:       numpy, or cupy on a GPU.
    settings: the service's settings as plain data.
    stop:     tells the current call whether to go on; a new one for each call.
    tell:     sends a part of the answer while the call goes on: a result and its arrays.
    programs, sessions, tapes: what the handlers keep; of programs, those used last.
    steps:    what is compiled for tapes, by structure; the first tape makes it.
    compilations: what is being compiled beside the calls; without it handlers compile what they need themselves.
    compile_seconds: time that compiling programs took for the current call.
    """

    worker: str
    device: str
    xp: ModuleType
    settings: dict[str, Any]
    stop: StopSignal
    tell: Callable[[dict[str, Any], dict[str, Any]], None] = lambda result, arrays: None
    programs: LRU[Any] = field(default_factory=lambda: LRU(PROGRAM_ROOM, lambda known: known.ops, at_least=1))
    sessions: dict[str, Any] = field(default_factory=dict)
    tapes: dict[str, Any] = field(default_factory=dict)
    steps: Any = None
    compilations: Compilations | None = None
    compile_seconds: float = 0.0

    @property
    def residents(self) -> int:
        """Sessions and tapes that live here; reported after each call."""
        return len(self.sessions) + len(self.tapes)

    def note_compilation(self, seconds: float) -> None:
        """Count `seconds` of compiling for the current call."""
        self.compile_seconds += seconds

    def free_device_memory(self) -> None:
        """Give back what the array module keeps for later."""
        if self.device == "cuda":
            self.xp.get_default_memory_pool().free_all_blocks()

    def to_host(self, array: Any) -> np.ndarray:
        """`array` as a numpy array; copied only when it lives on a GPU."""
        if isinstance(array, np.ndarray):
            return array
        if self.device == "cuda" and isinstance(array, self.xp.ndarray):
            return self.xp.asnumpy(array)
        return np.asarray(array)


Handler = Callable[
    [WorkerState, dict[str, Any], dict[str, np.ndarray]],
    tuple[dict[str, Any], dict[str, Any]],
]
