"""Messages between the service and a worker: typed msgpack frames over a stream socket, never pickle.

A frame is a header (payload length, number of file descriptors) followed by the payload. The socket carries the file
descriptors together with the header. The payload holds small tensors itself; for large ones it holds offsets into
shared memory (see `shared_memory.py`).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from array import array
from collections import deque
from typing import Any

import msgspec

__all__ = [
    "HEADER",
    "MAX_DESCRIPTORS",
    "Call",
    "CompilationDone",
    "Failed",
    "Forget",
    "Frames",
    "FromWorker",
    "Parked",
    "Part",
    "Ready",
    "Returned",
    "Start",
    "Tensor",
    "ToWorker",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
    "framed",
    "send",
    "send_some",
]

HEADER = struct.Struct("!IB")
MAX_DESCRIPTORS = 4
ANCILLARY_BYTES = socket.CMSG_LEN(MAX_DESCRIPTORS * array("i").itemsize)
READ_BYTES = 2**16


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """The place of one array in C order: `offset` bytes into the frame's `data` if that is not empty, else into the
    shared-memory file of its direction."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first frame to a worker. Carries the descriptor of the signal page.

    environment: variables that the process sets before it uses its device: a spare one does not know its GPU before.
    """

    worker: str
    device: str
    memory_limit: int | None
    heartbeat: float
    settings: dict[str, Any]
    environment: dict[str, str] = {}


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run handler `op`. Carries a descriptor if the shared-memory file for requests is new.

    deadline: a value of `time.monotonic()`, a clock that all processes of a machine share.
    fields: members of the log lines about the call, as of `service.logs.FIELDS`.
    """

    number: int
    op: str
    args: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray
    deadline: float
    fields: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker imported its handlers and used its device once. device: its name, "cpu" or "cuda: NVIDIA H100"."""

    device: str


class Part(msgspec.Struct, frozen=True, tag="part"):
    """A part of the answer of a running handler. Carries a descriptor if the shared-memory file for answers is new."""

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The answer of a handler. Carries a descriptor if the shared-memory file for answers is new.

    compile_ms: milliseconds of the call spent on compiling programs.
    started: `time.monotonic_ns()` when the worker began with it.
    """

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray
    timing_ms: dict[str, float]
    sessions: int
    compile_ms: float = 0.0
    started: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The handler raised an exception. kind, code and problem: as in `engine.protocol.RemoteError`."""

    number: int
    kind: str
    code: str
    message: str
    problem: dict[str, Any]
    sessions: int


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """The call needs a compilation and left no trace. The service sends it again after `CompilationDone`."""

    number: int


class CompilationDone(msgspec.Struct, frozen=True, tag="compilation_done"):
    """The compilation for a parked call has ended. The call gets its result or its error when it is sent again."""

    number: int


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """A parked call does not wait any more. The worker does not answer this message.

    again: its deadline has passed, so the client may send it again.
    """

    number: int
    again: bool = False


ToWorker = Start | Call | Forget
FromWorker = Ready | Part | Returned | Failed | Parked | CompilationDone

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The payload of `message`. Raises TypeError or OverflowError if the message contains anything but plain data."""
    return _encoder.encode(message)


def decode_from_worker(payload: bytes | memoryview) -> FromWorker:
    """The message in `payload`. Raises msgspec.DecodeError (or its ValidationError) when it is not one."""
    return _from_worker.decode(payload)


def decode_to_worker(payload: bytes | memoryview) -> ToWorker:
    """The message in `payload`. Raises msgspec.DecodeError (or its ValidationError) when it is not one."""
    return _to_worker.decode(payload)


def send(sock: socket.socket, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one frame on a blocking socket. Raises OSError when the other side closed it."""
    frame = framed(payload, descriptors)
    sent = send_some(sock, frame, descriptors)
    if sent < len(frame):
        sock.sendall(frame[sent:])


def framed(payload: bytes, descriptors: tuple[int, ...]) -> memoryview:
    """The bytes of the frame with this payload."""
    return memoryview(HEADER.pack(len(payload), len(descriptors)) + payload)


def send_some(sock: socket.socket, frame: memoryview, descriptors: tuple[int, ...]) -> int:
    """Send the bytes that the socket accepts now; returns their number. The descriptors go with the first byte.

    Raises OSError when the other side closed the socket, BlockingIOError when the socket accepts nothing now.
    """
    return socket.send_fds(sock, [frame], list(descriptors)) if descriptors else sock.send(frame)


class Frames:
    """Reads frames from a blocking or non-blocking socket, however the stream is divided into reads."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data: bytes | bytearray = b""
        self._descriptors: deque[int] = deque()

    def read(self) -> None:
        """Read the bytes that have arrived; a blocking socket waits for some.

        Raises EOFError when the other side closed the socket, BlockingIOError when nothing has arrived.
        """
        data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        for _, _, descriptors in ancillary:  # this kind of socket carries no other ancillary data
            self._descriptors += array("i", descriptors)
        if not data:
            raise EOFError("the other side closed the connection")
        if not self._data:
            self._data = data  # usually one complete frame: no copy is needed
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += data

    def take(self) -> tuple[memoryview, list[int]] | None:
        """(payload, descriptors to close) of the next complete frame; None if no frame is complete.

        Raises OSError if a descriptor is missing: the kernel drops those for which a process has no room.
        """
        data = self._data
        if len(data) < HEADER.size:
            return None
        length, count = HEADER.unpack_from(data)
        end = HEADER.size + length
        if len(data) < end:
            return None
        if len(self._descriptors) < count:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._data = data[end:]
        return memoryview(data)[HEADER.size : end], [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close the descriptors of frames that were never taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
