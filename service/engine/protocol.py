"""The interface of the engine for the rest of the service: `Engine`, its results and its errors.

* EngineError
  + WorkerLost          the worker ended or was replaced; the call may have run
  + DeadlineExceeded    the deadline passed while the call waited or ran
  + QueueFull           the queue is full
  + NoCapacity          no worker can take the call, now or soon
  + RemoteError         the handler of the call raised
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

from service.caller import Caller

__all__ = [
    "NO_TENSORS",
    "Barred",
    "DeadlineExceeded",
    "Engine",
    "EngineError",
    "LostCallback",
    "NoCapacity",
    "PartCallback",
    "QueueFull",
    "RemoteError",
    "Reply",
    "SpentCallback",
    "WorkerInfo",
    "WorkerLost",
]

NO_TENSORS: Mapping[str, np.ndarray] = MappingProxyType({})
LostCallback = Callable[[str, str], None]
SpentCallback = Callable[[str, float], None]
BarCallback = Callable[[Caller], "EngineError | None"]
PartCallback = Callable[[dict[str, Any], dict[str, np.ndarray]], None]
WorkerStatus = Literal["starting", "idle", "busy", "restarting", "stopped"]
RemoteKind = Literal["program", "execution", "memory", "internal"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The return value of a handler.

    tensors:   arrays that belong to the caller; no worker shares them.
    timing_ms: milliseconds by phase: queue, transfer_in, compute, transfer_out, total.
    worker:    id of the worker process that ran the call; pass it to `call` to use the same process again.
    compile_ms: milliseconds of `compute` spent on compiling programs, including the time while the call was parked.
    started:   `time.monotonic_ns()` when the worker began with the call.
    """

    result: dict[str, Any]
    tensors: dict[str, np.ndarray]
    timing_ms: dict[str, float]
    worker: str
    compile_ms: float = 0.0
    started: int = 0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The state of one worker, for operators and metrics.

    id:            identifies one process; its replacement has another id, the same slot, and the next generation.
    heartbeat_age: seconds since the last heartbeat.
    queued:        calls that wait for this worker only.
    last_fatal:    the reason why the previous process of this slot ended; None if there was none.
    parked:        calls that wait for a compilation in this worker.
    memory_limit:  bytes of private memory that the worker may use; None for no limit.
    device_memory: bytes of its GPU: all, in use, free in the worker's pool; zero without a GPU.
    """

    id: str
    slot: int
    generation: int
    device: str
    state: WorkerStatus
    pid: int | None
    restarts: int
    sessions: int
    heartbeat_age: float
    queued: int
    last_fatal: str | None
    parked: int = 0
    memory_limit: int | None = None
    device_memory: tuple[int, int, int] = (0, 0, 0)


class EngineError(Exception):
    """A call failed. retryable: sending it again unchanged may succeed, after `retry_after` seconds."""

    retryable = False
    retry_after: float | None = None


class WorkerLost(EngineError):
    """The worker process ended or was replaced. began: it had the call, which may have taken effect or be the cause."""

    retryable = True
    retry_after = 1.0

    def __init__(self, worker: str, reason: str, *, began: bool = True) -> None:
        super().__init__(f"worker {worker} was lost: {reason}")
        self.worker = worker
        self.reason = reason
        self.began = began


class DeadlineExceeded(EngineError):
    """The deadline passed. waited: the call had not started yet."""

    def __init__(self, message: str, *, waited: bool) -> None:
        super().__init__(message)
        self.retryable = waited  # repeating a call that never ran is safe
        self.waited = waited


class QueueFull(EngineError):
    """The bounded queue is full; the call was not queued."""

    retryable = True

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Barred(EngineError):
    """The tenant of the call was suspended before a worker began with it. reason: of the suspension."""

    def __init__(self, message: str, reason: str | None) -> None:
        super().__init__(message)
        self.reason = reason


class NoCapacity(EngineError):
    """No worker runs or can be started, the service has no memory for the tensors, or the engine is stopping."""

    retryable = True
    retry_after = 5.0


class RemoteError(EngineError):
    """The handler raised.

    kind:    program (the client must change the program), execution (this run failed), memory, internal.
    code:    the error code of core, such as "too_many_trips"; "out_of_memory"; "internal".
    problem: {"code", "message", "location": {...} | None, "problems": [...]}, plain data from the worker.
    """

    def __init__(self, kind: RemoteKind, code: str, message: str, problem: dict[str, Any]) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.problem = problem
        self.retryable = kind == "memory"


class Engine(Protocol):
    """Runs calls in workers.

    events: counts of failures for the metrics, by (event, reason): ("restart", "crash" | "deadline" | "cancel" | "hang"
            | ...), ("lost_sessions", the same reasons), ("stopped", "cancel" | "deadline"), ("rejected", name of the
            error).
    """

    events: Counter[tuple[str, str]]

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a worker now."""

    async def start(self) -> None:
        """Start the workers; returns when each one is ready or has failed once."""

    async def stop(self) -> None:
        """Fail the waiting calls, end all workers and release all resources. It can be called twice."""

    async def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray] = NO_TENSORS,
        *,
        worker: str | None = None,
        deadline: float,
        on_part: PartCallback | None = None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Run `op` on `worker`, or on any idle worker if None.

        args:     plain data.
        tensors:  copied to the worker, never modified.
        deadline: seconds from now, including the time in the queue.
        on_part:  called on the event loop, in order, with the result and tensors of each part that the handler sends
                  while it runs; all calls happen before this method returns.
        stop:     once set, the worker is asked to end the call early; the call is answered with what it has done, or
                  with RemoteError `canceled`. A worker that does not look at it finishes the call.
        Cancelling the awaiting task also cancels the call in the worker.
        Raises WorkerLost, DeadlineExceeded, QueueFull, NoCapacity, Barred or RemoteError.
        """

    def on_spent(self, callback: SpentCallback) -> None:
        """Call `callback(tenant, seconds)` on the event loop when a worker has ended a call, also a failed one.

        One callback; a later one replaces it. The tenant is that of `service.caller` when the call began.
        """

    def on_turn(self, callback: BarCallback) -> None:
        """Ask `callback(caller)` for the error of a call whose turn comes; None lets it begin.

        One callback; a later one replaces it. The caller is that of `service.caller` when the call was made.
        """

    def workers(self) -> list[WorkerInfo]:
        """Every worker slot, in order."""

    def on_worker_lost(self, callback: LostCallback) -> None:
        """Call `callback(worker id, reason)` on the event loop whenever a worker process is lost."""
