"""Tensors of answers, as members of a JSON object or in a safetensors file.

In a file the tensors of a request have the names of the program's variables; those of an answer are ``loss``,
``grad/<name>``, ``fetch/<name>``, ``recorded/<name>`` and ``state/<name>``. In JSON they are grouped under `loss`,
`gradients`, `fetched`, `recorded` and `states`.

A gradient that is rows of a table has its row numbers in ``rows/<name>``, their values in ``grad/<name>``, and the
shape of the table under `sparse`. In JSON it is one object with `rows`, `values` and `shape`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from service.engine import Reply
from service.formats import json_tensors as tensors
from service.formats import safetensors as tensorfile
from service.http.codec import CODEC
from service.http.pieces import PIECE_BYTES, Part, PiecedResponse, size_of
from service.http.request_body import JSON, SAFETENSORS, check_accepted

__all__ = ["THREAD_BYTES", "Answer", "grouped", "render", "sent", "timing_of"]

THREAD_BYTES = 2**18  # above, reading or writing would delay other requests
INLINE_BYTES = 2**16  # of the tensors of a JSON answer; above, another process encodes them
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
NO_SHAPES: Mapping[str, list[int]] = MappingProxyType({})
GROUPS = {
    "grad": "gradients",
    "fetch": "fetched",
    "recorded": "recorded",
    "state": "states",
    "parameter": "parameters",
    "value": "values",
    "slot": "slots",
    "rows": "rows of gradients",  # no member of a request has this name
}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as bytes, which can be sent repeatedly: the concatenation of `parts`."""

    parts: Sequence[Part]
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return size_of(self.parts)

    def response(self, more: Mapping[str, str] = NO_HEADERS) -> Response:
        """The response with this answer and `more` headers."""
        headers = {**self.headers, **more}
        if len(self.parts) == 1 and len(self.parts[0]) <= PIECE_BYTES:
            return Response(self.parts[0], 200, headers, self.media_type)
        return PiecedResponse(self.parts, 200, headers, self.media_type)


def sent(request: Request, answer: Answer, replayed: bool) -> Response:
    """The response to a numbered call. replayed: whether `answer` is that of an earlier execution.

    Raises HttpProblem 406 if the request does not accept the form of the stored answer.
    """
    if not replayed:
        return answer.response()
    check_accepted(request, answer.media_type)
    return answer.response({"Idempotency-Replayed": "true"})


def grouped(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, list[int]] = NO_SHAPES) -> dict[str, Any]:
    """Tensors of a reply as members of a JSON answer. shapes: of the tables whose gradients are rows."""
    return _grouped(arrays, shapes, tensors.encode)


def _grouped(values: Mapping[str, Any], shapes: Mapping[str, list[int]], form: Callable[[Any], Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in values.items():
        group, slash, rest = name.partition("/")
        if slash:
            members.setdefault(GROUPS[group], {})[rest] = form(value)
        else:
            members[name] = form(value)
    for name, rows in members.pop(GROUPS["rows"], {}).items():
        members["gradients"][name] = {"rows": rows, "values": members["gradients"][name], "shape": shapes[name]}
    return members


def timing_of(reply: Reply) -> dict[str, float]:
    """Milliseconds by phase, as in answers."""
    return {phase: round(ms * 1e3) / 1e3 for phase, ms in reply.timing_ms.items()}  # which is faster than round(ms, 3)


async def render(
    reply: Reply,
    document: Mapping[str, Any],
    *,
    as_file: bool,
    headers: Mapping[str, str] = NO_HEADERS,
    members: Mapping[str, Any] | None = None,
) -> Answer:
    """The answer with the members of `document` and the tensors of `reply`.

    members: defaults of JSON members that are always present.
    """
    timing = timing_of(reply)
    complete = {**document, "timing_ms": timing}

    size = sum([array.nbytes for array in reply.tensors.values()])
    phases = ", ".join([f"{phase};dur={ms}" for phase, ms in timing.items()])
    media_type = SAFETENSORS if as_file else JSON
    sent_along = {"Server-Timing": phases, **headers}
    if as_file:
        if size > THREAD_BYTES:
            return Answer(tensorfile.pieces(reply.tensors, complete), media_type, sent_along)
        return Answer((tensorfile.pack(reply.tensors, complete),), media_type, sent_along)
    shapes = complete.get("sparse", {})
    codec = CODEC.get()
    if size <= INLINE_BYTES or codec is None:
        written = lambda: tensors.dumps({**(members or {}), **grouped(reply.tensors, shapes), **complete})
        return Answer(
            ((await asyncio.to_thread(written)) if size > INLINE_BYTES else written(),), media_type, sent_along
        )
    texts = await codec.texts(reply.tensors)
    return Answer(joined({**(members or {}), **grouped_texts(texts, shapes), **complete}), media_type, sent_along)


def grouped_texts(texts: Mapping[str, memoryview], shapes: Mapping[str, list[int]] = NO_SHAPES) -> dict[str, Any]:
    """As `grouped`, of tensors that are JSON text already."""
    return _grouped(texts, shapes, lambda text: text)


def joined(value: Any) -> list[Part]:
    """The JSON of `value`, in which a memoryview stands for JSON text that is not copied."""
    parts: list[Part] = []

    def add(value: Any) -> None:
        if isinstance(value, memoryview):
            parts.append(value)
        elif not _has_text(value):
            parts.append(tensors.dumps(value))
        elif isinstance(value, dict):
            for i, (name, each) in enumerate(value.items()):
                parts.append((b"," if i else b"{") + tensors.dumps(name) + b":")
                add(each)
            parts.append(b"}")
        else:
            for i, each in enumerate(value):
                parts.append(b"," if i else b"[")
                add(each)
            parts.append(b"]")

    add(value)
    return parts


def _has_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_text(each) for each in value.values())
    return isinstance(value, memoryview) or (isinstance(value, list) and any(_has_text(each) for each in value))
