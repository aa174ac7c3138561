"""The HTTP/1.1 protocol of uvicorn with additional limits.

A connection that sends its header too slowly, or leaves its answer unread, is closed. A header that is too large, that
does not have exactly one Host field, that names another host, or whose body has no certain end is refused with a
problem document before application code runs. Only HTTP/1.0 may leave the Host field out: health checks of load
balancers do, browsers do not. A request that finds no place at the gates of `admission` is refused, too.
`/healthz/live` is answered here. Offers of other protocols are ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.admission import SMALL_BODY_BYTES, Admission, Gate, Ticket
from service.http.auth import Gatekeeper
from service.http.coalesced_write import Gathering
from service.http.direct_answers import LIVE, alive, id_of, refused, too_large
from service.http.hosts import host_check
from service.http.ignored_upgrade import parser_behind
from service.http.open_files import is_last
from service.http.reading import HeldFlow
from service.http.request_head import declared_bytes
from service.problems import HttpProblem, new_request_id
from service.settings import Settings

__all__ = ["GuardedProtocol", "guarded"]

SLICE_BYTES = 8192
"""Bytes that may contain several requests are parsed in slices, so that a burst cannot occupy the event loop."""

FREE_READS = 8
"""Reads of one request before further reads of less than WORTH_BYTES each have to wait for their turn."""

WORTH_BYTES = 2**14
UNKNOWN_BYTES = 2**20  # room for a body of undeclared size
DRAIN_BYTES = 16 * 2**20
DRAIN_S = 2.0


class Refused(Exception):
    """Raised in callbacks of the parser, which stops; `send_400_response` answers."""


def guarded(settings: Settings, admission: Admission | None = None, gatekeeper: Gatekeeper | None = None) -> Any:
    """The protocol with the limits of `settings`, for uvicorn's option `http`. All its connections share the gates.

    gatekeeper: decides about callers before their requests are read; None leaves that to the application.
    """
    gates = Admission(settings) if admission is None else admission
    return partial(GuardedProtocol, limits=settings, admission=gates, knows=host_check(settings), gatekeeper=gatekeeper)


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    flow: HeldFlow

    def __init__(
        self,
        *args: Any,
        limits: Settings,
        admission: Admission,
        knows: Any,
        gatekeeper: Gatekeeper | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits, self._admission, self._knows = limits, admission, knows
        self._gatekeeper = gatekeeper
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._header_fields = 0
        self._in_header = False
        self._reads = 0
        self._body_left = 0
        self._unparsed: memoryview | bytes = b""
        self._collecting: tuple[RequestResponseCycle, Any] | None = None
        self._tickets: list[Ticket] = []  # of the request in the waiting room
        self._refusal: HttpProblem | None = None
        self._ignored: int | None = None  # declared bytes of the request that offers another protocol
        self._deaf = False
        self._drained = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
        self.transport = Gathering(transport, self.loop)  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        if sock is not None and is_last(sock.fileno()):
            self._admission.answered("other", "refused", 503)
            transport.abort()  # an answer would be lost: the client has sent a request that is not read
        else:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_header()
        self._disarm_write()
        self._disarm_body()
        self._collecting = None
        self._leave_room()
        super().connection_lost(exc)
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                scope: Any = cycle.scope
                scope["on_disconnect"]()

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():  # after a refusal the rest of the bytes is ignored
            self._drain(len(data))
            return
        if self._unparsed:
            self._unparsed = bytes(self._unparsed) + data
            self.flow.pause_reading()
            return
        self._parse(data)
        if self._is_idle() and not self.transport.is_closing():  # line ends, or the rest of a body that is not read
            self._expect_header()
        if (self._in_header or self._body_left or self._collecting) and not self.transport.is_closing():
            if self._in_header:
                self._expect_header()  # for the rest; most headers arrive in one piece and need no timer
            self._reads += 1
            if self._reads > FREE_READS and len(data) < WORTH_BYTES and not self.flow.held:
                self.flow.hold()
                self._admission.pacer.add(self.flow.free)

    def _is_idle(self) -> bool:
        """Whether the next bytes belong to no answer that is due, although they have ended the wait for a request."""
        return self.timeout_keep_alive_task is None and self.cycle is not None and self.cycle.response_complete

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse `data` up to a request that must wait for another one; the rest is parsed later."""
        if len(data) <= SLICE_BYTES:
            self._feed(data)
            return
        view = memoryview(data)
        while len(view) and not self._deaf and not self.transport.is_closing():
            if self.pipeline:
                self._unparsed = view
                self.flow.pause_reading()
                return
            size = self._body_left or SLICE_BYTES
            self._feed(view[:size])
            view = view[size:]

    def _feed(self, data: bytes | memoryview) -> None:
        self._unset_keepalive_if_required()
        while len(data):
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as end:
                declared, self._ignored = self._ignored or 0, None
                self.parser, data = parser_behind(self, declared), data[end.args[0] :]
            except HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("")
                return

    def _parse_rest(self) -> None:
        rest, self._unparsed = self._unparsed, b""
        if rest and not self._deaf and not self.transport.is_closing():
            self._parse(rest)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if (
            self._unparsed and not self.pipeline
        ):  # it may begin with the rest of the body of the request that starts now
            self.loop.call_soon(self._parse_rest)

    def pause_writing(self) -> None:
        self._watch_reader()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._disarm_write()
        super().resume_writing()

    def _watch_reader(self, left_before: int | None = None) -> None:
        """Abort if the client read nothing during a whole write deadline; a slow client may continue."""
        self._disarm_write()
        left = self.transport.get_write_buffer_size()
        if left_before is not None and left >= left_before:
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(self._limits.write_deadline, self._watch_reader, left)

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # The header

    def _disarm_header(self) -> None:
        self._in_header = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _expect_header(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self._limits.header_deadline, self._too_late)

    def _too_late(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def on_message_begin(self) -> None:
        self._header_bytes = self._header_fields = self._reads = 0
        self._in_header = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_fields += 1
        self._count(len(name) + len(value))
        super().on_header(name, value.rstrip(b" \t"))

    def _count(self, size: int) -> None:
        self._header_bytes += size
        limits = self._limits
        if self._header_bytes > limits.header_bytes or self._header_fields > limits.header_fields:
            detail = f"the limit is {limits.header_bytes} bytes in {limits.header_fields} fields"
            self._refuse(HttpProblem("headers-too-large", detail))

    def on_headers_complete(self) -> None:
        self._disarm_header()
        version = self.parser.get_http_version()
        try:
            declared = declared_bytes(version, self.url, self.headers, self._knows)
        except HttpProblem as problem:
            self._refuse(problem)
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110, section 10.1.1
        if self.parser.should_upgrade():
            self._ignored = declared
        scope: Any = self.scope
        scope["declared_bytes"] = None if declared < 0 else declared
        scope["on_disconnect"] = lambda: None  # the middleware replaces it
        scope["arrived"] = time.monotonic_ns()
        self._body_left = max(0, declared)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_left = max(0, self._body_left - len(body))
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._ignored:  # the body comes behind the end that the parser sees
            return
        self._body_left = 0
        super().on_message_complete()
        if self._collecting is not None:
            self._disarm_body()
            (cycle, app), self._collecting = self._collecting, None
            self._enter(cycle, app)

    # Admission

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Start the next request of this connection: once a small body has arrived, and its gates are open."""
        scope: Any = cycle.scope
        declared = scope["declared_bytes"]
        if scope["path"] == LIVE and scope["method"] == "GET":
            self._answer(cycle, alive(id_of(cycle), self.server_state.default_headers, cycle.keep_alive))
            self._admission.answered("GET", LIVE, 200)
        elif (refusal := self._decided(scope)) is not None:
            self._admission.pacer.add(partial(self._refuse_request, cycle, refusal))
            self.flow.hold()
        elif declared is not None and (problem := too_large(scope, declared, self._limits)) is not None:
            self._admission.pacer.add(partial(self._refuse_request, cycle, problem))
            self.flow.hold()
        elif declared and declared <= SMALL_BODY_BYTES and cycle.more_body:
            self._collecting = cycle, app
            self._body_timer = self.loop.call_later(self._limits.body_deadline, self._body_late, cycle)
            if cycle.waiting_for_100_continue:
                cycle.waiting_for_100_continue = False
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            self._enter(cycle, app)

    def _decided(self, scope: Any) -> HttpProblem | None:
        """The refusal of the caller, if there is one; otherwise the scope has the caller."""
        if self._gatekeeper is None:
            return None
        scope["caller"] = found = self._gatekeeper.decide(scope)
        if isinstance(found, HttpProblem) and not self._gatekeeper.allows_origin(scope):
            return found
        return None  # a refusal with CORS headers is the application's

    def _enter(self, cycle: RequestResponseCycle, app: Any) -> None:
        scope: Any = cycle.scope
        caller = scope.get("caller")
        tenant = "" if caller is None or isinstance(caller, HttpProblem) else caller.tenant
        gates = self._admission.gates(scope["path"], scope["declared_bytes"], tenant)
        self._tickets = []
        self._pass(cycle, app, iter(gates), self._tickets, tenant)

    def _pass(
        self, cycle: RequestResponseCycle, app: Any, gates: Iterator[Gate], tickets: list[Ticket], tenant: str
    ) -> None:
        """Pass the remaining `gates`. At a full one the request waits, and goes on from there."""
        for gate in gates:
            weight = 1
            if gate is self._admission.body_bytes:
                declared: int | None = cycle.scope["declared_bytes"]  # type: ignore[typeddict-item]
                weight = UNKNOWN_BYTES if declared is None else declared
            goes_on = partial(self._pass, cycle, app, gates, tickets, tenant)
            tickets.append(Ticket(gate, goes_on, weight, tenant))
            if not gate.enter(tickets[-1], partial(self._no_place, cycle)):
                self.flow.hold()
                return
        self._tickets = []
        self.flow.free()
        cycle.scope["tickets"] = tickets  # type: ignore[typeddict-unknown-key]
        super()._start_asgi_task(cycle, partial(_admitted, app, tickets))

    def _no_place(self, cycle: RequestResponseCycle, ticket: Ticket) -> None:
        self._leave_room()
        if not self.transport.is_closing():
            self._admission.pacer.add(partial(self._refuse_at, cycle, ticket.gate))

    def _refuse_at(self, cycle: RequestResponseCycle, gate: Gate) -> None:
        self._refuse_request(cycle, gate.refusal())

    def _refuse_request(self, cycle: RequestResponseCycle, problem: HttpProblem, drains: bool = True) -> None:
        """Answer a request that never starts. The connection stays open if all of the body has arrived.

        drains: whether to read the rest of the body before the connection closes.
        """
        if self.transport.is_closing():
            return
        whole, path, method = not cycle.more_body, cycle.scope["path"], cycle.scope["method"]
        cycle.keep_alive = cycle.keep_alive and whole
        cycle.body = bytearray()
        self._admission.answered(method, "refused", problem.status)
        if whole:
            self.flow.free()
            self._answer(cycle, refused(problem, id_of(cycle), path, cycle.keep_alive, method))
        else:
            # a client that still writes when the connection closes sees a reset instead of the answer
            self._deaf = True
            cycle.response_started = cycle.response_complete = True
            self.transport.write(refused(problem, id_of(cycle), path, False, method))
            if cycle.waiting_for_100_continue or not drains:
                self.transport.close()
            else:
                self.loop.call_later(DRAIN_S, self._close)
                self._drain(0)

    def _drain(self, size: int) -> None:
        """Ignore `size` bytes of a refused body, and read more in turn."""
        if self.transport.is_closing():
            return
        self._drained += size
        self._body_left -= size
        if self._drained > DRAIN_BYTES or (size and self._body_left == 0):
            self.transport.close()
            return
        self.flow.hold()
        self.flow.resume_reading()  # takes effect when the flow is free
        self._admission.pacer.add(self.flow.free)

    def _answer(self, cycle: RequestResponseCycle, content: bytes) -> None:
        """Answer without the application."""
        cycle.response_started = cycle.response_complete = True
        self.transport.write(content)
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _body_late(self, cycle: RequestResponseCycle) -> None:
        self._collecting = None
        detail = f"only {len(cycle.body)} bytes of the body arrived before the deadline"
        self._refuse_request(cycle, HttpProblem("body-timeout", detail), drains=False)

    def _leave_room(self) -> None:
        tickets, self._tickets = self._tickets, []
        for ticket in tickets:
            ticket.release()

    def _disarm_body(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    # Refusals

    def _refuse(self, problem: HttpProblem) -> NoReturn:
        self._refusal = problem
        raise Refused

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that cannot be parsed, or a refused header, and close the connection."""
        self._disarm_header()
        problem = self._refusal or HttpProblem("malformed-request", "the bytes received are not a valid HTTP request")
        cycle, behind_others = self.cycle, bool(self.pipeline)
        if (
            cycle is None
            or cycle.response_complete
            or (cycle.more_body and not cycle.response_started and not behind_others)
        ):
            self.transport.write(refused(problem, new_request_id(), "", False))
            self.transport.close()
        elif cycle.more_body or behind_others:
            self.transport.close()  # an answer has begun; these bytes would end up inside it
        else:
            self._deaf = True  # invalid bytes behind a valid request, which still gets its answer
            cycle.keep_alive = False


async def _admitted(app: Any, tickets: list[Ticket], scope: Any, receive: Any, send: Any) -> None:
    """Run `app`, and leave the gates when it has ended. It may leave them earlier."""
    try:
        await app(scope, receive, send)
    finally:
        for ticket in tickets:
            ticket.release()
