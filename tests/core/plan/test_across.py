"""Reductions along a short axis that is not the last one, such as the classes of each pixel, stay inside their pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.autodiff.adjoint import vjp
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder, Value
from core.plan import plan_block
from core.plan.instructions import Rows
from tests.laws.test_native import both
from tests.laws.test_native_halves import both as halves_agree


def program(write: Callable[..., list[Value]], *types: TensorType, wrt: int = 1) -> Block:
    """The optimised gradient by the first `wrt` operands of what `write` writes."""
    b = BlockBuilder()
    block = b.build(write(b, *(b.param(type) for type in types)))
    return optimize(vjp(block, block.params[:wrt]))


def drawn(block: Block, classes: int = 2) -> list[np.ndarray]:
    random = np.random.default_rng(4)
    types = [type for type in block.param_types if isinstance(type, TensorType)]
    return [
        random.normal(0, 1, t.shape).astype(t.dtype) if t.is_float else random.integers(0, classes, t.shape)
        for t in types
    ]


def passes_over(block: Block, elements: int) -> int:
    body = plan_block(block, CPU_TARGET).body.instructions
    assert all(isinstance(each, Rows) for each in body)
    return sum(isinstance(each, Rows) and each.kernel.rows * each.kernel.inner == elements for each in body)


def classes_of_pixels(b: BlockBuilder, x: Value, labels: Value) -> list[Value]:
    return [b.emit("softmax_with_cross_entropy", x, labels, axis=1, reduction="mean")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 5, 48, 50), (1, 2, 8201), (3, 12, 7, 11, 13), (2, 3, 4, 1000)], ids=str)
def test_a_loss_over_the_classes_of_pixels_and_its_gradient_are_one_pass(shape, dtype):
    labels = TensorType((shape[0], *shape[2:]), "int64")
    block = program(classes_of_pixels, TensorType(shape, dtype), labels)

    both(block, drawn(block, classes=shape[1]))

    assert passes_over(block, int(np.prod(shape))) == 1


def test_a_wrong_label_of_a_pixel_is_an_error():
    block = program(classes_of_pixels, TensorType((2, 3, 64, 64), "float32"), TensorType((2, 64, 64), "int64"))
    given = drawn(block)
    given[1][1, 63, 63] = 3

    both(block, given)


def weighted(b: BlockBuilder, x: Value, w: Value) -> list[Value]:
    """Gates over the middle axis, with weights that all rows share: their gradients are sums over the first axis."""
    scaled = b.emit("mul", x, w)
    gates = b.emit("softmax", scaled, axis=1)
    return [b.emit("reduce_sum", b.emit("mul", gates, x), axes=(1,))]


def overlaps(b: BlockBuilder, x: Value, w: Value) -> list[Value]:
    """Sums over the pixels of probabilities."""
    p = b.emit("softmax", b.emit("add", x, w), axis=1)
    rest = tuple(range(2, x.type.rank))
    return [b.emit("reduce_sum", p, axes=rest), b.emit("reduce_max", p, axes=(0, *rest)), b.emit("reduce_mean", p)]


def both_ways(b: BlockBuilder, x: Value, w: Value) -> list[Value]:
    """Reductions along the middle axis, then along the last one, and the other way round."""
    p = b.emit("softmax", b.emit("mul", x, w), axis=1)
    q = b.emit("softmax", p, axis=-1)
    return [q, b.emit("log_softmax", b.emit("softmax", x, axis=-1), axis=1)]


def with_draws(b: BlockBuilder, x: Value, w: Value) -> list[Value]:
    dropped = b.emit("dropout", b.emit("softmax", b.emit("mul", x, w), axis=1), p=0.5)
    return [dropped[0] if isinstance(dropped, tuple) else dropped]


def strided(b: BlockBuilder, x: Value, w: Value) -> list[Value]:
    """Every second pixel, and rows that lie along the first axis."""
    turned = b.emit("transpose", x, axes=(0, 1, *reversed(range(2, x.type.rank))))
    half = b.emit("strided_slice", turned, axes=(2,), starts=(0,), ends=(x.type.shape[-1],), strides=(2,))
    return [b.emit("softmax", half, axis=1), b.emit("mul", x, w)]


MIXTURES = [weighted, overlaps, both_ways, with_draws, strided]


@pytest.mark.sampled(2, each="make")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 6, 100), (3, 4, 40, 41), (2, 12, 66, 13), (70, 3, 5, 31), (600, 9, 4)], ids=str)
@pytest.mark.parametrize("make", MIXTURES)
def test_reductions_along_a_middle_axis_equal_the_reference_executor(make, shape, dtype):
    weight = TensorType((shape[1], *[1] * (len(shape) - 3), shape[-1]), dtype)
    block = program(make, TensorType(shape, dtype), weight, wrt=2)

    both(block, drawn(block))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("make", [overlaps, classes_of_pixels])
def test_reductions_of_16_bit_floats_along_a_middle_axis_equal_the_reference_executor(make, dtype):
    shape = (2, 4, 48, 50)
    second = TensorType((2, 48, 50), "int64") if make is classes_of_pixels else TensorType((4, 1, 1), dtype)
    block = program(make, TensorType(shape, dtype), second)

    halves_agree(block, drawn(block), units=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", [(2, 13, 40, 40), (700, 6, 5), (2, 3, 30, 30)], ids=str)
def test_a_long_axis_and_one_with_few_neighbours_are_no_row(shape):
    x = TensorType(shape, "float32")
    block = program(lambda b, x: [b.emit("softmax", x, axis=1)], x)

    both(block, drawn(block))

    assert passes_over(block, int(np.prod(shape))) > 1


def outer_products(b: BlockBuilder, x: Value, y: Value) -> list[Value]:
    """Sums of the lower triangles of the products of many pairs of vectors."""
    each = b.emit("mul", b.emit("unsqueeze", x, axes=(1,)), b.emit("unsqueeze", y, axes=(2,)))
    return [b.emit("reduce_sum", b.emit("tril", each), axes=(0,))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_of_many_small_matrices_are_computed_for_many_of_them_together(size, dtype):
    vectors = TensorType((5003, size), dtype)
    b = BlockBuilder()
    block = optimize(b.build(outer_products(b, b.param(vectors), b.param(vectors))))

    both(block, drawn(block))

    assert [
        each.kernel.outer for each in plan_block(block, CPU_TARGET).body.instructions if isinstance(each, Rows)
    ] == [(size, 5003)]


def test_the_gradient_of_a_small_matrix_that_many_vectors_share_equals_the_reference_executor():
    types = TensorType((3, 3), "float32"), TensorType((5003, 3, 1), "float32")
    block = program(lambda b, a, x: [b.emit("matmul", a, x)], *types, wrt=2)

    both(block, drawn(block))
