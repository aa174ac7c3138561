"""A stored file as an answer, sent in pieces: whole, or the part that the header `Range` asks for (RFC 9110)."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from typing import IO

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.entity_tags import has_current
from service.objects import Objects
from service.problems import HttpProblem

__all__ = ["FileAnswer", "file_answer"]

PIECE = 2**20
RANGE = re.compile(r"bytes=\s*(\d{0,18})\s*-\s*(\d{0,18})\s*")


async def file_answer(
    request: Request, objects: Objects, key: str, size: int, sha256: str, headers: Mapping[str, str], media_type: str
) -> Response:
    """The answer with the file `key`, which never changes. size: of the file; sha256: in hexadecimal, also its ETag.

    Raises HttpProblem 416 for a range outside of the file, OSError if the file cannot be opened. A request for several
    ranges gets all of the file.
    """
    tag = f'"{sha256}"'
    digest = base64.b64encode(bytes.fromhex(sha256)).decode()
    every = {
        "ETag": tag,
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
        "Repr-Digest": f"sha-256=:{digest}:",
        **headers,
    }
    if has_current(request.headers, tag):
        return Response(status_code=304, headers=every)
    asked = RANGE.fullmatch(request.headers.get("range", "").strip())
    if asked is None or asked[1] == asked[2] == "" or request.headers.get("if-range", tag) != tag:
        file = await asyncio.to_thread(objects.open, key)
        return FileAnswer(file, 0, size, 200, {**every, "Content-Length": str(size)}, media_type)
    if asked[1]:
        begin, end = int(asked[1]), min(size, int(asked[2]) + 1 if asked[2] else size)
    else:
        begin, end = max(0, size - int(asked[2])), size
    if begin >= end:
        detail = f"the range lies outside of the {size} bytes of the file"
        raise HttpProblem("range-not-satisfiable", detail, headers={"Content-Range": f"bytes */{size}"})
    part = {"Content-Range": f"bytes {begin}-{end - 1}/{size}", "Content-Length": str(end - begin)}
    file = await asyncio.to_thread(objects.open, key)
    return FileAnswer(file, begin, end, 206, {**every, **part}, media_type)


class FileAnswer(Response):
    """Bytes `begin` to `end` of a stored file. At most one piece is in memory at a time."""

    def __init__(
        self,
        file: IO[bytes],
        begin: int,
        end: int,
        status: int,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self._file, self._begin, self._end = file, begin, end
        super().__init__(None, status, dict(headers), media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for ticket in scope.get("tickets", ()):  # a slow reader must not keep others from being served
            ticket.release()
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await send(start)
            left = self._end - self._begin
            await asyncio.to_thread(self._file.seek, self._begin)
            while left:
                piece = await asyncio.to_thread(self._file.read, min(PIECE, left))
                if not piece:
                    raise EOFError("the stored file is shorter than it was")
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._file.close()
