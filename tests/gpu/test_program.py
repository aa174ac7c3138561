"""The program that checks a GPU passes on the emulated one, reports what is wrong, and says when there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.device.ptx import ptx_of
from tests.device.agreement import SCOPES, training_step
from tests.device.emulator import compiler
from tests.gpu import program
from tests.gpu.constants import constants, meeting
from tests.gpu.faults import cancel, kill, out_of_memory
from tests.gpu.parallel import units
from tests.gpu.rig import emulated, real
from tests.gpu.steps import difference, growth
from tests.gpu.units import UNITS, Unit, Wrong, compared

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


def ran(rig: Any, **how: Any) -> tuple[int, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    return program.run(rig, how.get("seconds", 600.0), lines.append), lines


@pytest.mark.slow
def test_all_checks_pass_on_the_emulated_device():
    status, lines = ran(emulated())

    assert [each for each in lines if not each["ok"]] == []
    assert status == program.RIGHT
    assert {each["check"] for each in lines} >= {check.__name__ for check in program.CHECKS}
    json.dumps(lines, default=float)


@pytest.mark.parametrize("check", [constants, cancel, out_of_memory, growth])
def test_a_check_passes_on_the_emulated_device(check):
    lines = list(check(emulated()))

    assert lines and all(each["ok"] for each in lines), lines


@pytest.mark.parametrize("barrier", ["dev_barrier", "dev_block_barrier"])
def test_the_kernel_that_measures_barriers_becomes_ptx(barrier):
    """The emulated device compiles the text itself, so that no other test calls `ptx_of` for it."""
    ptx = ptx_of(meeting(barrier, 4, 64, cooperative=True))

    assert ".entry run_meet(" in ptx and "bar" in ptx.split(".entry run_meet(")[1]


def test_units_of_all_kinds_pass_on_the_emulated_device_in_processes_of_their_own():
    lines = list(units(emulated(), time.monotonic() + 300))

    assert lines and all(each["ok"] for each in lines), lines
    assert {each["all"]: each["units"] for each in lines if "all" in each} == {
        kind: len(list(unit.names(emulated()))) for kind, unit in UNITS.items()
    }
    rates = [each for each in lines if "rates" in each]
    assert all(us > 0 for each in rates for scope in ("one block", "all blocks") for *_, us in each[scope])


@pytest.mark.slow
def test_a_killed_process_is_noticed_and_replaced():
    assert [each["ok"] for each in kill(emulated())] == [True, True]


WORKER = """
import json, os, sys, time
for line in sys.stdin:
    kind, name = json.loads(line)
    if name == "hang":
        time.sleep(600)
    if name == "crash":
        os._exit(7)
    print(json.dumps({"ok": name != "wrong", "told": name}), flush=True)
"""


def test_a_unit_that_hangs_or_crashes_is_wrong_and_the_others_run(monkeypatch):
    monkeypatch.setattr("tests.gpu.parallel.UNIT_S", 2.0)
    names = ("right", "hang", "crash", "wrong", "right too")
    monkeypatch.setitem(UNITS, "odd", Unit(lambda rig: names, lambda rig, name: {"ok": True}, told=True))

    lines = list(
        units(replace(emulated(), worker=[sys.executable, "-c", WORKER], workers=1), time.monotonic() + 60, ["odd"])
    )

    assert {each["odd"]: each["ok"] for each in lines if "odd" in each} == {
        "right": True, "hang": False, "crash": False, "wrong": False, "right too": True
    }  # fmt: skip
    assert "status 7" in next(each["error"] for each in lines if each.get("odd") == "crash")
    assert lines[-1] == {"all": "odd", "ok": False, "units": 5, "wrong": 3, "left_out": 0, "count": 5, "worst": 0.0}


def test_units_that_no_time_is_left_for_are_counted():
    (line,) = units(emulated(), time.monotonic() - 1.0, ["steps"])

    assert (line["ok"], line["left_out"]) == (False, len(emulated().workloads))


def test_a_result_that_differs_is_wrong():
    rig = emulated()
    wrong = type("Off", (type(rig),), {"to_host": lambda self, x: np.asarray(x) * 1.01})
    off = wrong(**{each: getattr(rig, each) for each in rig.__dataclass_fields__})
    block, values = training_step()

    assert compared(rig, block, values, SCOPES[0], 1e-9, "a network") <= 1e-9
    with pytest.raises(Wrong, match="a network: differs by"):
        compared(off, block, values, SCOPES[0], 1e-9, "a network")


def test_a_check_that_fails_unexpectedly_is_wrong_and_the_others_run(monkeypatch):
    def broken(rig):
        raise RuntimeError("the device fell off the bus")
        yield

    monkeypatch.setattr(program, "CHECKS", (broken, constants))

    status, lines = ran(emulated())

    assert status == program.WRONG
    assert any("fell off the bus" in each.get("error", "") for each in lines)
    assert any("constant" in each for each in lines)


def test_what_no_time_is_left_for_is_wrong(monkeypatch):
    monkeypatch.setattr(program, "CHECKS", (constants,))

    status, lines = ran(emulated(), seconds=0.0)

    assert status == program.WRONG
    assert any("no time is left" in each.get("error", "") for each in lines)


def test_differences_are_parts_of_the_largest_number_and_see_nan():
    wanted = np.array([1.0, -4.0, np.inf])

    assert difference(np.array([1.0, -4.0, np.inf]), wanted) == 0
    assert difference(np.array([1.0, -4.4, np.inf]), wanted) == pytest.approx(0.1)
    assert difference(np.array([1.0, np.nan, np.inf]), wanted) == np.inf
    assert difference(np.array([1.0, -4.0, 5.0]), wanted) == np.inf
    assert difference(np.array([1.0, -4.0], "float32"), wanted[:2]) == np.inf


def test_without_a_gpu_the_program_says_so_and_fails():
    import cupy

    if cupy.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run([sys.executable, "-m", "tests.gpu"], capture_output=True, text=True, timeout=300)

    (line,) = map(json.loads, done.stdout.splitlines())
    assert done.returncode == program.WITHOUT_GPU
    assert not line["ok"] and "there is no GPU" in line["error"]
    assert "there is no GPU, so nothing was checked" in done.stderr
    with pytest.raises(Exception, match="doctor"):
        real()
