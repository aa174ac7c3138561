"""A long call that is stopped takes nothing from others: its worker and the sessions in it live on."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.models import block, feed, op, parameter
from service.engine import DeadlineExceeded, EmbeddedPool
from tests.service.engine.conftest import Pool

pytestmark = pytest.mark.anyio

REAL = "service.worker.handlers:HANDLERS"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


def summed(*ops: dict[str, Any]) -> dict[str, Any]:
    """A program whose loss is x times the sum of the last op's result."""
    (last,) = next(iter(ops[-1]["outputs"].values()))
    return {"blocks": [block([*ops, op("reduce_sum", "s", x=last), op("mul", "loss", x="s", y="x")], [feed("x", [])])]}


def noise(*shape: int) -> dict[str, Any]:
    return op("uniform_random", "a", attrs={"shape": list(shape)})


LONG = {
    "matmul": summed(noise(4000, 4000), op("matmul", "b", x="a", y="a"), op("matmul", "c", x="b", y="a")),
    "argsort": summed(noise(20_000_000), op("argsort", "i", x="a"), op("gather", "b", x="a", index="i")),
    "random": summed(noise(30_000_000)),
    "inverse": summed(noise(4000, 4000), op("inverse", "b", x="a")),
    "conv2d": summed(
        op("fill_constant", "a", attrs={"shape": [1, 64, 512, 512], "value": 1.0}),
        op("fill_constant", "f", attrs={"shape": [64, 64, 9, 9], "value": 1.0}),
        op("conv2d", "b", x="a", filter="f"),
    ),
}
"""Programs of one op that takes seconds."""

SESSION = {"blocks": [block([op("mul", "y", x="w", y="w"), op("reduce_sum", "loss", x="y")], [parameter("w", [4])])]}


async def one_shot(pool: EmbeddedPool, name: str, worker: str, deadline: float) -> None:
    args = {"program_id": name, "document": LONG[name], "query": {"loss": "loss"}, "fetch": [], "seed": 0, "step": 0}
    x = np.asarray(1.0, "float32")
    await pool.call(
        "gradients", args | {"returned": "none", "stream": False}, {"x": x}, worker=worker, deadline=deadline
    )


async def open_session(pool: EmbeddedPool, worker: str) -> None:
    args = {"id": f"session of {worker}", "program_id": "session", "document": SESSION, "query": {"loss": "loss"}}
    args |= {"optimizer": {"type": "sgd", "attrs": {"learning_rate": 0.1}}, "clip": None, "loss_scale": None, "seed": 3}
    await pool.call("session.create", args | {"initializers": {"w": {"type": "normal"}}}, worker=worker, deadline=30)


async def weights(pool: EmbeddedPool, worker: str) -> bytes:
    args = {"id": f"session of {worker}", "names": None}
    return (await pool.call("session.get_parameters", args, worker=worker, deadline=10)).tensors["w"].tobytes()


async def answers_again(pool: EmbeddedPool, worker: str) -> float:
    """Wait until `worker` answers its next call; returns the seconds."""
    started = time.monotonic()
    await pool.call("ping", {}, worker=worker, deadline=30)
    return time.monotonic() - started


@pytest.mark.parametrize(
    ("compile", "names"),
    [
        ("never", ["matmul", "argsort"]),
        pytest.param("never", ["random", "inverse", "conv2d"], marks=pytest.mark.slow),
        # machine code draws and adds up the random numbers before the deadline
        pytest.param("always", [name for name in LONG if name != "random"], marks=pytest.mark.slow),
    ],
)
async def test_sessions_survive_calls_that_are_stopped(open_pool: Pool, tmp_path: Path, compile: str, names: list[str]):
    async with open_pool(REAL, cancel_grace=2.0, compile=compile, data_dir=tmp_path) as pool:
        before = [worker.id for worker in pool.workers()]
        for worker in before:
            await open_session(pool, worker)
        held = [await weights(pool, worker) for worker in before]

        for name in names:
            if compile == "always":  # the first call compiles; then the program itself is stopped
                with suppress(DeadlineExceeded):
                    await one_shot(pool, name, before[0], deadline=20)
                await answers_again(pool, before[0])
            with pytest.raises(DeadlineExceeded):
                await one_shot(pool, name, before[0], deadline=0.4)
            assert await answers_again(pool, before[0]) < 15, name

            hung_up = asyncio.create_task(one_shot(pool, name, before[0], deadline=60))
            await asyncio.sleep(0.3)
            hung_up.cancel()
            assert await answers_again(pool, before[0]) < 15, name

        assert [worker.id for worker in pool.workers()] == before
        assert [worker.restarts for worker in pool.workers()] == [0, 0]
        assert [await weights(pool, worker) for worker in before] == held
        assert not any(event == "restart" for event, _ in pool.events)
