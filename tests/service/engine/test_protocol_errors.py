"""Violations of the protocol between the service and a worker raise errors: they never read or write wrong memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from service.engine import WorkerLost
from service.ipc import messages
from service.ipc.messages import Call, Forget, Start, Tensor
from service.ipc.shared_memory import SharedMemoryReader, SharedMemoryWriter
from service.ipc.signal_page import PAGE_BYTES
from service.settings import Settings


def test_writing_without_reserved_memory_raises_runtime_error():
    writer = SharedMemoryWriter()
    with pytest.raises(RuntimeError, match="0-byte file"):
        writer.write({"x": np.ones(3)})

    writer.reserve([np.ones(3)])
    with pytest.raises(RuntimeError, match="of a 1048576-byte file"):
        writer.write({"x": np.zeros(2**20 + 1, np.uint8)})
    writer.close()


def test_reading_outside_the_file_raises_value_error():
    writer, reader = SharedMemoryWriter(), SharedMemoryReader()
    descriptor = writer.reserve([np.ones(3)])
    assert descriptor is not None
    writer.write({"x": np.ones(3)})
    reader.attach(os.dup(descriptor))

    assert reader.read([Tensor("x", "float64", (3,), 0)], bytearray())["x"].tolist() == [1, 1, 1]
    for place in (Tensor("x", "float64", (3,), 2**20 - 16), Tensor("x", "float64", (3,), -8)):
        with pytest.raises(ValueError, match="outside"):
            reader.read([place], bytearray())
    reader.close()
    writer.close()


@pytest.fixture
def start() -> Start:
    settings = Settings(device="cpu", compile="never").model_dump(mode="json")
    return Start("wrk_test", "cpu", None, 0.1, settings)


def run_worker(*frames: tuple[messages.ToWorker, bool]) -> tuple[int, str]:
    """(exit status, standard error) of a worker that gets these messages, True for one with a signal page."""
    ours, theirs = socket.socketpair()
    page = os.memfd_create("page")
    os.ftruncate(page, PAGE_BYTES)
    command = [sys.executable, "-m", "service.worker.main", str(theirs.fileno()), str(os.getpid())]
    command.append("tests.service.engine.handlers:HANDLERS")
    with ours, theirs:
        worker = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        for message, with_page in frames:
            messages.send(ours, messages.encode(message), (page,) if with_page else ())
        _, errors = worker.communicate(timeout=60)
    os.close(page)
    return worker.returncode, errors


def test_a_worker_without_a_start_message_ends_with_a_protocol_error(start: Start):
    status, errors = run_worker((Call(1, "echo", {}, (), bytearray(), 0.0), False))
    assert status == 1
    assert "ProtocolError: expected Start with one descriptor, got Call with 0" in errors

    status, errors = run_worker((start, False))
    assert status == 1
    assert "ProtocolError: expected Start with one descriptor, got Start with 0" in errors


def test_a_second_start_message_ends_the_worker_with_a_protocol_error(start: Start):
    status, errors = run_worker((start, True), (Forget(1), False), (start, True))

    assert status == 1
    assert "ProtocolError: expected Call, got a second Start" in errors


@pytest.mark.sampled(1)
@pytest.mark.anyio
@pytest.mark.parametrize("size", [3, 2**18], ids=["in_the_frame", "copied_by_a_thread"])
async def test_a_message_that_cannot_be_handled_ends_its_worker(size, open_pool, monkeypatch):
    """Its call would otherwise wait until its deadline."""

    def fails(*_: object) -> None:
        raise ValueError("tensor 'x' is outside the 0 bytes of its frame or file")

    async with open_pool(workers=1) as pool:
        pid = pool.workers()[0].pid
        with monkeypatch.context() as patch:
            patch.setattr(SharedMemoryReader, "read", fails)
            with pytest.raises(WorkerLost, match="outside the 0 bytes"):
                await pool.call("echo", {}, {"x": np.ones(size)}, deadline=20)

        assert (await pool.call("echo", {}, {"x": np.ones(3)}, deadline=60)).result["pid"] != pid
