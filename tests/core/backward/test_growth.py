"""Case 89 of docs/semantics.md: the work of building is proportional to the program, counted in calls, not seconds."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import FrameType

import numpy as np
import pytest

from core.backward.append_backward import append_backward, gradients
from core.backward.backward_program import Backward
from core.codegen.backend import write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, LossScale, Optimizer, compile_gradient, compile_training
from core.plan import plan_block
from core.wire import read
from tests.programs import Sketch


def chain(ops: int) -> Sketch:
    """A path of `ops` ops. Every second op contributes to the gradient of w."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    for _ in range(ops // 2):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


def nest(ops: int) -> Sketch:
    """A sequence of loops with twenty ops in each, `ops` ops in total."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="h")
    for _ in range(ops // 20):
        with s.repeat(2):
            for _ in range(8):
                s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    return s


def rotating(carried: int) -> Sketch:
    """Three nested loops, each of which rotates so many carried values."""
    s = Sketch()
    s.param("w", [0.5, 0.9])
    values = [s.op("scale", "w", scale=1 + i, out=f"h{i}") for i in range(carried)]

    def level(depth: int) -> None:
        with s.repeat(2):
            s.op("assign", values[0], out=f"first{depth}")
            for value, following in pairwise(values):
                s.op("tanh", s.op("mul", following, "w"), out=value)
            s.op("assign", f"first{depth}", out=values[-1])
            if depth:
                level(depth - 1)

    level(2)
    s.total(s.op("sum", values))
    return s


def layers(count: int) -> Sketch:
    """A net of layers, each with its own weight, large enough for fusion with its update."""
    s = Sketch()
    s.feed("x", np.ones((64, 64)), "float32")
    s.op("assign", "x", out="h")
    for i in range(count):
        weight = s.param(f"w{i}", np.ones((64, 64)), "float32")
        s.op("tanh", s.op("matmul", "h", weight), out="h")
    s.total("h")
    return s


def derivatives(count: int) -> Sketch:
    """So many gradients inside the program, each of a target of its own."""
    s = Sketch()
    s.param("w", [0.5, 0.7])
    s.op("assign", "w", out="x")
    for i in range(count):
        target = s.op("tanh", s.op("scale", "x", scale=1.0 + i))
        s.construct("gradients", {"targets": [target], "inputs": ["x"]}, {"out": [f"g{i}"]})
    s.total(s.op("sum", [f"g{i}" for i in range(count)]))
    return s


def calls(build: object, *given: object) -> int:
    """The number of calls of Python and built-in functions during `build`."""
    count = 0

    def counting(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        build(*given)  # type: ignore[operator]
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program", [chain, nest])
@pytest.mark.parametrize("stage", ["read", "differentiate", "compile"])
def test_89_twice_the_ops_take_twice_the_work(program, stage):
    def work(ops: int) -> int:
        document = program(ops).document
        if stage == "read":
            return calls(read, document)
        given = read(document)
        if stage == "differentiate":
            return calls(append_backward, given, "loss")
        return calls(compile_gradient, given, GradientQuery(loss="loss"))

    _, small, large = work(20), work(1000), work(2000)  # the first call fills caches

    assert large < 2.1 * small


def test_gradients_of_twice_as_many_targets_take_twice_the_work_to_read():
    _, small, large = (calls(read, derivatives(count).document) for count in (2, 50, 100))

    assert large < 2.1 * small


def test_third_gradients_of_nested_loops_take_work_in_proportion_to_the_carried_values():
    def third(carried: int) -> None:
        program, targets = read(rotating(carried).document), ("loss",)
        for _ in range(3):
            backward = gradients(program, targets, ["w"])
            program, targets = backward.program, tuple(backward.gradients.values())

    _, small, large = calls(third, 2), calls(third, 5), calls(third, 10)

    assert large < 2.5 * small


def test_twice_the_layers_are_twice_the_work_for_the_compiler():
    def work(count: int) -> int:
        program, sgd = read(layers(count).document), Optimizer("sgd", {"learning_rate": 0.1})
        step = compile_training(program, GradientQuery(loss="loss"), sgd, gives_gradients=False)
        return calls(lambda block: write_plan(plan_block(block, CPU_TARGET)), step.interpreter.block)

    _, small, large = work(5), work(100), work(200)

    assert large < 2.1 * small


@pytest.mark.parametrize("loss_scale", [None, LossScale(1024.0)])
def test_a_compilation_lists_the_gradients_of_a_program_a_fixed_number_of_times(loss_scale, monkeypatch):
    """Each list takes time in proportion to the parameters, so one for each parameter would be quadratic."""
    lists = 0
    listed = Backward.gradients.fget

    def counted(self: Backward) -> dict[str, str]:
        nonlocal lists
        lists += 1
        return listed(self)

    def work(count: int) -> int:
        nonlocal lists
        lists = 0
        sgd = Optimizer("sgd", {"learning_rate": 0.1})
        compile_training(read(layers(count).document), GradientQuery(loss="loss"), sgd, loss_scale=loss_scale)
        return lists

    monkeypatch.setattr(Backward, "gradients", property(counted))

    assert work(2) == work(20)
