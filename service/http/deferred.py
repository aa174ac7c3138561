"""Asynchronous requests: with `Prefer: respond-async` a long call becomes an operation.

The client gets 202 with the operation's path as soon as its body has arrived and `wait` seconds (of the same header, by
default 0) have passed. The call goes on; its answer is stored and can be read for an hour. A call that ends earlier is
answered as usual. A call that changes nothing can be canceled. One that may change something goes on, because its
result tells the effect; several steps of a session end after the one that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import problems
from service.caller import tenant
from service.http.idempotency import SECRETS, is_uncertain, may_change, outcome_unknown
from service.http.recorded import Recorded, Recorder, as_answer, delete_stored, stored
from service.http.worker_calls import STOP
from service.ids import random_id
from service.objects import Objects
from service.problems import HttpProblem
from service.settings import Settings
from service.store import operations as rows
from service.store.errors import StorageError
from service.store.operations import StoredOperation
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["Deferred", "Operations", "preferences"]

log = logging.getLogger("backpass.http")

KEPT_S = 3600.0
MAX_WAIT_S = 60.0
SWEEP_S = 15.0
AGAIN_S = 2.0  # between two tries to store the end of an operation
POLL_S = 0.5  # between two looks at an operation of another process
STOP_S = 5.0  # for another process to stop one, and for a call that may change something
DEFERRED = ("POST", "PUT")
"""Methods whose calls may go on as operations."""
STREAMS = (b"text/event-stream", b"application/x-ndjson")


class Operations:
    """The operations of one process, and the store of all."""

    def __init__(self, settings: Settings, store: Store, objects: Objects, instance: str) -> None:
        """instance: id of this process."""
        self.settings, self.store, self.objects, self.instance = settings, store, objects, instance
        self._stops: dict[str, Callable[[], object]] = {}  # end the calls of the running operations
        self._finishing: set[asyncio.Task[None]] = set()
        self._ended: dict[str, asyncio.Event] = {}
        self.running: Counter[str] = Counter()
        """Tenant -> the number of its operations that run in this process."""

    async def watch(self) -> None:
        """End operations whose process died, and delete expired ones, until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "operations are not swept")

    async def sweep(self) -> None:
        """End operations whose process died, and delete expired ones. Raises StorageError, OSError."""
        now = time.time()
        ended = "the service ended while it executed the call"
        again, unknown = HttpProblem("canceled", f"{ended}; send the request again"), outcome_unknown(ended)
        answers = {
            changes: (problem.status, await stored(as_answer(problem, ""), self.objects))
            for changes, problem in ((False, again), (True, unknown))
        }
        answer_to = lambda kind: answers[_may_change(kind)]
        await self.store.write(lambda db: rows.lose(db, self.instance, answer_to, now, now + KEPT_S))
        mine = await self.store.read(lambda db: rows.running_of(db, self.instance))
        if refused := mine - self._ended.keys():  # compared after the reading: another may begin meanwhile
            await self.store.write(lambda db: rows.drop_running(db, refused))
        for old in await self.store.write(lambda db: rows.expired(db, now)):
            await delete_stored(old, self.objects)

    async def listen(self) -> None:
        """Stop the calls whose operations were canceled or deleted at another process, until cancelled."""
        while not self.store.is_sqlite:
            await asyncio.sleep(POLL_S)
            try:
                await self.stop_deleted()
            except HttpProblem as error:
                log.warning("requests to stop operations are not seen: %s", error)

    async def stop_deleted(self) -> None:
        """Stop the calls whose operations were canceled or deleted. Raises StorageError."""
        if mine := dict(self._stops):
            going_on = await self.store.read(lambda db: rows.going_on(db, self.instance))
            for id, stop in mine.items():
                if id not in going_on:
                    stop()

    async def begin(self, request: str, ending: asyncio.Task[Recorded], stop: asyncio.Event) -> str:
        """The id of a new operation for the call `ending`. Raises HttpProblem for too many, StorageError.

        request: its method and path. stop: asks it to end early, if it may change something.
        """
        owner, now, limit = tenant(), time.time(), self.settings.operations
        id = f"opn_{random_id()}"

        def adding(db: Any) -> None:
            if rows.running(db, owner) >= limit:
                detail = f"{limit} operations are already running"
                raise HttpProblem("quota-exceeded", detail, headers={"Retry-After": "5"})
            rows.add(db, owner, id, request, self.instance, now)

        self._ended[id] = asyncio.Event()  # first: the sweep deletes those that this process does not know
        try:
            await self.store.write(adding)
        except BaseException as error:
            del self._ended[id]
            if isinstance(error, StorageError):
                with contextlib.suppress(StorageError):  # it may be stored; if this fails, the sweep deletes it
                    await self.store.write(lambda db: rows.remove(db, owner, id))
            raise
        self._stops[id] = stop.set if _may_change(request) else ending.cancel
        task = asyncio.create_task(self._finish(owner, id, request, ending))
        self._finishing.add(task)
        self.running[owner] += 1

        def finished(task: asyncio.Task[None]) -> None:
            self._finishing.discard(task)
            self.running[owner] -= 1

        task.add_done_callback(finished)
        return id

    async def keep(self, id: str, request: str, recorded: Recorded) -> None:
        """Store an operation that has ended with `recorded`, unless there is one with this id. Raises StorageError."""
        owner, now = tenant(), time.time()
        answer = await stored(recorded, self.objects)

        def adding(db: Any) -> None:
            if rows.get(db, owner, id) is None:
                rows.add(db, owner, id, request, self.instance, now)
                rows.finish(db, owner, id, "succeeded", recorded.status, answer, now, now + KEPT_S)

        await self.store.write(adding)

    async def _finish(self, owner: str, id: str, request: str, ending: asyncio.Task[Recorded]) -> None:
        """Store the answer of the call when it has ended."""
        state, path = "succeeded", request.partition(" ")[2]
        try:
            recorded = await ending
            if _may_change(request) and is_uncertain(recorded):
                recorded = as_answer(outcome_unknown(f"the call ended with status {recorded.status}"), path)
            if recorded.status >= 400:
                state = "canceled" if recorded.problem_code == "canceled" else "failed"
        except asyncio.CancelledError:
            ending.cancel()
            problem, state = HttpProblem("canceled", "the operation was canceled", retryable=False), "canceled"
            if _may_change(request):  # the service stops: what the call has begun may go on
                problem, state = outcome_unknown("the service ended while it executed the call"), "failed"
            recorded = as_answer(problem, path)
        except Exception as error:
            log.exception("operation %s failed", id)
            recorded = as_answer(problems.from_exception(error), path)
            state = "failed"
        try:
            await self._keep_result(owner, id, state, recorded)
        finally:
            self._stops.pop(id, None)
            self._ended.pop(id).set()

    async def _keep_result(self, owner: str, id: str, state: str, recorded: Recorded) -> None:
        """Store the end of an operation, however long that takes: without it, the operation would run for ever."""
        answer = b""

        def finish(db: Connection) -> bool:
            now = time.time()
            return rows.finish(db, owner, id, state, recorded.status, answer, now, now + KEPT_S)

        while True:
            try:
                answer = answer or await stored(recorded, self.objects)
                if not await self.store.write(finish):
                    found = await self.store.read(lambda db: rows.get(db, owner, id))
                    if found is None or found.answer != answer:  # it was deleted meanwhile
                        await delete_stored(answer, self.objects)
            except (HttpProblem, OSError) as error:
                log.warning("the result of operation %s is not stored yet: %s", id, error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def wait(self, id: str, seconds: float | None) -> None:
        """Wait until the operation ends, at most `seconds`; None for no limit. Raises StorageError."""
        event, owner = self._ended.get(id), tenant()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if event is not None:
                    await event.wait()
                    return
                while not self.store.is_sqlite:  # it runs in another process
                    found = await self.store.read(lambda db: rows.get(db, owner, id))
                    if found is None or found.state != rows.RUNNING:
                        return
                    await asyncio.sleep(POLL_S)

    async def cancel(self, id: str, request: str) -> None:
        """Stop the call of the operation. Raises StorageError.

        Does nothing if the call has ended. One that changes nothing has stopped afterwards, unless it runs in another
        process, which stops it as soon as it can. One that may change something cannot be undone: it is asked to end
        early, and may run for longer.
        request: its method and path.
        """
        stop, owner = self._stops.get(id), tenant()
        if stop is not None:
            stop()
            await self.wait(id, STOP_S if _may_change(request) else None)
        elif not self.store.is_sqlite:
            await self.store.write(lambda db: rows.ask_to_stop(db, owner, id))
            await self.wait(id, STOP_S)

    async def delete(self, id: str, check: Callable[[StoredOperation], None]) -> bool:
        """Delete the operation with its answer, and stop its call as `cancel` does; whether there was one.

        check: called in the transaction of the deletion; what it raises prevents it. Raises StorageError, OSError.
        """
        owner = tenant()

        def removing(db: Connection) -> StoredOperation | None:
            found = rows.get(db, owner, id)
            if found is not None:
                check(found)
                rows.remove(db, owner, id)
            return found

        found = await self.store.write(removing)
        if found is not None and found.answer is not None:
            await delete_stored(found.answer, self.objects)
        elif found is not None and (stop := self._stops.get(id)) is not None:  # other processes miss its row
            stop()
            await self.wait(id, STOP_S if _may_change(found.kind) else None)
        return found is not None

    async def drain(self) -> None:
        """Wait for the running operations, also those that begin meanwhile."""
        while self._finishing:
            await asyncio.wait(self._finishing)


class Deferred:
    """Middleware for requests with `Prefer: respond-async`. All others pass."""

    def __init__(self, app: ASGIApp, operations: Operations) -> None:
        self.app, self._operations = app, operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = None
        if scope["type"] == "http" and scope["method"] in DEFERRED and scope["path"].startswith("/v1/"):
            wanted = preferences(scope).get("respond-async")
        if wanted is None or scope["path"].startswith(("/v1/operations", SECRETS)) or _streams(scope):
            await self.app(scope, receive, send)
            return
        try:
            response = await self._response(scope, receive)
        except problems.EXPECTED as error:
            response = await problems.answer(Request(scope), error)
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive) -> Response:
        body = _Received(receive, _has_body(scope))
        inner = {**scope, "state": dict(scope.get("state", {}))}
        inner.pop("on_disconnect", None)
        request, stop = f"{scope['method']} {scope['path']}", asyncio.Event()

        async def run() -> Recorded:
            STOP.set(stop)
            recorder = Recorder()
            try:
                await self.app(inner, body.receive, recorder.send)
            except problems.EXPECTED as error:
                await (await problems.answer(Request(inner), error))(inner, body.receive, recorder.send)
            if recorder.recorded is None and _may_change(request):
                problem = outcome_unknown("the call has ended, but its answer is too large to be kept")
                return as_answer(problem, scope["path"])
            if recorder.recorded is None:
                raise HttpProblem("limit-exceeded", "the answer is too large for an operation")
            return recorder.recorded

        ending: asyncio.Task[Recorded] = asyncio.create_task(run())
        arrived = asyncio.create_task(body.whole.wait())
        try:
            await asyncio.wait({ending, arrived}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await asyncio.wait({ending}, timeout=min(MAX_WAIT_S, _seconds(preferences(scope).get("wait"))))
            if ending.done():
                scope["route"] = inner.get("route")
                return (await ending).response()
            beginning = asyncio.create_task(self._operations.begin(request, ending, stop))
            beginning.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait for it
            try:
                id = await asyncio.shield(beginning)  # once stored, an operation must end, also if its client leaves
            except HttpProblem:
                if not _may_change(request):
                    raise
                return (await ending).response()  # no operation can be stored, but the call takes effect
        except BaseException:
            ending.cancel()  # the client left, or there is no room for an operation
            raise
        finally:
            arrived.cancel()
            scope["route"] = inner.get("route")
        path = f"/v1/operations/{id}"
        content = orjson.dumps({"id": id, "state": rows.RUNNING, "request": request})
        headers = {"Location": path, "Preference-Applied": "respond-async", "Retry-After": "1"}
        return Response(content, 202, headers, "application/json")


class _Received:
    """Passes on the body of a request. whole: set when all of it has arrived."""

    def __init__(self, receive: Receive, has_body: bool) -> None:
        self._receive = receive
        self.whole = asyncio.Event()
        self._is_empty = not has_body
        if not has_body:
            self.whole.set()

    async def receive(self) -> Message:
        if self._is_empty:
            self._is_empty = False
            return {"type": "http.request", "body": b"", "more_body": False}
        if self.whole.is_set():
            await asyncio.get_running_loop().create_future()  # the operation does not end with its client
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.whole.set()
        return message


def _may_change(request: str) -> bool:
    """As `may_change`. request: method and path, with a space between."""
    method, _, path = request.partition(" ")
    return may_change(method, path)


def _has_body(scope: Scope) -> bool:
    sizes = [value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")]
    return any(size != b"0" for size in sizes)


def preferences(scope: Scope) -> dict[str, str]:
    """The preferences in the `Prefer` headers (RFC 7240): name -> value, in lower case."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"prefer":
            for each in value.decode("latin-1").lower().replace(";", ",").split(","):
                preference, _, given = each.partition("=")
                found.setdefault(preference.strip(), given.strip().strip('"'))
    return found


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdecimal() and len(text) < 6 else 0.0


def _streams(scope: Scope) -> bool:
    return any(name == b"accept" and any(kind in value for kind in STREAMS) for name, value in scope["headers"])
