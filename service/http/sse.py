"""Server-sent events: numbered events that a client can read on with `Last-Event-ID`, without a loss or a repetition.

A stream reads its events from a `Source` by number, so that it holds no more than one page of them, and a slow reader
delays nobody. `Ring` is a source in memory; stored events are another one. The answer ends after an hour, when the
source or the key of its client has ended, or with the event `shutdown` when the service stops; browsers then connect
again by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.caller import CALLER, Caller
from service.http.entity_tags import VARIES
from service.problems import HttpProblem, wrong_parameter

__all__ = ["EVENT_STREAM", "KEPT", "Event", "EventStream", "Page", "Ring", "Source", "Streams", "last_event_id"]

EVENT_STREAM = "text/event-stream"
KEPT = 10_000
PAGE = 500
KEEP_ALIVE_S = 15.0
KEY_S = 2.0  # between two checks of the key of a client
LONGEST_S = 3600.0
RETRY_MS = 1000
MOST = 2**53


@dataclass(frozen=True, slots=True)
class Event:
    """One event. id: its number, greater than those before it. data: JSON."""

    id: int
    kind: str
    data: dict[str, Any]

    def text(self) -> bytes:
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.id, self.kind.encode(), orjson.dumps(self.data))


@dataclass(frozen=True, slots=True)
class Page:
    """Events in the order of their numbers.

    oldest, newest: the numbers of the first and the last event that the source keeps; oldest is newest + 1 if it keeps
                    none.
    ended:          whether no event will come after `newest`.
    """

    oldest: int
    newest: int
    ended: bool
    events: Sequence[Event]


class Source(Protocol):
    """Numbered events that can be read again."""

    async def after(self, id: int, limit: int) -> Page:
        """Up to `limit` events with greater numbers than `id`."""

    async def wait(self, id: int, seconds: float) -> None:
        """Return when there may be an event after `id`, and after `seconds` at the latest."""


class Ring:
    """The last events in memory."""

    def __init__(self, size: int = KEPT) -> None:
        self._events: deque[Event] = deque(maxlen=size)
        self._newest = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, kind: str, data: dict[str, Any]) -> int:
        """Add an event; returns its number. Drops the oldest one when the ring is full."""
        self._newest += 1
        self._events.append(Event(self._newest, kind, data))
        self._wake()
        return self._newest

    def end(self) -> None:
        """No more events will come: streams end when they have sent all."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, id: int, limit: int) -> Page:
        oldest = self._newest + 1 - len(self._events)
        start = max(0, id + 1 - oldest)
        found = [self._events[i] for i in range(start, min(start + limit, len(self._events)))]
        return Page(oldest, self._newest, self._ended, found)

    async def wait(self, id: int, seconds: float) -> None:
        if self._newest > id or self._ended:
            return
        changed = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()


class Streams:
    """The open streams of one process: a limit for each tenant, and the end of all when the service stops."""

    def __init__(self, limit: int, allows: Callable[[Caller], bool] = lambda caller: True) -> None:
        """limit: most open streams of one tenant. allows: whether the stream of a caller may go on."""
        self.limit, self.allows = limit, allows
        self.open: Counter[str] = Counter()
        self.closing = asyncio.Event()

    def close(self) -> None:
        """Let every stream send `shutdown` and end."""
        self.closing.set()

    @contextlib.contextmanager
    def place(self, tenant: str) -> Any:
        """Count a stream of `tenant` while the block runs. Raises HttpProblem 429, or 503 while the service stops."""
        if self.closing.is_set():
            raise HttpProblem("draining", "the service is shutting down")
        if self.open[tenant] >= self.limit:
            detail = f"{self.limit} streams of events are open; close one first"
            raise HttpProblem("quota-exceeded", detail, headers={"Retry-After": "5"})
        self.open[tenant] += 1
        try:
            yield
        finally:
            self.open[tenant] -= 1


class EventStream(Response):
    """The answer that sends the events of a source."""

    media_type = EVENT_STREAM

    def __init__(
        self,
        streams: Streams,
        tenant: str,
        source: Source,
        after: int = 0,
        *,
        keep_alive: float = KEEP_ALIVE_S,
        longest: float = LONGEST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """after: number of the last event that the client has."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **VARIES})
        del self.headers["content-length"]
        self._streams, self._tenant, self._source, self._after = streams, tenant, source, after
        self._keep_alive, self._longest, self._clock = keep_alive, longest, clock
        self._caller = CALLER.get()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._streams.place(self._tenant):
            for ticket in scope.get("tickets", ()):  # a stream that waits must not keep other requests waiting
                ticket.release()
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send(send, b"retry: %d\n\n" % RETRY_MS)
            await self._events(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> None:
        at, end, sent = self._after, self._clock() + self._longest, self._clock()
        looked = sent
        closing = asyncio.ensure_future(self._streams.closing.wait())
        try:
            while self._clock() < end:
                if self._clock() - looked >= KEY_S:
                    looked = self._clock()
                    if not self._streams.allows(self._caller):
                        return
                page = await self._source.after(at, PAGE)
                if not page.oldest - 1 <= at <= page.newest:  # dropped meanwhile, or counted by another process
                    await _send(send, _unnumbered("reset", {"oldest": page.oldest}))
                    at, sent = page.oldest - 1, self._clock()
                elif page.events:
                    await _send(send, b"".join([each.text() for each in page.events]))
                    at, sent = page.events[-1].id, self._clock()
                elif page.ended:
                    return
                elif closing.done():
                    await _send(send, _unnumbered("shutdown", {"retry_ms": RETRY_MS}))
                    return
                else:
                    if self._clock() - sent >= self._keep_alive:
                        await _send(send, b": still here\n\n")
                        sent = self._clock()
                    left = min(end, sent + self._keep_alive, looked + KEY_S) - self._clock()
                    await self._wait(at, max(0.0, left), closing)
        finally:
            closing.cancel()

    async def _wait(self, at: int, seconds: float, closing: asyncio.Future[Any]) -> None:
        waiting = asyncio.ensure_future(self._source.wait(at, seconds))
        try:
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()


def _unnumbered(kind: str, data: dict[str, Any]) -> bytes:
    """An event without a number: the client's last number stays."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), orjson.dumps(data))


def last_event_id(request: Request, after: int | None = None) -> int:
    """The number in `Last-Event-ID`, else `after`, else 0. Raises HttpProblem 422."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return after or 0
    if not given.isascii() or not given.isdecimal() or len(given) > 20 or int(given) > MOST:
        raise wrong_parameter("header: Last-Event-ID", "Last-Event-ID is the number of an event", "int_parsing")
    return int(given)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
