"""Gathers at positions that grow evenly are views of their array, for every reader of the gathered elements."""

from __future__ import annotations

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Gather
from tests.core.plan.agreement import agree

READERS = {
    "result": lambda b, h: h,
    "tanh": lambda b, h: b.emit("tanh", h),
    "sum of rows": lambda b, h: b.emit("reduce_sum", h, axes=(0,)),
    "sum of columns": lambda b, h: b.emit("reduce_sum", h, axes=(1,)),
    "softmax": lambda b, h: b.emit("softmax", h, axis=0),
    "sort": lambda b, h: b.emit("argsort", h, axis=1),
    "running sums": lambda b, h: b.emit("cumsum", h, axis=0),
    "transposition": lambda b, h: b.emit("tanh", b.emit("transpose", h, axes=(1, 0))),
    "product": lambda b, h: b.emit("matmul", h, h, transpose_y=True),
    "product of the transposition": lambda b, h: b.emit("matmul", h, h, transpose_x=True),
    "batched product": lambda b, h: b.emit("einsum", h, h, equation="ij,kj->jik"),
    "reshape": lambda b, h: b.emit("tanh", b.emit("reshape", h, shape=(-1,))),
    "slice": lambda b, h: b.emit("slice", h, axes=(0, 1), starts=(1, 0), ends=(3, 2)),
    "gather": lambda b, h: b.emit(
        "gather", h, b.emit("assign_value", values=(2, 0, 1), shape=(3,), dtype="int64"), axis=0
    ),
}
WINDOWS = [(5, 3, 1), (5, 3, 2), (4, 6, 5), (20, 33, 1), (17, 40, 16), (9, 8, 8)]
"""Windows, elements of each, and elements from one to the next: with overlaps, without, and with gaps."""


def windows(b: BlockBuilder, x: Value, count: int, length: int, step: int, first: int = 0) -> Value:
    """[count, length] windows of the vector x."""
    starts = b.emit("range", start=float(first), end=float(first + count * step), step=float(step), dtype="int64")
    along = b.emit("range", start=0.0, end=float(length), dtype="int64")
    at = b.emit("add", b.emit("unsqueeze", starts, axes=(1,)), b.emit("unsqueeze", along, axes=(0,)))
    return b.emit("gather", x, at, axis=0)


def gathers(block: Block) -> int:
    return sum(isinstance(each, Gather) for each in plan_block(optimize(block), CPU_TARGET).body.instructions)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_of_windows_agrees_with_the_reference_executor(reader):
    for count, length, step in WINDOWS:
        for dtype in ("float32", "int64", "bfloat16") if reader in ("result", "sort") else ("float32",):
            b = BlockBuilder()
            size = (count - 1) * step + length + 2
            x = b.param(TensorType((size,), dtype))
            block = b.build([READERS[reader](b, windows(b, x, count, length, step, first=1))])
            assert gathers(block) == (reader == "gather")  # of its own uneven positions
            agree(block, [np.random.default_rng(step).permutation(size).astype(as_dtype(dtype))])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reader", ["result", "softmax", "product", "transposition"])
def test_adjoints_of_windows_add_up_what_overlaps(reader):
    for count, length, step in WINDOWS:
        b = BlockBuilder()
        x = b.param(TensorType(((count - 1) * step + length,), "float64"))
        block = b.build([READERS[reader](b, windows(b, x, count, length, step))])
        pulled = vjp(block, block.params)
        rng = np.random.default_rng(step)
        agree(pulled, [rng.integers(-4, 5, pulled.types[p].shape).astype("float64") / 4 for p in pulled.params])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_windows_along_any_axis_agree(axis):
    b = BlockBuilder()
    x = b.param(TensorType((9, 10, 11), "float32"))
    starts, along = (b.emit("range", start=0.0, end=4.0, dtype="int64") for _ in range(2))
    at = b.emit(
        "add",
        b.emit(
            "mul", b.emit("unsqueeze", starts, axes=(1,)), b.emit("fill_constant", shape=(), value=2, dtype="int64")
        ),
        b.emit("unsqueeze", along, axes=(0,)),
    )  # up to position 9
    found = b.emit("gather", x, at, axis=axis)
    block = b.build([found, b.emit("tanh", found)])
    values = np.random.default_rng(0).normal(size=(9, 10, 11)).astype("float32")
    if axis:
        assert gathers(block) == 0
    agree(block, [values])  # on axis 0 a position is out of range: the same error


def test_positions_from_the_end_agree():
    b = BlockBuilder()
    x = b.param(TensorType((10, 3), "float32"))
    back = b.emit("range", start=9.0, end=-1.0, step=-1.0, dtype="int64")
    block = b.build(
        [b.emit("gather", x, back, axis=0), b.emit("matmul", b.emit("gather", x, back, axis=0), x, transpose_x=True)]
    )
    agree(block, [np.arange(30, dtype="float32").reshape(10, 3)])
