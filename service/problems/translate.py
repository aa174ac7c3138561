"""Problems for exceptions of the engine, the core, pydantic and Starlette."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import singledispatch
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from core.ir.errors import CoreError, OutOfMemory, ProgramError, escaped
from service.engine.protocol import (
    Barred,
    DeadlineExceeded,
    EngineError,
    NoCapacity,
    QueueFull,
    RemoteError,
    WorkerLost,
)
from service.problems.document import FieldError, HttpProblem, clipped_location, retry_after
from service.problems.unions import one_form, suggested
from service.problems.words import said

__all__ = ["OF_QUERY", "from_core", "from_exception", "from_remote", "from_validation", "stopped_document"]

PROGRAM_PREFIX = "/program"

OF_QUERY = frozenset({
    "loss", "targets", "inputs", "parameter_list", "no_grad_set", "checkpoints", "hooks", "fetch", "loop_memory",
    "init", "optimizer", "clip", "loss_scale", "outputs", "target", "wrt", "backward",
})  # fmt: skip
"""Members of a request beside its program. An error about such a member points to the member, not to the program."""

# Codes of the core with a problem code of their own. All other program errors are invalid-program, all other execution
# errors execution-failed.
_PROGRAM_CODES = {
    "no_gradient": "no-gradient",
    "no_gradient_registered": "no-gradient",
    "feed_missing": "invalid-request",
    "feed_unknown": "invalid-request",
    "bad_query": "invalid-request",
    "bad_group": "invalid-request",
    "bad_initializer": "invalid-request",
    "budget_too_small": "invalid-request",
    "not_an_array": "invalid-request",
    "tape_full": "limit-exceeded",
    "feed_shape": "shape-mismatch",
    "target_grad_shape": "shape-mismatch",
    "feed_dtype": "dtype-mismatch",
    "target_grad_dtype": "dtype-mismatch",
    "index_out_of_range": "invalid-request",
    "duplicate": "invalid-request",
    "flawed": "invalid-request",
    "not_finite": "numeric-error",
}
_EXECUTION_CODES = {
    "too_many_trips": "iteration-limit",
    "too_many_ops": "iteration-limit",
    "deadline_exceeded": "deadline-exceeded",
    "canceled": "canceled",
    "out_of_memory": "device-out-of-memory",
    "too_large": "limit-exceeded",
    "answer_too_large": "limit-exceeded",
    "checkpoint_damaged": "checkpoint-damaged",
    "checkpoint_missing": "checkpoint-damaged",
    "values_damaged": "values-damaged",
    "values_missing": "values-damaged",
    "storage_full": "storage-full",
    "storage_unavailable": "storage-unavailable",
    "not_finite": "numeric-error",
}
_STATUS_CODES = {
    400: "malformed-request",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    408: "body-timeout",
    410: "gone",
    412: "precondition-failed",
    413: "body-too-large",
    415: "unsupported-media-type",
    416: "range-not-satisfiable",
    422: "invalid-request",
    428: "precondition-required",
    429: "queue-full",
    431: "headers-too-large",
    503: "no-capacity",
    504: "deadline-exceeded",
}


@singledispatch
def from_exception(error: Exception) -> HttpProblem:
    """The problem to answer with. An unexpected exception is `internal`, without any of its text."""
    return HttpProblem("internal", "the service failed; the failure is logged under the request id")


@from_exception.register
def _(error: HttpProblem) -> HttpProblem:
    return error


@from_exception.register
def _(error: ClientDisconnect) -> HttpProblem:
    """No client reads this, but log and metrics show that the service did not fail."""
    return HttpProblem("canceled", "the client disconnected before its request was complete")


@from_exception.register
def _(error: HTTPException) -> HttpProblem:
    """Raised by the router and by FastAPI; our own code raises HttpProblem."""
    code = _STATUS_CODES.get(error.status_code, "internal" if error.status_code >= 500 else "malformed-request")
    status = error.status_code if error.status_code in _STATUS_CODES else None
    detail = HTTPStatus(error.status_code).description or HTTPStatus(error.status_code).phrase
    return HttpProblem(code, detail, status=status, headers=error.headers)


@from_exception.register
def _(error: EngineError) -> HttpProblem:
    headers = retry_after(error.retry_after) if error.retry_after is not None else None
    match error:
        case RemoteError():
            return from_remote(error)
        case WorkerLost():
            detail = "the worker process that ran the call ended and is being replaced"
            return HttpProblem("worker-lost", detail, headers=headers, worker=error.worker, reason=error.reason)
        case DeadlineExceeded():
            return HttpProblem("deadline-exceeded", str(error), retryable=error.retryable, waited=error.waited)
        case Barred():
            return HttpProblem("tenant-suspended", str(error), reason=error.reason)
        case QueueFull():
            return HttpProblem("queue-full", str(error), headers=headers)
        case NoCapacity():
            return HttpProblem("no-capacity", str(error), headers=headers)
    return HttpProblem("internal", "the call failed")


def from_remote(error: RemoteError, *, prefix: str = PROGRAM_PREFIX) -> HttpProblem:
    """The problem for an error of a handler. prefix: JSON pointer to the program in the body."""
    if error.kind == "internal":
        return HttpProblem("internal", "the call failed inside the worker; the failure is logged there")
    problem = error.problem
    problems, location = problem.get("problems", ()), problem.get("location")
    sizes = {name: size for name, size in problem.items() if name in ("wanted_bytes", "allowed_bytes")}
    return _from_core(error.kind == "program", error.code, error.message, problems, location, prefix, sizes)


@from_exception.register
def from_core(error: CoreError, *, prefix: str = PROGRAM_PREFIX) -> HttpProblem:
    """The problem for an error of the core that was raised in this process."""
    problems = [asdict(problem) for problem in error.problems]
    location = asdict(error.location) if error.location else None
    sizes = {"wanted_bytes": error.wanted, "allowed_bytes": error.allowed} if isinstance(error, OutOfMemory) else {}
    return _from_core(isinstance(error, ProgramError), error.code, error.message, problems, location, prefix, sizes)


def stopped_document(stopped: Mapping[str, Any]) -> dict[str, Any]:
    """The reason why a call of several steps ended early, with the code, reason and location of a problem.

    stopped: the reason as the worker gives it: code, detail, batch, and location if there is one.
    """
    code, location = stopped["code"], stopped.get("location")
    shown = {**stopped, "code": _EXECUTION_CODES.get(code, "execution-failed"), "reason": code.replace("_", "-")}
    return shown if location is None else {**shown, "location": clipped_location(location)}


def _from_core(
    in_program: bool,
    code: str,
    message: str,
    problems: Sequence[Mapping[str, Any]],
    location: Mapping[str, Any] | None,
    prefix: str,
    sizes: Mapping[str, int],
) -> HttpProblem:
    known = _PROGRAM_CODES if in_program else _EXECUTION_CODES
    kind = known.get(code, "invalid-program" if in_program else "execution-failed")
    if kind != "invalid-program" and len({known.get(problem["code"]) for problem in problems}) > 1:
        kind = "invalid-request"  # mistakes of several kinds in the values of one request
    extensions: dict[str, Any] = {"reason": code.replace("_", "-"), **sizes}
    if location is not None:
        extensions["location"] = clipped_location(location)
    if not in_program:
        return HttpProblem(kind, message, **extensions)
    errors = [
        FieldError(
            pointer=_place(problem["pointer"], prefix) if kind == "invalid-program" else problem["pointer"],
            code=problem["code"],
            detail=problem["message"],
            location=problem.get("location"),
            suggestion=problem.get("suggestion"),
        )
        for problem in problems
    ]
    return HttpProblem(kind, message, errors=errors, **extensions)


def _place(pointer: str, prefix: str) -> str:
    """A pointer of the core as one into the request. prefix: pointer to the program."""
    return pointer if pointer[1:].partition("/")[0] in OF_QUERY else prefix + pointer


@from_exception.register
def from_validation(error: ValidationError, document: Any = None, model: type[BaseModel] | None = None) -> HttpProblem:
    """The problem for values that pydantic refused: their positions and the expectations, never the values.

    document: the body, if available. Then every pointer leads to a value in it or to a missing member, and a value that
              may have several forms has the mistakes of one form.
    model:    the model of the body. Then misspelt members get suggestions.
    """
    mistakes: Sequence[Mapping[str, Any]] = error.errors(include_input=False, include_url=False)
    if document is None:
        return _refused([_member(mistake["loc"], mistake) for mistake in mistakes])
    return _refused([_member(m["loc"], m, suggested(m, document, model)) for m in one_form(mistakes, document)])


@from_exception.register
def _(error: RequestValidationError) -> HttpProblem:
    """The problem for path, query and header parameters that FastAPI refused."""
    fields = []
    for mistake in error.errors():
        source, *where = mistake["loc"]
        if mistake["type"] == "json_invalid":
            return HttpProblem("invalid-json", "the body is not valid JSON")
        if source == "body":
            fields.append(_member(where, mistake))
        else:
            name = "/".join(map(str, where))
            fields.append(FieldError("", mistake["type"], said(mistake), parameter=f"{source}: {name}"))
    return _refused(fields)


def _refused(fields: Sequence[FieldError]) -> HttpProblem:
    values = len({(field.pointer, field.parameter) for field in fields})  # one value may have several errors
    first = fields[0]
    place = first.pointer if first.parameter is None else first.parameter
    detail = f"{place}: {first.detail}" if place else first.detail
    if values > 1:
        detail = f"{values} values do not match the schema: {detail} (and {values - 1} more)"
    return HttpProblem("invalid-request", detail, errors=fields)


def _member(where: Sequence[str | int], mistake: Mapping[str, Any], suggestion: str | None = None) -> FieldError:
    pointer = "".join("/" + escaped(str(part)) for part in where)
    return FieldError(pointer, mistake["type"], said(mistake), suggestion=suggestion)
