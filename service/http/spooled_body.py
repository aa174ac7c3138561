"""Bodies that go to a file as they arrive, for data that is larger than memory may be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import BinaryIO

from starlette.requests import ClientDisconnect, Request

from service.problems import HttpProblem
from service.settings import Settings

__all__ = ["spooled"]

PIECE = 2**20  # bytes that are written at a time


async def spooled(request: Request, path: Path, limit: int, settings: Settings) -> int:
    """Write the body to the new file `path`; its size in bytes.

    After an exception the file has the bytes that arrived. Raises HttpProblem 408 and 413, ClientDisconnect,
    CancelledError when the client leaves, OSError.
    """
    file = await asyncio.to_thread(path.open, "xb")
    received = _Received(file)
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        async with asyncio.timeout_at(started + settings.body_deadline) as timer:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                received.add(message.get("body", b""))
                if received.size > limit:
                    raise HttpProblem(
                        "body-too-large",
                        f"the body is larger than the limit of {limit} bytes",
                        headers={"Connection": "close"},
                        limit=limit,
                    )
                if not message.get("more_body", False):
                    break
                if received.pending >= PIECE:
                    await asyncio.to_thread(received.write)
                    earned = received.size / settings.body_bytes_per_second
                    timer.reschedule(started + settings.body_deadline + earned)
        await asyncio.to_thread(received.close)
    except TimeoutError:
        received.close()
        detail = f"only {received.size} bytes of the body arrived before the deadline"
        raise HttpProblem("body-timeout", detail, headers={"Connection": "close"}) from None
    except BaseException:
        received.close()  # here, and not in a thread: a cancelled task cannot wait
        raise
    return received.size


class _Received:
    """The bytes of a body: in the file, or on their way to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = self.pending = 0
        self._file = file
        self._parts: list[bytes] = []

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)
        self.pending += len(data)

    def write(self) -> None:
        parts, self._parts, self.pending = self._parts, [], 0
        if parts:  # after an error the file is closed, and closing it again must not hide that error
            self._file.write(b"".join(parts))

    def close(self) -> None:
        try:
            self.write()
        finally:
            self._file.close()
