"""Answers that are sent in pieces, so that neither the event loop nor memory has to hold all of a large one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.codec import CODEC

__all__ = ["PIECE_BYTES", "Part", "PiecedResponse", "pieces", "size_of"]

Part = bytes | memoryview
PIECE_BYTES = 2**18


def size_of(parts: Iterable[Part]) -> int:
    return sum([memoryview(part).nbytes for part in parts])


class PiecedResponse(Response):
    """An answer whose content is the concatenation of `parts`, which are not copied."""

    def __init__(
        self, parts: Sequence[Part], status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = ""
    ) -> None:
        self.parts = parts
        super().__init__(None, status, {**(headers or {}), "Content-Length": str(size_of(parts))}, media_type or None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for ticket in scope.get("tickets", ()):  # a slow reader must not keep others from computing
            ticket.release()
        codec = CODEC.get()
        with contextlib.nullcontext() if codec is None else codec.room.sending(size_of(self.parts)):
            await self._send(send)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in pieces(self.parts):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # other requests take their turn
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def pieces(parts: Iterable[Part]) -> Iterator[Part]:
    """The parts, joined if they are small and cut if they are large."""
    small: list[Part] = []
    room = PIECE_BYTES
    for part in parts:
        size = memoryview(part).nbytes
        if size < room:
            small.append(part)
            room -= size
            continue
        if small:
            yield b"".join(small)
            small, room = [], PIECE_BYTES
        view = memoryview(part)
        for start in range(0, size, PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
    if small:
        yield b"".join(small)
