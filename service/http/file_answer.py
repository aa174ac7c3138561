"""A stored file as an answer, sent in pieces: whole, or the part that the header `Range` asks for (RFC 9110)."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import IO, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.entity_tags import unchanged
from service.problems import HttpProblem

__all__ = ["FILE_HEADERS", "FileAnswer", "file_answer", "range_of"]

PIECE = 2**20
RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.ASCII)
FILE_HEADERS: dict[str, Any] = {
    "parameters": [
        {"name": name, "in": "header", "schema": {"type": "string"}, "description": words}
        for name, words in {
            "Range": "`bytes=0-1023`: a part of the file. A download that broke off goes on with the rest.",
            "If-Range": "ETag of the file that Range belongs to. If it is no longer the ETag, the whole file is sent.",
        }.items()
    ]
}
"""The headers of routes that answer with a file, for the OpenAPI document."""


async def file_answer(
    request: Request, open: Callable[[], IO[bytes]], size: int, sha256: str, name: str, media_type: str
) -> Response:
    """The answer with a file, which never changes.

    open: opens it, in a thread. size: of the file; sha256: in hexadecimal, also its ETag. name: for downloads.
    Raises HttpProblem 412, 416 for a range outside of the file, and what `open` raises.
    """
    tag = f'"{sha256}"'
    headers = {
        "Cache-Control": "private, max-age=31536000, immutable",
        "Accept-Ranges": "bytes",
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:",
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    if (known := unchanged(request, tag, "file", headers)) is not None:
        return known
    part = range_of(request.headers, size, tag)
    begin, end = part or (0, size)
    headers |= {"ETag": tag, "Content-Length": str(end - begin)}
    if part is not None:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    file = await asyncio.to_thread(open)
    return FileAnswer(file, begin, end, 200 if part is None else 206, headers, media_type)


def range_of(headers: Mapping[str, str], size: int, etag: str) -> tuple[int, int] | None:
    """The first byte and the end of the requested range; None for the whole file.

    Headers that RFC 9110 lets a server ignore are: several ranges, other units, wrong syntax, a Range whose If-Range
    names another version. Raises HttpProblem 416 for a range that contains no byte of the file.
    """
    found = RANGE.fullmatch(headers.get("range", "").strip())
    if found is None or headers.get("if-range", etag).strip() != etag:
        return None
    first, last = found.groups()
    if not first and not last:
        return None
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < begin:
            return None
    if begin >= end:
        detail = f"the range {found.group().replace(' ', '')} is outside of the {size} bytes"
        raise HttpProblem("range-not-satisfiable", detail, headers={"Content-Range": f"bytes */{size}"})
    return begin, end


class FileAnswer(Response):
    """Bytes `begin` to `end` of an open file, which the answer closes. At most one piece is in memory at a time."""

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
