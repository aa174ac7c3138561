"""A product whose transposition alone is read is computed in the layout of the transposition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.passes.pipeline import optimize
from core.plan import plan_block
from core.plan.instructions import Gemm
from tests.core.plan.agreement import agree

MATMULS = [((5, 7), (7, 6)), ((3, 5, 7), (7, 6)), ((3, 5, 7), (3, 7, 6)), ((2, 1, 5, 7), (3, 7, 6)),
           ((5, 7), (2, 3, 7, 6)), ((2, 3, 5, 7), (2, 1, 7, 6)), ((3, 1, 7), (3, 7, 6)), ((3, 5, 7), (3, 7, 1)),
           ((1, 7), (7, 6)), ((5, 1), (1, 6))]  # fmt: skip
EINSUMS = [((4, 5, 7), (4, 5, 6), "...ij,...ik->jk"), ((4, 5, 7), (6, 7), "bik,jk->bij"),
           ((4, 5, 7), (4, 6, 7), "bik,cjk->bcij"), ((4, 5), (5,), "ij,j->i")]  # fmt: skip


def turned_product(
    shapes: Sequence[tuple[int, ...]], equation: str, order: Sequence[int], reader: str, dtype: str
) -> Block:
    """The transposition by `order` of a product; a result of the block, read by an elementwise op, or both.

    equation: of an einsum; empty for a matmul, "x" for one whose first operand is stored by columns.
    """
    b = BlockBuilder()
    by_columns = equation == "x"
    (*batch, rows, inner), other = shapes
    x = b.param(TensorType((*batch, inner, rows) if by_columns else shapes[0], dtype))
    y = b.param(TensorType(other, dtype))
    if equation and not by_columns:
        found = b.emit("einsum", x, y, equation=equation)
    else:
        found = b.emit("matmul", x, y, transpose_x=by_columns)
    turned = b.emit("transpose", found, axes=tuple(order))
    more = b.emit("tanh", turned)
    return b.build({"result": [turned], "elementwise": [more], "both": [more, turned]}[reader])


def operands(block: Block) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-3, 4, block.types[p].shape).astype(as_dtype(block.types[p].dtype)) for p in block.params]


def read_as() -> Iterator[Any]:
    for reader, dtype in product(["result", "elementwise", "both"], ["float64", "bfloat16"]):
        fast = (reader, dtype) in (("both", "float64"), ("elementwise", "bfloat16"))
        yield pytest.param(reader, dtype, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("reader", "dtype"), list(read_as()))
@pytest.mark.parametrize("x, y, equation", [*((x, y, e) for x, y in MATMULS for e in ("", "x")), *EINSUMS], ids=str)
def test_products_agree_in_every_order_of_their_axes(x, y, equation, reader, dtype):
    rank = len(equation.partition("->")[2]) or max(len(x), len(y))
    for order in permutations(range(rank)):
        block = turned_product((x, y), equation, order, reader, dtype)
        agree(block, operands(block))


@pytest.mark.parametrize("x, y, equation, order", [
    ((4, 40, 33), (4, 33, 36), "", (1, 0, 2)), ((4, 40, 33), (4, 40, 36), "...ij,...ik->jk", (1, 0)),
    ((2, 3, 40, 33), (2, 3, 33, 36), "", (0, 2, 1, 3)),
])  # fmt: skip
def test_only_the_transposition_is_stored(x, y, equation, order):
    block = optimize(turned_product((x, y), equation, order, "result", "float32"))
    plan = plan_block(block, CPU_TARGET)

    assert [type(each) for each in plan.body.instructions] == [Gemm]
    agree(block, operands(block))


@pytest.mark.parametrize("reads", [True, False], ids=["state is read later", "state is read once"])
def test_a_loop_that_carries_a_transposed_product_agrees(reads):
    body = BlockBuilder()
    state, row = body.param(TensorType((6, 6), "float64")), body.param(TensorType((6, 6), "float64"))
    turned = body.emit("transpose", body.emit("matmul", state, row, transpose_x=True), axes=(1, 0))
    other = body.emit("add", turned, state) if reads else body.emit("tanh", turned)
    carried = body.build([turned, other])
    b = BlockBuilder()
    first, rows = b.param(TensorType((6, 6), "float64")), b.param(TensorType((4, 6, 6), "float64"))
    stack = b.emit("array_unstack", rows)
    inner = BlockBuilder()
    params = [inner.param(TensorType((6, 6), "float64")) for _ in range(3)]
    results = inner.inline(carried, [params[0], params[2]])
    found = b.emit("loop", first, first, stack, sub_block=inner.build(results), carried=2, captured=0, condition=False)
    block = b.build(found[:2])

    agree(block, operands(block))


@pytest.mark.sampled(2, each="reader")
@pytest.mark.parametrize("reader", ["result", "elementwise", "product", "all"])
@pytest.mark.parametrize("terms, rows, columns", [(64, 16, 8), (300, 40, 3), (70, 2049, 5), (2000, 33, 2)])
def test_a_narrow_product_of_a_transposed_matrix_is_that_of_the_transposes(terms, rows, columns, reader):
    b = BlockBuilder()
    x, y = (b.param(TensorType((terms, n), "float64")) for n in (rows, columns))
    found = b.emit("matmul", x, y, transpose_x=True)
    results = {
        "result": [found],
        "elementwise": [b.emit("tanh", found)],
        "product": [b.emit("matmul", x, b.emit("tanh", found))],
    }
    results["all"] = [each for one in results.values() for each in one]
    block = optimize(b.build(results[reader]))
    plan = plan_block(block, CPU_TARGET)

    first = next(each for each in plan.body.instructions if isinstance(each, Gemm))
    assert first.c.shape == (columns, rows)
    agree(block, operands(block))
