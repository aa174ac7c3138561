"""The methods of a path, for the answers to requests that match no route."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import Request
from fastapi.routing import APIRoute, iter_route_contexts

__all__ = ["allowed", "without_slash"]


def allowed(request: Request) -> list[str]:
    """The methods of all routes that match the path of `request`, sorted. HEAD is one wherever GET is."""
    return _methods(request, _path(request))


def without_slash(request: Request) -> tuple[str, list[str]] | None:
    """The path of `request` without the slash at its end, and its methods; None if no route matches that path.

    The path is relative to that of the request, so that it holds behind a proxy with a prefix.
    """
    path = _path(request)
    methods = _methods(request, path[:-1]) if path.endswith("/") else []
    return (f"../{quote(path[:-1].rpartition('/')[2])}", methods) if methods else None


def _path(request: Request) -> str:
    """The path that routes match: without the prefix at which the application is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _methods(request: Request, path: str) -> list[str]:
    found: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if isinstance(route.original_route, APIRoute) and route.path_regex.match(path):
            found |= route.methods or set()
    return sorted(found | {"HEAD"} if "GET" in found else found)
