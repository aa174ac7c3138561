"""A clock of the day that jumps: deadlines, leases in memory and heartbeats do not follow it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.house import CLOCK
from tests.service.conftest import COMMAND, serve
from tests.service.routes.test_gradients import asked
from tests.service.wire import endless, opened, problem, regression, tensors

YEAR_S = 365 * 86400
LONG = {"workers": 1, "loop_trips": 10**9, "op_executions": 10**12}


@pytest.mark.parametrize("jump", [-YEAR_S, pytest.param(YEAR_S, marks=pytest.mark.slow)])
def test_deadlines_leases_and_heartbeats_do_not_follow_the_clock_of_the_day(
    tmp_path: Path, monkeypatch: Any, jump: int
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    monkeypatch.setenv("BACKPASS_TEST_CLOCK", str(clock))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CLOCK), os.environ.get("PYTHONPATH", "")]))
    sketch = regression()
    feeds = tensors({name: sketch.values[name] for name in ("x", "y")})
    with serve(tmp_path / "data", command=COMMAND, **LONG, heartbeat_timeout=3) as served:
        client = served.client
        with (
            opened(client, sketch, durability="none") as kept,
            opened(client, sketch, durability="none", lease_s=3.0) as short,
        ):
            clock.write_text(str(jump))
            began = time.monotonic()

            assert client.get(short).status_code == 200
            assert client.post(f"{kept}/steps", json={"feeds": feeds}).status_code == 200
            late = client.post("/v1/gradients", json=asked(endless(), deadline_s=1.0))
            took = time.monotonic() - began
            while client.get(short).status_code == 200 and time.monotonic() - began < 60:
                time.sleep(0.2)

            problem(late, 504, "deadline-exceeded")
            assert 1.0 <= took < 20
            assert client.get(short).status_code == 410
            assert client.post(f"{kept}/steps", json={"feeds": feeds}).status_code == 200
            assert [worker["restarts"] for worker in client.get("/v1/workers").json()["workers"]] == [0]
            assert client.get("/healthz/ready").status_code == 200
