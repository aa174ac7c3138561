"""The middleware around every request, as one pure ASGI layer to keep its cost low.

Request ids, metrics, a line in the log, security headers, cancellation when the client disconnects, and a problem
document for exceptions that no handler caught.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextvars import ContextVar

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.caller import tenant
from service.http.access_log import AccessLog, thing_of
from service.http.codec import CODEC, Codec
from service.http.direct_answers import REQUEST_ID, SECURITY_HEADERS
from service.http.drain import Drain
from service.logs import FIELDS
from service.observability.metrics import Metrics
from service.observability.tracing import RequestTrace, Tracing
from service.problems import HttpProblem, from_exception, new_request_id, problem_response

__all__ = ["Around", "install", "request_id"]

log = logging.getLogger("backpass.http")

READ_AHEAD_BYTES = 256 * 2**10
PATIENCE_S = 0.02
CLIENT_GONE = 499  # not a status that is ever sent; names the case in the metrics
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

request_id: ContextVar[str] = ContextVar("request_id", default="")


def install(
    app: FastAPI,
    metrics: Metrics,
    codec: Codec | None = None,
    access: AccessLog | None = None,
    drain: Drain | None = None,
    tracing: Tracing | None = None,
) -> None:
    """Add the middleware to `app`. Call once, before the application starts.

    codec: for large bodies and answers. access: writes a line for each request. drain: refuses new work at the end.
    tracing: makes the spans of requests.
    """
    app.add_middleware(Around, metrics=metrics, codec=codec, access=access, drain=drain, tracing=tracing)


class Around:
    """Gives each request an id, counts it under the template of its route, and handles uncaught exceptions.

    The answer repeats a valid request id of the client. All requests that match no route share one label.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        codec: Codec | None = None,
        access: AccessLog | None = None,
        drain: Drain | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.app = app
        self.codec = codec
        self.metrics = metrics
        self.tracing = tracing
        self.drain = Drain() if drain is None else drain
        self.access = AccessLog("off") if access is None else access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        answer = _Answer(_id_of(scope), send)
        scope.setdefault("state", {})["request_id"] = answer.request_id
        request_id.set(answer.request_id)
        FIELDS.set({"request_id": answer.request_id, **thing_of(scope["path"])})
        CODEC.set(self.codec)
        if self.tracing is not None:
            answer.trace = self.tracing.begin(scope, answer.request_id)
        watch = _Watch(receive, answer, "on_disconnect" not in scope)
        scope["on_disconnect"] = watch.disconnected
        self.metrics.active += 1
        try:
            if self.drain.announced:
                answer.last = True
                if (refused := self.drain.refusal(scope["path"])) is not None:
                    await problem_response(refused, answer.request_id, scope["path"])(scope, receive, answer.send)
                    return
            await self.app(scope, watch.receive, answer.send)
        except asyncio.CancelledError:
            if watch.gone:
                self.metrics.disconnects.inc()
            elif not answer.started:  # the server is shutting down, and its grace period is over
                problem = HttpProblem("draining", "the service stopped before the call ended")
                await problem_response(problem, answer.request_id, scope["path"])(scope, receive, answer.send)
        except Exception as error:
            log.exception("a request failed: %s %s", scope["method"], scope["path"])
            if answer.started:
                raise  # the server closes the connection: the status has been sent
            await problem_response(from_exception(error), answer.request_id, scope["path"])(scope, receive, answer.send)
        finally:
            watch.end()
            self.metrics.active -= 1
            route = getattr(scope.get("route"), "path", None) or "unmatched"
            method = scope["method"] if scope["method"] in METHODS else "other"
            seconds = time.perf_counter() - started
            self.metrics.request(method, route, answer.status, seconds, watch.taken)
            if answer.trace is not None:
                answer.trace.end(method, route, answer.status, tenant())
            if answer.replayed:
                self.metrics.replays.inc()
            if self.access.wants(route, answer.status):
                self.access.write(method, route, answer.status, seconds, watch.taken, answer.bytes, tenant())


def _id_of(scope: Scope) -> str:
    given = next((value for name, value in scope["headers"] if name == b"request-id"), b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else new_request_id()


class _Answer:
    """The answer being sent, with the headers of every answer.

    status: valid once it has `started`. bytes: of its body so far. complete: whether all of the answer was passed on.
    last: whether the connection closes after it, so that the client finds another process. replayed: whether it is
    a stored one.
    """

    def __init__(self, request_id: str, send: Send) -> None:
        self.request_id = request_id
        self.status = CLIENT_GONE
        self.bytes = 0
        self.started = self.complete = self.last = self.replayed = False
        self.trace: RequestTrace | None = None
        self._send = send

    async def send(self, message: Message) -> None:
        self.started = True
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.trace is not None:
                self.trace.answering()
            headers = [header for header in message.get("headers", ()) if header[0] != b"request-id"]
            own = {name for name, _ in headers}
            headers += [header for header in SECURITY_HEADERS if header[0] not in own]
            self.replayed = b"idempotency-replayed" in own
            if self.last:
                headers.append((b"connection", b"close"))
            message["headers"] = [*headers, (b"request-id", self.request_id.encode())]
        else:
            self.bytes += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self._send(message)


class _Watch:
    """Receives messages for the handler in the current task, and cancels it when the client disconnects, so that no
    worker computes an unread answer.

    The protocol of this service reports the end of the connection. Under another server, detecting it takes a task that
    always receives; messages wait in a bounded buffer. The task starts after PATIENCE_S, because most requests end
    earlier.

    gone: whether the client disconnected before its answer was complete. taken: bytes of the body.
    """

    def __init__(self, receive: Receive, answer: _Answer, pumps: bool) -> None:
        self.gone = False
        self.taken = 0
        self._receive, self._answer = receive, answer
        self._handler = asyncio.current_task()
        self._receiving = False
        self._buffer: _Buffer | None = None
        self._pump: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PATIENCE_S, self._start) if pumps else None

    def disconnected(self) -> None:
        """Cancel the handler: no client will read its answer."""
        if not self._answer.complete and not self.gone and self._handler is not None:
            self.gone = True
            self._handler.cancel()

    async def receive(self) -> Message:
        """The next message. Raises CancelledError when the client has disconnected."""
        if self._buffer is not None:
            return await self._buffer.get()
        self._receiving = True
        try:
            message = await self._take()
        finally:
            self._receiving = False
        if message["type"] == "http.disconnect" and not self._answer.complete:
            self.gone = True
            raise asyncio.CancelledError
        return message

    async def _take(self) -> Message:
        message = await self._receive()
        self.taken += len(message.get("body", b""))
        return message

    def _start(self) -> None:
        if self._receiving:  # the handler sees the disconnect itself
            self._timer = self._loop.call_later(PATIENCE_S, self._start)
        else:
            self._buffer = _Buffer()
            self._pump = asyncio.ensure_future(self._pumping(self._buffer))

    async def _pumping(self, buffer: _Buffer) -> None:
        while await buffer.put(await self._take()):
            pass
        self.disconnected()

    def end(self) -> None:
        """Stop watching: the handler has ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pump is not None:
            self._pump.cancel()
        if self.gone and self._handler is not None:
            self._handler.uncancel()


class _Buffer:
    """ASGI messages between the pump and the handler: READ_AHEAD_BYTES plus one message at most."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    async def put(self, message: Message) -> bool:
        """Add `message` as soon as there is room. Returns whether more may follow."""
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
            return self._messages[0]  # stays: later calls get it again
        message = self._messages.popleft()
        self._size -= len(message.get("body", b""))
        self._changed.set()
        return message

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()
