"""Executables on a GPU: steps compiled for the backend of the process, and ops between regions that run one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from core.analysis.compiled import machine_code
from core.codegen.backend import CPU
from core.compiler.backends import use_backend
from core.compiler.compile import GradientQuery, Optimizer, compile_gradient, compile_training
from core.runtime.native import native_interpreter
from core.runtime.reference import NATIVE
from core.runtime.run import RunLimits
from core.wire import read
from tests.array_programs import array_program
from tests.chosen import Chosen
from tests.device.driver import EmulatedDriver
from tests.device.emulator import EmulatedBackend, compiler
from tests.device.test_region import backend_of
from tests.laws.agreement import same
from tests.programs import Sketch

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


@pytest.fixture
def driver():
    driver = EmulatedDriver()
    before = use_backend(backend_of(driver))
    yield driver
    use_backend(before)


def training():
    """A step with an op that reports to the host, between others that a GPU runs."""
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((8, 5)))
    w = s.param("w", rng.standard_normal((5, 3)) / 2)
    h = s.op("print", s.op("tanh", s.op("matmul", x, w)), message="hidden")
    s.total(s.op("square", h))
    executable = compile_training(
        read(s.document), GradientQuery(loss="loss"), Optimizer("sgd", {"learning_rate": 0.1})
    )
    return executable, {n: np.array(v) for n, v in s.values.items()} | executable.initial_state()


def test_a_step_is_compiled_for_the_backend_of_the_process(driver):
    executable, values = training()

    executable.compiled().step(values)

    assert driver.launches


def test_ops_without_code_run_one_by_one_between_the_regions_of_a_gpu(driver):
    executable, values = training()
    wanted = executable.step(values)

    compiled = executable.compiled()
    found = compiled.step(values)

    types = [call.op.type for call in compiled.machine.calls]
    assert "print" in types and NATIVE in types
    assert driver.launches
    same(found.loss, wanted.loss)
    same(found.parameters["w"], wanted.parameters["w"])
    assert [each.text for each in found.messages] == [each.text for each in wanted.messages] == ["hidden"]


def test_the_analysis_names_the_ops_that_a_gpu_runs_one_by_one_and_their_reasons(driver):
    executable, _ = training()

    found = machine_code(executable.interpreter.block, 1)

    assert [each["type"] for each in found["interpreted"]] == ["print"]
    assert all(each["reason"] for each in found["interpreted"])
    assert found["regions"] and all(each["arena_bytes"] for each in found["regions"])


class Uncompiled(EmulatedBackend):
    """An emulated GPU that compiles nothing."""

    def compile(self, plan, timed=False):
        return lambda run, *args: ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_the_analysis_counts_the_ops_between_the_regions_of_a_random_program(seed):
    backend = Uncompiled()
    before = use_backend(backend)
    try:
        for s in (Chosen(seed, 9, 0.5).sketch, array_program(seed, runs=True)):
            block = compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block

            found = machine_code(block, 2)["interpreted"]

            between = Counter(c.op.type for c in native_interpreter(block, backend).calls if c.op.type != NATIVE)
            told = Counter()
            for each in found:
                told[each["type"]] += each["count"]
            assert told == between
            assert all(each["reason"] and each["of"] for each in found)
    finally:
        use_backend(before)


def test_a_step_for_the_cpu_runs_there_whatever_the_backend_of_the_process(driver):
    executable, values = training()
    wanted = executable.step(values)

    found = executable.on(CPU).compiled().step(values, limits=RunLimits())

    same(found.loss, wanted.loss)
    assert not driver.launches
