"""The HTTP/1.1 protocol of uvicorn with additional limits.

A connection that sends its header too slowly, or leaves its answer unread, is closed. A header that is too large, or
that does not have exactly one Host field, is refused with a problem document before application code runs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http.coalesced_write import Gathering
from service.problems import HttpProblem, new_request_id, problem_body
from service.settings import Settings

__all__ = ["GuardedProtocol", "guarded"]


class Refused(Exception):
    """Raised in callbacks of the parser, which stops; `send_400_response` answers."""


def guarded(settings: Settings) -> Any:
    """The protocol with the limits of `settings`, for uvicorn's option `http`."""
    return partial(GuardedProtocol, limits=settings)


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, limits: Settings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._header_fields = 0
        self._in_header = False
        self._refusal: HttpProblem | None = None
        self._deaf = False

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = Gathering(transport, self.loop)  # type: ignore[assignment]
        self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm_header()
        self._disarm_write()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._deaf and not self.transport.is_closing():  # after a refusal the rest of the bytes is ignored
            super().data_received(data)
            if self._in_header and not self.transport.is_closing():
                self._expect_header()  # for the rest; most headers arrive in one piece and need no timer

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
        self._header_bytes = self._header_fields = 0
        self._in_header = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_fields += 1
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._header_bytes += size
        limits = self._limits
        if self._header_bytes > limits.header_bytes or self._header_fields > limits.header_fields:
            detail = f"the limit is {limits.header_bytes} bytes in {limits.header_fields} fields"
            self._refuse(HttpProblem("headers-too-large", detail))

    def on_headers_complete(self) -> None:
        self._disarm_header()
        if [name for name, _ in self.headers].count(b"host") != 1:
            self._refuse(HttpProblem("malformed-request", "a request must have exactly one Host header"))
        super().on_headers_complete()

    # Refusals

    def _refuse(self, problem: HttpProblem) -> None:
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
            self.transport.write(_rendered(problem))
            self.transport.close()
        elif cycle.more_body or behind_others:
            self.transport.close()  # an answer has begun; these bytes would end up inside it
        else:
            self._deaf = True  # invalid bytes behind a valid request, which still gets its answer
            cycle.keep_alive = False


def _rendered(problem: HttpProblem) -> bytes:
    body = orjson.dumps(problem_body(problem, new_request_id()))
    lines = [
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
