"""The state of a worker process between calls, and the stop signal of a running call."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from core.ir.errors import ExecutionError
from core.ir.lru import LRU
from service.ipc.signal_page import SignalPage
from service.worker.compiling import Compilations
from service.worker.executables import Executables, executables
from service.worker.memory import HostMemory, Memory

if TYPE_CHECKING:
    from core.device.backend import DeviceBackend

__all__ = ["Answer", "Handler", "StopSignal", "WorkerState"]

PROGRAM_ROOM = 400_000
"""Most ops of all cached programs together."""

TAPE_ROOM = 200_000
"""Most ops of all cached steps of tapes together."""


class StopSignal:
    """Whether the current call must stop. A check takes less than a microsecond, so handlers check between ops.

    It is a `core.ir.stop.Watch` of the call's own transformations.
    """

    __slots__ = ("_call", "_page", "deadline")

    def __init__(self, page: SignalPage, call: int, deadline: float) -> None:
        self._page = page
        self._call = call
        self.deadline = deadline  # a value of time.monotonic()

    def reason(self) -> Literal["canceled", "deadline_exceeded"] | None:
        """The reason why the call must stop; None if it can go on."""
        if self._page.cancelled == self._call:
            return "canceled"
        return "deadline_exceeded" if time.monotonic() >= self.deadline else None

    def should_stop(self) -> bool:
        return self.reason() is not None

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def poll(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ExecutionError with code canceled or deadline_exceeded when the call must stop."""
        reason = self.reason()
        if reason == "canceled":
            raise ExecutionError("the call was stopped: its client disconnected or canceled it", reason)
        if reason == "deadline_exceeded":
            raise ExecutionError("the deadline of the call has passed", reason)


@dataclass(slots=True)
class WorkerState:
    """The state that the handlers of one process share. Handlers run one at a time, so it needs no lock.

    worker:       id of this process.
    device:       "cpu" or "cuda".
    xp:           numpy, or cupy on a GPU.
    settings:     the service's settings as plain data.
    stop:         the stop signal of the current call.
    send_part:    sends a part of the answer, a result and its arrays, while the call runs.
    programs, sessions, tapes: the cached programs, the sessions and the tapes by id.
    executables:  those of all programs.
    steps:        the compiled steps of all tapes, by structure; created with the first tape.
    datasets:     the mapped datasets (`worker.columns`); created with the first one.
    values:       the mapped values of programs (`worker.stored_values`); created with the first ones.
    tape_ops:     most ops of all these steps.
    compilations: compiles in a thread; if None, handlers compile in the call itself.
    answer_bytes: limit of the tensors in the answer to the current call; None for no limit.
    compile_seconds: seconds spent on compiling programs for the current call.
    gpu:          compiles steps for the GPU of this worker; None on a processor, and if the GPU runs op by op.
    memory:       limits the arrays of runs, on the device that they run on; None for no limit.
    host_memory:  limits requests and answers; on a CPU worker it is `memory`.
    """

    worker: str
    device: str
    xp: ModuleType
    settings: dict[str, Any]
    stop: StopSignal
    send_part: Callable[[dict[str, Any], dict[str, Any]], None] = lambda result, arrays: None
    programs: LRU[Any] = field(default_factory=lambda: LRU(PROGRAM_ROOM, lambda cached: cached.ops, at_least=1))
    executables: Executables = field(default_factory=executables)
    sessions: dict[str, Any] = field(default_factory=dict)
    tapes: dict[str, Any] = field(default_factory=dict)
    steps: Any = None
    datasets: Any = None
    values: LRU[Any] | None = None
    tape_ops: int = TAPE_ROOM
    compilations: Compilations | None = None
    answer_bytes: int | None = None
    compile_seconds: float = 0.0
    gpu: DeviceBackend | None = None
    memory: Memory | None = None
    host_memory: HostMemory | None = None

    @property
    def residents(self) -> int:
        """The number of sessions and tapes in this worker. Every answer reports it."""
        return len(self.sessions) + len(self.tapes)

    def note_compilation(self, seconds: float) -> None:
        """Count `seconds` of compiling for the current call."""
        self.compile_seconds += seconds

    def free_device_memory(self) -> None:
        """Return unused memory of the array module and of machine code to the device."""
        if self.gpu is not None:
            self.gpu.free_idle()
        if self.device == "cuda":
            self.xp.get_default_memory_pool().free_all_blocks()

    def to_host(self, array: Any) -> np.ndarray:
        """`array` as a numpy array; copied only if it is on a GPU."""
        if isinstance(array, np.ndarray):
            return array
        if self.device == "cuda" and isinstance(array, self.xp.ndarray):
            return self.xp.asnumpy(array)
        return np.asarray(array)


Answer = tuple[dict[str, Any], dict[str, Any]]
"""The result of a call, and its arrays."""

Handler = Callable[[WorkerState, dict[str, Any], dict[str, np.ndarray]], Answer]
