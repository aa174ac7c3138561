"""Loops and branches that carry, record and return arrays of open sizes are machine code, and agree with the reference
executor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import pytest

from core.codegen.backend import CpuBackend
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import Executable, GradientQuery, compile_gradient
from core.plan import sizes, stacks
from core.plan.partition import plan_parts
from core.runtime.native import native_interpreter
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from core.wire import read
from tests.laws.random_programs import second_order
from tests.programs import Sketch

ROWS, WIDTH = 11, 3


def chosen(s: Sketch, x: str, above: float) -> str:
    """The positions of the rows of x with a larger sum."""
    mask = s.op("greater_than", s.op("reduce_sum", x, axes=[1]), s.const(above, dtype="float64"))
    return s.op("reshape", s.op("nonzero", mask), shape=[-1])


def narrowing(s: Sketch) -> None:
    """Each trip carries fewer rows, and their numbers, to the next one."""
    s.op("assign", "numbers", out="left")
    with s.repeat("trips"):
        at = chosen(s, "h", -0.4)
        s.op("sin", s.op("matmul", s.op("gather", "h", at), "w"), out="h")
        s.op("gather", "left", at, out="left")
        s.op("add", "loss", s.op("reduce_sum", s.op("mul", s.op("cast", "left", dtype="float64"), "one")), out="loss")


def recording(s: Sketch) -> None:
    """Each trip chooses rows of an array whose size never changes; the gradient needs those of all trips."""
    with s.repeat("trips"):
        at = chosen(s, "h", 0.1)
        some = s.op("tanh", s.op("matmul", s.op("gather", "h", at), "w"))
        s.op("add", "loss", s.op("reduce_sum", s.op("square", some)), out="loss")
        s.op("index_add", "h", at, s.op("scale", some, scale=0.3), out="h")


def nested(s: Sketch) -> None:
    with s.repeat("trips"), s.repeat("more"):
        at = chosen(s, "h", -0.3)
        s.op("tanh", s.op("matmul", s.op("gather", "h", at), "w"), out="h")
        s.op("add", "loss", s.op("reduce_sum", s.op("square", "h")), out="loss")


def branching(s: Sketch) -> None:
    """One side gives fewer rows, and the other one more of them; another branch is inside of the loop's trips."""
    sides = []
    for narrows in (True, False):
        with s.block() as side:
            if narrows:
                s.op("sin", s.op("gather", "h", chosen(s, "h", 0.0)), out="h")
            else:
                s.op("concat", ["h", s.op("sin", "x")], axis=0, out="h")
        sides.append(side)
    branch = {"type": "if_else", "attrs": {"true_block": sides[0], "false_block": sides[1]}}
    s.raw({**branch, "inputs": {"condition": ["yes"]}})
    with s.repeat("trips"):
        go = s.op("less_than", s.op("reduce_mean", s.op("sin", "h")), s.const(0.1, dtype="float64"))
        inner = []
        for narrows in (True, False):
            with s.block() as side:
                s.op("tanh", s.op("gather", "h", chosen(s, "h", -0.2)) if narrows else "h", out="h")
            inner.append(side)
        sides = {"true_block": inner[0], "false_block": inner[1]}
        s.raw({"type": "if_else", "inputs": {"condition": [go]}, "attrs": sides})
        s.op("sin", s.op("matmul", "h", "w"), out="h")


def repeated(s: Sketch) -> None:
    """Rows as often as data say: the code expects fewer at first."""
    s.op("repeat", "x", s.op("scale", "numbers", scale=9), axis=0, out="h")
    with s.repeat("trips"):
        s.op("sin", s.op("matmul", s.op("gather", "h", chosen(s, "h", -0.4)), "w"), out="h")


PROGRAMS = (narrowing, recording, nested, branching, repeated)


def compiled(write: Callable[[Sketch], None], trips: int, yes: bool, order: int) -> tuple[Executable, Sketch]:
    rng, s = np.random.default_rng(5), Sketch()
    s.feed("trips", np.asarray(trips), "int64")
    s.feed("more", np.asarray(2), "int64")
    s.feed("yes", np.asarray(yes), "bool")
    s.feed("numbers", rng.integers(0, 4, ROWS), "int64")
    s.feed("one", np.ones(()))
    s.param("x", rng.uniform(-1, 1, (ROWS, WIDTH)))
    s.param("w", rng.uniform(-1, 1, (WIDTH, WIDTH)))
    s.const(0.0, dtype="float64", out="loss")
    s.op("assign", "x", out="h")
    write(s)
    s.op("add", "loss", s.op("reduce_sum", s.op("square", "h")), out="loss")
    document, inputs = read(s.document), ("x", "w")
    if order == 2:
        return second_order(document, inputs=inputs), s
    query = GradientQuery(targets=("loss",), inputs=inputs, unconnected="zeros")
    return compile_gradient(document, query, fetch=["loss", "h"]), s


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("yes", [False, True])
@pytest.mark.parametrize("write", PROGRAMS, ids=lambda each: each.__name__)
def test_results_and_gradients_agree_with_the_reference_executor(write, yes, trips, order):
    executable, s = compiled(write, trips, yes, order)
    block = executable.interpreter.block
    given = [np.asarray(s.values[v.name]) for v in executable.inputs]
    parts = plan_parts(block, CPU_TARGET)

    assert [*parts.refused.values(), *(e.reason for plan in parts.regions for e in plan.interpreted)] == []
    native, wanted = native_interpreter(block, CpuBackend()), interpreter_of(block)(Run(), *given)
    for _ in range(4):  # sizes that are larger than expected make the code anew
        for one, want in zip(native(Run(), *given), wanted, strict=True):
            assert one.shape == want.shape and one.dtype == want.dtype
            np.testing.assert_allclose(one, want, rtol=1e-9, atol=1e-12)


def test_a_record_of_much_memory_of_which_a_trip_may_need_little_is_left_to_the_reference_executor(monkeypatch):
    executable, s = compiled(recording, 3, True, 1)
    block = executable.interpreter.block
    monkeypatch.setattr(stacks, "MOST_SLOT", 64)

    parts = plan_parts(block, CPU_TARGET)

    assert any("of which a trip may need few" in reason for reason in parts.refused.values())
    given = [np.asarray(s.values[v.name]) for v in executable.inputs]
    pairs = zip(
        native_interpreter(block, CpuBackend())(Run(), *given), interpreter_of(block)(Run(), *given), strict=True
    )
    for one, want in pairs:
        np.testing.assert_allclose(one, want, rtol=1e-9)


def test_rows_that_become_more_with_each_trip_are_left_to_the_reference_executor():
    def growing(s: Sketch) -> None:
        with s.repeat("trips"):
            s.op("concat", ["h", s.op("gather", "h", chosen(s, "h", 0.0))], axis=0, out="h")

    executable, s = compiled(growing, 3, True, 1)
    block = executable.interpreter.block
    given = [np.asarray(s.values[v.name]) for v in executable.inputs]

    assert plan_parts(block, CPU_TARGET).refused
    pairs = zip(
        native_interpreter(block, CpuBackend())(Run(), *given), interpreter_of(block)(Run(), *given), strict=True
    )
    for one, want in pairs:
        np.testing.assert_allclose(one, want, rtol=1e-9)


def test_the_sizes_of_nested_loops_are_found_in_time_that_grows_with_their_number(monkeypatch):
    """Each loop asks for the sizes of its body for several sizes of what it carries, and so do those inside."""

    def deep(s: Sketch) -> None:
        with ExitStack() as loops:
            for _ in range(7):
                loops.enter_context(s.repeat("more"))
            s.op("sin", s.op("gather", "h", chosen(s, "h", -0.4)), out="h")

    calls, found = [], sizes._bounded
    monkeypatch.setattr(sizes, "_bounded", lambda *what: (calls.append(1), found(*what))[1])
    executable, _ = compiled(deep, 1, True, 1)

    assert not plan_parts(executable.interpreter.block, CPU_TARGET).refused
    assert len(calls) < 100
