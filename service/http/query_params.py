"""Strict parameters: a route refuses those of a query that it does not declare, and a second value of those of a query
or a header that take one."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isclass
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel

from core.ir.suggest import near
from service.problems import FieldError, HttpProblem

__all__ = ["known_parameters"]


async def known_parameters(request: Request) -> None:
    """A dependency of every route. Raises HttpProblem 422 for a query parameter that the route does not declare.

    And for one, or a header, with several values that takes one: FastAPI would take one of them.
    """
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    for each in route.dependant.header_params:
        if len(request.headers.getlist(each.alias)) > 1:
            raise _several([f"header: {each.alias}"])
    if not request.query_params:
        return
    known = dict(_declared(route))
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
    twice = [name for name, type in known.items() if len(given.getlist(name)) > 1 and not _takes_a_list(type)]
    if twice:
        raise _several([f"query: {name}" for name in twice])


def _several(parameters: list[str]) -> HttpProblem:
    """The problem of `parameters`, such as "query: page_size", which have several values."""
    fields = [FieldError("", "duplicate", "give it once", parameter=each) for each in parameters]
    name = parameters[0].partition(" ")[2]
    return HttpProblem("invalid-request", f"{name} has several values, but takes one", errors=fields)


def _declared(route: APIRoute) -> Iterator[tuple[str, Any]]:
    """The query parameters of a route with their types. Those of a pydantic model are its fields."""
    for each in route.dependant.query_params:
        type = each.field_info.annotation
        if isclass(type) and issubclass(type, BaseModel):
            yield from ((name, field.annotation) for name, field in type.model_fields.items())
        else:
            yield each.alias, type


def _takes_a_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_takes_a_list, get_args(annotation)))
