"""The check of API keys, before a request is read, and the account of each answered request.

Everything is denied except to the holder of a key with the scope of the request, and except the public paths below. The
protocol asks the `Gatekeeper` when a header is complete; under another server, the middleware `Auth` asks it.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.caller import CALLER, LOCAL, NOBODY, Caller
from service.logs import note
from service.observability.metrics import Metrics
from service.problems import HttpProblem, problem_response
from service.tenants.audit import Audit, Entry
from service.tenants.key import Key
from service.tenants.key_ring import KeyRing
from service.tenants.quotas import Quotas
from service.tenants.usage import Usage

__all__ = ["Auth", "Gatekeeper", "is_public", "scope_of"]

log = logging.getLogger("backpass.http")

PUBLIC = re.compile(
    r"/|(?:/docs|/openapi\.json|/problems(?:/[a-z0-9-]{1,64})?|/healthz/(?:live|ready|startup)|/v2"
    r"|/v2/health/(?:live|ready))/?|/static/[a-z0-9._/-]+|/console(?:/[a-z0-9._/-]*)?|/guide(?:/[A-Za-z0-9._/-]*)?"
)
"""Paths that answer GET and HEAD without a key: health, the documentation, the guide, and the console's files. With a
slash too many at the end, they redirect."""

ADMIN = re.compile(r"/(?:v1/(?:keys|tenants|workers|audit)|metrics)(?![A-Za-z0-9_-])")
"""Not anchored at the end: routes also match paths with a newline at the end."""

WORK = re.compile(r"/v1/(?:gradients|programs|sessions|tapes|jobs)(?![A-Za-z0-9_-])")
READS = frozenset({"GET", "HEAD"})
CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
COMPUTING = re.compile(
    r"/v1/gradients|/v1/(?:programs|sessions|tapes)/[^/]+/(?:gradients|steps|updates|evaluations|ops|values|backward)"
    r"|/v1/uploads/[^/]+"
)
"""Calls that are too many for the audit log: the usage counts them."""

CHALLENGE = 'Bearer realm="backpass"'
QUIET_S = 1.0  # between two log lines about refused keys
TARGET = 128


def is_public(method: str, path: str) -> bool:
    """Whether a request needs no key."""
    return method in READS and PUBLIC.fullmatch(path) is not None


def scope_of(method: str, path: str) -> str:
    """The scope that a key needs for a request."""
    if ADMIN.match(path):
        return "admin"
    return "read" if method in READS else "write"


class Gatekeeper:
    """Decides who the caller of a request is, and whether the request may start."""

    def __init__(self, ring: KeyRing, quotas: Quotas, metrics: Metrics, origins: Iterable[str] = ()) -> None:
        """origins: those of the setting `cors_origins`; their preflight requests carry no key."""
        self._ring, self._quotas = ring, quotas
        self._origins = frozenset(origin.encode() for origin in origins)
        self._refusals = Counter(
            "backpass_access_refusals",
            "Requests refused for their key, by reason.",
            ["reason"],
            registry=metrics.registry,
        )
        self._told = 0.0
        self.running: Counts[str] = Counts()
        """Tenant -> the number of its requests that run."""

    def decide(self, scope: Scope) -> Caller | HttpProblem:
        """The caller of a request, or its refusal: 401, 403 or 429."""
        if not self._ring.is_needed:
            return LOCAL
        method, path = scope["method"], scope["path"]
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        key = self._key(given)
        if not isinstance(key, Key):
            if is_public(method, path) or self._is_preflight(scope):
                return NOBODY
            return self._unauthenticated(
                key, challenge=CHALLENGE if not given else f'{CHALLENGE}, error="invalid_token"'
            )
        state = self._ring.states.get(key.tenant)
        if state is not None and not is_public(method, path):
            self._refused("tenant", state.detail(key.tenant))
            return state.refusal(key.tenant)
        needed = scope_of(method, path)
        if needed not in key.scopes and not is_public(method, path):
            self._refused("scope", f"key {key.id} of {key.tenant} has no scope {needed}")
            detail = f"the request needs the scope {needed}; the key has {', '.join(sorted(key.scopes))}"
            return HttpProblem("forbidden", detail)
        computes = method not in READS and method != "DELETE" and WORK.match(path) is not None
        refusal = self._quotas.admit(key.tenant, computes)
        if refusal is not None:
            self._refusals.labels(refusal.code).inc()
            return refusal
        key.used = time.time()
        return Caller(key.tenant, key.id, key.scopes)

    def allows_origin(self, scope: Scope) -> bool:
        """Whether the request comes from a page of a listed origin, whose browser must see CORS headers."""
        return bool(self._origins) and any(
            name == b"origin" and (value in self._origins or b"*" in self._origins) for name, value in scope["headers"]
        )

    def _key(self, given: list[bytes]) -> Key | str:
        """The key of the Authorization header, or the reason why there is none."""
        if not given:
            return "the request has no API key; send it as `Authorization: Bearer <key>`"
        scheme, _, secret = given[0].partition(b" ")
        if len(given) > 1 or scheme.lower() != b"bearer":
            return "the Authorization header is not of the form `Bearer <key>`"
        key = self._ring.find(secret.strip())
        if key is None:
            return "the API key is not known"
        if key.revoked is not None:
            return "the API key is revoked"
        return key if key.is_live(time.time()) else "the API key has expired"

    def _is_preflight(self, scope: Scope) -> bool:
        return (
            scope["method"] == "OPTIONS"
            and any(name == b"access-control-request-method" for name, _ in scope["headers"])
            and self.allows_origin(scope)
        )

    def _unauthenticated(self, reason: str, challenge: str) -> HttpProblem:
        self._refused("key", reason)
        return HttpProblem("unauthenticated", reason, headers={"WWW-Authenticate": challenge})

    def _refused(self, reason: str, line: str) -> None:
        self._refusals.labels(reason).inc()
        if time.monotonic() - self._told > QUIET_S:
            self._told = time.monotonic()
            log.warning("a request was refused: %s", line)


class Auth:
    """Middleware: sets the caller, counts the request for its tenant, and notes changes in the audit log."""

    def __init__(self, app: ASGIApp, gatekeeper: Gatekeeper, usage: Usage, audit: Audit) -> None:
        self.app = app
        self._gatekeeper, self._audit, self._running = gatekeeper, audit, gatekeeper.running
        self._add: Callable[[str, str, float], None] = usage.add

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        caller = scope.get("caller")
        if caller is None:
            caller = scope["caller"] = self._gatekeeper.decide(scope)
        if isinstance(caller, HttpProblem):
            scope["caller"] = NOBODY
            await problem_response(caller, _request_id(scope), scope["path"])(scope, receive, send)
            return
        CALLER.set(caller)
        note(tenant=caller.tenant)
        answer = _Answer(send)
        body = _Body(receive) if scope.get("declared_bytes") is None else None
        self._running[caller.tenant] += 1
        try:
            await self.app(scope, receive if body is None else body.receive, answer.send)
        finally:
            tenant = caller.tenant
            self._running[tenant] -= 1
            self._add(tenant, "requests", 1.0)
            self._add(tenant, "bytes_out", answer.bytes)
            received = scope["declared_bytes"] if body is None else body.bytes
            if received:
                self._add(tenant, "bytes_in", received)
            if answer.status < 400:
                self._note(scope, caller, answer)

    def _note(self, scope: Scope, caller: Caller, answer: _Answer) -> None:
        method, path = scope["method"], scope["path"]
        if method in CHANGES:
            if COMPUTING.fullmatch(path):
                return
        elif not path.startswith("/v1/") or ADMIN.match(path) is None:
            return
        route = getattr(scope.get("route"), "path", None)
        if route is not None:
            action, target = f"{method} {route}", answer.location or path
            request_id = _request_id(scope)
            entry = Entry(caller.tenant, time.time(), caller.key, action, target[:TARGET], answer.status, request_id)
            self._audit.note(entry)


def _request_id(scope: Scope) -> str:
    return scope.get("state", {}).get("request_id", "")


class _Body:
    """A body of undeclared size, and its bytes so far."""

    __slots__ = ("_receive", "bytes")

    def __init__(self, receive: Receive) -> None:
        self._receive, self.bytes = receive, 0

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes += len(message.get("body", b""))
        return message


class _Answer:
    """The answer being sent: its status, the bytes of its body, and the path of a created thing."""

    __slots__ = ("_send", "bytes", "location", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status, self.bytes, self.location = 499, 0, ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status in (201, 202):
                for name, value in message.get("headers", ()):
                    if name == b"location":
                        self.location = value.decode("latin-1")
        await self._send(message)
