"""A transport that sends the header of an answer and its first bytes as one packet, which wakes the client once."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["Gathering"]


class Gathering:
    """A wrapper of a transport. A write waits for the next one, at most until the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._waiting: bytes | None = None
        self._flushing: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._transport.is_closing():  # the client is gone; uvloop raises for writes to a closed transport
            self._waiting = None
            self._forget()
        elif self._waiting is None:
            self._waiting = data
            self._flushing = self._loop.call_soon(self._flush)
        else:
            first, self._waiting = self._waiting, None
            self._forget()
            self._transport.writelines([first, data])

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._waiting or b"")

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._waiting = None
        self._forget()
        self._transport.abort()

    def _flush(self) -> None:
        data, self._waiting = self._waiting, None
        self._forget()
        if data is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _forget(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
