"""Streamed answers: one JSON object per line, each gradient as soon as it is final.

The lines are ``{"event": "gradient", "name", "ready_at", "gradient"}`` in the order in which the backward pass
completes them, and a last one: ``{"event": "done", ...}`` with the rest of the answer, or
``{"event": "error", "problem"}``. A stream that ends without either was interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.engine import EngineError, Reply
from service.engine.protocol import PartCallback
from service.formats import json_tensors as tensors
from service.http.request_body import NDJSON
from service.http.tensor_payloads import THREAD_BYTES, grouped, timing_of
from service.problems import HttpProblem, from_exception, problem_body

__all__ = ["GradientStream"]

log = logging.getLogger("backpass.http")

PLAIN_NUMBERS = 1000
"""Tensors of more elements are encoded as b64, which takes a tenth of the time."""
Part = tuple[dict[str, Any], dict[str, np.ndarray]]


class GradientStream(Response):
    """The answer of a call that streams its gradients.

    An error before the first gradient is answered with a problem document, as without streaming. A client that
    disconnects cancels the call.
    """

    media_type = NDJSON

    def __init__(
        self,
        call: Callable[[PartCallback], Awaitable[Reply]],
        document: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        members: Mapping[str, Any],
    ) -> None:
        """call: starts the call. document: members of the last line, from its result. members: defaults of these."""
        super().__init__(headers={"X-Accel-Buffering": "no"})  # a proxy must not buffer the lines
        del self.headers["content-length"]
        self._call, self._document, self._members = call, document, members

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: asyncio.Queue[Part | None] = asyncio.Queue()
        running = asyncio.ensure_future(self._call(lambda *part: parts.put_nowait(part)))
        running.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            part = await parts.get()
            if part is None:
                running.result()  # raises while it can still become a problem document
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while part is not None:
                await _send(send, await _rendered(partial(_gradient, *part), part[1]), more=True)
                part = await parts.get()
            await _send(send, await self._end(running, scope), more=False)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    async def _end(self, running: asyncio.Future[Reply], scope: Scope) -> bytes:
        """The last line."""
        try:
            reply = running.result()
        except Exception as error:
            request_id = scope["state"]["request_id"]
            if not isinstance(error, EngineError | HttpProblem):
                log.exception("request %s failed: %s %s", request_id, scope["method"], scope["path"])
            return _line({"event": "error", "problem": problem_body(from_exception(error), request_id, scope["path"])})
        members = {"event": "done", **self._members, **self._document(reply.result), "timing_ms": timing_of(reply)}
        return await _rendered(partial(_last, members, reply.tensors), reply.tensors)


def _gradient(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    encoded = {n: tensors.encode(array, base64=array.size > PLAIN_NUMBERS) for n, array in arrays.items()}
    members = {name: value for name, value in result.items() if name != "shape"}
    gradient = encoded[f"grad/{result['name']}"]
    if rows := encoded.get(f"rows/{result['name']}"):
        gradient = {"rows": rows, "values": gradient, "shape": result["shape"]}
    return _line({"event": "gradient", **members, "gradient": gradient})


def _last(members: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    return _line({**members, **grouped(arrays)})


def _line(document: Mapping[str, Any]) -> bytes:
    return tensors.dumps(document) + b"\n"


async def _rendered(line: Callable[[], bytes], arrays: Mapping[str, np.ndarray]) -> bytes:
    """`line()`, in a thread if the arrays are large."""
    large = sum(array.nbytes for array in arrays.values()) > THREAD_BYTES
    return await asyncio.to_thread(line) if large else line()


async def _send(send: Send, line: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": line, "more_body": more})
