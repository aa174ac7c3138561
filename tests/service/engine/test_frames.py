"""Frames come out of a socket whole and in order, however they are cut on their way."""

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
    """Of the messages that are whole by now."""
    found = []
    while (taken := frames.take()) is not None:
        message = messages.decode_to_worker(taken[0])
        assert isinstance(message, Forget) and not taken[1]
        found.append(message.number)
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 1000])
def test_frames_cut_into_pieces_of_any_size_come_out_as_they_went_in(size: int):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames, stream, found = Frames(ours), b"".join(map(frame, range(300, 310))), []
        for start in range(0, len(stream), size):
            theirs.send(stream[start : start + size])
            frames.read()
            found += numbers(frames)

    assert found == list(range(300, 310))


def test_a_message_stays_what_it_is_when_more_is_read():
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


def test_descriptors_go_with_their_frames_and_those_left_over_are_closed():
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
    assert os.read(read, 10) == b""  # nobody can write any more
    os.close(read)


def test_a_payload_that_is_no_message_is_an_error_and_an_ended_socket_the_end():
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
