"""Case 89 of docs/semantics.md: the work of building is proportional to the program, counted in lines, not seconds."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest

from core.autodiff.hooks import Hook
from core.backward.append_backward import append_backward, gradients
from core.backward.backward_program import Backward
from core.codegen.backend import write_plan
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, LossScale, Optimizer, compile_gradient, compile_training
from core.ir import Block
from core.plan import plan_block
from core.wire import read
from tests.programs import Sketch


def state(s: Sketch) -> str:
    """A parameter `w`, and a variable `h` with its value."""
    s.param("w", [0.5, 0.7])
    return str(s.op("assign", "w", out="h"))


def chain(s: Sketch, n: int) -> str:
    """A path; every second op contributes to the gradient of w."""
    h = state(s)
    for _ in range(n):
        s.op("tanh", s.op("mul", h, "w"), out=h)
    return h


def loops(s: Sketch, n: int) -> str:
    """A sequence of loops."""
    h = state(s)
    for _ in range(n):
        with s.repeat(2):
            s.op("tanh", s.op("mul", h, "w"), out=h)
    return h


def branches(s: Sketch, n: int) -> str:
    h = state(s)
    for _ in range(n):
        condition = s.op("less_than", s.op("reduce_sum", h), s.const(0.5))
        with s.block() as yes:
            s.op("tanh", h, out=h)
        with s.block() as no:
            s.op("scale", h, out=h, scale=0.5)
        s.branch(condition, yes, no)
    return h


def layers(s: Sketch, n: int, size: int = 8) -> str:
    """A net of layers, each with its own weight."""
    s.feed("x", np.ones((size, size)), "float32")
    s.op("assign", "x", out="h")
    for i in range(n):
        weight = s.param(f"w{i}", np.ones((size, size)), "float32")
        s.op("tanh", s.op("matmul", "h", weight), out="h")
    return "h"


def towers(s: Sketch, n: int) -> str:
    """Layers on one input, each with its own weight, and their sum."""
    s.feed("x", np.ones((4, 4)), "float32")
    weights = [s.param(f"w{i}", np.ones((4, 4)), "float32") for i in range(n)]
    return str(s.op("sum", [s.op("tanh", s.op("matmul", "x", weight)) for weight in weights]))


def joined(s: Sketch, n: int) -> str:
    h = state(s)
    return str(s.op("concat", [s.op("scale", h, scale=1.0 + i) for i in range(n)], axis=0))


def slices(s: Sketch, n: int) -> str:
    """Each row of a matrix, read by a slice."""
    s.param("w", np.ones((n, 3)))
    return str(s.op("sum", [s.op("tanh", s.op("slice", "w", axes=[0], starts=[i], ends=[i + 1])) for i in range(n)]))


def rows(s: Sketch, n: int) -> str:
    """So many lookups in one table."""
    s.feed("at", [0, 3, 3], "int64")
    s.param("w", np.ones((9, 4)))
    return str(s.op("sum", [s.op("tanh", s.op("gather", "w", "at")) for _ in range(n)]))


def parts(s: Sketch, n: int) -> str:
    """Columns of looked-up rows, each read by a slice."""
    s.feed("at", [0, 3, 3], "int64")
    s.param("w", np.ones((9, n)))
    found = s.op("gather", "w", "at")
    return str(s.op("sum", [s.op("tanh", s.op("slice", found, axes=[1], starts=[i], ends=[i + 1])) for i in range(n)]))


def carried(s: Sketch, n: int) -> str:
    """A loop with so many states."""
    s.param("w", [0.5, 0.7])
    states = [s.op("scale", "w", scale=1.0 + i, out=f"h{i}") for i in range(n)]
    with s.repeat(2):
        for each in states:
            s.op("tanh", each, out=each)
    return str(s.op("sum", states))


def captured(s: Sketch, n: int) -> str:
    """A loop that reads so many parameters."""
    weights = [s.param(f"w{i}", [0.5, 0.7]) for i in range(n)]
    s.op("assign", "w0", out="h")
    with s.repeat(2):
        for weight in weights:
            s.op("tanh", s.op("mul", "h", weight), out="h")
    return "h"


def convolutions(s: Sketch, n: int) -> str:
    s.feed("x", np.ones((1, 2, 6, 6)), "float32")
    s.op("assign", "x", out="h")
    for i in range(n):
        weight = s.param(f"w{i}", np.ones((2, 2, 3, 3)), "float32")
        s.op("relu", s.op("conv2d", "h", weight, paddings=[1, 1]), out="h")
    return "h"


def random_numbers(s: Sketch, n: int) -> str:
    h = state(s)
    for _ in range(n):
        s.op("mul", s.op("uniform_random_like", h), h, out=h)
    return h


SHAPES = [
    chain, loops, branches, layers, towers, joined, slices, rows, parts, carried, captured, convolutions,
    random_numbers,
]  # fmt: skip
QUERY = GradientQuery(loss="loss")
SGD = Optimizer("sgd", {"learning_rate": 0.1})
STAGES: dict[str, Callable[[dict[str, Any]], tuple[Callable[..., object], Any]]] = {
    "read": lambda document: (read, document),
    "differentiate": lambda document: (lambda p: append_backward(p, "loss"), read(document)),
    "compile": lambda document: (lambda p: compile_gradient(p, QUERY), read(document)),
    "recompute": lambda document: (
        lambda p: compile_gradient(p, replace(QUERY, checkpoints="auto")),
        read(document),
    ),
    "train": lambda document: (lambda p: compile_training(p, QUERY, SGD), read(document)),
    "plan": lambda document: (lambda block: plan_block(block, CPU_TARGET), block_of(document)),
    "write": lambda document: (write_plan, plan_block(block_of(document), CPU_TARGET)),
}
"""For each stage of a compilation, the function that does it, and what that takes for a document."""

BOUNDED = re.compile("plan/(arena|side_by_side)")
"""Modules whose work grows by squares, but not above a fixed size."""


def block_of(document: dict[str, Any]) -> Block:
    """A training step as ops of the core."""
    return compile_training(read(document), QUERY, SGD, gives_gradients=False).interpreter.block


def document_of(shape: Callable[..., str], *how: int) -> dict[str, Any]:
    s = Sketch()
    s.total(shape(s, *how))
    return s.document


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


def work_of(build: object, *given: object) -> int:
    """The number of lines that `build` runs. A comprehension counts once for each element."""
    count = 0

    def counting(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if BOUNDED.search(frame.f_code.co_filename):
            return None
        count += 1
        return counting

    before = sys.gettrace()
    sys.settrace(counting)
    try:
        build(*given)  # type: ignore[operator]
    finally:
        sys.settrace(before)
    return count


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("stage", STAGES)
def test_89_four_times_the_ops_take_four_times_the_work(stage, shape):
    def work(n: int) -> int:
        does, given = STAGES[stage](document_of(shape, n))
        return work_of(does, given)

    _, small, large = work(3), work(30), work(120)  # the first one fills caches

    assert large < 4.3 * small


def test_reasons_for_missing_gradients_take_work_in_proportion_to_the_program():
    """All layers are before the one variable that gradients do not flow through."""

    def work(n: int) -> int:
        s = Sketch()
        s.total(s.op("tanh", layers(s, n), out="end"))
        program, query = read(s.document), replace(QUERY, no_grad_set=("end",))
        assert len(compile_gradient(program, query).missing) == n
        return work_of(compile_gradient, program, query)

    _, small, large = work(3), work(30), work(120)

    assert large < 4.3 * small


@pytest.mark.parametrize("member", ["no_grad_set", "checkpoints", "hooks"])
def test_names_in_a_query_take_work_in_proportion_to_their_number(member):
    def work(n: int) -> int:
        s = Sketch()
        h = state(s)
        names = [s.op("tanh", h, out=f"x{i}") for i in range(n)]
        s.total(s.op("sum", names))
        given: tuple[Any, ...] = tuple(names[1:])
        if member == "hooks":
            given = tuple(Hook.read({"match": {"variable": name}, "do": "clip_value", "max": 1}) for name in given)
        return work_of(compile_gradient, read(s.document), replace(QUERY, **{member: given}))

    _, small, large = work(3), work(30), work(120)

    assert large < 4.3 * small


def test_gradients_of_twice_as_many_targets_take_twice_the_work_to_read():
    _, small, large = (work_of(read, derivatives(count).document) for count in (2, 50, 100))

    assert large < 2.1 * small


def test_third_gradients_of_nested_loops_take_work_in_proportion_to_the_carried_values():
    def third(carried: int) -> None:
        program, targets = read(rotating(carried).document), ("loss",)
        for _ in range(3):
            backward = gradients(program, targets, ["w"])
            program, targets = backward.program, tuple(backward.gradients.values())

    _, small, large = work_of(third, 2), work_of(third, 5), work_of(third, 10)

    assert large < 2.5 * small


def test_second_gradients_of_written_elements_take_work_in_proportion_to_the_trips():
    """In the reference executor. Each trip adds the cotangent of one element to that of the whole array."""

    def work(trips: int) -> int:
        s = Sketch()
        s.param("w", [0.5, 0.9])
        s.construct("create_array", {}, {"out": ["A"]}, shape=[2], dtype="float64")
        s.op("assign", "w", out="h")
        s.const(0, dtype="int64", out="at")
        with s.repeat(trips):
            s.op("sin", s.op("mul", "h", "w"), out="h")
            s.construct("array_write", {"x": ["h"], "index": ["at"], "array": ["A"]}, {"out": ["A"]})
            s.op("increment", "at", out="at", step=1)
        s.total(s.op("square", s.op("array_stack", "A")))
        backward = gradients(read(s.document), ["loss"], ["w"])
        query = GradientQuery(targets=tuple(backward.gradients.values()), inputs=("w",))
        return work_of(compile_gradient(backward.program, query).step, s.values)

    _, small, large = work(2), work(50), work(200)

    assert large < 4.5 * small


def test_twice_the_layers_are_twice_the_work_for_the_compiler():
    """Large ones, which are fused with their updates."""

    def work(count: int) -> int:
        return work_of(
            lambda block: write_plan(plan_block(block, CPU_TARGET)), block_of(document_of(layers, count, 64))
        )

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
        compile_training(read(document_of(layers, count)), QUERY, SGD, loss_scale=loss_scale)
        return lists

    monkeypatch.setattr(Backward, "gradients", property(counted))

    assert work(2) == work(20)
