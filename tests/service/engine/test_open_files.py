"""A service without free file descriptors: calls fail with errors that say so, and nothing comes from a wrong file."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import resource
import socket
from collections.abc import Iterator

import numpy as np
import pytest

import service.engine.embedded as embedded
from service.engine import NoCapacity, RemoteError, WorkerLost
from service.ipc import messages
from service.ipc.messages import Forget, Frames

pytestmark = pytest.mark.anyio
MANY = 2**14  # elements whose arrays do not fit into a frame
MAP = mmap.mmap


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """This process can open no file until the block ends."""
    before, opened = resource.getrlimit(resource.RLIMIT_NOFILE), [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[0] + 32, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.dup(opened[0]))
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_frame_whose_descriptor_could_not_be_received_raises_os_error():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames = Frames(ours)
        messages.send(theirs, messages.encode(Forget(1)), (theirs.fileno(),))
        with no_free_descriptor():
            frames.read()

        with pytest.raises(OSError, match="Too many open files"):
            frames.take()


async def test_a_worker_whose_answer_has_lost_its_descriptor_is_replaced(open_pool):
    async with open_pool(workers=1) as pool:
        pid = pool.workers()[0].pid
        with no_free_descriptor(), pytest.raises(WorkerLost, match="Too many open files"):
            await pool.call("count", {"sizes": [MANY]}, deadline=60, on_part=lambda result, arrays: None)

        reply = await pool.call("echo", {}, {"x": np.arange(MANY)}, deadline=60)
        assert reply.result["pid"] != pid
        assert reply.tensors["x"].tolist() == list(range(MANY))


async def test_a_request_that_needs_a_descriptor_is_refused_and_keeps_its_worker(open_pool):
    async with open_pool(workers=1) as pool:
        pid = pool.workers()[0].pid
        with no_free_descriptor(), pytest.raises(NoCapacity, match="no memory for the tensors"):
            await pool.call("echo", {}, {"x": np.arange(MANY)}, deadline=60)

        assert (await pool.call("echo", {}, {"x": np.arange(MANY)}, deadline=60)).result["pid"] == pid


@pytest.mark.parametrize("elements", [MANY, 2**18], ids=["copied_at_once", "copied_by_a_thread"])
async def test_a_file_of_answers_that_could_not_be_mapped_is_mapped_by_the_next_call(elements, open_pool, monkeypatch):
    x = np.arange(elements)
    async with open_pool(workers=1) as pool:
        pid = pool.workers()[0].pid
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", only_for_writing)
            for _ in range(2):
                with pytest.raises(NoCapacity, match="cannot map"):
                    await pool.call("echo", {}, {"x": x}, deadline=60)

        reply = await pool.call("echo", {}, {"x": x}, deadline=60)
        assert reply.tensors["x"].tolist() == x.tolist()
        assert reply.result["pid"] == pid


async def test_a_file_of_requests_that_a_worker_could_not_map_is_mapped_by_its_next_call(open_pool):
    x = np.arange(MANY)
    async with open_pool(workers=1) as pool:
        pid = pool.workers()[0].pid
        await pool.call("fail_next_map", {}, deadline=60)
        with pytest.raises(RemoteError, match="cannot map"):
            await pool.call("echo", {}, {"x": x}, deadline=60)

        reply = await pool.call("echo", {}, {"x": x}, deadline=60)
        assert reply.tensors["x"].tolist() == x.tolist()
        assert reply.result["pid"] == pid


def only_for_writing(descriptor: int, size: int, prot: int | None = None) -> mmap.mmap:
    """mmap.mmap of a process that can map files for writing alone."""
    if prot == mmap.PROT_READ:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return MAP(descriptor, size)


async def test_calls_that_wait_are_refused_when_no_process_can_be_started(open_pool, monkeypatch):
    async with open_pool(workers=1) as pool:
        with monkeypatch.context() as patch:

            def fails(*_: object) -> None:
                raise OSError(24, "Too many open files")

            patch.setattr(embedded, "WorkerProcess", fails)
            with pytest.raises(WorkerLost):
                await pool.call("kill", {}, deadline=60)
            with pytest.raises(NoCapacity, match="no worker can be started"):
                await pool.call("echo", {}, deadline=60)

        while pool.workers()[0].state != "idle":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await pool.call("echo", {}, deadline=60)).result["args"] == {}
