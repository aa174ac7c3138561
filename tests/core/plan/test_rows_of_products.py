"""A product with one matrix has as many axes of its first operand as rows as that operand's layout allows."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from core.codegen.cpu_target import CPU_TARGET
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes.pipeline import optimize
from core.plan import plan_block
from core.plan.instructions import Gemm, Instruction, Rows
from tests.core.plan.agreement import agree

SHAPE = (3, 4, 5, 6)


def product_of_transposed(
    order: tuple[int, ...], shape: tuple[int, ...] = SHAPE, columns: int = 7, cut: bool = False
) -> Block:
    """The product of an array of `shape`, whose axes are stored in another order, with one matrix.

    order: the axis of the stored array for each axis of `shape`. cut: whether the stored array has gaps.
    """
    b = BlockBuilder()
    stored = [0] * 4
    for size, axis in zip(shape, order, strict=True):
        stored[axis] = size
    x = b.param(TensorType((*stored[:2], stored[2] + cut, stored[3]), "float64"))
    y = b.param(TensorType((shape[-1], columns), "float64"))
    if cut:
        x = b.emit("slice", x, axes=(2,), starts=(0,), ends=(stored[2],))
    return b.build([b.emit("tanh", b.emit("matmul", b.emit("transpose", x, axes=order), y))])


def operands(block: Block) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(block.types[p].shape) for p in block.params]


def instructions(block: Block) -> list[Instruction]:
    return list(plan_block(optimize(block), CPU_TARGET).body.instructions)


@pytest.mark.parametrize("order, rows", [
    ((0, 1, 2, 3), (60,)), ((0, 2, 3, 1), (3, 20)), ((2, 0, 1, 3), (3, 20)), ((1, 2, 3, 0), (60,)),
    ((0, 1, 3, 2), (3, 4, 5)),
])  # fmt: skip
def test_axes_that_follow_each_other_in_memory_become_rows(order, rows):
    (found,) = [each for each in instructions(product_of_transposed(order)) if isinstance(each, Gemm)]
    assert found.c.shape == (*rows, 7)


def test_a_copy_of_a_small_operand_makes_room_for_an_epilogue():
    block = product_of_transposed((0, 2, 3, 1), shape=(3, 5, 5, 8), columns=64)
    copy, product = instructions(block)
    assert isinstance(copy, Rows) and isinstance(product, Gemm) and product.then is not None
    agree(block, operands(block))


@pytest.mark.sampled(2, each="cut")
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_products_agree_in_every_order_of_the_axes(order, cut):
    block = product_of_transposed(order, cut=cut)
    agree(block, operands(block))
