"""Tensors of answers, as members of a JSON object or in a safetensors file.

In a file the tensors of a request have the names of the program's variables; those of an answer are ``loss``,
``grad/<name>``, ``fetch/<name>``, ``recorded/<name>`` and ``state/<name>``. In JSON they are grouped under `loss`,
`gradients`, `fetched`, `recorded` and `states`.

A gradient that is rows of a table has its row numbers in ``rows/<name>``, their values in ``grad/<name>``, and the
shape of the table under `sparse`. In JSON it is one object with `rows`, `values` and `shape`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from starlette.responses import Response

from service.engine import Reply
from service.formats import json_tensors as tensors
from service.formats import safetensors as tensorfile
from service.http.request_body import JSON, SAFETENSORS

__all__ = ["THREAD_BYTES", "Answer", "grouped", "render", "timing_of"]

THREAD_BYTES = 2**18  # above, reading or writing would delay other requests
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
    """An answer as bytes, which can be sent repeatedly."""

    content: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, more: Mapping[str, str] = NO_HEADERS) -> Response:
        """The response with this answer and `more` headers."""
        return Response(self.content, 200, {**self.headers, **more}, self.media_type)


def grouped(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, list[int]] = NO_SHAPES) -> dict[str, Any]:
    """Tensors of a reply as members of a JSON answer. shapes: of the tables whose gradients are rows."""
    members: dict[str, Any] = {}
    for name, array in arrays.items():
        group, slash, rest = name.partition("/")
        if slash:
            members.setdefault(GROUPS[group], {})[rest] = tensors.encode(array)
        else:
            members[name] = tensors.encode(array)
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

    def written() -> bytes:
        if as_file:
            return tensorfile.pack(reply.tensors, complete)
        return tensors.dumps({**(members or {}), **grouped(reply.tensors, complete.get("sparse", {})), **complete})

    large = sum([array.nbytes for array in reply.tensors.values()]) > THREAD_BYTES
    content = await asyncio.to_thread(written) if large else written()
    phases = ", ".join([f"{phase};dur={ms}" for phase, ms in timing.items()])
    return Answer(content, SAFETENSORS if as_file else JSON, {"Server-Timing": phases, **headers})
