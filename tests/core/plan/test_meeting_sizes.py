"""Arrays whose sizes only the run tells meet in one op: the code compares the sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import GradientQuery, compile_gradient
from core.compiler.room import room_for
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ir.errors import ExecutionError
from core.plan.partition import plan_parts
from core.wire import read
from tests.laws.agreement import both
from tests.programs import Sketch

ROWS = 9
MANY = 2**16
Rows = Callable[[Value], Value]


def product(b: BlockBuilder, x: Value, ids: Value, one: Rows, other: Rows) -> Value:
    return b.emit("matmul", one(x), other(b.emit("sin", x)), transpose_x=True, transpose_y=False)


def labels(b: BlockBuilder, x: Value, ids: Value, one: Rows, other: Rows) -> Value:
    at, _ = b.emit("class_index", b.emit("unsqueeze", other(ids), axes=(1,)), one(x), axis=1, ignore_index=-100)
    return b.emit("positions_along", at, one(x), axis=1)


def segments(b: BlockBuilder, x: Value, ids: Value, one: Rows, other: Rows) -> Value:
    return b.emit("segment_sum", one(x), other(ids), num_segments=3)


def parts(b: BlockBuilder, x: Value, ids: Value, one: Rows, other: Rows) -> Value:
    mask = b.emit("greater_than", other(ids), b.constant(0, "int64"))
    yes, no = b.emit("split_by_mask", one(x), mask)
    return b.emit("add", b.emit("reduce_sum", yes, axes=(0,)), b.emit("reduce_prod", no, axes=(0,)))


def shaped(b: BlockBuilder, x: Value, ids: Value, one: Rows, other: Rows) -> Value:
    return b.emit("reshape_as", b.emit("reshape", one(x), shape=(-1,)), other(x))


def block_of(program: Callable[..., Value]) -> Block:
    b = BlockBuilder()
    x, ids = b.param(TensorType((ROWS, 3), "float64")), b.param(TensorType((ROWS,), "int64"))
    masks = [b.param(TensorType((ROWS,), "bool")) for _ in range(2)]
    at = [b.emit("reshape", b.emit("nonzero", mask), shape=(-1,)) for mask in masks]
    chosen: list[Rows] = [lambda rows, i=i: b.emit("gather", rows, at[i]) for i in range(2)]  # type: ignore[misc]
    return b.build([program(b, x, ids, *chosen)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("counts", [(4, 4), (0, 0), (ROWS, ROWS), (4, 5), (5, 4)])
@pytest.mark.parametrize("program", [product, labels, segments, parts, shaped], ids=lambda f: f.__name__)
def test_rows_chosen_twice_meet_in_machine_code_if_they_are_as_many(program, counts):
    """If they are not, the error is that of the reference executor."""
    block, rng = block_of(program), np.random.default_rng(1)
    masks = [rng.permutation(np.arange(ROWS) < n) for n in counts]
    args = [rng.standard_normal((ROWS, 3)), rng.integers(0, 3, ROWS), *masks]
    planned = plan_parts(block, CPU_TARGET)

    assert not planned.refused
    assert not any(region.interpreted for region in planned.regions)
    both(block, args)


def test_a_size_that_exceeds_the_memory_of_the_other_one_writes_nothing_beyond_it():
    """The operands have memory for many rows and for 8."""
    s = Sketch()
    s.feed("x", np.ones((MANY, 64)), shape=[-1, 64])
    s.feed("mask", np.arange(8) < 3, "bool")
    s.param("w", np.ones((8, 64)))
    rows = s.op("compress", "w", "mask", axis=0)
    s.op("reduce_sum", s.op("exp", s.op("sub", "x", rows)), out="loss")
    program = read(s.document)
    room = room_for(program, {"x": (MANY, 64)})
    code = compile_gradient(program, GradientQuery(loss="loss"), room=room).compiled()
    assert code.packs is not None

    for _ in range(20):
        with pytest.raises(ExecutionError) as caught:
            code.step(code.packs(s.values))

        assert caught.value.code == "shape_mismatch"
    found = code.step(code.packs(s.values | {"x": np.zeros((3, 64))}))
    np.testing.assert_allclose(found.loss, 3 * 64 * np.exp(-1.0), rtol=1e-12)
