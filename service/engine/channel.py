"""The service's end of the socket to one worker: frames, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from service.worker import messages
from service.worker.messages import Frames, FromWorker

__all__ = ["Channel"]


class Channel:
    """Frames over a non-blocking socket, each handed over by the event loop as soon as it is whole."""

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[FromWorker, list[int]], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """on_message: called with each message and the descriptors that came with it, which it must close.

        on_end: called once, when no more can come: with EOFError or OSError when the worker is gone,
                msgspec.DecodeError after a frame that is none.
        """
        sock.setblocking(False)
        self._sock = sock
        self._frames = Frames(sock)
        self._unsent: tuple[memoryview, tuple[int, ...]] | None = None
        self._on_message, self._on_end = on_message, on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Send one frame, what the socket does not take at once later on. The one before must have been answered.

        The descriptors must stay open until then. Raises OSError when the worker is gone.
        """
        assert self._unsent is None, "a worker that has answered a call has taken all of it"
        self._unsent = messages.framed(payload, descriptors), descriptors
        self._write()
        if self._unsent is not None:
            self._loop.add_writer(self._sock, self._write_on)

    def _write(self) -> None:
        assert self._unsent is not None, "there is something to send"
        frame, descriptors = self._unsent
        try:
            sent = messages.send_some(self._sock, frame, descriptors)
        except BlockingIOError:
            return
        self._unsent = (frame[sent:], ()) if sent < len(frame) else None

    def _write_on(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._end(error)
            return
        if self._unsent is None:
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
        except (EOFError, OSError, msgspec.DecodeError) as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._forget()
        self._on_end(error)

    def _forget(self) -> None:
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._frames.close()

    def close(self) -> None:
        """Close the socket; the worker then ends by itself."""
        if self._sock.fileno() >= 0:
            self._forget()
            self._sock.close()
