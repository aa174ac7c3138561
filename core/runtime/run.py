"""One run in progress: its limits, its messages, and its times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from core.ir import Op
from core.ir.errors import ExecutionError, Location
from core.runtime.times import Times

__all__ = ["Message", "Run", "RunLimits"]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of one run.

    max_trips:   trips of each loop, each time it runs.
    max_ops:     op executions in total, loops included.
    max_bytes:   bytes of one array.
    deadline:    a time of time.monotonic(), in seconds; None for no deadline.
    should_stop: called between ops; the run ends when it returns True.
    messages:    messages of reporting ops in total; further messages are only counted.
    most_inside: seconds that one op may be predicted to take in this process. A longer op runs in a forked child, so
                 that it can be stopped; None runs all ops in this process, where the limits are read between ops. Ops
                 on a GPU never run in a child.
    """

    max_trips: int = 10_000
    max_ops: int = 100_000_000
    max_bytes: int = 2**32
    deadline: float | None = None
    should_stop: Callable[[], bool] | None = None
    messages: int = 100
    most_inside: float | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a reporting op (`print`): its text, and dtype, shape and first elements of its input, row-major."""

    text: str
    location: Location | None
    dtype: str
    shape: tuple[int, ...]
    data: tuple[bool | int | float, ...]


@dataclass(slots=True)
class Run:
    """One run in progress: the array module, the remaining limits, and the messages of its ops.

    unsaid: number of messages beyond the limit.
    times:  collects the time of each kernel; None to collect no times.
    """

    xp: ModuleType = np
    limits: RunLimits = field(default_factory=RunLimits)
    ops_left: int = 0
    messages: list[Message] = field(default_factory=list)
    unsaid: int = 0
    times: Times | None = None
    _reports: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ops_left = self.limits.max_ops

    def trip(self, done: int) -> None:
        """Check the limits before a loop that has made `done` trips makes one more.

        Raises ExecutionError (too_many_trips, deadline_exceeded, canceled).
        """
        if done >= self.limits.max_trips:
            raise ExecutionError(
                f"the loop made {done} trips without ending", "too_many_trips", suggestion="raise max_trips"
            )
        self.poll()

    def report(self, op: Op, x: Any) -> None:
        """Add a message about x, unless `op` has reached its own number of messages."""
        times = self._reports[id(op)] = self._reports.get(id(op), 0) + 1
        if 0 <= op.attrs["first_n"] < times:
            return
        if len(self.messages) >= self.limits.messages:
            self.unsaid += 1
            return
        head = x.reshape(-1)[: op.attrs["summarize"]]
        data = (head if head.dtype.kind in "biuf" else head.astype("float64")).tolist()
        message = Message(op.attrs["message"], op.location, str(x.dtype), tuple(x.shape), tuple(data))
        self.messages.append(message)

    def poll(self) -> None:
        """Raise ExecutionError (deadline_exceeded, canceled) if the run must end."""
        if self.limits.deadline is not None and time.monotonic() > self.limits.deadline:
            raise ExecutionError("the deadline passed while the program ran", "deadline_exceeded")
        if self.limits.should_stop is not None and self.limits.should_stop():
            raise ExecutionError("the run was canceled", "canceled")
