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
from typing import Any, Generic, TypeVar

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


T = TypeVar("T")


class _Stream(Response, Generic[T]):
    """The answer of a call that streams its gradients: a line for each as soon as it is final, then the rest.

    An error before the first gradient is answered with a problem document, as without streaming.
    """

    def __init__(self, call: Callable[[PartCallback], Awaitable[T]]) -> None:
        """call: starts the call, which is cancelled when the client disconnects."""
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type=NDJSON)  # a proxy must not buffer the lines
        del self.headers["content-length"]
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: asyncio.Queue[Arrived | None] = asyncio.Queue()
        running = asyncio.ensure_future(self._call(lambda *part: parts.put_nowait(part)))
        running.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            part = await parts.get()
            if part is None and (whole := self._whole(running.result(), scope)) is not None:
                await whole(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            lines = 0
            while part is not None:
                await _send(send, await _gradient(*part))
                lines += 1
                part = await parts.get()
            try:
                rest = await self._rest(running.result(), lines)
            except Exception as error:
                rest = [_error_line(error, scope)]
            await _send(send, rest)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await running

    def _whole(self, result: T, scope: Scope) -> Response | None:
        """The answer of a call that ended before its first gradient, if it has another one than `_rest`."""
        return None

    async def _rest(self, result: T, lines: int) -> Iterable[Part]:
        """The stream after its first `lines` lines."""
        raise NotImplementedError


class GradientStream(_Stream[Reply]):
    """The stream of a call that changes nothing: its gradients, and a line with the rest of its answer."""

    def __init__(
        self,
        call: Callable[[PartCallback], Awaitable[Reply]],
        document: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        members: Mapping[str, Any],
    ) -> None:
        """document: members of the last line, from the result of the call. members: defaults of these."""
        super().__init__(call)
        self._document, self._members = document, members

    async def _rest(self, result: Reply, lines: int) -> Iterable[Part]:
        members = {"event": "done", **self._members, **self._document(result.result), "timing_ms": timing_of(result)}
        return await _last_line(members, result.tensors)


class StepStream(_Stream[tuple[Answer, bool]]):
    """The stream of a step: its gradients, and its answer when it has taken effect. The step goes on when its client
    leaves.

    The result of the call is its whole stream, and whether it is a repeated one, which is answered with all of it.
    """

    def _whole(self, result: tuple[Answer, bool], scope: Scope) -> Response:
        return sent(Request(scope), *result)

    async def _rest(self, result: tuple[Answer, bool], lines: int) -> Iterable[Part]:
        rest = iter(result[0].parts)
        while lines and (part := next(rest, None)) is not None:
            lines -= bytes(memoryview(part)[-1:]) == b"\n"
        return rest


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


async def _send(send: Send, parts: Iterable[Part]) -> None:
    for piece in pieces(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
