"""Who gets which worker: a bounded waiting line, first come first served, where some wait for one worker only."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.engine.devices import WorkerPlan
from service.engine.process import WorkerProcess
from service.engine.protocol import DeadlineExceeded, EngineError, NoCapacity, QueueFull, WorkerLost, WorkerStatus

__all__ = ["Dispatcher", "Slot"]

BROKEN_AFTER = 3  # failed starts in a row, after which nobody should wait for the slot
SMOOTHING = 0.1


@dataclass(slots=True)
class Ticket:
    """A place in the line. `slot` is set when its turn has come, or fails."""

    number: int
    slot: asyncio.Future[Slot]


@dataclass(slots=True)
class Slot:
    """One place for a worker; processes come and go in it, one per generation."""

    index: int
    plan: WorkerPlan
    process: WorkerProcess | None = None
    status: WorkerStatus = "starting"
    generation: int = 0
    restarts: int = 0
    failures: int = 0  # starts or lives without a single answer, in a row
    last_fatal: str | None = None
    waiting: deque[Ticket] = field(default_factory=deque)
    over: asyncio.Future[bool] | None = None  # of the call that is running: done when the worker has answered

    @property
    def is_idle(self) -> bool:
        return self.status == "idle" and self.process is not None and not self.process.lost.done()

    @property
    def sessions(self) -> int:
        return self.process.sessions if self.process else 0


class Dispatcher:
    """Gives each slot to one call at a time."""

    def __init__(self, slots: Sequence[Slot], queue_per_worker: int) -> None:
        self._slots = slots
        self._queue_per_worker = queue_per_worker
        self._shared: deque[Ticket] = deque()
        self._numbers = itertools.count()
        self._call_seconds = 0.1
        self._closed = False

    @property
    def waiting(self) -> int:
        """Calls that wait, for any worker or for one."""
        return len(self._shared) + sum(len(slot.waiting) for slot in self._slots)

    async def acquire(self, worker: str | None, give_up: float) -> Slot:
        """A slot whose worker is idle, now marked busy; `release` it afterwards.

        worker:  id of the process it must be, or None for any.
        give_up: a value of time.monotonic().
        Raises WorkerLost, NoCapacity, QueueFull at once, and DeadlineExceeded when time is up.
        """
        line, limit = self._line(worker)
        if not line and (slot := self._idle(worker)) is not None:
            slot.status = "busy"
            return slot
        if len(line) >= limit and self._idle(worker) is None:
            seconds = self._call_seconds * (len(line) + 1) / (1 if worker else len(self._slots))
            raise QueueFull(f"{len(line)} calls are waiting already", retry_after=max(1.0, seconds))
        ticket = Ticket(next(self._numbers), asyncio.get_running_loop().create_future())
        line.append(ticket)
        self._dispatch()
        try:
            async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                return await ticket.slot
        except TimeoutError:
            self._abandon(ticket, line)
            raise DeadlineExceeded("the deadline passed before a worker was free", waited=True) from None
        except asyncio.CancelledError:
            self._abandon(ticket, line)
            raise

    def _line(self, worker: str | None) -> tuple[deque[Ticket], int]:
        if self._closed:
            raise NoCapacity("the service is stopping")
        if worker is None:
            if all(slot.failures >= BROKEN_AFTER for slot in self._slots):
                raise NoCapacity("no worker can be started")
            return self._shared, self._queue_per_worker * len(self._slots)
        for slot in self._slots:
            if slot.process is not None and slot.process.id == worker and not slot.process.lost.done():
                return slot.waiting, self._queue_per_worker
        raise WorkerLost(worker, "it was replaced")

    def _idle(self, worker: str | None) -> Slot | None:
        """The best of the slots that are free for a call of this worker, or of any."""
        free = [slot for slot in self._slots if slot.is_idle and (worker is None or _is(slot, worker))]
        return min(free, key=_load, default=None)

    def _abandon(self, ticket: Ticket, line: deque[Ticket]) -> None:
        """Leave the line; give the slot back if it was handed out in the very same moment."""
        if ticket in line:
            line.remove(ticket)
        elif ticket.slot.done() and not ticket.slot.cancelled() and ticket.slot.exception() is None:
            self.release(ticket.slot.result())

    def release(self, slot: Slot, seconds: float | None = None) -> None:
        """The call on `slot` is over, after `seconds` of work if it worked."""
        if seconds is not None:
            self._call_seconds += SMOOTHING * (seconds - self._call_seconds)
        if slot.status == "busy":
            slot.status = "idle"
        self._dispatch()

    def ready(self, slot: Slot) -> None:
        """A new worker of `slot` takes calls from now on."""
        slot.status = "idle"
        self._dispatch()

    def lost(self, slot: Slot, error: EngineError) -> None:
        """The worker of `slot` is gone: who waited for it gets `error`; who can go elsewhere stays in line."""
        _fail(slot.waiting, error)
        if all(slot.failures >= BROKEN_AFTER for slot in self._slots):
            _fail(self._shared, NoCapacity("no worker can be started"))

    def close(self) -> None:
        """Refuse everyone who waits, and everyone who comes."""
        self._closed = True
        for line in (self._shared, *(slot.waiting for slot in self._slots)):
            _fail(line, NoCapacity("the service is stopping"))

    def _dispatch(self) -> None:
        if not self.waiting:
            return
        for slot in sorted((s for s in self._slots if s.is_idle), key=_load):
            for line in (slot.waiting, self._shared):
                while line and line[0].slot.done():  # cancelled a moment ago; its task has not run yet to leave
                    line.popleft()
            lines = [line for line in (slot.waiting, self._shared) if line]
            if lines:
                ticket = min(lines, key=lambda line: line[0].number).popleft()
                slot.status = "busy"
                ticket.slot.set_result(slot)


def _load(slot: Slot) -> tuple[int, int]:
    """Few sessions first, so that they spread; then the lowest slot, whose caches are the warmest."""
    return slot.sessions, slot.index


def _is(slot: Slot, worker: str) -> bool:
    return slot.process is not None and slot.process.id == worker


def _fail(line: deque[Ticket], error: EngineError) -> None:
    while line:
        ticket = line.popleft()
        if not ticket.slot.done():
            ticket.slot.set_exception(error)
