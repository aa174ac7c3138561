"""Parked calls: calls that wait for a compilation, and other calls meanwhile. No test depends on time: a compilation
ends when the test opens its gate."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.engine import DeadlineExceeded, EmbeddedPool, QueueFull, RemoteError, WorkerLost

pytestmark = pytest.mark.anyio

MINUTE = 60.0
Gate = Callable[[str], str]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """gate(name) is the path of the file that ends a compilation."""
    return lambda name: str(tmp_path / name)


async def open_gate(path: str, said: str = "code") -> None:
    """Give the compilation that waits at this gate its result, and wait until it has read it."""

    def given() -> None:
        leave_open(path, said)
        end = time.monotonic() + MINUTE
        while os.path.exists(path):
            assert time.monotonic() < end, f"no compilation reads {path}"
            time.sleep(0.001)

    await asyncio.to_thread(given)


def leave_open(path: str, said: str = "code") -> None:
    """Give a result to the compilation that waits at this gate, now or later."""
    whole = Path(f"{path}.new")
    whole.write_text(said)
    whole.rename(path)


def is_closed(path: str) -> bool:
    """Whether no compilation has read what this gate gives."""
    return os.path.exists(path)


async def parked(pool: EmbeddedPool, count: int) -> None:
    """Wait until `count` calls wait for compilations."""
    for _ in range(60_000):
        if sum(slot.process.parked for slot in pool._slots if slot.process is not None) >= count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"fewer than {count} calls wait for compilations")


def compiling(pool: EmbeddedPool, gate: str, what: str = "a", **options: Any) -> asyncio.Task:
    options = {"deadline": MINUTE, **options}
    return asyncio.create_task(pool.call("gated", {"what": what, "gate": gate}, **options))


async def test_a_worker_answers_other_calls_while_one_call_is_parked(open_pool, gate):
    async with open_pool(workers=1) as pool:
        closed = gate("a")
        given = {"x": np.arange(5.0), "large": np.ones(2**19)}
        waiting = asyncio.create_task(pool.call("gated", {"what": "a", "gate": closed}, given, deadline=MINUTE))
        await parked(pool, 1)

        others = [await pool.call("echo", {"i": i}, given, deadline=MINUTE) for i in range(20)]

        assert not waiting.done()
        await open_gate(closed)
        reply = await waiting
        assert reply.result == {"compiled": "code", "pid": others[0].result["pid"]}
        np.testing.assert_equal(reply.tensors, given)
        assert reply.timing_ms["total"] >= reply.timing_ms["compute"] > 0
        assert pool._slots[0].process.parked == 0


async def test_equal_calls_share_one_compilation_and_other_calls_do_not_wait_for_it(open_pool, gate):
    async with open_pool(workers=1) as pool:
        first, second = gate("a"), gate("b")
        same = [compiling(pool, first) for _ in range(3)]
        await parked(pool, 3)
        other = compiling(pool, second, "b")
        await parked(pool, 4)

        await open_gate(first, "one")
        done = await asyncio.wait_for(same[0], MINUTE)
        assert done.result["compiled"] == "one"
        assert not other.done()
        for task in same[1:]:  # the first call took the result, so these would start another compilation
            task.cancel()
        await asyncio.gather(*same[1:], return_exceptions=True)
        gates = asyncio.create_task(open_gate(second, "two"))
        assert (await asyncio.wait_for(other, MINUTE)).result["compiled"] == "two"
        await gates


async def test_a_failed_compilation_fails_its_call_and_can_be_tried_again(open_pool, gate):
    async with open_pool(workers=1) as pool:
        closed = gate("a")
        waiting = compiling(pool, closed)
        await parked(pool, 1)
        await open_gate(closed, "fail")

        with pytest.raises(RemoteError) as caught:
            await waiting

        assert (caught.value.code, caught.value.message) == ("compiler_failed", "cannot be compiled")
        again = compiling(pool, closed)
        await open_gate(closed)
        assert (await again).result["compiled"] == "code"
        assert pool.events["restart", "crash"] == 0


async def test_the_deadline_of_a_parked_call_does_not_end_the_worker(open_pool, gate):
    async with open_pool(workers=1) as pool:
        pid = (await pool.call("echo", {}, deadline=MINUTE)).result["pid"]
        closed = gate("a")
        with pytest.raises(DeadlineExceeded) as caught:
            await compiling(pool, closed, deadline=0.2)

        assert caught.value.retryable
        assert pool._slots[0].process.parked == 0
        later = compiling(pool, closed)  # waits for the same compilation, which goes on
        await parked(pool, 1)
        await open_gate(closed)
        assert (await later).result == {"compiled": "code", "pid": pid}


async def test_cancelling_a_parked_call_ends_its_compilation(open_pool, gate):
    async with open_pool(workers=1) as pool:
        running, unwanted, wanted = gate("a"), gate("b"), gate("c")
        calls = [compiling(pool, path, path) for path in (running, unwanted, wanted)]
        await parked(pool, 3)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        await pool.call("echo", {}, deadline=MINUTE)  # arrives after the `Forget` message

        await open_gate(running)
        leave_open(unwanted)
        await open_gate(wanted)

        assert [(await calls[i]).result["compiled"] for i in (0, 2)] == ["code", "code"]
        assert is_closed(unwanted), "the cancelled compilation has read its gate"


async def test_the_number_of_parked_calls_is_bounded(open_pool, gate):
    async with open_pool(workers=1, queue_per_worker=2) as pool:
        closed = gate("a")
        waiting = [compiling(pool, closed, str(i)) for i in range(3)]
        await parked(pool, 3)

        with pytest.raises(QueueFull):
            await compiling(pool, closed, "one too many")

        assert (await pool.call("echo", {"i": 1}, deadline=MINUTE)).result["args"] == {"i": 1}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert pool._slots[0].process.parked == 0


async def test_parked_calls_fail_with_their_worker_and_with_the_pool(open_pool, gate):
    async with open_pool(workers=1) as pool:
        lost = compiling(pool, gate("a"))
        await parked(pool, 1)
        with pytest.raises(WorkerLost):
            await pool.call("kill", {}, deadline=MINUTE)
        with pytest.raises(WorkerLost):
            await lost
        last = compiling(pool, gate("b"))
        await parked(pool, 1)
    with pytest.raises(WorkerLost):
        await last
