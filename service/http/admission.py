"""Admission of requests, decided from the request line and the header before the body is read.

Every request passes a gate, which bounds the number of requests in progress. A request that finds its gate full waits
for a short time, unread and without a task, in order of arrival; then it is refused. Answers of accepted requests
therefore never wait for work on requests that will be refused. Tenants wait in turn, and one that has few requests at a
gate passes it although others fill it.

* calls of one session or tape: one gate for each, as wide as its pipeline
* other calls that may need a worker: one gate, as wide as the queue of the workers
* uploads of large bodies: one gate, because a slow upload must not take the place of a call
* everything else (documentation, lists, metrics): one narrow gate
* bytes of bodies that are being received or used: one gate that counts bytes. A tenant with a key leaves half of it

`/healthz/live` passes no gate.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.caller import LOCAL
from service.fair_line import FairLine, Turns
from service.http.pacer import Pacer
from service.problems import HttpProblem
from service.settings import Settings

__all__ = ["SMALL_BODY_BYTES", "STREAMED", "Admission", "Gate", "Ticket"]

SMALL_BODY_BYTES = 2**16
"""Bodies up to this size are received before their request passes a gate; they need no place for uploads."""

ROOM_S = 0.25
"""Time that a request may wait at a full gate."""

SMOOTHING = 0.05
LIGHT = 32
UPLOADS = 64
LONGEST_RETRY_S = 60

IN_SESSION = re.compile(r"/v1/((?:sessions/ses|tapes/tap)_[a-z2-7]{26})/")
STREAMED = re.compile(r"/v1/(?:datasets|uploads)(?:/|$)")
"""Requests whose large bodies go to the disk, and not into memory."""

WORK = re.compile(r"/v1/(?:gradients|programs|sessions|tapes)(?:/|$)")


NUMBERS = itertools.count()


@dataclass(eq=False, slots=True)
class Ticket:
    """A request at a gate. start: called when it may pass. weight: the room that it takes."""

    gate: Gate
    start: Callable[[], None]
    weight: int = 1
    tenant: str = ""
    number: int = field(default_factory=NUMBERS.__next__)
    state: str = "new"
    timer: asyncio.TimerHandle | None = None

    def release(self) -> None:
        """Leave the gate, or its waiting room. It can be called twice."""
        self.gate.leave(self)


class Gate:
    """A bound on the sum of weights of the requests that have passed and not yet left."""

    def __init__(
        self,
        limit: int,
        what: str,
        empty: Callable[[], object] = lambda: None,
        *,
        shared: bool = False,
        halved: bool = False,
    ) -> None:
        """what: the requests that it counts, for problem documents. empty: called when the last request leaves.

        shared: whether a tenant with less than its share passes when others fill the gate, up to twice the limit.
        halved: whether a tenant that has more than one request inside leaves half of the room to others.
        """
        self.limit, self.what, self._empty, self._shared, self._halved = limit, what, empty, shared, halved
        self.inside = 0
        self._of: dict[str, int] = {}  # tenant -> its part of `inside`
        self.waiting: FairLine[Ticket] = FairLine()
        self._turns = Turns()
        self._left, self._interval = time.monotonic(), 0.1

    def enter(self, ticket: Ticket, refuse: Callable[[Ticket], None]) -> bool:
        """Whether `ticket` passes now. Otherwise it starts later, or is refused after ROOM_S."""
        if not self.waiting.of(ticket.tenant) and (
            (self._fits(ticket) and not self._heads()) or self._has_share(ticket)
        ):
            self._pass(ticket)
            return True
        ticket.state = "waiting"
        self.waiting.add(ticket)
        ticket.timer = asyncio.get_running_loop().call_later(ROOM_S, self._refuse, ticket, refuse)
        return False

    def leave(self, ticket: Ticket) -> None:
        if ticket.state == "inside":
            ticket.state = "gone"
            now = time.monotonic()
            self._interval += SMOOTHING * (now - self._left - self._interval)
            self._left = now
            self.inside -= ticket.weight
            self._of[ticket.tenant] -= ticket.weight
            if not self._of[ticket.tenant]:
                del self._of[ticket.tenant]
            self._admit()
        elif ticket.state == "waiting":
            self._drop(ticket)
            self._admit()  # a lighter request behind it may fit

    @property
    def retry_after(self) -> int:
        """Seconds until the waiting requests have passed, by the recent rate; spread, so that not all clients come at
        once."""
        expected = (len(self.waiting) + 1) * self._interval
        return max(1, min(LONGEST_RETRY_S, math.ceil(expected * random.uniform(1, 2))))

    def refusal(self) -> HttpProblem:
        """The problem for a request that found no place."""
        detail = f"the limit of {self.limit} {self.what} at a time is reached"
        return HttpProblem("queue-full", detail, headers={"Retry-After": str(self.retry_after)})

    def _fits(self, ticket: Ticket) -> bool:
        has_room = not self.inside or self.inside + ticket.weight <= self.limit
        return has_room and not self._exceeds_half(ticket)

    def _exceeds_half(self, ticket: Ticket) -> bool:
        """Whether the tenant would have more than half of the room that others leave. Its first request may."""
        own = self._of.get(ticket.tenant, 0)
        if not self._halved or not own or ticket.tenant == LOCAL.tenant:
            return False
        return 2 * (own + ticket.weight) > self.limit - (self.inside - own)

    def _heads(self) -> list[Ticket]:
        """The first waiting request of each tenant, but for tenants that wait for their own requests."""
        return [each for each in self.waiting.heads() if not self._exceeds_half(each)] if self.waiting else []

    def _has_share(self, ticket: Ticket) -> bool:
        """Whether the tenant has less than its share of a gate that others fill."""
        if not self._shared or self.inside + ticket.weight > 2 * self.limit:
            return False
        own = self._of.get(ticket.tenant, 0)
        tenants = len(self._of) + (own == 0)
        return tenants > 1 and own + ticket.weight <= self.limit // tenants

    def _pass(self, ticket: Ticket) -> None:
        ticket.state = "inside"
        self.inside += ticket.weight
        self._of[ticket.tenant] = self._of.get(ticket.tenant, 0) + ticket.weight
        self._turns.took(ticket.tenant)

    def _admit(self) -> None:
        while heads := sorted(self._heads(), key=self._turns.rank):
            ticket = heads[0] if self._fits(heads[0]) else next(filter(self._has_share, heads), None)
            if ticket is None:
                break
            self._drop(ticket)
            self._pass(ticket)
            ticket.start()
        if not self.inside and not self.waiting:
            self._empty()

    def _drop(self, ticket: Ticket) -> None:
        ticket.state = "gone"
        self.waiting.remove(ticket)
        if ticket.timer is not None:
            ticket.timer.cancel()
            ticket.timer = None

    def _refuse(self, ticket: Ticket, refuse: Callable[[Ticket], None]) -> None:
        self._drop(ticket)
        self._admit()
        refuse(ticket)


@dataclass(slots=True)
class Admission:
    """The gates of one service, and the pacer of its refusals."""

    settings: Settings
    answered: Callable[[str, str, int], None] = lambda method, route, status: None
    """Called with (method, route, status) of each request that the protocol answers itself."""
    pacer: Pacer = field(default_factory=Pacer)
    calls: Gate = field(init=False)
    light: Gate = field(init=False)
    uploads: Gate = field(init=False)
    body_bytes: Gate = field(init=False)
    _sessions: dict[tuple[str, str], Gate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workers = max(2, self.settings.workers)
        self.calls = Gate(workers * (1 + self.settings.queue_per_worker), "calls", shared=True)
        self.light = Gate(LIGHT, "requests", shared=True)
        self.uploads = Gate(UPLOADS, "uploads", shared=True)
        self.body_bytes = Gate(self.settings.body_bytes_in_flight, "bytes of bodies", halved=True)

    def gates(self, path: str, body_bytes: int | None, tenant: str = "") -> list[Gate]:
        """The gates that a request passes, in order. body_bytes: the declared size of its body; None if unknown."""
        is_large = body_bytes is None or body_bytes > SMALL_BODY_BYTES
        if is_large and STREAMED.match(path) is not None:
            return [self.uploads]
        found = IN_SESSION.match(path)
        if found is not None:
            gates = [self._of_session(found[1], tenant)]
        elif WORK.match(path) is None:
            gates = [self.light]
        elif is_large:
            gates = [self.uploads]
        else:
            gates = [self.calls]
        if is_large:
            gates.append(self.body_bytes)
        return gates

    def _of_session(self, name: str, tenant: str) -> Gate:
        """The gate of one session or tape. It exists while requests use it, also for ids of no session.

        Requests of other tenants have another gate: they take no place of the owner's calls.
        """
        key = tenant, name
        gate = self._sessions.get(key)
        if gate is None:
            kind = "session" if name.startswith("sessions") else "tape"
            forget = lambda: self._sessions.pop(key, None)
            gate = Gate(1 + self.settings.session_pipeline, f"calls of this {kind}", forget)
            self._sessions[key] = gate
        return gate
