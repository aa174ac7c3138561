"""HEAD wherever GET answers (RFC 9110, section 9.3.2): the same status and headers, without content.

The application sees GET. It is stopped as soon as it has sent its headers, so that a stream does not begin and no file
is read.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Head"]

IGNORED = frozenset({b"range", b"if-range"})
"""Headers that mean something with GET alone (RFC 9110, section 14.2)."""


class Head:
    """Middleware directly around the routes: those outside of it still see HEAD, and count and log it as such."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        headers = [each for each in scope["headers"] if each[0] not in IGNORED]
        inner = {**scope, "method": "GET", "headers": headers}

        async def send_start(message: Message) -> None:
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            raise _Complete

        try:
            await self.app(inner, receive, send_start)
        except _Complete:
            pass
        finally:
            if "route" in inner:  # for the metrics
                scope["route"] = inner["route"]


class _Complete(Exception):
    """Stops the application."""
