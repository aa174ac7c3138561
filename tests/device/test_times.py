"""The times of the kernels of a GPU: a launch for each instruction that can have one, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from core.analysis.profile import profile_of
from core.device.rules import RULES
from core.device.segments import segments_of, separated
from core.plan.flow import Branch, Loop
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.runtime.times import Times
from tests.device.agreement import looping, training_step
from tests.device.driver import MICROSECOND, EmulatedDriver
from tests.device.emulator import compiler
from tests.device.test_region import backend_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")

PROGRAMS = {"network": training_step, "loop with a record": lambda: looping(trips=700)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_timed_step_has_the_bits_of_the_step_and_the_time_of_all_but_the_copies_of_its_words(program):
    block, values = PROGRAMS[program]()
    driver = EmulatedDriver()
    backend = backend_of(driver)
    plain, timed = (native_interpreter(block, backend, timed=each) for each in (False, True))
    wanted = plain(Run(), *values)
    timed(Run(), *values)  # stacks grow
    times, before = Times(), driver.seconds

    found = timed(Run(times=times), *values)

    for one, want in zip(found, wanted, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(want).tobytes()
    profile = profile_of(times, on_cpu=False)
    copies = (2 if program == "loop with a record" else 0) * MICROSECOND
    assert sum(each["ms"] for each in profile["kernels"]) == pytest.approx((driver.seconds - before - copies) * 1e3)
    assert all(each["ms"] > 0 and each["compiled"] and each["of"] for each in profile["kernels"])


def test_every_instruction_outside_of_loops_with_a_record_has_a_launch_of_its_own():
    block, _ = training_step()
    plan = native_interpreter(block, backend_of(EmulatedDriver())).region.plan

    segments = separated(plan, segments_of(plan, 2, RULES))

    assert all(len(each.instructions) == 1 for each in segments)
    assert [one for each in segments for one in each.instructions] == list(plan.body.instructions)


def test_a_loop_is_one_kernel_of_unknown_work():
    block, values = looping(trips=3)
    region = native_interpreter(block, backend_of(EmulatedDriver()), timed=True).region
    times = Times()

    region(Run(times=times), *values)

    loops = [each for each in times.together if any(isinstance(one, Loop | Branch) for one in each)]
    shown = [each for each in profile_of(times, on_cpu=False)["kernels"] if each["kernel"].startswith("loop of")]
    assert loops and len(shown) == len(loops)
    assert {(each["flops"], each["bytes"]) for each in shown} == {(0, 0)}


def test_a_run_that_asks_for_no_times_measures_none():
    block, values = training_step()
    driver = EmulatedDriver()
    region = native_interpreter(block, backend_of(driver), timed=True).region

    for _ in range(3):
        region(Run(), *values)

    assert driver.graph_launches == 2
