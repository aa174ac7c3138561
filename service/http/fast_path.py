"""A fast path to the routes of training steps, one-shot gradients and tapes, around FastAPI.

FastAPI tries all routes in order, twice, builds the call from declared parameters, and opens three exit stacks around
it, which takes longer than a small step. A request for one of these routes with a valid path and no query goes directly
to its endpoint. All other requests go through FastAPI, which also reports the errors of their paths and queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from service import problems

__all__ = ["Direct"]

TEMPLATE = re.compile(r"(/.+)/\{(\w+)\}/(\w+)")


class Direct:
    """Middleware with a fast path for routes of the forms ``/path`` and ``/prefix/{id}/name``."""

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute], ids: Mapping[str, str]) -> None:
        """routes: their endpoints need only the request, and the id if their path has one.

        ids: name of the id in the path -> the pattern of a valid one.
        """
        self.app = app
        self._whole: dict[tuple[str, str], APIRoute] = {}
        self._routes: dict[tuple[str, str, str], tuple[APIRoute, str, re.Pattern[str]]] = {}
        for route in routes:
            assert isinstance(route, APIRoute), "these are routes of FastAPI"
            template = TEMPLATE.fullmatch(route.path)
            assert template is not None or "{" not in route.path, f"{route.path} is not of the form /prefix/{{id}}/name"
            for method in route.methods or ():
                if template is None:
                    self._whole[method, route.path] = route
                else:
                    prefix, parameter, name = template.groups()
                    self._routes[method, prefix, name] = route, parameter, re.compile(ids[parameter])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["query_string"] and not scope.get("root_path"):
            method, path = scope["method"], scope["path"]
            whole = self._whole.get((method, path))
            if whole is not None:
                await _answer(whole, {}, scope, receive, send)
                return
            head, _, name = path.rpartition("/")
            prefix, _, id = head.rpartition("/")
            found = self._routes.get((method, prefix, name))
            if found is not None and found[2].fullmatch(id):
                await _answer(found[0], {found[1]: id}, scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _answer(route: APIRoute, named: dict[str, str], scope: Scope, receive: Receive, send: Send) -> None:
    """named: the parameters of the path."""
    scope["route"], scope["path_params"] = route, named
    request = Request(scope, receive, send)
    try:
        response = await route.endpoint(request, **named)
        await response(scope, receive, send)
    except problems.EXPECTED as error:
        await (await problems.answer(request, error))(scope, receive, send)
