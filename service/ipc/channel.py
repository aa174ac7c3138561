"""The service's end of the socket to one worker. It sends and receives frames without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from service.ipc import messages
from service.ipc.messages import Frames, FromWorker

__all__ = ["Channel"]


class Channel:
    """Frames over a non-blocking socket. The event loop passes on each frame as soon as it is complete."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[FromWorker, list[int]], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """on_message: called with each message and its descriptors, which it must close.

        on_end: called once, after the last message: with EOFError or OSError if the worker closed the socket, with
                msgspec.DecodeError if it sent an invalid frame, or with the error of `on_message`.
        """
        sock.setblocking(False)
        self._sock = sock
        self._frames = Frames(sock)
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._on_message, self._on_end = on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send one frame. Bytes that the socket does not accept now are sent later.

        The descriptors must stay open until the worker has answered the call. Raises OSError when the worker is gone.
        """
        waits = bool(self._unsent)
        self._unsent.append((messages.framed(payload, descriptors), descriptors))
        if waits:
            return
        self._write()
        if self._unsent:
            self._loop.add_writer(self._sock, self._write_on)

    def _write(self) -> None:
        while self._unsent:
            frame, descriptors = self._unsent[0]
            try:
                sent = messages.send_some(self._sock, frame, descriptors)
            except BlockingIOError:
                return
            if sent < len(frame):
                self._unsent[0] = frame[sent:], ()
            else:
                self._unsent.popleft()

    def _write_on(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._end(error)
            return
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            self._frames.read()
            while (frame := self._frames.take()) is not None:
                payload, descriptors = frame
                try:
                    message = messages.decode_from_worker(payload)
                except msgspec.DecodeError:
                    for descriptor in descriptors:
                        os.close(descriptor)
                    raise
                self._on_message(message, descriptors)
        except BlockingIOError:
            return
        except Exception as error:  # what follows in the stream would be understood wrongly
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._forget()
        self._on_end(error)

    def _forget(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._frames.close()

    def close(self) -> None:
        """Close the socket. The worker process then ends."""
        if self._sock.fileno() >= 0:
            self._forget()
            self._sock.close()
