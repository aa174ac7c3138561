"""What the routes know of where work runs: one interface, its answers and its failures.

* EngineError
  + WorkerLost          the worker died or was replaced; the call may have run
  + DeadlineExceeded    time was up, waiting or running
  + QueueFull           too many calls wait already
  + NoCapacity          no worker can take the call, now or soon
  + RemoteError         the call ran and its handler raised
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np

__all__ = [
    "NO_TENSORS",
    "DeadlineExceeded",
    "Engine",
    "EngineError",
    "LostCallback",
    "NoCapacity",
    "PartCallback",
    "QueueFull",
    "RemoteError",
    "Reply",
    "WorkerInfo",
    "WorkerLost",
]

NO_TENSORS: Mapping[str, np.ndarray] = MappingProxyType({})
LostCallback = Callable[[str, str], None]
PartCallback = Callable[[dict[str, Any], dict[str, np.ndarray]], None]
WorkerStatus = Literal["starting", "idle", "busy", "restarting", "stopped"]
RemoteKind = Literal["program", "execution", "memory", "internal"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler returned.

    tensors:   the caller's own arrays, not shared with any worker.
    timing_ms: milliseconds by phase: queue, transfer_in, compute, transfer_out, total.
    compile_ms: of `compute`, the part that went into compiling programs, also while the call was parked.
    worker:    id of the worker process that ran the call; give it to `call` to come back to the same process.
    """

    result: dict[str, Any]
    tensors: dict[str, np.ndarray]
    timing_ms: dict[str, float]
    worker: str
    compile_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as seen from the service, for people and metrics.

    id names one process: a replacement has another id, the same slot, and the next generation.
    heartbeat_age is in seconds; queued counts the calls waiting for this very worker.
    last_fatal says why the previous process of this slot ended, if one did.
    parked counts the calls that wait for something to be compiled in it.
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


class EngineError(Exception):
    """A call failed. `retryable`: sending it again unchanged may succeed; `retry_after` in seconds says when."""

    retryable = False
    retry_after: float | None = None


class WorkerLost(EngineError):
    """The worker process ended or was replaced. Whether the call had already taken effect is unknown."""

    retryable = True
    retry_after = 1.0

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(f"worker {worker} was lost: {reason}")
        self.worker = worker
        self.reason = reason


class DeadlineExceeded(EngineError):
    """The deadline passed; `waited` says whether the call was still waiting for a worker."""

    def __init__(self, message: str, *, waited: bool) -> None:
        super().__init__(message)
        self.retryable = waited  # a call that never ran can safely be sent again
        self.waited = waited


class QueueFull(EngineError):
    """The bounded queue is full; nothing was queued."""

    retryable = True

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoCapacity(EngineError):
    """No worker is alive or can be started, or the engine is stopping."""

    retryable = True
    retry_after = 5.0


class RemoteError(EngineError):
    """The handler raised.

    kind:    program (the client must change the program), execution (this run of it failed), memory, internal.
    code:    the core's code, such as "too_many_trips"; "out_of_memory"; "internal".
    problem: {"code", "message", "location": {...} | None, "problems": [...]}, plain data as it came from the worker.
    """

    def __init__(self, kind: RemoteKind, code: str, message: str, problem: dict[str, Any]) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.problem = problem
        self.retryable = kind == "memory"


class Engine(Protocol):
    """Where work runs.

    events: how often something went wrong, for the metrics, by (what, why): ("restart", "crash" | "deadline" |
            "cancel" | "hang" | ...), ("stopped", "cancel" | "deadline"), ("rejected", name of the error).
    """

    events: Counter[tuple[str, str]]

    @property
    def waiting(self) -> int:
        """Calls that wait for a worker now."""

    async def start(self) -> None:
        """Start the workers; returns when each has become ready or failed once."""

    async def stop(self) -> None:
        """Fail what waits, end all workers, release every resource. Safe to call twice."""

    async def call(
        self,
        op: str,
        args: dict[str, Any],
        tensors: Mapping[str, np.ndarray] = NO_TENSORS,
        *,
        worker: str | None = None,
        deadline: float,
        on_part: PartCallback | None = None,
    ) -> Reply:
        """Run `op` on `worker`, or on any free one when None, within `deadline` seconds from now, waiting included.

        on_part: called on the event loop with what the handler says while it goes on, result and tensors, in order;
                 for handlers that say anything before their end, all of it before this returns.
        args are plain data; tensors are copied before this returns control to a worker, never changed.
        Cancelling the awaiting task cancels the call in the worker too.
        Raises WorkerLost, DeadlineExceeded, QueueFull, NoCapacity or RemoteError.
        """

    def workers(self) -> list[WorkerInfo]:
        """Every worker slot, in order."""

    def on_worker_lost(self, callback: LostCallback) -> None:
        """Call `callback(worker id, reason)` on the event loop whenever a worker process is gone."""
