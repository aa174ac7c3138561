"""Idempotency keys: a POST with the header `Idempotency-Key` takes effect once, however often it arrives.

The key is reserved in the store before the request runs, and the answer is stored before it is sent; a repeated request
gets the stored answer, also after a restart. Such a request runs to its end when its client leaves. If the service dies
meanwhile, the next try executes the request again: everything it creates gets the same ids (`service.ids`), so it finds
what the first try created.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from typing import Any

import orjson
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import problems
from service.caller import tenant
from service.http.recorded import KEPT_S, Recorded, Recorder, as_answer, delete_stored, load, stored
from service.http.request_body import check_accepted
from service.ids import REPEATABLE, Repeatable
from service.objects import Objects
from service.problems import HttpProblem, wrong_parameter
from service.settings import Settings
from service.store import idempotency as rows
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["HEADER", "SECRETS", "Idempotency", "Idempotent", "is_uncertain", "may_change", "outcome_unknown"]

log = logging.getLogger("backpass.http")

HEADER = "Idempotency-Key"
ACCEPTED = 202
KEY = re.compile(r"[\x21-\x7e]{1,255}")
PATIENCE_S = 60.0  # for the first of several equal requests
SWEEP_S = 300.0
FREE_S = 5.0
REFUSED = frozenset({406, 408, 409, 412, 425, 428, 429})
"""Statuses of answers that are not stored, because the same request may succeed later, or with other headers."""

SECRETS = "/v1/keys"
"""Answers below this path contain the text of an API key, which is stored nowhere."""

CREATED = {
    r"/v1/sessions": ("ses_", "/v1/sessions/"),
    r"/v1/sessions/ses_[a-z2-7]{26}/fork": ("ses_", "/v1/sessions/"),
    r"/v1/sessions/ses_[a-z2-7]{26}/checkpoints": ("ckp_", "/v1/checkpoints/"),
    r"/v1/checkpoints": ("ckp_", "/v1/checkpoints/"),
    r"/v1/tapes": ("tap_", "/v1/tapes/"),
    r"/v1/jobs": ("job_", "/v1/jobs/"),
    r"/v1/uploads": ("upl_", "/v1/uploads/"),
}
"""Pattern of a path whose POST creates something -> the prefix of its id, and the path at which it can be read."""

CHANGES = re.compile(r"/v1/(?:sessions|tapes)/[a-z]{3}_[a-z2-7]{26}/\w+")
"""Requests that change an open session or tape, whose effect cannot be looked up afterwards."""

HARMLESS = re.compile(r"/v1/(?:gradients|datasets|programs(?:/[^/]+/\w+)?|sessions/ses_[a-z2-7]{26}/evaluations)")
"""Paths whose POST changes nothing, or stores what the same request stores again under the same id."""


def may_change(method: str, path: str) -> bool:
    """Whether a second execution of the request may have a second effect."""
    return method not in ("GET", "HEAD") and not (method == "POST" and HARMLESS.fullmatch(path))


UNCERTAIN = frozenset({"no-capacity", "recovering", "draining", "worker-lost", "internal"})
"""Codes of answers to calls that may have taken effect: the steps of a journal, for example, are taken again."""


def _may_succeed_later(status: int) -> bool:
    """Whether the same request may succeed although an earlier one was answered with this status."""
    return status >= 500 or status in REFUSED


def is_uncertain(recorded: Recorded | None) -> bool:
    """Whether a call that may change something may have done so, though its answer is an error or too long to keep."""
    if recorded is None:
        return True
    code = recorded.problem_code
    if recorded.status < 500:
        return code == "outcome-unknown"
    return code is None or code in UNCERTAIN


def outcome_unknown(ended: str) -> HttpProblem:
    """The problem for a request that may have taken effect. ended: says how its execution ended."""
    advice = "read the state to see whether it took effect, and number requests with seq, which are safe to repeat"
    return HttpProblem("outcome-unknown", f"{ended}; {advice}")


def _unknown() -> HttpProblem:
    return outcome_unknown("the first request with this key ended without an answer that could be kept")


class Idempotency:
    """The requests of one process that carry a key, and the store of their answers."""

    def __init__(self, settings: Settings, store: Store, objects: Objects, instance: str) -> None:
        """instance: id of this process."""
        self.settings, self.store, self.objects, self.instance = settings, store, objects, instance
        self.running: dict[tuple[str, str], asyncio.Event] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.taken: dict[tuple[str, str], float | None] = {}
        """Keys that the store may hold for requests of this process that had no effect -> when they were reserved, if
        only that reservation had none."""

    async def watch(self) -> None:
        """Delete expired answers, and free keys, until cancelled. Run it as a task."""
        await asyncio.gather(
            keep_sweeping(self.sweep, SWEEP_S, log, "expired answers are not deleted"),
            keep_sweeping(self.free, FREE_S, log, "keys of requests that failed are not free yet"),
        )

    async def free(self) -> None:
        """Let other processes run the requests that this one could not run or forget. Raises StorageError."""
        for name in self.taken.keys() - self.running.keys():
            self.running[name] = event = asyncio.Event()  # a repeated request waits

            def work(db: Connection, name: tuple[str, str] = name) -> None:
                rows.drop(db, *name, self.instance, self.taken[name])

            try:
                await self.store.write(work)
                del self.taken[name]
            finally:
                del self.running[name]
                event.set()

    async def sweep(self) -> None:
        """Delete expired answers. Raises StorageError, OSError."""
        for answer in await self.store.write(lambda db: rows.expired(db, time.time())):
            await delete_stored(answer, self.objects)

    async def drain(self) -> None:
        """Wait for the running requests."""
        if self.tasks:
            await asyncio.wait(self.tasks)


class Idempotent:
    """Middleware for POST requests with the header `Idempotency-Key`. It refuses those with secret answers; others
    pass."""

    def __init__(self, app: ASGIApp, keys: Idempotency) -> None:
        self.app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = []
        if scope["type"] == "http" and scope["method"] == "POST":
            given = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        if not given:
            await self.app(scope, receive, send)
            return
        try:
            if scope["path"].startswith(SECRETS):
                raise _with_secret()
            await self._once(_key(b", ".join(given)), scope, receive, send)
        except problems.EXPECTED as error:
            await (await problems.answer(Request(scope), error))(scope, receive, send)

    async def _once(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        keys, owner = self._keys, tenant()
        name = owner, key
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (event := keys.running.get(name)) is not None:
                    await event.wait()
        except TimeoutError:
            raise _in_flight() from None
        keys.running[name] = event = asyncio.Event()
        body = _Hashing(scope, receive)

        async def run() -> Response | None:
            try:
                return await self._answer(key, owner, body, scope, receive, send)
            finally:
                del keys.running[name]
                event.set()

        task = asyncio.create_task(run())
        keys.tasks.add(task)
        task.add_done_callback(keys.tasks.discard)
        response = await asyncio.shield(task)
        if response is not None:
            await response(scope, receive, send)

    async def _answer(
        self, key: str, owner: str, body: _Hashing, scope: Scope, receive: Receive, send: Send
    ) -> Response | None:
        """The answer to send; None if it was sent already."""
        keys, now = self._keys, time.time()
        begin = lambda db: rows.begin(db, owner, key, keys.instance, now, now + KEPT_S)
        keys.taken[owner, key] = now  # until the answer of the store is here
        known = await keys.store.write(begin)
        del keys.taken[owner, key]
        old = None if known is None else known.answer
        if old is not None and await self._has_failed(old, scope):
            if await keys.store.write(lambda db: rows.drop_answer(db, owner, key, old)):
                await delete_stored(old, keys.objects)
            known = await keys.store.write(begin)
        if known is not None and known.answer is not None:
            if await body.whole(keys.settings) != known.digest:
                raise HttpProblem("idempotency-conflict", f"the {HEADER} was used with another request")
            return await self._stored(known.answer, Request(scope))
        source = Repeatable(f"{owner}\0{key}".encode())
        if known is not None:
            if known.owner != keys.instance and not await keys.store.write(
                lambda db: rows.take_over(db, owner, key, known.owner, keys.instance)
            ):
                raise _in_flight()
            found = await self._created(source, scope)
            if found is not None:
                return await self._keep(found, key, owner, await body.whole(keys.settings))
        REPEATABLE.set(source)
        recorder = Recorder(send)
        try:
            await self.app(scope, body.receive, recorder.send)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Exception) or not body.has_ended:  # nothing runs before the whole body is there
                await self._forget(owner, key)
            raise
        recorded = recorder.recorded
        if CHANGES.fullmatch(scope["path"]) and is_uncertain(recorded):
            unknown = as_answer(_unknown(), scope["path"])  # with an answer, the key runs nothing again
            with contextlib.suppress(HttpProblem, OSError):
                await self._keep(unknown, key, owner, await body.whole(keys.settings))
            return recorded.response() if recorded is not None else None
        if recorded is None or _may_succeed_later(recorded.status):
            await self._forget(owner, key)
            return recorded.response() if recorded is not None else None
        return await self._keep(recorded, key, owner, await body.whole(keys.settings))

    async def _forget(self, owner: str, key: str) -> None:
        """Forget the request, which had no effect. Raises StorageError; then `Idempotency.free` tries again."""
        keys = self._keys
        keys.taken[owner, key] = None
        await keys.store.write(lambda db: rows.drop(db, owner, key, keys.instance))
        del keys.taken[owner, key]

    async def _has_failed(self, answer: bytes, scope: Scope) -> bool:
        """Whether a stored answer names an operation that changed nothing and has no result that can be used."""
        if may_change(scope["method"], scope["path"]):
            return False
        with contextlib.suppress(FileNotFoundError):
            accepted = await load(answer, self._keys.objects)
            if accepted.status != ACCEPTED:
                return False
            found = await _read(self.app, accepted.headers["location"], scope)
            if found is not None:
                status = orjson.loads(b"".join(map(bytes, found.parts)))["status"]
                return status is not None and _may_succeed_later(status)
        return True

    async def _stored(self, answer: bytes, request: Request) -> Response:
        """The stored answer. Raises HttpProblem 406 if the request does not accept its form."""
        try:
            found = await load(answer, self._keys.objects)
        except FileNotFoundError:
            detail = "the request has taken effect, but its answer is not stored any more"
            raise HttpProblem("outcome-unknown", detail) from None
        form = found.headers.get("content-type", "").partition(";")[0]
        if form and found.status < 300 and found.status != ACCEPTED:  # the JSON of a 202 says where the answer will be
            check_accepted(request, form)
        return found.response({"Idempotency-Replayed": "true"})

    async def _keep(self, recorded: Recorded, key: str, owner: str, digest: str) -> Response:
        keys = self._keys
        answer = await stored(recorded, keys.objects)
        status = recorded.status
        if not await keys.store.write(lambda db: rows.finish(db, owner, key, keys.instance, digest, status, answer)):
            await delete_stored(answer, keys.objects)  # another process took the request over, as this one was silent
        return recorded.response()

    async def _created(self, source: Repeatable, scope: Scope) -> Recorded | None:
        """The answer to an earlier execution of the request that died with its process, from what it created; None if
        it created nothing. Raises HttpProblem if that cannot be known."""
        for pattern, (prefix, place) in CREATED.items():
            if re.fullmatch(pattern, scope["path"]):
                path = place + source.made(prefix)
                found = await _read(self.app, path, scope)
                if found is None:
                    return None
                return Recorded(201, {**found.headers, "location": path}, found.parts)
        if CHANGES.fullmatch(scope["path"]):
            raise _unknown()
        return None


class _Hashing:
    """Passes on the body of a request, and computes the digest of the request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive, self.has_ended = receive, False
        kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        about = orjson.dumps([scope["method"], scope["path"], scope["query_string"].decode("latin-1")])
        self._digest = hashlib.sha256(about + kind + b"\0")
        size = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._size = int(size) if size.isdigit() else 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._digest.update(message.get("body", b""))
            self.has_ended = not message.get("more_body", False)
        return message

    async def whole(self, settings: Settings) -> str:
        """The digest, after the rest of the body has arrived. Raises HttpProblem if it comes too slowly."""
        try:
            async with asyncio.timeout(settings.body_deadline + self._size / settings.body_bytes_per_second):
                while not self.has_ended:
                    await self.receive()
        except TimeoutError:
            detail = "the body did not arrive before the deadline"
            raise HttpProblem("body-timeout", detail, headers={"Connection": "close"}) from None
        return self._digest.hexdigest()


async def _read(app: ASGIApp, path: str, scope: Scope) -> Recorded | None:
    """The answer to GET `path` by the same caller, if its status is 200."""
    recorder = Recorder()
    kept = (b"host", b"authorization")
    headers = [each for each in scope["headers"] if each[0] in kept]
    inner = {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    for name in ("route", "path_params", "endpoint", "tickets"):
        inner.pop(name, None)

    async def nothing() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    with contextlib.suppress(*problems.EXPECTED):
        await app(inner, nothing, recorder.send)
    found = recorder.recorded
    return found if found is not None and found.status == 200 else None


def _key(given: bytes) -> str:
    """The key in the header. Raises HttpProblem 422, also for the list that several lines are."""
    text = given.decode("latin-1").strip()
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        text = text[1:-1]
    if KEY.fullmatch(text) is None:
        detail = f"the {HEADER} must be 1 to 255 visible ASCII characters"
        raise wrong_parameter(f"header: {HEADER}", detail)
    return text


def _with_secret() -> HttpProblem:
    detail = (
        f"requests below {SECRETS} take no {HEADER}, because their answers contain the text of a key, which is stored "
        "nowhere; send the request without it, and after a lost answer list the keys and revoke the one that you lack"
    )
    return wrong_parameter(f"header: {HEADER}", detail)


def _in_flight() -> HttpProblem:
    detail = f"the first request with this {HEADER} has not ended yet"
    return HttpProblem("idempotency-in-flight", detail, headers={"Retry-After": "1"})
