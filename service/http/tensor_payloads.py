"""Tensors of requests and answers, as members of a JSON object or in a safetensors file.

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
from typing import Any, NoReturn

import numpy as np
from starlette.responses import Response

from service.engine import Reply
from service.formats import json_tensors as tensors
from service.formats import safetensors as tensorfile
from service.http.codec import CODEC
from service.http.pieces import PIECE_BYTES, Part, PiecedResponse, size_of
from service.http.request_body import JSON, SAFETENSORS, Body
from service.problems import FieldError, HttpProblem
from service.settings import Settings

__all__ = ["THREAD_BYTES", "Answer", "given_gradients", "given_tensors", "grouped", "render", "timing_of"]

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


async def given_tensors(body: Body, settings: Settings, members: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """All tensors of a request by name: those of its file, and those of the `members` {pointer: JSON tensors}.

    Raises HttpProblem 422 for an invalid tensor and for a name given twice.
    """
    if len(body.raw) > THREAD_BYTES and any(members.values()):
        return await asyncio.to_thread(_given, body, settings, members)
    return _given(body, settings, members)


def _given(body: Body, settings: Settings, members: Mapping[str, Any]) -> dict[str, np.ndarray]:
    given = dict(body.tensors)
    for pointer, values in members.items():
        for name, array in tensors.decode_all(values, pointer=pointer, limits=settings.tensor_limits).items():
            if name in given:
                place = FieldError(f"{pointer}/{name}", "duplicate", "another tensor has the same name")
                raise HttpProblem("invalid-request", "a tensor is given twice", errors=[place])
            given[name] = array
    return given


async def given_gradients(
    body: Body, settings: Settings, gradients: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, list[int]]]:
    """Tensors of gradients by name, with ``rows/<name>`` for rows of tables; and the shapes given for tables.

    gradients: parameter -> a JSON tensor, or an object with `rows`, `values` and optionally `shape`.
    Raises HttpProblem 422.
    """
    tables = {name: value for name, value in gradients.items() if isinstance(value, dict) and "rows" in value}
    whole = {name: value for name, value in gradients.items() if name not in tables}

    def found() -> dict[str, np.ndarray]:
        given = _given(body, settings, {"/gradients": whole})
        for name, table in tables.items():
            for part, key in (("rows", f"rows/{name}"), ("values", name)):
                pointer = f"{_pointer(name)}/{part}"
                if key in given:
                    _refuse(pointer, "another tensor has the same name")
                given[key] = tensors.decode(table[part], pointer=pointer, limits=settings.tensor_limits)
        return given

    for name, table in tables.items():
        if table.keys() - {"shape"} != {"rows", "values"}:
            _refuse(_pointer(name), "rows of a table are an object with rows, values and optionally shape")
        shape = table.get("shape", [])
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
            _refuse(f"{_pointer(name)}/shape", "shape is not a list of sizes")
    large = len(body.raw) > THREAD_BYTES
    return (await asyncio.to_thread(found) if large else found()), {
        n: t["shape"] for n, t in tables.items() if "shape" in t
    }


def _pointer(name: str) -> str:
    return f"/gradients/{name.replace('~', '~0').replace('/', '~1')}"


def _refuse(pointer: str, detail: str) -> NoReturn:
    raise HttpProblem("invalid-request", detail, errors=[FieldError(pointer, "invalid", detail)])


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
