"""What can go wrong, as exceptions.

* BackpassError
  + Refused       the service answered with a problem document, which is in `problem`
  + Unreachable   the service did not answer
"""

from __future__ import annotations

from typing import Any

__all__ = ["BackpassError", "Refused", "Unreachable"]


class BackpassError(RuntimeError):
    """Base class."""


class Unreachable(BackpassError):
    """No answer: no connection, or it broke. Whether the request took effect is unknown."""


class Refused(BackpassError):
    """The service said no.

    problem: the whole problem document (RFC 9457). status, code, retryable: from it. errors: each single mistake, with
    `pointer` into the request, `code`, `detail` and perhaps `location` and `suggestion`.
    """

    def __init__(self, problem: dict[str, Any], request: str, retry_after: float | None = None) -> None:
        self.problem = problem
        self.status: int = problem.get("status", 0)
        self.code: str = problem.get("code", "")
        self.retryable: bool = problem.get("retryable", False)
        self.errors: list[dict[str, Any]] = problem.get("errors", [])
        self.retry_after = retry_after
        super().__init__(_told(problem, request))

    @property
    def location(self) -> dict[str, Any] | None:
        """The place in the program or on the tape: block, op, type, slot, variable."""
        if "location" in self.problem:
            return self.problem["location"]
        return next((e["location"] for e in self.errors if e.get("location")), None)


def _told(problem: dict[str, Any], request: str) -> str:
    lines = [f"{request}: {problem.get('status')} {problem.get('code')}: {_place(problem)}{problem.get('detail', '')}"]
    for each in problem.get("errors", []):
        hint = f" ({each['suggestion']})" if each.get("suggestion") else ""
        lines.append(f"  {each.get('pointer', '')}: {_place(each)}{each.get('detail', '')}{hint}")
    return "\n".join(lines)


def _place(told: dict[str, Any]) -> str:
    """The op, unless the detail begins with it."""
    at, detail = told.get("location") or {}, told.get("detail", "")
    place = f"op {at['op']} ({at['type']})" if "op" in at and "type" in at else ""
    return f"{place}: " if place and place not in detail else ""
