"""Calls that say something before they end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine import EmbeddedPool, NoCapacity, RemoteError, WorkerLost
from service.ipc.shared_memory import SharedMemoryReader

pytestmark = pytest.mark.anyio

MIB = 2**17  # int64 numbers


class Heard(list[tuple[int, np.ndarray]]):
    """What was said, in order; `first` is set with the first of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = asyncio.Event()

    def __call__(self, result: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.append((result["i"], tensors["x"]))
        self.first.set()


def right(heard: Heard, sizes: list[int]) -> None:
    assert [i for i, _ in heard] == list(range(len(sizes)))
    for (i, array), size in zip(heard, sizes, strict=True):
        assert array.shape == (size,)
        assert (array == i).all()


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [3, 0, 7], [100] * 500, [1, MIB, 1, 2 * MIB, 1], [MIB // 2] * 40, [20 * MIB, 1, 150 * MIB, 1, 3]],
    ids=["nothing", "empty", "small", "many", "growing", "files", "huge"],
)
async def test_parts_come_in_order_and_whole_before_the_answer(pool: EmbeddedPool, sizes):
    for _ in range(2):  # the second time in the files of the first
        heard = Heard()
        reply = await pool.call("count", {"sizes": sizes}, deadline=60, on_part=heard)

        right(heard, sizes)
        assert reply.result == {"said": len(sizes)}
        np.testing.assert_array_equal(reply.tensors["last"], np.arange(5))
    assert (await pool.call("echo", {}, {"x": np.ones(3)}, deadline=5)).tensors["x"].tolist() == [1, 1, 1]


async def test_parts_of_calls_at_the_same_time_do_not_mix(pool: EmbeddedPool):
    sizes = [[10 + k] * 200 for k in range(4)]
    heard = [Heard() for _ in sizes]

    calls = (pool.call("count", {"sizes": s}, deadline=30, on_part=h) for s, h in zip(sizes, heard, strict=True))
    await asyncio.gather(*calls)

    for each, size in zip(heard, sizes, strict=True):
        right(each, size)


async def test_nobody_needs_to_listen(pool: EmbeddedPool):
    assert (await pool.call("count", {"sizes": [5, 2 * MIB]}, deadline=30)).result == {"said": 2}


async def test_a_call_that_fails_has_said_what_it_said(pool: EmbeddedPool):
    heard = Heard()

    with pytest.raises(RemoteError) as error:
        await pool.call("count", {"sizes": [4, 5], "end": "fail"}, deadline=30, on_part=heard)

    assert error.value.code == "too_many_trips"
    right(heard, [4, 5])


async def test_a_worker_that_dies_has_said_what_it_said(pool: EmbeddedPool):
    heard = Heard()

    with pytest.raises(WorkerLost):
        await pool.call("count", {"sizes": [4, MIB], "end": "kill"}, deadline=30, on_part=heard)

    right(heard, [4, MIB])
    assert (await pool.call("count", {"sizes": [1]}, deadline=30)).result == {"said": 1}


async def test_cancelling_a_call_that_has_begun_to_speak_stops_it_and_keeps_its_worker(pool: EmbeddedPool):
    before = [(w.id, w.pid) for w in pool.workers()]
    heard = Heard()
    call = asyncio.create_task(pool.call("count", {"sizes": [4], "end": "listen"}, deadline=60, on_part=heard))
    await asyncio.wait_for(heard.first.wait(), 30)
    assert not call.done()  # it speaks while it runs

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert pool.events["stopped", "cancel"] == 1
    await asyncio.gather(*(pool.call("count", {"sizes": [1]}, deadline=30) for _ in range(4)))
    assert [(w.id, w.pid) for w in pool.workers()] == before


async def test_a_part_that_there_is_no_room_for_fails_the_call_and_leaves_the_worker_usable(pool, monkeypatch):
    before = [(w.id, w.pid) for w in pool.workers()]
    real = SharedMemoryReader.read

    def full(self: SharedMemoryReader, tensors: Any, data: bytearray) -> Any:
        if any(t.name == "x" and t.shape == (7,) for t in tensors):
            raise MemoryError("full")
        return real(self, tensors, data)

    monkeypatch.setattr(SharedMemoryReader, "read", full)
    heard = Heard()
    with pytest.raises(NoCapacity):
        await pool.call("count", {"sizes": [4, 7, MIB, 2 * MIB], "end": "listen"}, deadline=30, on_part=heard)

    right(heard, [4])
    for _ in range(3):
        again = Heard()
        await pool.call("count", {"sizes": [MIB, 3]}, deadline=30, on_part=again)
        right(again, [MIB, 3])
    assert [(w.id, w.pid) for w in pool.workers()] == before


async def test_parts_leak_no_descriptor(pool: EmbeddedPool):
    def descriptors(pid: int) -> int:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))

    async def speak() -> list[int]:
        calls = (pool.call("count", {"sizes": [MIB] * 8, "end": end}, deadline=30) for end in ("fail", "return") * 4)
        await asyncio.gather(*calls, return_exceptions=True)
        return [descriptors(pid) for pid in (os.getpid(), *(w.pid for w in pool.workers() if w.pid))]

    await speak()
    before = await speak()
    for _ in range(3):
        after = await speak()
    assert all(b <= a + 2 for a, b in zip(before, after, strict=True))
