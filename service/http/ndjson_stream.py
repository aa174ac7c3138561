"""Streamed answers: one JSON object per line, each gradient as soon as it is final.

The lines are ``{"event": "gradient", "name", "ready_at", "gradient"}`` in the order in which the backward pass
completes them, and a last one: ``{"event": "done", ...}`` with the rest of the answer, or
``{"event": "error", "problem"}``. A stream that ends without either was interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.engine import EngineError, Reply
from service.engine.protocol import PartCallback
from service.formats import json_tensors as tensors
from service.http.codec import CODEC
from service.http.pieces import Part, pieces
from service.http.request_body import NDJSON
from service.http.tensor_payloads import INLINE_BYTES, Answer, grouped, grouped_texts, joined, sent, timing_of
from service.problems import HttpProblem, from_exception, problem_body

__all__ = ["GradientStream", "StepStream", "whole_stream"]

log = logging.getLogger("backpass.http")

PLAIN_NUMBERS = 1000
"""Tensors of more elements are encoded as b64, which takes a tenth of the time."""
Arrived = tuple[dict[str, Any], dict[str, np.ndarray]]


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
        parts: asyncio.Queue[Arrived | None] = asyncio.Queue()
        running = asyncio.ensure_future(self._call(lambda *part: parts.put_nowait(part)))
        running.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            part = await parts.get()
            if part is None:
                running.result()  # raises while it can still become a problem document
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while part is not None:
                for piece in pieces(await _gradient(*part)):
                    await _send(send, piece, more=True)
                part = await parts.get()
            for piece in await self._end(running, scope):
                await _send(send, piece, more=True)
            await _send(send, b"", more=False)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    async def _end(self, running: asyncio.Future[Reply], scope: Scope) -> Iterable[Part]:
        """The last line."""
        try:
            reply = running.result()
        except Exception as error:
            return [_error_line(error, scope)]
        members = {"event": "done", **self._members, **self._document(reply.result), "timing_ms": timing_of(reply)}
        return pieces(await _last_line(members, reply.tensors))


async def whole_stream(
    reply: Reply, document: Mapping[str, Any], members: Mapping[str, Any], headers: Mapping[str, str]
) -> Answer:
    """The stream of a step that has ended, to be sent again. Each line ends with a part that ends with its newline.

    document: members of the last line; `ready_at` has the gradients of the lines before it, in their order.
    """
    ready_at, shapes = document["ready_at"], document.get("sparse", {})
    rest = {name: value for name, value in document.items() if name != "ready_at"} | {"sparse": {}}
    arrays = dict(reply.tensors)
    parts: list[Part] = []
    for name, at in ready_at.items():
        own = {key: arrays.pop(key) for key in (f"grad/{name}", f"rows/{name}") if key in arrays}
        parts += await _gradient({"name": name, "ready_at": at, "shape": shapes.get(name)}, own)
    last = {"event": "done", **members, **rest, "timing_ms": timing_of(reply)}
    parts += await _last_line(last, arrays)
    return Answer(parts, NDJSON, headers)


class StepStream(Response):
    """The answer of a step that streams its gradients: each as soon as it is final, and the answer of the step when it
    has taken effect. A repeated step is answered with all of the stored answer.

    An error before the first gradient is answered with a problem document. The step goes on when its client leaves.
    """

    def __init__(self, call: Callable[[PartCallback], Awaitable[tuple[Answer, bool]]]) -> None:
        """call: starts the step; the result is its whole stream, and whether it is a repeated one."""
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type=NDJSON)
        del self.headers["content-length"]
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: asyncio.Queue[Arrived | None] = asyncio.Queue()
        running = asyncio.ensure_future(self._call(lambda *part: parts.put_nowait(part)))
        running.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            part = await parts.get()
            if part is None:
                answer, replayed = running.result()
                await sent(Request(scope), answer, replayed)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            lines = 0
            while part is not None:
                for piece in pieces(await _gradient(*part)):
                    await _send(send, piece, more=True)
                lines += 1
                part = await parts.get()
            for piece in self._rest(running, lines, scope):
                await _send(send, piece, more=True)
            await _send(send, b"", more=False)
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    def _rest(self, running: asyncio.Future[tuple[Answer, bool]], lines: int, scope: Scope) -> Iterable[Part]:
        """The stream after its first `lines` lines, or the line of an error."""
        try:
            answer, _ = running.result()
        except Exception as error:
            return [_error_line(error, scope)]
        rest = iter(answer.parts)
        while lines and (part := next(rest, None)) is not None:
            lines -= bytes(memoryview(part)[-1:]) == b"\n"
        return pieces(rest)


def _error_line(error: Exception, scope: Scope) -> bytes:
    request_id = scope["state"]["request_id"]
    if not isinstance(error, EngineError | HttpProblem):
        log.error("a request failed: %s %s", scope["method"], scope["path"], exc_info=error)
    return _line({"event": "error", "problem": problem_body(from_exception(error), request_id, scope["path"])})


async def _last_line(members: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Part]:
    codec = CODEC.get()
    if _bytes(arrays) <= INLINE_BYTES or codec is None:
        return [_line({**members, **grouped(arrays)})]
    return [*joined({**members, **grouped_texts(await codec.texts(dict(arrays)))}), b"\n"]


async def _gradient(result: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Part]:
    """The line of one gradient. A codec process writes a large one."""
    codec = CODEC.get()
    encoded: Mapping[str, Any]
    if _bytes(arrays) <= INLINE_BYTES or codec is None:
        encoded = {n: tensors.encode(array, base64=array.size > PLAIN_NUMBERS) for n, array in arrays.items()}
    else:
        encoded = await codec.texts(arrays, base64=True)
    members = {name: value for name, value in result.items() if name != "shape"}
    gradient = encoded[f"grad/{result['name']}"]
    if rows := encoded.get(f"rows/{result['name']}"):
        gradient = {"rows": rows, "values": gradient, "shape": result["shape"]}
    document = {"event": "gradient", **members, "gradient": gradient}
    if isinstance(gradient, dict) and not isinstance(gradient.get("values"), memoryview):
        return [_line(document)]
    return [*joined(document), b"\n"]


def _bytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _line(document: Mapping[str, Any]) -> bytes:
    return tensors.dumps(document) + b"\n"


async def _send(send: Send, line: Part, more: bool) -> None:
    await send({"type": "http.response.body", "body": line, "more_body": more})
