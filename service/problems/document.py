"""The problem document: its members and their limits."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from service.problems.types import CODES, ProblemType

__all__ = [
    "MEDIA_TYPE",
    "FieldError",
    "HttpProblem",
    "new_request_id",
    "problem_body",
    "problem_response",
    "wrong_member",
    "wrong_parameter",
]

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 50
MAX_ERROR_BYTES = 24 * 2**10
MAX_DETAIL = 1000  # characters; names from the request occur in details, and names can be long
MAX_FIELD = 200


@dataclass(frozen=True, slots=True)
class FieldError:
    """One of several errors in a request.

    pointer:   JSON pointer into the body, or "" when `parameter` names a path, query or header parameter.
    code:      a stable word; detail: a sentence that does not contain the value.
    location:  the position in the program (block, op, type, slot, variable), if there is one.
    """

    pointer: str
    code: str
    detail: str
    location: Mapping[str, Any] | None = None
    suggestion: str | None = None
    parameter: str | None = None

    def as_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"pointer": clip(self.pointer, MAX_FIELD)}
        document |= {"code": self.code.replace("_", "-"), "detail": clip(self.detail, MAX_FIELD)}
        if self.parameter is not None:
            document["parameter"] = clip(self.parameter, MAX_FIELD)
        if self.location is not None:
            document["location"] = clipped_location(self.location)
        if self.suggestion is not None:
            document["suggestion"] = clip(self.suggestion, MAX_FIELD)
        return document


class HttpProblem(Exception):
    """An answer that is a problem document.

    code:       a key of CODES. status: one of its statuses, by default the first.
    errors:     single errors; the document contains the first 50.
    headers:    for the answer, such as Retry-After.
    retryable:  overrides the table.
    extensions: further members of the document, plain data.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        retryable: bool | None = None,
        **extensions: Any,
    ) -> None:
        super().__init__(detail)
        self.type: ProblemType = CODES[code]
        self.status = self.type.status if status is None else status
        assert self.status in self.type.statuses, f"{code} is not answered with {status}"
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.retryable = self.type.retryable if retryable is None else retryable
        self.extensions = extensions
        if self.status in (429, 503) and self.retryable and "Retry-After" not in self.headers:
            self.headers["Retry-After"] = "1"


def wrong_member(pointer: str, detail: str, kind: str = "invalid", code: str = "invalid-request") -> HttpProblem:
    """The problem of a request with one mistake, at `pointer` in its body. kind: code of the mistake."""
    return HttpProblem(code, detail, errors=[FieldError(pointer, kind, detail)])


def wrong_parameter(parameter: str, detail: str, kind: str = "invalid") -> HttpProblem:
    """The problem of a request with one mistake in a parameter, such as ``query: format`` or ``header: Range``."""
    return HttpProblem("invalid-request", detail, errors=[FieldError("", kind, detail, parameter=parameter)])


def retry_after(seconds: float) -> dict[str, str]:
    """The Retry-After header, in whole seconds."""
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def problem_body(problem: HttpProblem, request_id: str, instance: str = "") -> dict[str, Any]:
    """The members of the document. instance: the path of the request."""
    document: dict[str, Any] = {
        "type": f"/problems/{problem.code}",
        "title": problem.type.title,
        "status": problem.status,
        "detail": clip(problem.detail, MAX_DETAIL),
        "instance": f"{clip(instance, MAX_FIELD)}#{request_id}",
        "code": problem.code,
        "request_id": request_id,
        "retryable": problem.retryable,
    }
    if problem.errors:
        document["errors"] = _shown(problem.errors)
        document["errors_truncated"] = len(document["errors"]) < len(problem.errors)
    return document | problem.extensions


def _shown(errors: Sequence[FieldError]) -> list[dict[str, Any]]:
    """The first errors, up to a limit of bytes: a bad request must not cause a large answer."""
    shown, room = [], MAX_ERROR_BYTES
    for error in errors[:MAX_ERRORS]:
        shown.append(error.as_document())
        room -= len(orjson.dumps(shown[-1]))
        if room < 0:
            break
    return shown


def problem_response(problem: HttpProblem, request_id: str, instance: str = "") -> Response:
    """The answer for `problem`."""
    content = orjson.dumps(problem_body(problem, request_id, instance))
    return Response(content, problem.status, {**problem.headers, "Cache-Control": "no-store"}, MEDIA_TYPE)


def new_request_id() -> str:
    """A fresh id: "req_" and 26 hexadecimal digits."""
    return "req_" + secrets.token_hex(13)


def clip(text: str, limit: int) -> str:
    """`text` cut to `limit` characters, without lone surrogates, which JSON cannot encode."""
    clipped = text if len(text) <= limit else text[: limit - 3] + "..."
    return clipped.encode("utf-8", "replace").decode()


def clipped_location(location: Mapping[str, Any]) -> dict[str, Any]:
    """`location` with its strings clipped."""
    return {key: clip(value, MAX_FIELD) if isinstance(value, str) else value for key, value in location.items()}
