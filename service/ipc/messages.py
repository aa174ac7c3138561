"""What the service and a worker say to each other: typed msgpack frames over a stream socket, never pickle.

A frame is a header (payload length, number of file descriptors) followed by the payload. File descriptors travel with
the header. Tensors that are small travel in the frame that describes them; of others it says where in an arena they
lie (see `arena.py`).
"""

from __future__ import annotations

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
    "Compiled",
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
    """Where one array lies: `offset` bytes into its frame's `data` if there is any, else into the arena of its
    direction. C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Start(msgspec.Struct, frozen=True, tag="start"):
    """First frame to a worker. Carries the descriptor of the control page."""

    worker: str
    device: str
    handlers: str
    memory_limit: int | None
    heartbeat: float
    settings: dict[str, Any]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Run handler `op`. Carries a descriptor when the request arena is a new one.

    deadline is a value of `time.monotonic()`, a clock that all processes of a machine share.
    """

    number: int
    op: str
    args: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray
    deadline: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has imported its handlers and touched its device. device names it: "cpu", "cuda: NVIDIA H100"."""

    device: str


class Part(msgspec.Struct, frozen=True, tag="part"):
    """Something that the handler says while it goes on. Carries a descriptor when the answer arena is a new one."""

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The handler's answer. Carries a descriptor when the answer arena is a new one.

    compile_ms: of the time of the call, the part that went into compiling programs.
    """

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data: bytearray
    timing_ms: dict[str, float]
    sessions: int
    compile_ms: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The handler raised. kind, code and problem are those of `engine.protocol.RemoteError`."""

    number: int
    kind: str
    code: str
    message: str
    problem: dict[str, Any]
    sessions: int


class Parked(msgspec.Struct, frozen=True, tag="parked"):
    """The call waits for a compilation and holds nothing: after `Compiled` the service sends it again, as a new one."""

    number: int


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """What a parked call waited for is there, or has failed, which the call will hear when it comes again."""

    number: int


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """A parked call will not come again. Not answered."""

    number: int


ToWorker = Start | Call | Forget
FromWorker = Ready | Part | Returned | Failed | Parked | Compiled

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The payload of `message`. Raises TypeError or OverflowError if it holds something that is not plain data."""
    return _encoder.encode(message)


def decode_from_worker(payload: bytes | memoryview) -> FromWorker:
    """The message in `payload`. Raises msgspec.DecodeError (or its ValidationError) when it is not one."""
    return _from_worker.decode(payload)


def decode_to_worker(payload: bytes | memoryview) -> ToWorker:
    """The message in `payload`. Raises msgspec.DecodeError (or its ValidationError) when it is not one."""
    return _to_worker.decode(payload)


def send(sock: socket.socket, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one frame on a blocking socket. Raises OSError when the other side is gone."""
    frame = framed(payload, descriptors)
    sent = send_some(sock, frame, descriptors)
    if sent < len(frame):
        sock.sendall(frame[sent:])


def framed(payload: bytes, descriptors: tuple[int, ...]) -> memoryview:
    """The bytes of a frame."""
    return memoryview(HEADER.pack(len(payload), len(descriptors)) + payload)


def send_some(sock: socket.socket, frame: memoryview, descriptors: tuple[int, ...]) -> int:
    """Send what the socket takes now; returns how many bytes that were. Descriptors go with the first of them.

    Raises OSError when the other side is gone, BlockingIOError when nothing at all can be sent.
    """
    return socket.send_fds(sock, [frame], list(descriptors)) if descriptors else sock.send(frame)


class Frames:
    """The frames that come out of a socket, blocking or not, however they are cut on their way."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data: bytes | bytearray = b""
        self._descriptors: deque[int] = deque()

    def read(self) -> None:
        """Take in what there is, waiting for it if the socket does.

        Raises EOFError when the other side is gone, BlockingIOError when there is nothing.
        """
        data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
        for _, _, descriptors in ancillary:  # of the one kind that there is on such a socket
            self._descriptors += array("i", descriptors)
        if not data:
            raise EOFError("the other side closed the connection")
        if not self._data:
            self._data = data  # as a rule it is one whole frame, which nobody needs to copy
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += data

    def take(self) -> tuple[memoryview, list[int]] | None:
        """The payload of the next frame, if it is whole, and its descriptors, which the caller must close."""
        data = self._data
        if len(data) < HEADER.size:
            return None
        length, count = HEADER.unpack_from(data)
        end = HEADER.size + length
        if len(data) < end:
            return None
        self._data = data[end:]
        return memoryview(data)[HEADER.size : end], [self._descriptors.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close the descriptors that nobody has taken."""
        while self._descriptors:
            os.close(self._descriptors.popleft())
