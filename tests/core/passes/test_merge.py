"""Loops that make the same trips are merged into one loop that records the values of both."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.compiler.compile import optimize
from core.ir import Block, TensorType, inner_blocks
from core.ir.builder import BlockBuilder
from core.ir.registry import lookup
from core.runtime.reference import interpreter_of
from core.runtime.run import Run
from tests.laws.examples import OPS, arrays, block_for, examples_of, floats


def loops_in(block: Block) -> list[Block]:
    found = []
    for op in block.ops:
        inner = [b for _, b in inner_blocks(op)]
        if op.type == "loop":
            found += inner
        for b in inner:
            found += loops_in(b)
    return found


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru"])
def test_the_gradient_of_a_net_over_a_sequence_runs_its_forward_loop_once(name):
    example = examples_of(OPS[name])[0]
    values = arrays(example)
    block = block_for(OPS[name], example)

    found = optimize(vjp(block, [block.params[i] for i in floats(values)]))

    assert len(loops_in(optimize(block))) == 1
    assert len(loops_in(found)) == 2


def twice(inner: bool, factor: float) -> Block:
    """Two loops ``c = c + e`` and ``c = c + factor e`` over one stack; the first records c, the other c squared.

    inner: each trip adds the element in a loop of its own.
    """
    number = TensorType((), "float64")

    def body(scale: float, record: str) -> Block:
        b = BlockBuilder()
        c, rows, e = b.param(number), b.param(TensorType((3,), "float64")), b.param(number)
        if inner:
            i = BlockBuilder()
            total, each = i.param(number), i.param(number)
            step = i.build([i.emit("add", total, i.emit("scale", each, scale=scale)), i.emit(record, total)])
            last, seen = b.emit("loop", c, b.emit("array_unstack", rows), sub_block=step, carried=1, captured=0,
                                condition=False)  # fmt: skip
            joined = b.emit("array_join", seen, None, shape=(), dtype="float64", count=3)
            return b.build([b.emit("add", last, e), b.emit("reduce_sum", joined)])
        after = b.emit("add", c, b.emit("scale", e, scale=scale))
        return b.build([after, b.emit(record, after)])

    b = BlockBuilder()
    x, rows = b.param(TensorType((4,), "float64"), "x"), b.param(TensorType((3,), "float64"), "rows")
    start = b.constant(0.0, "float64")
    outs = []
    for scale, record in ((2.0, "square"), (2.0 * factor, "exp")):
        last, recorded = b.emit(
            "loop", start, rows, b.emit("array_unstack", x), sub_block=body(scale, record), carried=1, captured=1,
            condition=False,
        )  # fmt: skip
        outs += [last, lookup("array_join")(recorded, None, shape=(), dtype="float64", count=4)]
    return b.build(outs)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_loops_that_carry_equal_values_are_merged(inner, factor):
    block = twice(inner, factor)
    x, rows = np.array([0.1, -0.5, 0.25, 0.3]), np.array([0.2, 0.1, -0.3])

    found = optimize(block)

    assert len(loops_in(found)) == (1 if factor == 1.0 else 2) * (2 if inner else 1)
    for got, wanted in zip(interpreter_of(found)(Run(), x, rows), interpreter_of(block)(Run(), x, rows), strict=True):
        np.testing.assert_array_equal(got, wanted)
