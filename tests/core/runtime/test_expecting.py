"""Sizes without a largest value: code has memory for the expected ones, and is made again if a run needs more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.codegen.backend import CPU
from core.compiler.compile import (
    GradientQuery,
    Optimizer,
    compile_forward,
    compile_gradient,
    compile_training,
    optimize,
)
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.ir.registry import as_tuple
from core.plan import sizes
from core.runtime.bound_step import bind_step
from core.runtime.expecting import ExpectingRegion
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run, RunLimits
from core.wire import read
from tests.programs import Sketch

WIDTH = 3


def repeated(inside: bool = False, says: bool = False) -> Sketch:
    """Rows of w, repeated as often as the feed `counts` says; the loss is the sum of the squares of their sines.

    inside: in the body of a loop of one trip.
    """
    s = Sketch()
    w = s.param("w", np.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH))
    s.feed("counts", [1, 0, 2, 3], "int64")
    s.const(0.0, (), "float64", out="total")
    if says:
        w = s.op("print", w, message="once")

    def body() -> None:
        rows = s.op("gather", w, s.op("repeat_positions", "counts"))
        squares = s.op("square", s.op("sin", rows))
        s.op("add", "total", s.op("reduce_sum", squares), out="total")

    if inside:
        with s.repeat(1):
            body()
    else:
        body()
    s.op("assign", "total", out="loss")
    return s


def wanted(w: np.ndarray, counts: Any) -> tuple[float, np.ndarray]:
    """The loss and its gradient, written by hand."""
    times = np.asarray(counts, "float64")[:, None]
    return float((times * np.sin(w) ** 2).sum()), times * np.sin(2 * w)


def values_of(s: Sketch, counts: Any) -> dict[str, Any]:
    return s.values | {"counts": np.asarray(counts, "int64")}


@pytest.mark.parametrize("inside", [False, True])
def test_a_larger_size_than_expected_makes_larger_code(inside):
    """Nobody sees a size in the body of a loop: there the code grows fourfold. It holds no stacks of such arrays."""
    s = repeated(inside)
    program = read(s.document)
    query = GradientQuery(loss="loss")
    step = (compile_forward(program, fetch=["loss"]) if inside else compile_gradient(program, query)).compiled()
    assert step.machine is not None
    region = step.machine.region
    assert isinstance(region, ExpectingRegion)
    seen = []

    for counts in ([1, 0, 2, 3], [0, 0, 0, 0], [100, 0, 50, 25], [90, 0, 40, 45], [1000, 2, 3, 2000], [5, 5, 5, 5]):
        outputs = step.step(values_of(s, counts))
        loss, gradient = wanted(s.values["w"], counts)
        np.testing.assert_allclose(outputs.fetched["loss"] if inside else outputs.loss, loss, rtol=1e-9)
        if not inside:
            np.testing.assert_allclose(outputs.gradients["w"], gradient, rtol=1e-9)
        seen.append(max(max(shape) for shape in region.plan.expected.values()))

    assert seen == sorted(seen)
    assert seen[0] == seen[1] < 175 <= seen[2] == seen[3] < seen[4]
    assert inside or seen[4] == seen[5] >= 3005


def test_a_run_that_starts_again_has_each_message_and_each_op_once():
    s = repeated(says=True)
    step = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()

    small, large = (step.step(values_of(s, counts)) for counts in ([1, 0, 2, 3], [300, 0, 2, 3]))

    assert [each.text for each in small.messages] == [each.text for each in large.messages] == ["once"]
    limits = RunLimits(max_ops=60)
    step.step(values_of(s, [5000, 0, 2, 3]), limits=limits)  # the ops of the first attempt do not count


def test_a_bound_step_goes_on_with_the_larger_code():
    """As a session trains: its arrays stay, and the gradients of each step are those of the parameters before it."""
    s = repeated()
    optimizer = Optimizer("sgd", {"learning_rate": 0.01})
    step = compile_training(read(s.document), GradientQuery(loss="loss"), optimizer).compiled()
    w = s.values["w"].copy()
    bound = bind_step(step, {"w": w.copy()} | step.initial_state())
    assert bound is not None

    for counts in ([1, 0, 2, 3], [400, 0, 0, 1], [3, 3, 300, 0], [6000, 1, 1, 1], [1, 0, 2, 3]):
        assert bound.takes({"counts": np.asarray(counts, "int64")})
        outputs = bound.step(Run(), 0, 0)
        loss, gradient = wanted(w, counts)
        np.testing.assert_allclose(outputs.loss, loss, rtol=1e-9)
        np.testing.assert_allclose(outputs.gradients["w"], gradient, rtol=1e-9)
        w = w - 0.01 * gradient
        np.testing.assert_allclose(outputs.parameters["w"], w, rtol=1e-9)
        bound.keep()


def test_an_error_of_the_program_is_no_reason_for_larger_code():
    s = repeated()
    step = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    assert step.machine is not None
    assert isinstance(step.machine.region, ExpectingRegion)
    before = step.machine.region.plan

    with pytest.raises(ExecutionError) as caught:
        step.step(values_of(s, [1, -1, 2, 3]))

    assert caught.value.code == "index_out_of_range"
    assert step.machine.region.plan is before


def test_a_result_of_several_open_sizes_has_the_sizes_of_the_run():
    s = Sketch()
    s.feed("sizes", [2, 3, 1], "int64")
    s.op("dynamic_fill", "sizes", shape=[-1, -1, -1], value=1.5, dtype="float64", out="filled")
    s.param("w", 1.0)
    s.op("assign", "w", out="loss")
    step = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["filled"]).compiled()
    assert step.machine is not None
    assert isinstance(step.machine.region, ExpectingRegion)

    for wanted in ([2, 3, 1], [0, 3, 1], [70, 2, 80], [200, 1, 2]):
        found = step.step(s.values | {"sizes": np.array(wanted)}).fetched["filled"]
        np.testing.assert_array_equal(found, np.full(wanted, 1.5))


@pytest.mark.parametrize("closed", [120, 200_000])
def test_code_takes_little_more_memory_than_a_result_of_many_open_sizes_needs(closed):
    """At first for some small sizes, or for sizes of two if the others are large."""
    s = Sketch()
    x = s.param("x", np.arange(float(closed)).reshape(1, 1, 1, 1, closed))
    s.feed("sizes", [1, 2, 1, 2, closed], "int64")
    s.op("dynamic_expand", x, "sizes", shape=[-1, -1, -1, -1, closed], out="y")
    s.total(s.op("square", "y"))
    step = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["y"]).compiled()
    assert step.machine is not None
    region = step.machine.region
    assert isinstance(region, ExpectingRegion)
    assert region.arena_bytes < 1 << 26

    for each in ([1, 2, 1, 2], [17, 5, 18, 9], [1, 1, 3, 1]) if closed == 120 else ([2, 1, 2, 1], [3, 1, 3, 1]):
        copies = np.prod(each)
        outputs = step.step(s.values | {"sizes": np.array([*each, closed])})
        np.testing.assert_array_equal(outputs.fetched["y"], np.broadcast_to(s.values["x"], (*each, closed)))
        np.testing.assert_allclose(outputs.gradients["x"], 2 * copies * s.values["x"])
        assert region.arena_bytes < max(1 << 26, 32 * copies * closed * 8)


class Limit:
    """The memory of a process of which nothing is in use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def used(self) -> int:
        return 0

    def available(self, wanted: int, keep_idle: bool = False) -> int:
        return self.capacity


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_whose_code_would_take_too_much_memory_stays_with_the_reference_executor(inside):
    """In a loop the code grows fourfold, so it may become larger than the memory although the run fits."""
    s = repeated(inside)
    step = compile_forward(read(s.document), fetch=["loss"]).compiled()
    assert step.machine is not None
    region = step.machine.region
    assert isinstance(region, ExpectingRegion)
    rows = 40_000
    limits = RunLimits(memory=Limit(4 * rows * WIDTH * 8))
    plans = []

    for counts in ([1, 0, 2, 3], [rows, 0, 0, 0], [0, rows, 0, 0], [1, 2, 0, 3]):
        found = step.step(values_of(s, counts), limits=limits).fetched["loss"]
        np.testing.assert_allclose(found, wanted(s.values["w"], counts)[0], rtol=1e-9)
        plans.append(region.plan)

    assert plans[1] is plans[2] is plans[3]
    assert max(max(shape) for shape in region.plan.expected.values()) < rows


def test_sizes_in_a_loop_do_not_grow_with_others():
    s = repeated(inside=True)
    s.op("reduce_sum", s.op("repeat_positions", "more"), out="sum")
    s.feed("more", [1, 2], "int64")
    step = compile_forward(read(s.document), fetch=["loss", "sum"]).compiled()
    assert step.machine is not None
    region = step.machine.region
    assert isinstance(region, ExpectingRegion)
    seen = []

    for n in (1, 100, 1000, 10_000):
        fetched = step.step(values_of(s, [1, 0, 2, 3]) | {"more": np.array([0, n])}).fetched
        assert fetched["sum"] == n
        np.testing.assert_allclose(fetched["loss"], wanted(s.values["w"], [1, 0, 2, 3])[0], rtol=1e-9)
        seen.append(sorted(max(shape) for shape in region.plan.expected.values()))

    assert seen[0][0] == seen[-1][0] < 100
    assert seen[-1][-1] >= 10_000


def test_the_larger_code_has_the_arena_of_the_larger_plan():
    s = repeated()
    step = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    assert step.machine is not None
    region = step.machine.region
    assert isinstance(region, ExpectingRegion)
    small = region.arena_bytes

    step.step(values_of(s, [5000, 0, 2, 3]))

    assert region.arena_bytes == CPU.arena_bytes(region.plan) > small


@pytest.mark.parametrize(("code", "lasts"), [("shape_mismatch", False), ("deadline_exceeded", True)])
def test_an_error_of_an_op_that_the_code_calls_is_that_of_the_reference_executor(code, lasts, monkeypatch):
    """An op may have read what a run that the code does not cover left in memory: its error proves nothing."""
    s = repeated(says=True)
    step = compile_gradient(read(s.document), GradientQuery(loss="loss")).compiled()
    assert step.machine is not None
    assert isinstance(step.machine.region, ExpectingRegion)
    given = values_of(s, [1, 0, 2, 3])
    wanted = step.step(given)

    def check() -> None:
        raise ExecutionError("wrong operands", code)

    monkeypatch.setattr(step.machine.region._code._callback, "check", check)

    if lasts:
        with pytest.raises(ExecutionError) as caught:
            step.step(given)
        assert caught.value.code == code
    else:
        found = step.step(given)
        np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-12)
        assert [each.text for each in found.messages] == ["once"]


def test_an_op_that_the_code_calls_may_give_more_than_expected(monkeypatch):
    monkeypatch.setattr(sizes, "FEWEST", 2)
    monkeypatch.setattr(sizes, "MOST", 4)
    b = BlockBuilder()
    x = b.param(TensorType((40, 2), "float64"))
    first, *_ = as_tuple(b.emit("unique_slices", b.emit("round", x), axis=0))
    block = optimize(b.build([first, b.emit("reduce_sum", b.emit("square", b.emit("gather", x, first)))]))
    native = native_interpreter(block, CPU)
    (region,) = (each.attrs["region"] for each in native.ops)
    assert isinstance(region, ExpectingRegion)
    assert region.plan.interpreted
    seen = []

    for distinct in (1, 3, 30, 7):
        rows = np.arange(40.0)[:, None] % distinct + [[0.0, 0.25]]
        found = native(Run(), rows)
        wanted = interpreter_of(block)(Run(), rows)
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-12)
        seen.append(max(max(shape) for shape in region.plan.expected.values()))

    assert seen[1] < 30 <= seen[2] == seen[3]
