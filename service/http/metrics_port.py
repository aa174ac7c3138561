"""The port for metrics and probes: it stays inside the network of the service, and needs no key."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from service.observability.metrics import Metrics
from service.problems import HttpProblem, new_request_id, problem_response

__all__ = ["MetricsPort"]

HEALTH = ("/healthz/live", "/healthz/ready", "/healthz/startup")


class MetricsPort:
    """An ASGI application with /metrics, and the health of `app`. Everything else is unknown."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD"):
            content, media_type = self._metrics.render()
            length = str(len(content)).encode()
            headers = [(b"content-type", media_type.encode()), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
            return
        problem = HttpProblem("not-found", "this port has /metrics and /healthz alone")
        await problem_response(problem, new_request_id(), scope["path"])(scope, receive, send)
