"""The products of a loop read a large weight in panels, which are copied once."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET, PANELS
from core.codegen.machine import lanes
from core.compiler.compile import GradientQuery, compile_gradient
from core.ir import Block
from core.plan import plan_block
from core.plan.flow import Loop
from core.plan.instructions import Gemm
from core.wire import read
from tests.core.plan.test_hoist import arguments
from tests.laws.agreement import both
from tests.programs import Sketch


def chain(trips: int | str, rows: int, size: int, dtype: str = "float32", turned: bool = False) -> Sketch:
    """``h = tanh(h u)`` for some trips, and the sum of squares of the last h. turned: ``h = tanh(h u')``."""
    rng = np.random.default_rng(rows * 1000 + size)
    s = Sketch()
    u = s.param("u", rng.standard_normal((size, size)) / np.sqrt(size), dtype)
    s.feed("x", rng.standard_normal((rows, size)), dtype)
    s.op("assign", "x", out="h")
    with s.repeat(trips):
        s.op("tanh", s.op("matmul", "h", u, transpose_y=turned), out="h")
    s.op("reduce_sum", s.op("square", "h"), out="loss")
    return s


def block_of(s: Sketch) -> Block:
    return compile_gradient(read(s.document), GradientQuery(loss="loss")).interpreter.block


def batches(block: Block) -> list[list[Gemm]]:
    """The products of each loop that are batches."""
    loops = [each for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Loop)]
    return [[e for e in loop.body.instructions if isinstance(e, Gemm) and len(e.c.shape) == 3] for loop in loops]


def side(dtype: str = "float32", more: int = 0) -> int:
    """The side of the smallest square weight that is worth panels, a multiple of a panel, and some columns more."""
    width, size = 2 * lanes(dtype), 1
    while size * size * (4 if dtype == "float32" else 8) < PANELS:
        size *= 2
    return max(size, 2 * width) + more


def test_both_passes_read_a_large_weight_in_panels():
    for found in batches(block_of(chain(6, 20, side()))):
        (product,) = found
        assert product.b.strides[-2:] == (2 * lanes("float32"), 1)


@pytest.mark.parametrize(("rows", "size"), [(20, side() // 2), (1, side()), (128, side())])
def test_a_small_weight_and_products_with_one_or_many_rows_have_no_panels(rows, size):
    assert not any(batches(block_of(chain(6, rows, size))))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize("rows", [2, 7, 20, 33])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_in_panels_equal_the_reference_executor(dtype, rows, more, turned):
    s = chain(5, rows, side(dtype, more), dtype, turned)
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert all(batches(executable.interpreter.block))
    both(executable.interpreter.block, arguments(s, executable))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("trips", [0, 1, 4])
def test_weights_of_inner_loops_are_copied_before_the_outer_one(trips):
    rng = np.random.default_rng(trips)
    s, size = Sketch(), side()
    u = s.param("u", rng.standard_normal((size, size)) / np.sqrt(size), "float32")
    s.feed("x", rng.standard_normal((6, size)), "float32")
    s.op("assign", "x", out="h")
    with s.repeat(trips), s.repeat(3):
        s.op("tanh", s.op("matmul", "h", u), out="h")
    s.op("reduce_sum", s.op("square", "h"), out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    block = executable.interpreter.block
    both(block, arguments(s, executable))
    copies = [e for e in plan_block(block, CPU_TARGET).body.instructions if u in {r.name for r in e.reads()}]
    assert len([e for e in copies if not isinstance(e, Loop)]) >= 1


def test_a_weight_that_trips_change_has_no_panels():
    rng = np.random.default_rng(0)
    s, size = Sketch(), side()
    u = s.param("u", rng.standard_normal((size, size)) / np.sqrt(size), "float32")
    s.feed("x", rng.standard_normal((6, size)), "float32")
    s.op("assign", "x", out="h")
    s.op("assign", u, out="v")
    with s.repeat(5):
        s.op("tanh", s.op("matmul", "h", "v"), out="h")
        s.op("scale", "v", scale=0.9, out="v")
    s.op("reduce_sum", s.op("square", "h"), out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(loss="loss"))
    assert not any(batches(executable.interpreter.block))
    both(executable.interpreter.block, arguments(s, executable))
