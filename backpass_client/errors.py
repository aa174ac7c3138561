"""Exceptions of the client.

* BackpassError
  + Refused       the service returned a problem document
    - PreconditionFailed   the session has changed since the version that the call is for
  + Unreachable   the service did not answer
"""

from __future__ import annotations

from typing import Any

__all__ = ["BackpassError", "PreconditionFailed", "Refused", "Unreachable", "refusal"]


class BackpassError(RuntimeError):
    """Base class; raised itself for wrong use of the client."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which carries errors from one process to another."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[BackpassError], args: tuple[Any, ...], members: dict[str, Any]) -> BackpassError:
    """An error with these arguments and members, without a call of its constructor."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(members)
    return error


class Unreachable(BackpassError):
    """The service did not answer: the connection failed or timed out. The request may have taken effect."""


class Refused(BackpassError):
    """The service refused the request.

    problem:     the problem document (RFC 9457); `status`, `code` and `retryable` are its members. If a proxy in front
                 of the service answered, `code` is empty.
    errors:      one entry for each mistake: `pointer` into the body (empty for the whole of it), `code`, `detail`, and
                 where they apply `parameter` (of the path, query or header), `location` and `suggestion`.
    retry_after: seconds that the service asks to wait before another try, if it does.
    """

    def __init__(self, problem: dict[str, Any], request: str, retry_after: float | None = None) -> None:
        self.problem = problem
        self.status: int = problem.get("status", 0)
        self.code: str = problem.get("code", "")
        self.retryable: bool = problem.get("retryable", False)
        self.errors: list[dict[str, Any]] = problem.get("errors", [])
        self.retry_after = retry_after
        super().__init__(_message(problem, request))

    @property
    def location(self) -> dict[str, Any] | None:
        """The place of the error in the program or on the tape: block, op, type, slot, variable."""
        if "location" in self.problem:
            return self.problem["location"]
        return next((e["location"] for e in self.errors if e.get("location")), None)


class PreconditionFailed(Refused):
    """The session has changed since the version in `if_match`. The call changed nothing.

    etag: the present version, as `Session.etag`; None where the resource has no version, such as a file.
    """

    @property
    def etag(self) -> str | None:
        return self.problem.get("etag")


def refusal(problem: dict[str, Any], request: str, retry_after: float | None = None) -> Refused:
    """The exception for a problem document. Its arguments are those of `Refused`."""
    kind = PreconditionFailed if problem.get("code") == "precondition-failed" else Refused
    return kind(problem, request, retry_after)


HINTS = {
    "unauthenticated": "pass the key of the service as api_key=..., or set BACKPASS_API_KEY",
    "forbidden": "GET /v1/me lists the scopes of the key; an administrator can make another one",
    "dtype-mismatch": "an array keeps its dtype: convert it, x.astype('float32'), or declare the variable as its dtype",
    "quota-exceeded": "GET /v1/me lists the quotas and their use",
}
"""Problem code -> advice to users of this client."""


def _message(problem: dict[str, Any], request: str) -> str:
    name = problem.get("code") or problem.get("title")  # a proxy has no code
    lines = [f"{request}: {problem.get('status')} {name}: {_place(problem)}{problem.get('detail', '')}"]
    for each in problem.get("errors", []):
        where = each.get("pointer") or each.get("parameter")
        hint = f" ({each['suggestion']})" if each.get("suggestion") else ""
        line = f"{where + ': ' if where else ''}{_place(each)}{each.get('detail', '')}{hint}"
        if line != problem.get("detail"):
            lines.append(f"  {line}")
    if problem.get("code") in HINTS:
        lines.append(f"  {HINTS[problem['code']]}")
    return "\n".join(lines)


def _place(error: dict[str, Any]) -> str:
    """The op of the error as a prefix, unless the detail already contains it."""
    at, detail = error.get("location") or {}, error.get("detail", "")
    place = f"op {at['op']} ({at['type']})" if "op" in at and "type" in at else ""
    return f"{place}: " if place and place not in detail else ""
