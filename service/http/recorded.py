"""Answers that are recorded, to be sent again later: for repeated requests, and as results of operations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
from starlette.responses import Response
from starlette.types import Message, Send

from service.http.pieces import Part, PiecedResponse, size_of
from service.ids import random_id
from service.objects import Objects
from service.problems import HttpProblem, new_request_id, problem_body
from service.problems.document import MEDIA_TYPE

__all__ = [
    "FOLDER",
    "INLINE_BYTES",
    "KEPT_S",
    "MAX_BYTES",
    "Recorded",
    "Recorder",
    "as_answer",
    "delete_stored",
    "kept",
    "load",
    "stored",
]

MAX_BYTES = 64 * 2**20
"""Longer answers are sent on without being recorded."""

INLINE_BYTES = 256 * 2**10
"""Longer answers are stored as files, shorter ones in the database."""

FOLDER = "answers"
"""The folder of those files."""

KEPT_S = 24 * 3600.0
"""The longest time for which a row keeps an answer, in seconds."""

NOT_REPEATED = frozenset({b"content-length", b"connection", b"date", b"request-id", b"server-timing"})


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer. headers: without those that belong to one connection or one execution."""

    status: int
    headers: dict[str, str]
    parts: Sequence[Part]

    @property
    def problem_code(self) -> str | None:
        """The code of an answer that is a problem document; None for any other."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return str(orjson.loads(b"".join(map(bytes, self.parts)))["code"])
        return None

    def response(self, more: dict[str, str] | None = None) -> Response:
        return PiecedResponse(self.parts, self.status, {**self.headers, **(more or {})})


@dataclass(slots=True)
class Recorder:
    """Collects the answer that an application sends, up to MAX_BYTES.

    forward: sends on the answers that are not recorded: streams, and those that are longer. None drops them.
    """

    forward: Send | None = None
    recorded: Recorded | None = None
    is_forwarding: bool = False
    _start: Message | None = None
    _parts: list[Part] = field(default_factory=list)
    _size: int = 0

    async def send(self, message: Message) -> None:
        if self.is_forwarding:
            if self.forward is not None:
                await self.forward(message)
            return
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"")
        self._parts.append(body if isinstance(body, bytes) else bytes(body))
        self._size += size_of((body,))
        assert self._start is not None, "an answer begins with its status"
        if self._size > MAX_BYTES or (message.get("more_body") and _is_stream(self._start)):
            await self._give_up(message)
        elif not message.get("more_body"):
            headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in self._start["headers"]
                if name.lower() not in NOT_REPEATED
            }
            self.recorded = Recorded(self._start["status"], headers, self._parts)

    async def _give_up(self, message: Message) -> None:
        self.is_forwarding = True
        parts, self._parts = self._parts, []
        if self.forward is not None:
            assert self._start is not None
            await self.forward(self._start)
            for part in parts[:-1]:
                await self.forward({"type": "http.response.body", "body": part, "more_body": True})
            await self.forward({**message, "body": parts[-1]})


def _is_stream(start: Message) -> bool:
    return not any(name.lower() == b"content-length" for name, _ in start["headers"])


def as_answer(problem: HttpProblem, path: str) -> Recorded:
    """The document of `problem` as the answer to a request. path: of the request."""
    body = orjson.dumps(problem_body(problem, new_request_id(), path))
    return Recorded(problem.status, {**problem.headers, "content-type": MEDIA_TYPE}, (body,))


async def stored(recorded: Recorded, objects: Objects) -> bytes:
    """`recorded` as bytes for the database; a long body is written to a file. Raises OSError."""
    size = size_of(recorded.parts)
    document: dict[str, Any] = {"status": recorded.status, "headers": recorded.headers}
    if size > INLINE_BYTES:
        document["file"] = f"{FOLDER}/{random_id()}"
        await asyncio.to_thread(objects.write, document["file"], recorded.parts)
    else:
        document["body"] = b"".join(recorded.parts)
    return msgspec.msgpack.encode(document)


async def kept(keys: set[str], objects: Objects) -> set[str]:
    """The files of answers among `keys` that are not too old to be named by a row. Raises OSError."""
    return await asyncio.to_thread(lambda: {key for key in keys if objects.age(key) <= KEPT_S})


async def load(data: bytes, objects: Objects) -> Recorded:
    """The answer that `stored` wrote. Raises OSError if its file is gone."""
    document = msgspec.msgpack.decode(data)
    body = document["body"] if "body" in document else await asyncio.to_thread(objects.read, document["file"])
    return Recorded(document["status"], document["headers"], (body,))


async def delete_stored(data: bytes, objects: Objects) -> None:
    """Delete the file of the answer, if it has one. Raises OSError."""
    file = msgspec.msgpack.decode(data).get("file")
    if file is not None:
        await asyncio.to_thread(objects.delete, file)
