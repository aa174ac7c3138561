"""A spare worker process takes the place of a worker on a GPU that is lost, and another one is started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from service.engine.child import Child
from service.engine.devices import WorkerPlan
from service.engine.spare import Spare
from tests.device.emulator import compiler
from tests.device.worker_gpu import environment
from tests.processes import children, command
from tests.service.engine.conftest import Pool

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU"),
]

HANDLERS = "tests.service.engine.handlers:HANDLERS"


def every_worker() -> set[int]:
    """The worker processes that this process has started."""
    return {pid for pid in children() if b"service.worker.main" in command(pid)}


@pytest.fixture
def workers() -> Callable[[], set[int]]:
    """Those that the test has started: an earlier one may have left a pool that is not collected yet."""
    before = every_worker()
    return lambda: every_worker() - before


async def until(is_true: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110  (processes set no event)
            await asyncio.sleep(0.02)


async def test_a_lost_worker_is_replaced_by_the_spare_process_on_its_own_gpu(
    open_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Callable[[], set[int]]
) -> None:
    for name, value in environment(tmp_path / "orders").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "emulated0,emulated1")
    async with open_pool(device="cuda", compile="never", data_dir=tmp_path) as pool:
        used = [each.pid for each in pool.workers()]
        assert [each.device for each in pool.workers()] == ["cuda: emulated0", "cuda: emulated1"]
        await until(lambda: len(workers()) == 3)  # the spare process starts after the pool has opened
        (spare,) = workers() - set(used)

        os.kill(used[1], signal.SIGKILL)

        await until(lambda: pool.workers()[1].pid not in (used[1], None) and pool.workers()[1].state == "idle")
        assert [each.pid for each in pool.workers()] == [used[0], spare]
        assert pool.workers()[1].device == "cuda: emulated1"
        await until(lambda: len(workers()) == 3)
    assert not workers()


async def test_a_spare_process_that_has_ended_is_not_used(workers: Callable[[], set[int]]) -> None:
    plan = WorkerPlan("cuda", {"CUDA_VISIBLE_DEVICES": ""})
    spare = Spare(HANDLERS)
    spare.serve([plan])
    spare.fill()
    await until(lambda: len(workers()) == 1)
    (first,) = workers()
    os.kill(first, signal.SIGKILL)
    await until(lambda: os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None)

    assert spare.take(plan) is None
    spare.fill()

    child = spare.take(plan)
    assert isinstance(child, Child) and child.pid != first
    assert spare.take(plan) is None
    child.kill()
    child.socket.close()
    await child.exit_status(5.0)


async def test_workers_on_the_processor_have_no_spare_process(workers: Callable[[], set[int]]) -> None:
    plan = WorkerPlan("cpu")
    spare = Spare(HANDLERS)
    spare.serve([plan])

    spare.fill()

    assert not workers() and spare.take(plan) is None
