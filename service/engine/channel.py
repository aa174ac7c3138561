"""The service's end of the socket to one worker: frames, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import socket

from service.worker.messages import HEADER, MAX_DESCRIPTORS, FromWorker, decode_from_worker

__all__ = ["Channel"]


class Channel:
    """Frames over a non-blocking socket. One task may send and one may receive at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send one frame. Raises OSError when the worker is gone."""
        frame = memoryview(HEADER.pack(len(payload), len(descriptors)) + payload)
        passed = list(descriptors)
        while frame:
            try:
                sent = socket.send_fds(self._sock, [frame], passed) if passed else self._sock.send(frame)
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
                continue
            frame, passed = frame[sent:], []

    async def receive(self) -> tuple[FromWorker, list[int]]:
        """The next frame and the descriptors that came with it, which the caller must close.

        Raises EOFError or ConnectionError when the worker is gone, msgspec.DecodeError for a frame that is none.
        """
        descriptors: list[int] = []
        try:
            header = await self._exactly(HEADER.size, descriptors)
            length, _ = HEADER.unpack(header)
            return decode_from_worker(await self._exactly(length, descriptors)), descriptors
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    async def _exactly(self, size: int, descriptors: list[int]) -> bytes:
        parts, missing = [], size
        while missing:
            try:
                data, received, _, _ = socket.recv_fds(self._sock, missing, MAX_DESCRIPTORS)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
                continue
            descriptors += received
            if not data:
                raise EOFError("the worker closed the connection")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    async def _ready(self, add, remove) -> None:  # type: ignore[no-untyped-def]  # a pair of the loop's methods
        ready = asyncio.Event()
        add(self._sock, ready.set)
        try:
            await ready.wait()
        finally:
            remove(self._sock)

    def close(self) -> None:
        """Close the socket; the worker then ends by itself. No task may be sending or receiving any more."""
        self._sock.close()
