"""Answers that the protocol gives itself, without a task and without the application."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import orjson

from service.http.admission import STREAMED
from service.problems import HttpProblem, new_request_id, problem_body
from service.settings import Settings

__all__ = ["LIVE", "REQUEST_ID", "SECURITY_HEADERS", "alive", "id_of", "refused", "too_large"]

LIVE = "/healthz/live"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
"""They restrict a browser to showing an answer. A route's own headers take precedence."""

ALIVE = b'{"status":"alive"}'
COMMON = b"".join(b"%b: %b\r\n" % header for header in SECURITY_HEADERS)
ALIVE_HEAD = b"content-length: %d\r\ncontent-type: application/json\r\n%b" % (len(ALIVE), COMMON)


def id_of(cycle: Any) -> str:
    """The id of a request: the client's, if it is valid, else a new one."""
    for name, value in cycle.scope["headers"]:
        if name == b"request-id":
            given = value.decode("latin-1")
            if REQUEST_ID.fullmatch(given):
                return given
    return new_request_id()


def alive(request_id: str, headers: Iterable[tuple[bytes, bytes]], keep_alive: bool) -> bytes:
    """The answer of `/healthz/live`: the event loop runs, or nothing would answer. headers: those of the server."""
    own = b"".join([b"%b: %b\r\n" % header for header in headers])
    end = b"" if keep_alive else b"connection: close\r\n"
    return b"HTTP/1.1 200 OK\r\n%b%brequest-id: %b\r\n%b\r\n%b" % (own, ALIVE_HEAD, request_id.encode(), end, ALIVE)


def refused(problem: HttpProblem, request_id: str, path: str, keep_alive: bool, method: str = "") -> bytes:
    """The answer to a request that does not reach the application. To HEAD it has no content."""
    body = orjson.dumps(problem_body(problem, request_id, path))
    lines = [
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        "content-type: application/problem+json",
        f"content-length: {len(body)}",
        f"request-id: {request_id}",
        *(f"{name.lower()}: {value}" for name, value in problem.headers.items()),
    ]
    if not keep_alive:
        lines.append("connection: close")
    return "\r\n".join([*lines, ""]).encode() + COMMON + b"\r\n" + (b"" if method == "HEAD" else body)


def too_large(scope: Mapping[str, Any], declared: int, settings: Settings) -> HttpProblem | None:
    """The refusal of a body whose declared size exceeds the limit of its media type, if it does."""
    if STREAMED.match(scope["path"]) is not None and declared <= settings.dataset_bytes:
        return None  # these routes refuse JSON that is too large themselves
    if declared <= min(settings.json_body_bytes, settings.binary_body_bytes):
        return None
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"").lower()
    limit = settings.json_body_bytes if kind.startswith(b"application/json") else settings.binary_body_bytes
    if STREAMED.match(scope["path"]) is not None and limit == settings.binary_body_bytes:
        limit = settings.dataset_bytes
    if declared <= limit:
        return None
    detail = f"the body is larger than the limit of {limit} bytes"
    return HttpProblem("body-too-large", detail, limit=limit)
