"""Calls that send parts of their answer before they end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.ir.aligned import LINE
from service.engine import EmbeddedPool, NoCapacity, RemoteError, WorkerLost
from service.ipc.shared_memory import SharedMemoryReader

pytestmark = pytest.mark.anyio

MIB = 2**17  # int64 elements in 1 MiB


@pytest.fixture(scope="module", params=[pytest.param("asyncio", marks=pytest.mark.slow), "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


class Parts(list[tuple[int, np.ndarray]]):
    """The received parts, in order. first: set when the first part arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()

    def __call__(self, result: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.append((result["i"], tensors["x"]))
        self.first.set()


def check(parts: Parts, sizes: list[int]) -> None:
    assert [i for i, _ in parts] == list(range(len(sizes)))
    for (i, array), size in zip(parts, sizes, strict=True):
        assert array.shape == (size,)
        assert (array == i).all()
        assert size < MIB or array.ctypes.data % LINE == 0, "machine code reads it in place"


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [3, 0, 7], [100] * 500, [1, MIB, 1, 2 * MIB, 1], [MIB // 2] * 40, [20 * MIB, 1, 150 * MIB, 1, 3]],
    ids=["nothing", "empty", "small", "many", "growing", "files", "huge"],
)
async def test_parts_arrive_complete_and_in_order_before_the_answer(shared_pool: EmbeddedPool, sizes):
    for _ in range(2):  # the second call reuses the shared-memory files of the first
        parts = Parts()
        reply = await shared_pool.call("count", {"sizes": sizes}, deadline=60, on_part=parts)

        check(parts, sizes)
        assert reply.result == {"said": len(sizes)}
        np.testing.assert_array_equal(reply.tensors["last"], np.arange(5))
    assert (await shared_pool.call("echo", {}, {"x": np.ones(3)}, deadline=60)).tensors["x"].tolist() == [1, 1, 1]


async def test_parts_of_simultaneous_calls_do_not_mix(shared_pool: EmbeddedPool):
    sizes = [[10 + k] * 200 for k in range(4)]
    parts = [Parts() for _ in sizes]

    calls = (shared_pool.call("count", {"sizes": s}, deadline=30, on_part=h) for s, h in zip(sizes, parts, strict=True))
    await asyncio.gather(*calls)

    for each, size in zip(parts, sizes, strict=True):
        check(each, size)


async def test_a_call_without_callback_drops_its_parts(shared_pool: EmbeddedPool):
    assert (await shared_pool.call("count", {"sizes": [5, 2 * MIB]}, deadline=60)).result == {"said": 2}


async def test_parts_of_a_failing_call_arrive(shared_pool: EmbeddedPool):
    parts = Parts()

    with pytest.raises(RemoteError) as error:
        await shared_pool.call("count", {"sizes": [4, 5], "end": "fail"}, deadline=30, on_part=parts)

    assert error.value.code == "too_many_trips"
    check(parts, [4, 5])


async def test_parts_of_a_killed_worker_arrive(pool: EmbeddedPool):
    parts = Parts()

    with pytest.raises(WorkerLost):
        await pool.call("count", {"sizes": [4, MIB], "end": "kill"}, deadline=30, on_part=parts)

    check(parts, [4, MIB])
    assert (await pool.call("count", {"sizes": [1]}, deadline=60)).result == {"said": 1}


async def test_cancelling_a_call_after_its_first_part_keeps_the_worker(pool: EmbeddedPool):
    before = [(w.id, w.pid) for w in pool.workers()]
    parts = Parts()
    call = asyncio.create_task(pool.call("count", {"sizes": [4], "end": "listen"}, deadline=60, on_part=parts))
    await asyncio.wait_for(parts.first.wait(), 30)
    assert not call.done()  # the part arrived while the call runs

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert pool.events["stopped", "cancel"] == 1
    await asyncio.gather(*(pool.call("count", {"sizes": [1]}, deadline=60) for _ in range(4)))
    assert [(w.id, w.pid) for w in pool.workers()] == before


async def test_a_part_that_does_not_fit_in_memory_fails_the_call_and_keeps_the_worker(pool, monkeypatch):
    before = [(w.id, w.pid) for w in pool.workers()]
    real = SharedMemoryReader.read

    def full(self: SharedMemoryReader, tensors: Any, data: bytearray) -> Any:
        if any(t.name == "x" and t.shape == (7,) for t in tensors):
            raise MemoryError("full")
        return real(self, tensors, data)

    monkeypatch.setattr(SharedMemoryReader, "read", full)
    parts = Parts()
    with pytest.raises(NoCapacity):
        await pool.call("count", {"sizes": [4, 7, MIB, 2 * MIB], "end": "listen"}, deadline=30, on_part=parts)

    check(parts, [4])
    for _ in range(3):
        again = Parts()
        await pool.call("count", {"sizes": [MIB, 3]}, deadline=30, on_part=again)
        check(again, [MIB, 3])
    assert [(w.id, w.pid) for w in pool.workers()] == before


async def test_parts_leak_no_descriptor(pool: EmbeddedPool):
    def descriptors(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    async def send_parts() -> list[int]:
        calls = (pool.call("count", {"sizes": [MIB] * 8, "end": end}, deadline=60) for end in ("fail", "return") * 4)
        await asyncio.gather(*calls, return_exceptions=True)
        return [descriptors(pid) for pid in (os.getpid(), *(w.pid for w in pool.workers() if w.pid))]

    await send_parts()
    before = await send_parts()
    for _ in range(3):
        after = await send_parts()
    assert all(b <= a + 2 for a, b in zip(before, after, strict=True))
