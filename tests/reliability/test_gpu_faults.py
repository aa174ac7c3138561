"""Sessions train on an emulated GPU while it fails and its worker is killed: every number is that of a calm run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from tests.device.emulator import compiler
from tests.device.worker_gpu import environment
from tests.reliability import faults
from tests.reliability.chaos import compare, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU"),
]


def test_no_step_is_lost_or_doubled_on_a_gpu_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = tmp_path / "orders"

    def fail(call):
        return lambda house, rng: orders.write_text(json.dumps({call: rng.randrange(3)})) and None

    monkeypatch.setitem(faults.FAULTS, "gpu failed", fail("launch"))
    weights = {"gpu failed": 2.0, "worker killed": 1.0}
    given = {"device": "cuda", "environment": environment(orders)}
    calm = run(tmp_path / "calm", 2, 160, jobs=1, **given)

    burnt = run(tmp_path / "burnt", 2, 160, jobs=1, faults=weights, pause=6.0, **given)

    compare(calm, burnt)
    assert burnt.faults["gpu failed"] and burnt.faults["worker killed"], burnt.faults
