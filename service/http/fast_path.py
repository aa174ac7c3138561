"""A fast path to the routes of training steps, around FastAPI.

FastAPI tries all routes in order, twice, builds the call from declared parameters, and opens three exit stacks around
it, which takes longer than a small step. A request for one of these routes with a valid path and no query goes directly
to its endpoint. All other requests go through FastAPI, which also reports their errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service import problems

__all__ = ["Direct"]

TEMPLATE = re.compile(r"(/.+)/\{(\w+)\}/(\w+)")


class Direct:
    """Middleware with a fast path for routes of the form ``/prefix/{id}/name``."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], id: str) -> None:
        """routes: their endpoints take only the request and the id. id: the pattern of a valid one."""
        self.app = app
        self._id = re.compile(id)
        self._routes = {}
        for route in routes:
            assert isinstance(route, APIRoute), "these are routes of FastAPI"
            template = TEMPLATE.fullmatch(route.path)
            assert template is not None, f"{route.path} is not of the form /prefix/{{id}}/name"
            prefix, parameter, name = template.groups()
            for method in route.methods or ():
                self._routes[method, prefix, name] = route, parameter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["query_string"] and not scope.get("root_path"):
            head, _, name = scope["path"].rpartition("/")
            prefix, _, id = head.rpartition("/")
            found = self._routes.get((scope["method"], prefix, name))
            if found is not None and self._id.fullmatch(id):
                await _answer(*found, id, scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _answer(route: APIRoute, parameter: str, id: str, scope: Scope, receive: Receive, send: Send) -> None:
    scope["route"], scope["path_params"] = route, {parameter: id}
    request = Request(scope, receive, send)
    try:
        response = await route.endpoint(request, id)
        await response(scope, receive, send)
    except problems.EXPECTED as error:
        await (await problems.answer(request, error))(scope, receive, send)
