"""Strict query parameters: a route refuses those it does not declare."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from core.ir.suggest import near
from service.problems import FieldError, HttpProblem

__all__ = ["known_parameters"]


async def known_parameters(request: Request) -> None:
    """A dependency of every route. Raises HttpProblem 422 for a query parameter that the route does not declare."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = {field.alias for field in route.dependant.query_params}
    wrong = "unknown parameter" + (f"; known are {', '.join(sorted(known))}" if known else "")
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        count = "one query parameter is" if len(unknown) == 1 else f"{len(unknown)} query parameters are"
        fields = [
            FieldError("", "extra_forbidden", wrong, suggestion=near(name, known), parameter=f"query: {name}")
            for name in unknown
        ]
        raise HttpProblem("invalid-request", f"{count} unknown to this route", errors=fields)
