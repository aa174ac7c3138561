"""Frames arrive complete and in order, however the socket divides them."""

from __future__ import annotations

import os
import socket

import msgspec
import pytest

from service.ipc import messages
from service.ipc.messages import Forget, Frames


def frame(number: int) -> bytes:
    return bytes(messages.framed(messages.encode(Forget(number)), ()))


def numbers(frames: Frames) -> list[int]:
    """The numbers of the messages that are complete."""
    found = []
    while (taken := frames.take()) is not None:
        message = messages.decode_to_worker(taken[0])
        assert isinstance(message, Forget) and not taken[1]
        found.append(message.number)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 1000])
def test_frames_survive_reads_of_any_size(size: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames, stream, found = Frames(ours), b"".join(map(frame, range(300, 310))), []
        for start in range(0, len(stream), size):
            theirs.send(stream[start : start + size])
            frames.read()
            found += numbers(frames)

    assert found == list(range(300, 310))


def test_later_reads_do_not_change_a_taken_message():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = Frames(ours)
        theirs.send(frame(1) + frame(2)[:4])
        frames.read()
        first = frames.take()
        theirs.send(frame(2)[4:] + frame(3))
        frames.read()

        assert first is not None and messages.decode_to_worker(first[0]) == Forget(1)
        assert numbers(frames) == [2, 3]


def test_descriptors_arrive_with_their_frames_and_close_closes_the_untaken_ones():
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs:
        frames = Frames(ours)
        for number in (1, 2):
            messages.send(theirs, messages.encode(Forget(number)), (write,))
            frames.read()
        os.close(write)

        taken = frames.take()
        assert taken is not None and len(taken[1]) == 1
        os.write(taken[1][0], b"x")
        os.close(taken[1][0])
        frames.close()

    assert os.read(read, 10) == b"x"
    assert os.read(read, 10) == b""  # all write ends are closed
    os.close(read)


def test_an_invalid_payload_raises_decode_error_and_a_closed_socket_eof_error():
    ours, theirs = socket.socketpair()
    with ours:
        frames = Frames(ours)
        with theirs:
            theirs.send(bytes(messages.framed(b"\xc1", ())))
        frames.read()
        taken = frames.take()
        assert taken is not None
        with pytest.raises(msgspec.DecodeError):
            messages.decode_to_worker(taken[0])
        with pytest.raises(EOFError):
            frames.read()
