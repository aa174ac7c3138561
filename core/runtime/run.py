"""One run in progress: its limits, its messages, and its times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from core.ir import Op
from core.ir.errors import ExecutionError, Location, OutOfMemory
from core.runtime.memory_limit import GRAIN, MemoryLimit
from core.runtime.times import Times

__all__ = ["Message", "Run", "RunLimits"]

NEARLY = 8
"""A run that fails within one part in eight of all memory would fail alone too: what grows goes on growing."""

NO_LIMIT = 2**62
"""Bytes that a run without a memory limit may allocate."""


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
    memory:      the memory that the run shares with others; None for no limit.
    """

    max_trips: int = 10_000
    max_ops: int = 100_000_000
    max_bytes: int = 2**32
    deadline: float | None = None
    should_stop: Callable[[], bool] | None = None
    messages: int = 100
    most_inside: float | None = None
    memory: MemoryLimit | None = None


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

    unsaid:   number of messages beyond the limit.
    times:    collects the time of each kernel; None to collect no times.
    outgrown: the shapes of the plan's `expected` variables, if the last region left the run because one of them was
              larger than its code expects; those in the body of a loop or in a branch are missing.
    """

    xp: ModuleType = np
    limits: RunLimits = field(default_factory=RunLimits)
    ops_left: int = 0
    messages: list[Message] = field(default_factory=list)
    unsaid: int = 0
    times: Times | None = None
    outgrown: dict[str, tuple[int, ...]] | None = None
    _reports: dict[int, int] = field(default_factory=dict)
    _used_before: int | None = None
    _unchecked: int = 0

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

    def admit(self, peak: int, at: Location | None) -> None:
        """Refuse the run before its first op if its predicted peak exceeds the memory that is left.

        peak: bytes. at: the op of the peak. Raises OutOfMemory.
        """
        memory = self.limits.memory
        if memory is None:
            return
        self._used_before = memory.used()
        allowed = memory.available(peak, keep_idle=True)
        if peak > allowed:
            raise self.refusal(peak, allowed, "the step").at(at)

    def require(self, nbytes: int, needed_for: str) -> None:
        """Check that `nbytes` can be allocated. Raises OutOfMemory, whose message begins with `needed_for`."""
        memory = self.limits.memory
        if memory is None or nbytes < GRAIN:
            return
        if self._used_before is None:
            self._used_before = memory.used()
        allowed = memory.available(nbytes)
        if nbytes > allowed:
            raise self.refusal(nbytes, allowed, needed_for)

    def available(self) -> int:
        """Bytes that the run may allocate."""
        memory = self.limits.memory
        return NO_LIMIT if memory is None else memory.available(GRAIN)

    def keep(self, nbytes: int, kept_by: str) -> None:
        """Count `nbytes` that a loop has recorded, and check from time to time that there is memory for more.

        Raises OutOfMemory.
        """
        self._unchecked += nbytes
        if self._unchecked >= GRAIN:
            nbytes, self._unchecked = self._unchecked, 0
            self.require(nbytes, kept_by)

    def refusal(self, wanted: int, allowed: int, needed_for: str) -> OutOfMemory:
        """The error of a run that wants more bytes than allowed: permanent if it could not even succeed alone."""
        memory = self.limits.memory
        if memory is None or wanted <= allowed:
            size = f"{wanted} bytes of memory" if wanted else "more memory"  # a GPU does not tell what it lacks
            message = f"{needed_for} needs {size}, which the system does not have"
            return OutOfMemory(message, wanted=wanted, allowed=max(0, allowed))
        taken = 0 if self._used_before is None else max(0, memory.used() - self._used_before)
        allowed = max(0, allowed)
        return OutOfMemory(
            f"{needed_for} needs {wanted} bytes of memory, but only {allowed} of {memory.capacity} are left",
            "too_large" if taken + wanted > memory.capacity - memory.capacity // NEARLY else "out_of_memory",
            wanted=wanted,
            allowed=allowed,
        )

    def mark(self) -> tuple[Any, ...]:
        """The state that `back_to` restores: the number of ops that may still run, and the messages so far."""
        return self.ops_left, len(self.messages), self.unsaid, dict(self._reports)

    def back_to(self, mark: tuple[Any, ...]) -> None:
        """Forget all ops and messages since `mark`."""
        self.ops_left, messages, self.unsaid, self._reports = mark
        del self.messages[messages:]

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
