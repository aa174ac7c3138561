"""Sessions train on an emulated GPU while it fails and its worker is killed: every number is that of a calm run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import httpx
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from tests.device.emulator import compiler
from tests.device.worker_gpu import environment
from tests.reliability import faults
from tests.reliability.chaos import compare, run
from tests.reliability.house import House

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU"),
]


def test_no_step_is_lost_or_doubled_on_a_gpu_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = tmp_path / "orders"

    def fail_gpu(house: House, rng: random.Random) -> None:
        """Let one of the next launches fail, but not one of a worker that starts and tests its GPU."""
        workers = httpx.get(f"{house.url}/v1/workers", timeout=10.0).json()["workers"]
        if not all(each["state"] in ("idle", "busy") for each in workers):
            raise faults.Missed
        orders.write_text(json.dumps({"launch": rng.randrange(3)}))

    monkeypatch.setitem(faults.FAULTS, "gpu failed", fail_gpu)
    weights = {"gpu failed": 2.0, "worker killed": 1.0}
    calm = run(tmp_path / "calm", 2, 120, device="cuda", environment=environment(orders))

    burnt = run(tmp_path / "burnt", 2, 120, faults=weights, pause=4.0, device="cuda", environment=environment(orders))

    compare(calm, burnt)
    assert burnt.faults["gpu failed"], burnt.faults
