"""Strict query parameters: a route refuses those it does not declare, and a second value of those that take one."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute

from core.ir.suggest import near
from service.problems import FieldError, HttpProblem

__all__ = ["known_parameters"]


async def known_parameters(request: Request) -> None:
    """A dependency of every route. Raises HttpProblem 422 for a query parameter that the route does not declare.

    And for one with several values that takes one: FastAPI would take the last.
    """
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    declared = route.dependant.query_params
    known = {field.alias for field in declared}
    wrong = "unknown parameter" + (f"; known are {', '.join(sorted(known))}" if known else "")
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        count = "one query parameter is" if len(unknown) == 1 else f"{len(unknown)} query parameters are"
        fields = [
            FieldError("", "extra_forbidden", wrong, suggestion=near(name, known), parameter=f"query: {name}")
            for name in unknown
        ]
        raise HttpProblem("invalid-request", f"{count} unknown to this route", errors=fields)
    given = request.query_params
    twice = [
        f.alias for f in declared if len(given.getlist(f.alias)) > 1 and not _takes_a_list(f.field_info.annotation)
    ]
    if twice:
        fields = [FieldError("", "duplicate", "give it once", parameter=f"query: {name}") for name in twice]
        raise HttpProblem("invalid-request", f"{twice[0]} has several values, but takes one", errors=fields)


def _takes_a_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_takes_a_list, get_args(annotation)))
