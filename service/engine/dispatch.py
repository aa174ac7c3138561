"""Dispatch of calls to workers: bounded queues, one for any worker and one for each worker.

Tenants take turns: of those that wait for a worker, the one that was served the longest time ago is next. Calls of one
tenant run in order of arrival. A full queue takes a call of a tenant that has few calls there, in place of the last one
of the tenant that has the most.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.caller import CALLER, Caller
from service.engine.child import Child
from service.engine.devices import WorkerPlan
from service.engine.line import in_line
from service.engine.process import WorkerProcess
from service.engine.protocol import (
    BarCallback,
    DeadlineExceeded,
    EngineError,
    NoCapacity,
    QueueFull,
    WorkerLost,
    WorkerStatus,
)
from service.fair_line import FairLine, Turns

__all__ = ["Dispatcher", "Slot"]

BROKEN_AFTER = 3  # consecutive failures after which calls do not wait for the slot any more
SMOOTHING = 0.1


@dataclass(eq=False, slots=True)
class Ticket:
    """One queued call. `slot` gets its result when a worker is free, or an exception."""

    number: int
    caller: Caller
    slot: asyncio.Future[Slot]

    @property
    def tenant(self) -> str:
        return self.caller.tenant


@dataclass(slots=True)
class Slot:
    """A place for one worker. Each replacement of its process is a new generation."""

    index: int
    plan: WorkerPlan
    child: Child | None = None  # the first process, if it was started before the slot
    process: WorkerProcess | None = None
    status: WorkerStatus = "starting"
    generation: int = 0
    restarts: int = 0
    failures: int = 0  # consecutive processes that could not be started, or ended without a call
    last_fatal: str | None = None
    waiting: FairLine[Ticket] = field(default_factory=FairLine)
    over: asyncio.Future[bool] | None = None  # done when the worker has answered the running call

    @property
    def is_idle(self) -> bool:
        return self.status == "idle" and self.process is not None and not self.process.lost.done()

    @property
    def is_broken(self) -> bool:
        """Whether it has no worker, and several processes in a row failed."""
        return self.failures >= BROKEN_AFTER and self.status in ("starting", "restarting")

    @property
    def sessions(self) -> int:
        return self.process.sessions if self.process else 0


class Dispatcher:
    """Assigns each slot to one call at a time."""

    def __init__(self, slots: Sequence[Slot], queue_per_worker: int) -> None:
        self._slots = slots
        self._queue_per_worker = queue_per_worker
        self._shared: FairLine[Ticket] = FairLine()
        self._turns = Turns()
        self._numbers = itertools.count()
        self._call_seconds = 0.1
        self._closed = False
        self.bars: BarCallback = lambda caller: None
        """As of `Engine.on_turn`."""

    @property
    def waiting(self) -> int:
        """The number of queued calls, for any worker and for particular workers."""
        return len(self._shared) + sum(len(slot.waiting) for slot in self._slots)

    async def acquire(self, worker: str | None, give_up: float) -> Slot:
        """Wait for a slot with an idle worker, and mark it busy; call `release` afterwards.

        worker:  id of the required worker process, or None for any.
        give_up: the deadline, a value of time.monotonic().
        Raises WorkerLost, NoCapacity or QueueFull at once, Barred at once or later, DeadlineExceeded at the deadline.
        """
        line, limit = self._line(worker)
        caller = CALLER.get()
        if (barred := self.bars(caller)) is not None:
            raise barred
        if not line and (slot := self._idle(worker)) is not None:
            slot.status = "busy"
            self._turns.took(caller.tenant)
            return slot
        if len(line) >= limit and self._idle(worker) is None and not self._made_room(line, caller.tenant):
            raise self._queue_full(line)
        ticket = Ticket(next(self._numbers), caller, asyncio.get_running_loop().create_future())
        line.add(ticket)
        self._dispatch()
        try:
            with in_line():
                async with asyncio.timeout(max(0.0, give_up - time.monotonic())):
                    return await ticket.slot
        except TimeoutError:
            self._abandon(ticket, line)
            raise DeadlineExceeded("the deadline passed before a worker was free", waited=True) from None
        except asyncio.CancelledError:
            self._abandon(ticket, line)
            raise

    def _made_room(self, line: FairLine[Ticket], caller: str) -> bool:
        """Whether the last call of the tenant that fills a full queue was refused: `caller` has much less there."""
        last = line.last_of_longest()
        if last is None or line.of(last.tenant) <= line.of(caller) + 1:
            return False
        line.remove(last)
        if not last.slot.done():
            last.slot.set_exception(self._queue_full(line))
        return True

    def _queue_full(self, line: FairLine[Ticket]) -> QueueFull:
        workers = len(self._slots) if line is self._shared else 1
        seconds = self._call_seconds * (len(line) + 1) / workers
        return QueueFull(f"the queue already holds {len(line)} calls", retry_after=max(1.0, seconds))

    def _line(self, worker: str | None) -> tuple[FairLine[Ticket], int]:
        if self._closed:
            raise NoCapacity("the service is stopping")
        if worker is None:
            if all(slot.is_broken for slot in self._slots):
                raise NoCapacity("no worker can be started")
            return self._shared, self._queue_per_worker * len(self._slots)
        for slot in self._slots:
            if slot.process is not None and slot.process.id == worker and not slot.process.lost.done():
                return slot.waiting, self._queue_per_worker
        raise WorkerLost(worker, "it was replaced", began=False)

    def _idle(self, worker: str | None) -> Slot | None:
        """The least loaded idle slot: of this worker, or of any worker if None."""
        free = [slot for slot in self._slots if slot.is_idle and (worker is None or _is(slot, worker))]
        return min(free, key=_load, default=None)

    def _abandon(self, ticket: Ticket, line: FairLine[Ticket]) -> None:
        """Remove the ticket from the queue. Release its slot if one was assigned at the same moment."""
        if line.remove(ticket):
            return
        if ticket.slot.done() and not ticket.slot.cancelled() and ticket.slot.exception() is None:
            self.release(ticket.slot.result())

    def release(self, slot: Slot, seconds: float | None = None) -> None:
        """Make `slot` idle after a call. seconds: duration of the call if it succeeded."""
        if seconds is not None:
            self._call_seconds += SMOOTHING * (seconds - self._call_seconds)
        if slot.status == "busy":
            slot.status = "idle"
        self._dispatch()

    def ready(self, slot: Slot) -> None:
        """Make `slot` idle: its new worker is ready for calls."""
        slot.status = "idle"
        self._dispatch()

    def lost(self, slot: Slot, error: EngineError) -> None:
        """The worker of `slot` is lost: fail the calls queued for it with `error`. Calls for any worker stay queued."""
        _fail(slot.waiting, error)
        if all(slot.is_broken for slot in self._slots):
            _fail(self._shared, NoCapacity("no worker can be started"))

    def close(self) -> None:
        """Fail all queued calls, and refuse all later ones."""
        self._closed = True
        for line in (self._shared, *(slot.waiting for slot in self._slots)):
            _fail(line, NoCapacity("the service is stopping"))

    def _dispatch(self) -> None:
        if not self.waiting:
            return
        for slot in sorted((s for s in self._slots if s.is_idle), key=_load):
            ticket = self._next(slot)
            if ticket is not None:
                slot.status = "busy"
                self._turns.took(ticket.tenant)
                ticket.slot.set_result(slot)

    def _next(self, slot: Slot) -> Ticket | None:
        """The next call for `slot`, which leaves its line; None if no call waits."""
        while heads := [*slot.waiting.heads(), *self._shared.heads()]:
            ticket = heads[0] if len(heads) == 1 else min(heads, key=self._turns.rank)
            if not slot.waiting.remove(ticket):
                self._shared.remove(ticket)
            if ticket.slot.done():  # just cancelled: its task has not yet removed the ticket
                continue
            if (barred := self.bars(ticket.caller)) is None:
                return ticket
            ticket.slot.set_exception(barred)
        return None


def _load(slot: Slot) -> tuple[int, int]:
    """Sort key: fewest sessions first, to spread them; then the lowest index, whose caches are warmest."""
    return slot.sessions, slot.index


def _is(slot: Slot, worker: str) -> bool:
    return slot.process is not None and slot.process.id == worker


def _fail(line: FairLine[Ticket], error: EngineError) -> None:
    for ticket in list(line):
        line.remove(ticket)
        if not ticket.slot.done():
            ticket.slot.set_exception(error)
