"""Products that a loop only adds up are computed for many trips at once, with the same sum."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir import Block
from core.plan import plan_block
from core.plan.flow import Ahead, Hoisted, Loop
from core.runtime.executable import Executable
from core.wire import read
from tests.laws.agreement import both
from tests.laws.random_programs import second_order
from tests.programs import Sketch
from tests.walls import before_a_wall

DEPTH = CPU_TARGET.products.terms


def recurrent(trips: int, batch: int, dtype: str = "float64", first: int = 0, step: int = 1, rows: int = 0) -> Sketch:
    """``h = tanh(x[t] w + h u)``, and the sum of squares of the last h; t starts at `first` and grows by `step`."""
    reads, states = 2, 3
    rng = np.random.default_rng(trips * 100 + batch)
    s = Sketch()
    x = s.feed("x", rng.standard_normal((rows or max(trips, 1), batch, reads)), dtype)
    w = s.param("w", 0.5 * rng.standard_normal((reads, states)), dtype)
    u = s.param("u", 0.5 * rng.standard_normal((states, states)), dtype)
    h = s.const(0.1, [batch, states], dtype, out="h")
    t = s.op("fill_constant", out="t", shape=[], value=first, dtype="int64")
    with s.repeat(trips):
        now = s.op("gather", x, t)
        s.op("tanh", s.op("add", s.op("matmul", now, w), s.op("matmul", h, u)), out="h")
        s.op("increment", t, step=step, out="t")
    s.op("reduce_sum", s.op("square", h), out="loss")
    return s


def scanned(trips: int, batch: int, dtype: str = "float64", reverse: bool = False, reads: int = 2) -> Sketch:
    """``h = tanh(x[t] w + h u)`` for all elements of the parameter x; the squares of the last and of all h, summed."""
    states = 3
    rng = np.random.default_rng(trips * 100 + batch)
    s = Sketch()
    x = s.param("x", rng.standard_normal((trips, batch, reads)), dtype)
    w = s.param("w", 0.5 * rng.standard_normal((reads, states)), dtype)
    u = s.param("u", 0.5 * rng.standard_normal((states, states)), dtype)
    s.const(0.1, [batch, states], dtype, out="h")
    with s.block() as body:
        s.op("tanh", s.op("add", s.op("matmul", "e", w), s.op("matmul", "h", u)), out="h")
        s.op("assign", "h", out="o")
    slots = {"initial": ["h"], "sequences": [x]}, {"final": ["last"], "stacked": ["all"]}
    s.construct("scan", *slots, sub_block=body, states=["h"], elements=["e"], outputs=["o"], reverse=reverse)
    parts = [s.op("reduce_sum", s.op("square", each)) for each in ("last", "all")]
    s.op("add", *parts, out="loss")
    return s


def gradient(s: Sketch) -> Block:
    return compile_gradient(read({"blocks": s.blocks}), GradientQuery(loss="loss")).interpreter.block


def hoisted(block: Block) -> list[Hoisted]:
    return [
        h for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Loop) for h in each.hoisted
    ]


def arguments(s: Sketch, executable: Executable) -> list[np.ndarray]:
    return [s.values[v.name] for v in executable.inputs]


@pytest.mark.parametrize("batch", [1, 2, 33, DEPTH // 2])
def test_both_weight_gradients_of_a_recurrent_net_are_hoisted(batch):
    found = hoisted(gradient(recurrent(5, batch)))

    assert len(found) == 2
    for each in found:
        assert each.many.a.shape[-1] == each.trips * batch >= DEPTH


def test_a_product_with_enough_rows_is_not_hoisted():
    assert not hoisted(gradient(recurrent(5, DEPTH)))


def some_trips(batch: int) -> Iterator[int]:
    at_once = -(-DEPTH // batch)
    at_once = 1 << (at_once - 1).bit_length()
    return iter(sorted({0, 1, 2, at_once - 1, at_once, at_once + 1, 2 * at_once, 3 * at_once + 5}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("batch", "trips"), [(b, t) for b in (1, 7, 64) for t in some_trips(b)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hoisted_products_equal_the_reference_executor_for_any_number_of_trips(batch, trips, dtype):
    s = recurrent(trips, batch, dtype)
    executable = compile_gradient(read({"blocks": s.blocks}), GradientQuery(loss="loss"))
    both(executable.interpreter.block, arguments(s, executable))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 9, 16, 21])
def test_hoisted_products_of_second_order_equal_the_reference_executor(trips):
    s = recurrent(trips, 32)
    executable = second_order(read({"blocks": s.blocks}), inputs=("w", "u", "x"))
    both(executable.interpreter.block, arguments(s, executable))


def ahead(block: Block) -> list[Ahead]:
    return [a for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Loop) for a in each.ahead]


@pytest.mark.parametrize("batch", [1, 32, DEPTH // 2])
def test_the_product_of_the_next_row_is_computed_for_several_rows_ahead(batch):
    (found,) = ahead(gradient(recurrent(5, batch)))
    assert found.many.c.shape[0] == found.trips * batch >= DEPTH
    assert not ahead(gradient(recurrent(5, batch, step=2)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [-9, -8, -3, 0, 1, 6, 8, 2**62, -(2**62)])
@pytest.mark.parametrize("trips", [0, 1, 2, 5, 7, 8])
def test_only_rows_of_trips_are_computed_ahead_and_a_missing_row_is_an_error(first, trips):
    s = recurrent(trips, DEPTH // 4, first=first, rows=8)  # four rows ahead
    executable = compile_gradient(read({"blocks": s.blocks}), GradientQuery(loss="loss"))
    assert ahead(executable.interpreter.block)
    both(executable.interpreter.block, arguments(s, executable))


@pytest.mark.parametrize("batch", [1, 32, DEPTH // 2])
def test_products_with_the_elements_of_a_scan_and_their_gradients_take_several_trips(batch):
    block = gradient(scanned(40, batch))
    (before,) = ahead(block)
    recorded = [each for each in hoisted(block) if not each.many.accumulate]

    assert before.trips * batch >= min(DEPTH, 40 * batch)
    assert [each.trips for each in recorded] == [before.trips]
    assert len(hoisted(block)) == 3


def test_few_trips_are_left_of_a_known_number():
    for trips in range(2, 60):
        (found,) = ahead(gradient(scanned(trips, DEPTH // 8)))
        assert trips % found.trips < max(trips // 8, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trips", [1, 2, 3, 7, 8, 17, 35])
@pytest.mark.parametrize("batch", [1, 32, DEPTH // 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_of_elements_equal_the_reference_executor(batch, trips, reverse, dtype):
    s = scanned(trips, batch, dtype, reverse)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    both(executable.interpreter.block, arguments(s, executable))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trips", [2, 9, 35])
def test_products_of_elements_of_second_order_equal_the_reference_executor(trips, reverse):
    s = scanned(trips, 32, reverse=reverse)
    executable = second_order(read(s.document), inputs=("w", "u", "x"))
    both(executable.interpreter.block, arguments(s, executable))


def test_a_product_that_the_trip_records_and_reads_is_not_left_for_later_trips():
    s = scanned(40, 32)
    (body,) = s.blocks[1:]
    product, *others = body["ops"]
    product["outputs"]["out"] = ["o"]
    others[1]["inputs"]["x"] = ["o"]
    body["ops"] = [product, *others[:-1]]  # without the copy of h
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    both(executable.interpreter.block, arguments(s, executable))


def walled(array: np.ndarray) -> np.ndarray:
    copy = before_a_wall(array.nbytes)[-array.nbytes :].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


READS_TO_THE_END = """
import numpy as np
from core.compiler.compile import GradientQuery, compile_gradient
from core.codegen.backend import CPU
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from core.wire import read
from tests.core.plan.test_hoist import DEPTH, recurrent, walled

for first in range(9):
    s = recurrent(8 - first, DEPTH // 4, first=first, rows=8)
    executable = compile_gradient(read({"blocks": s.blocks}), GradientQuery(loss="loss"))
    native_interpreter(executable.interpreter.block, CPU)(Run(), *(walled(s.values[v.name]) for v in executable.inputs))
"""


def test_no_row_after_the_last_one_is_read():
    subprocess.run([sys.executable, "-c", READS_TO_THE_END], check=True, timeout=120)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 3, 16, 19])
def test_products_of_interpreted_operands_are_hoisted_too(trips):
    rng = np.random.default_rng(0)
    s = Sketch()
    x = s.param("x", rng.uniform(1.0, 3.0, (max(trips, 1), 16, 3)))
    s.const(0.0, [3, 3], out="total")
    s.op("fill_constant", out="t", shape=[], value=0, dtype="int64")
    with s.repeat(trips):
        now = s.op("gather", x, "t")
        s.op("sum", ["total", s.op("matmul", s.op("lgamma", now), s.op("tanh", now), transpose_x=True)], out="total")
        s.op("increment", "t", step=1, out="t")
    s.total(x)  # the gradient of x is requested, and the loop records nothing
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"), fetch=["total"])

    assert len(hoisted(executable.interpreter.block)) == 1
    both(executable.interpreter.block, arguments(s, executable))


@pytest.mark.sampled(1, each="memory")
@pytest.mark.parametrize("trips", [0, 1, 5, 90, 300])
@pytest.mark.parametrize("memory", [("store", "recompute"), ("sqrt", "recompute"), ("store", "store")])
def test_an_operand_of_two_joint_products_is_kept_for_as_many_trips_in_both(memory, trips):
    """A gradient [1, 3] is a factor of a sum over three terms and of one over a single term, which joins more trips."""
    rng, s = np.random.default_rng(0), Sketch()
    s.feed("trips", np.asarray(trips), "int64")
    s.param("z", rng.uniform(-1, 1, (1, 3)))
    s.param("w", rng.uniform(-1, 1, (3, 3)))
    s.op("assign", "z", out="h")
    with s.repeat("trips"):
        s.op("tanh", s.op("matmul", "z", "w"), out="h")
    s.op("reduce_sum", s.op("square", s.op("tanh", "h")), out="loss")
    executable = second_order(read(s.document), inputs=("z", "w"), memory=memory)

    both(executable.interpreter.block, [np.asarray(s.values[v.name]) for v in executable.inputs])
