"""What the service and a worker say to each other: typed msgpack frames over a stream socket, never pickle.

A frame is a header (payload length, number of file descriptors) followed by the payload. File descriptors travel with
the header. Tensors do not travel here: a frame describes where in an arena they lie (see `arena.py`).
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

import msgspec

__all__ = [
    "HEADER",
    "MAX_DESCRIPTORS",
    "Call",
    "Failed",
    "FromWorker",
    "Part",
    "Ready",
    "Returned",
    "Start",
    "Tensor",
    "ToWorker",
    "decode_from_worker",
    "encode",
    "receive",
    "send",
]

HEADER = struct.Struct("!IB")
MAX_DESCRIPTORS = 4


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """Where one array lies: `offset` bytes into the arena of its direction, C order."""

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
    deadline: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The worker has imported its handlers and touched its device. device names it: "cpu", "cuda: NVIDIA H100"."""

    device: str


class Part(msgspec.Struct, frozen=True, tag="part"):
    """Something that the handler says while it goes on. Carries a descriptor when the answer arena is a new one."""

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The handler's answer. Carries a descriptor when the answer arena is a new one."""

    number: int
    result: dict[str, Any]
    tensors: tuple[Tensor, ...]
    timing_ms: dict[str, float]
    sessions: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The handler raised. kind, code and problem are those of `engine.protocol.RemoteError`."""

    number: int
    kind: str
    code: str
    message: str
    problem: dict[str, Any]
    sessions: int


ToWorker = Start | Call
FromWorker = Ready | Part | Returned | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


def encode(message: ToWorker | FromWorker) -> bytes:
    """The payload of `message`. Raises TypeError or OverflowError if it holds something that is not plain data."""
    return _encoder.encode(message)


def decode_from_worker(payload: bytes | bytearray) -> FromWorker:
    """The message in `payload`. Raises msgspec.DecodeError (or its ValidationError) when it is not one."""
    return _from_worker.decode(payload)


def send(sock: socket.socket, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one frame on a blocking socket. Raises OSError when the other side is gone."""
    header = HEADER.pack(len(payload), len(descriptors))
    sent = socket.send_fds(sock, [header], list(descriptors)) if descriptors else sock.send(header)
    sock.sendall(header[sent:] + payload)


def receive(sock: socket.socket) -> tuple[ToWorker, list[int]]:
    """The next frame of a blocking socket, and the descriptors that came with it, which the caller must close.

    Raises EOFError when the other side is gone.
    """
    header, descriptors = b"", []
    while len(header) < HEADER.size:
        data, received, _, _ = socket.recv_fds(sock, HEADER.size - len(header), MAX_DESCRIPTORS)
        if not data:
            for descriptor in received:
                os.close(descriptor)
            raise EOFError("the service closed the connection")
        header += data
        descriptors += received
    length, _ = HEADER.unpack(header)
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            raise EOFError("the service closed the connection in the middle of a frame")
        view = view[count:]
    return _to_worker.decode(payload), descriptors
