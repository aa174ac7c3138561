"""The download of a stored file: whole or one range of it (RFC 9110), never held in memory."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import IO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.problems import HttpProblem

__all__ = ["FileResponse", "content_headers", "range_of"]

PIECE = 2**20
RANGE = re.compile(r"bytes\s*=\s*(\d{0,18})\s*-\s*(\d{0,18})", re.ASCII)


def content_headers(sha256: str) -> dict[str, str]:
    """ETag and Repr-Digest (RFC 9530) of a file with this digest, in hexadecimal."""
    digest = b64encode(bytes.fromhex(sha256)).decode()
    return {"ETag": f'"{sha256}"', "Repr-Digest": f"sha-256=:{digest}:", "Accept-Ranges": "bytes"}


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


class FileResponse(Response):
    """The bytes from `begin` to `end` of an open file, which the response closes."""

    def __init__(self, file: IO[bytes], begin: int, end: int, status: int, headers: Mapping[str, str]) -> None:
        self._file, self._begin, self._end = file, begin, end
        super().__init__(None, status, {**headers, "Content-Length": str(end - begin)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for ticket in scope.get("tickets", ()):  # a slow reader must not keep others from computing
            ticket.release()
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await asyncio.to_thread(self._file.seek, self._begin)
            left = self._end - self._begin
            while left:
                piece = await asyncio.to_thread(self._file.read, min(PIECE, left))
                if not piece:
                    raise OSError("the file of the checkpoint ends early")  # the client sees a short answer
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
            if self._begin == self._end:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._file.close()
