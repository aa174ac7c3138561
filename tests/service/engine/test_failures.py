"""Failures of workers: when a worker dies, hangs or is cancelled, only its own calls fail."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.engine import DeadlineExceeded, EmbeddedPool, NoCapacity, WorkerLost
from service.engine.devices import plan_workers
from service.settings import Settings
from tests.processes import is_running, open_files

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}  # the event loop of the service; `test_calls.py` covers the one of Python


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `condition` holds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.01)


def named_memory(pid: int | str) -> set[str]:
    """The files in /dev/shm that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}


async def test_sigkill_during_a_call_fails_only_that_call_within_two_seconds(pool: EmbeddedPool):
    victim, other = pool.workers()
    lost = []
    pool.on_worker_lost(lambda worker, reason: lost.append((worker, reason)))
    doomed = asyncio.create_task(pool.call("sleep", {"seconds": 30}, worker=victim.id, deadline=60))
    safe = asyncio.create_task(pool.call("sleep", {"seconds": 1}, worker=other.id, deadline=60))
    await eventually(lambda: pool.workers()[0].state == "busy")

    killed = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL") as caught:
        await doomed

    assert time.monotonic() - killed < 20
    assert caught.value.retryable
    await eventually(lambda: pool.workers()[0].state == "idle")
    replaced = pool.workers()[0]
    assert (await pool.call("echo", {}, worker=replaced.id, deadline=60)).result["pid"] == replaced.pid != victim.pid
    assert (replaced.restarts, replaced.generation) == (1, victim.generation + 1)
    assert "SIGKILL" in replaced.last_fatal
    assert (await safe).result == {"slept": 1}
    assert pool.workers()[1].id == other.id
    assert [worker for worker, _ in lost] == [victim.id]


async def test_a_worker_id_is_invalid_after_replacement(pool: EmbeddedPool):
    victim = pool.workers()[0]
    with pytest.raises(WorkerLost):
        await pool.call("kill", {}, worker=victim.id, deadline=60)
    await eventually(lambda: pool.workers()[0].state == "idle")

    with pytest.raises(WorkerLost):
        await pool.call("echo", {}, worker=victim.id, deadline=60)


async def test_a_lost_worker_fails_its_queued_calls_but_not_calls_for_any_worker(open_pool):
    async with open_pool(workers=1) as pool:
        worker = pool.workers()[0].id
        running = asyncio.create_task(pool.call("sleep", {"seconds": 30}, deadline=60))
        await eventually(lambda: pool.workers()[0].state == "busy")
        pinned = asyncio.create_task(pool.call("echo", {}, worker=worker, deadline=60))
        anywhere = asyncio.create_task(pool.call("echo", {}, deadline=60))
        await asyncio.sleep(0)

        os.kill(pool.workers()[0].pid, signal.SIGKILL)

        for call, began in ((running, True), (pinned, False)):
            with pytest.raises(WorkerLost) as caught:
                await call
            assert caught.value.began == began
        assert (await anywhere).worker != worker


async def test_a_killed_idle_worker_is_replaced(pool: EmbeddedPool):
    victim = pool.workers()[0]

    os.kill(victim.pid, signal.SIGKILL)

    await eventually(lambda: pool.workers()[0].state == "idle" and pool.workers()[0].id != victim.id)
    assert not is_running(victim.pid)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("op", "args", "reason"), [("leave", {}, "exit status 3"), ("kill", {"signal": 11}, "SIGSEGV")]
)
async def test_the_pool_keeps_the_reason_of_a_worker_exit(open_pool, op, args, reason):
    async with open_pool(workers=1) as pool:
        with pytest.raises(WorkerLost, match=reason):
            await pool.call(op, args, deadline=60)

        await eventually(lambda: pool.workers()[0].state == "idle")
        assert reason in pool.workers()[0].last_fatal


async def test_a_cooperative_handler_stops_at_its_deadline_and_keeps_its_worker(open_pool):
    async with open_pool(workers=1) as pool:
        worker, started = pool.workers()[0].id, time.monotonic()

        with pytest.raises(DeadlineExceeded) as caught:
            await pool.call("listen", {"seconds": 30}, deadline=0.3)

        assert time.monotonic() - started < 20
        assert not caught.value.retryable
        assert (await pool.call("echo", {}, deadline=60)).worker == worker


async def test_a_handler_that_ignores_its_deadline_is_killed(open_pool):
    async with open_pool(workers=1, cancel_grace=0.3) as pool:
        worker, started = pool.workers()[0].id, time.monotonic()

        with pytest.raises(DeadlineExceeded):
            await pool.call("sleep", {"seconds": 30}, deadline=0.3)

        assert time.monotonic() - started < 20
        assert (await pool.call("echo", {}, deadline=60)).worker != worker
        assert "deadline" in pool.workers()[0].last_fatal


async def test_the_deadline_includes_the_time_in_the_queue(open_pool):
    async with open_pool(workers=1) as pool:
        running = asyncio.create_task(pool.call("sleep", {"seconds": 0.5}, deadline=60))
        await asyncio.sleep(0)

        with pytest.raises(DeadlineExceeded) as caught:
            await pool.call("echo", {}, deadline=0.1)

        assert caught.value.retryable, "the call never ran"
        await running
        assert pool.waiting == 0


async def test_a_cancelled_cooperative_handler_keeps_its_worker_and_sessions(open_pool):
    async with open_pool(workers=1) as pool:
        worker = pool.workers()[0].id
        await pool.call("keep", {"id": "ses_1"}, {"w": np.ones(3)}, deadline=60)
        call = asyncio.create_task(pool.call("listen", {"seconds": 30}, deadline=60))
        await eventually(lambda: pool.workers()[0].state == "busy")

        cancelled = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        assert time.monotonic() - cancelled < 20
        assert (await pool.call("recall", {"id": "ses_1"}, worker=worker, deadline=60)).tensors["w"].sum() == 3
        assert time.monotonic() - cancelled < 20


async def test_a_cancelled_handler_that_does_not_stop_loses_its_worker_after_the_grace_period(open_pool):
    async with open_pool(workers=1, cancel_grace=0.3) as pool:
        worker = pool.workers()[0].id
        call = asyncio.create_task(pool.call("sleep", {"seconds": 30}, deadline=60))
        await eventually(lambda: pool.workers()[0].state == "busy")

        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert pool.workers()[0].state == "busy", "the slot is held until the worker confirms"

        assert (await pool.call("echo", {}, deadline=60)).worker != worker


async def test_a_worker_with_sessions_gets_more_time_to_stop_a_call(open_pool, caplog):
    async with open_pool(workers=1, cancel_grace=0.2) as pool:
        worker = pool.workers()[0].id
        await pool.call("keep", {"id": "ses_1"}, {"w": np.ones(3)}, worker=worker, deadline=60)

        with pytest.raises(DeadlineExceeded):
            await pool.call("sleep", {"seconds": 0.8}, deadline=0.1)

        assert (await pool.call("recall", {"id": "ses_1"}, worker=worker, deadline=60)).tensors["w"].sum() == 3
        assert "sleep has not stopped within 0.2 s of its deadline; the worker holds 1 sessions" in caplog.text
        with pytest.raises(DeadlineExceeded):
            await pool.call("sleep", {"seconds": 30}, deadline=0.1)
        await eventually(lambda: pool.events["lost_sessions", "deadline"] == 1)


async def test_cancelling_a_queued_call_removes_it_from_the_queue(open_pool):
    async with open_pool(workers=1) as pool:
        running = asyncio.create_task(pool.call("sleep", {"seconds": 0.3}, deadline=60))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.call("echo", {}, deadline=60))
        await asyncio.sleep(0)

        waiting.cancel()

        assert (await running).result == {"slept": 0.3}
        assert pool.waiting == 0
        assert (await pool.call("echo", {}, deadline=60)).worker == pool.workers()[0].id


async def test_many_cancelled_calls_never_lose_a_slot(open_pool):
    async with open_pool(workers=2, queue_per_worker=100) as pool:
        calls = [asyncio.create_task(pool.call("listen", {"seconds": 0.01}, deadline=60)) for _ in range(100)]
        for index, call in enumerate(calls):
            await asyncio.sleep(0.002)
            if index % 3:
                call.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)

        assert sum(isinstance(answer, BaseException) for answer in answers) <= 67
        await eventually(lambda: [worker.state for worker in pool.workers()] == ["idle", "idle"])
        assert sum(worker.restarts for worker in pool.workers()) == 0


async def test_a_worker_without_heartbeat_is_replaced(open_pool):
    async with open_pool(workers=2, heartbeat_timeout=4.0) as pool:
        victim, other = pool.workers()
        call = asyncio.create_task(pool.call("listen", {"seconds": 30}, worker=victim.id, deadline=60))
        await eventually(lambda: pool.workers()[0].state == "busy")

        os.kill(victim.pid, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match="no heartbeat"):
            await asyncio.wait_for(call, 60)

        await eventually(lambda: pool.workers()[0].state == "idle")
        assert not is_running(victim.pid)
        assert pool.workers()[1].id == other.id


async def test_a_long_call_does_not_count_as_a_hang(open_pool):
    async with open_pool(workers=1, heartbeat_timeout=3.0) as pool:
        assert (await pool.call("sleep", {"seconds": 3.5}, deadline=60)).result == {"slept": 3.5}


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.slow)])
async def test_replacements_leak_no_descriptor_and_no_process(open_pool, count):
    async with open_pool(workers=1) as pool:
        big = {"x": np.ones(2**21)}
        await pool.call("double", {}, big, deadline=60)
        gc.collect()
        before = open_files()
        pids = set()
        for _ in range(count):
            reply = await pool.call("echo", {}, big, deadline=60)
            pids.add(reply.result["pid"])
            with pytest.raises(WorkerLost):
                await pool.call("kill", {}, worker=reply.worker, deadline=60)
        await pool.call("double", {}, big, deadline=60)

        gc.collect()
        assert len(open_files()) == len(before), (before, open_files())
        assert len(pids) == count
        assert not any(is_running(pid) for pid in pids)


async def test_stopping_the_pool_ends_its_workers_and_closes_all_descriptors(open_pool):
    before = open_files()
    async with open_pool() as pool:
        pids = [worker.pid for worker in pool.workers()]
        running = asyncio.create_task(pool.call("sleep", {"seconds": 30}, {"x": np.ones(2**20)}, deadline=60))
        await eventually(lambda: pool.workers()[0].state == "busy")

    with pytest.raises(WorkerLost):
        await running
    assert not any(is_running(pid) for pid in pids)
    await asyncio.sleep(0)
    assert len(open_files()) <= len(before)


async def test_the_pool_maps_no_named_shared_memory(open_pool):
    # What processes map, not what /dev/shm holds: other programs of the machine make files there.
    before = named_memory("self")
    async with open_pool() as pool:
        await pool.call("double", {}, {"x": np.ones(2**22)}, deadline=60)
        during = [named_memory(worker.pid) for worker in pool.workers()]

        assert during and not any(during)
        assert named_memory("self") == before


BEGUN = """
import asyncio
from service.engine import EmbeddedPool
from service.settings import Settings

async def main():
    await pool.start()
    for worker in pool.workers():
        await pool.call("echo", {}, worker=worker.id, deadline=60)
    print(*(worker.pid for worker in pool.workers()), flush=True)
    await pool.stop()

pool = EmbeddedPool(Settings(device="cpu", workers=2), handlers="tests.service.engine.handlers:HANDLERS")
pool.begin()
begun = [child.pid for child in pool._begun]
print(*begun)
asyncio.run(main())
"""


def test_workers_begin_before_the_event_loop_and_serve_calls_in_it():
    done = subprocess.run([sys.executable, "-c", BEGUN], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    begun, serving = ([int(pid) for pid in line.split()] for line in done.stdout.splitlines())
    assert serving == begun
    assert not any(is_running(pid) for pid in begun)


PARENT = """
import asyncio, os
from service.engine import EmbeddedPool
from service.settings import Settings

async def main():
    pool = EmbeddedPool(Settings(device="cpu", workers=2), handlers="tests.service.engine.handlers:HANDLERS")
    await pool.start()
    asyncio.create_task(pool.call("sleep", {"seconds": 60}, deadline=60))
    await asyncio.sleep(0.1)
    print(*(worker.pid for worker in pool.workers()), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
async def test_the_death_of_the_service_ends_running_and_stopped_workers(sent: int, stopped: bool):
    command = [sys.executable, "-c", PARENT]
    parent = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in (await asyncio.to_thread(parent.stdout.readline)).split()]
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    if stopped:  # a stopped worker cannot notice the end of its socket or of its parent
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

    parent.send_signal(sent)
    parent.wait(60)

    await eventually(lambda: not any(is_running(pid) for pid in pids))
    parent.stdout.close()


async def test_calls_fail_when_no_worker_can_start(open_pool):
    async with open_pool(handlers="tests.service.engine.no_such_module:HANDLERS", workers=2) as pool:
        call = asyncio.create_task(pool.call("echo", {}, deadline=60))

        with pytest.raises(NoCapacity):
            await asyncio.wait_for(call, 60)

        assert "exit status 1" in pool.workers()[0].last_fatal


async def test_calls_that_end_their_workers_one_after_the_other_do_not_close_the_pool(open_pool):
    async with open_pool(workers=1) as pool:
        for _ in range(4):
            with pytest.raises(WorkerLost):
                await pool.call("kill", {}, deadline=60)

        assert (await pool.call("echo", {}, deadline=60)).worker == pool.workers()[0].id


async def test_a_failing_callback_does_not_prevent_replacement(open_pool):
    async with open_pool(workers=1) as pool:
        reported = []

        def fails(worker: str, reason: str) -> None:
            raise RuntimeError("the callback fails")

        pool.on_worker_lost(fails)
        pool.on_worker_lost(lambda worker, reason: reported.append(worker))
        with pytest.raises(WorkerLost):
            await pool.call("kill", {}, deadline=60)

        assert (await pool.call("echo", {}, deadline=60)).worker not in reported
        assert len(reported) == 1


def test_the_plan_has_one_worker_for_each_visible_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-5c3e")

    plans = plan_workers(Settings(device="cuda", workers=5))

    assert [(plan.device, plan.environment["CUDA_VISIBLE_DEVICES"]) for plan in plans] == [
        ("cuda", "0"),
        ("cuda", "GPU-5c3e"),
    ]


def test_cuda_without_a_gpu_is_refused_and_auto_falls_back(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with pytest.raises(NoCapacity):
        plan_workers(Settings(device="cuda"))

    assert [plan.device for plan in plan_workers(Settings(device="auto", workers=3))] == ["cpu"] * 3
