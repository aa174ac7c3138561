"""What happens around every request, as pure ASGI: it must not cost what it protects.

From the outside in: a request id; a metric; security headers; the end of the work when its client goes away; a
problem document for what nobody caught.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.metrics import Metrics
from service.problems import HttpProblem, from_exception, new_request_id, problem_response

__all__ = ["CancelOnDisconnect", "Caught", "Identified", "Measured", "Secured", "install", "request_id"]

log = logging.getLogger("backpass.http")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
READ_AHEAD_BYTES = 256 * 2**10
PATIENCE_S = 0.02
CLIENT_GONE = 499  # not a status that is ever sent; names the case in the metrics
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

request_id: ContextVar[str] = ContextVar("request_id", default="")

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]


def install(app: FastAPI, metrics: Metrics) -> None:
    """Put all of them around `app`, in order. Call once, before the application starts."""
    app.add_middleware(Caught)
    app.add_middleware(CancelOnDisconnect, metrics=metrics)
    app.add_middleware(Secured)
    app.add_middleware(Measured, metrics=metrics)
    app.add_middleware(Identified)


class Identified:
    """Gives each request an id, the client's own if it is a decent one, and echoes it as `request-id`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"request-id"), b"").decode("latin-1")
        chosen = given if REQUEST_ID.fullmatch(given) else new_request_id()
        scope.setdefault("state", {})["request_id"] = chosen
        request_id.set(chosen)

        async def identified(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [header for header in message.get("headers", ()) if header[0] != b"request-id"]
                message["headers"] = [*kept, (b"request-id", chosen.encode())]
            await send(message)

        await self.app(scope, receive, identified)


class Measured:
    """Times each request under the template of its route; what matches no route is one label."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, size, started = CLIENT_GONE, 0, time.perf_counter()

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.metrics.active_requests.inc()
        try:
            await self.app(scope, counted, watched)
        finally:
            self.metrics.active_requests.dec()
            route = getattr(scope.get("route"), "path", None) or "unmatched"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.request(method, route, status, time.perf_counter() - started, size)


class Secured:
    """Adds the headers that keep a browser from doing more with an answer than showing it; a route's own win."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                own = {name for name, _ in headers}
                message["headers"] = headers + [header for header in SECURITY_HEADERS if header[0] not in own]
            await send(message)

        await self.app(scope, receive, secured)


class CancelOnDisconnect:
    """Cancels the handler when its client closes the connection, so that no worker computes for nobody.

    Noticing needs someone who always receives; what arrives meanwhile waits in a bounded buffer. Most requests are
    over before that is worth a task.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answered = started = False

        async def watched(message: Message) -> None:
            nonlocal answered, started
            started = True
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        watch = _Watch(receive, lambda: answered)
        try:
            await self.app(scope, watch.receive, watched)
        except asyncio.CancelledError:
            if watch.gone:
                self.metrics.disconnects.inc()
            elif not started:  # the server is shutting down and has waited long enough
                problem = HttpProblem("draining", "The service stopped before the call ended.")
                await problem_response(problem, scope["state"]["request_id"], scope["path"])(scope, receive, send)
        finally:
            watch.end()


class _Watch:
    """Receives for the handler that runs in the present task, and cancels it when its client has gone.

    gone: whether that has happened.
    """

    def __init__(self, receive: Receive, answered: Callable[[], bool]) -> None:
        """answered: whether the handler has given its whole answer, after which a client may go."""
        self.gone = False
        self._receive, self._answered = receive, answered
        self._handler = asyncio.current_task()
        self._receiving = False
        self._buffer: _Buffer | None = None
        self._pump: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PATIENCE_S, self._start)

    async def receive(self) -> Message:
        """The next message, for the handler. Raises CancelledError when the client has gone."""
        if self._buffer is not None:
            return await self._buffer.get()
        self._receiving = True
        try:
            message = await self._receive()
        finally:
            self._receiving = False
        if message["type"] == "http.disconnect" and not self._answered():
            self.gone = True
            raise asyncio.CancelledError
        return message

    def _start(self) -> None:
        if self._receiving:  # then the handler will hear of it
            self._timer = self._loop.call_later(PATIENCE_S, self._start)
        else:
            self._buffer = _Buffer()
            self._pump = asyncio.ensure_future(self._pumping(self._buffer))

    async def _pumping(self, buffer: _Buffer) -> None:
        while await buffer.put(await self._receive()):
            pass
        if not self._answered() and self._handler is not None:
            self.gone = True
            self._handler.cancel()

    def end(self) -> None:
        """The handler is done."""
        self._timer.cancel()
        if self._pump is not None:
            self._pump.cancel()
        if self.gone and self._handler is not None:
            self._handler.uncancel()


class _Buffer:
    """ASGI messages between the pump and the handler, at most READ_AHEAD_BYTES of them and one more."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    async def put(self, message: Message) -> bool:
        """Add `message`, when there is room. Returns whether more may follow."""
        gone = message["type"] == "http.disconnect"
        while self._size > READ_AHEAD_BYTES and not gone:
            await self._wait()
        self._messages.append(message)
        self._size += len(message.get("body", b""))
        self._changed.set()
        return not gone

    async def get(self) -> Message:
        while not self._messages:
            await self._wait()
        if self._messages[0]["type"] == "http.disconnect":
            return self._messages[0]  # stays: whoever asks again hears the same
        message = self._messages.popleft()
        self._size -= len(message.get("body", b""))
        self._changed.set()
        return message

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Caught:
    """Answers what no exception handler knew with a problem document, inside the layers that mark and measure it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            current = scope["state"]["request_id"]
            log.exception("request %s failed: %s %s", current, scope["method"], scope["path"])
            if started:
                raise  # the server cuts the connection, which is all that can still be said
            await problem_response(from_exception(error), current, scope["path"])(scope, receive, send)
