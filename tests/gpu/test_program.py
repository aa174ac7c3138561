"""The program that checks a GPU passes on the emulated one, reports what is wrong, and says when there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from tests.device.emulator import compiler
from tests.gpu import program
from tests.gpu.faults import cancel, kill, out_of_memory
from tests.gpu.rig import emulated, real
from tests.gpu.steps import difference, growth, ops, steps

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


@pytest.mark.parametrize("check", [steps, cancel, out_of_memory, ops, growth])
def test_a_check_passes_on_the_emulated_device(check):
    lines = list(check(emulated()))

    assert lines and all(each["ok"] for each in lines), lines


@pytest.mark.slow
def test_a_killed_process_is_noticed_and_replaced():
    assert [each["ok"] for each in kill(emulated())] == [True, True]


def test_a_wrong_step_ends_the_program_with_its_status(monkeypatch):
    monkeypatch.setattr(program, "CHECKS", (steps,))
    rig = emulated()
    wrong = type("Wrong", (type(rig),), {"to_host": lambda self, x: np.asarray(x) * 1.01})

    status, lines = ran(wrong(**{each: getattr(rig, each) for each in rig.__dataclass_fields__}))

    assert status == program.WRONG
    assert [each["ok"] for each in lines if "step" in each] == [False, False]


def test_a_check_that_fails_unexpectedly_is_wrong_and_the_others_run(monkeypatch):
    def broken(rig):
        raise RuntimeError("the device fell off the bus")
        yield

    monkeypatch.setattr(program, "CHECKS", (broken, ops))

    status, lines = ran(replace(emulated(), ops=("add",)))

    assert status == program.WRONG
    assert any("fell off the bus" in each.get("error", "") for each in lines)
    assert any(each.get("ops") for each in lines)


def test_what_no_time_is_left_for_is_wrong(monkeypatch):
    monkeypatch.setattr(program, "CHECKS", (ops,))

    status, lines = ran(replace(emulated(), ops=("add",)), seconds=0.0)

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
