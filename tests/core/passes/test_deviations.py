"""Factors outside of sums of deviations: on printed blocks, and where the pass must leave a sum as it is."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.passes.deviations import factor_deviations
from core.runtime.reference import execute
from tests.core.blocks import Writer


def deviations(axes: tuple[int, ...] = (0,), kept: str = "k", **sizes: tuple[int, ...]) -> Block:
    """x, k -> the sum of ``-2 (x - mean(x)) k`` over the first axis."""
    w = Writer(x=sizes.get("x", (5, 3)), k=sizes.get("k", (1, 3)))
    w.op("m", "reduce_mean", "x", axes=axes, keepdims=True)
    w.op("d", "sub", "x", "m")
    w.op("twice", "scale", "d", scale=-2.0)
    w.op("part", "mul", kept, "twice")
    w.op("total", "sum_to", "part", shape=(1, 3))
    return w.block("total")


def ops(block: Block) -> list[str]:
    return [op.type for op in block.ops]


def test_a_factor_leaves_a_sum_of_deviations():
    block = deviations()

    found = factor_deviations(block)

    assert ops(found)[-3:] == ["sum_to", "scale", "mul"]
    assert found.results == block.results
    x, k = np.random.default_rng(0).standard_normal((5, 3)), np.array([[2.0, -1.0, 1e6]])
    np.testing.assert_allclose(execute(found, [x, k]), execute(block, [x, k]), atol=1e-8)


def open_deviations(like: str) -> Block:
    """x, k -> the sum of ``(x - mean(x)) k`` over an open number of rows. like: what k is expanded to."""
    b = BlockBuilder()
    x, k = b.param(TensorType((-1, 3), "float64")), b.param(TensorType((1, 3), "float64"))
    other = b.param(TensorType((-1, 3), "float64"))
    part = b.emit("sub", x, b.emit("reduce_mean", x, axes=(0,), keepdims=True))
    expanded = b.emit("expand_as", k, {"the deviations": b.emit("square", part), "another array": other}[like])
    return b.build([b.emit("sum_to", b.emit("mul", expanded, part), shape=(1, 3))])


def test_a_factor_leaves_a_sum_over_an_open_size():
    block = open_deviations("the deviations")

    found = factor_deviations(block)

    assert ops(found)[-2:] == ["sum_to", "mul"]
    for rows in (1, 5):
        x, k = np.random.default_rng(0).standard_normal((rows, 3)), np.array([[2.0, -1.0, 1e6]])
        np.testing.assert_allclose(execute(found, [x, k, x]), execute(block, [x, k, x]), atol=1e-8)


def test_a_factor_with_the_sizes_of_another_array_stays_in_the_sum():
    """The deviations of a single row would count once, and their multiples as often as the other array has rows."""
    assert ops(factor_deviations(open_deviations("another array")))[-2:] == ["mul", "sum_to"]


def test_sums_of_one_deviation_are_computed_once():
    w = Writer(x=(5, 3), k=(1, 3))
    w.op("m", "reduce_mean", "x", axes=(0,), keepdims=True)
    w.op("d", "sub", "x", "m")
    w.op("one", "mul", "d", "k")
    w.op("a", "sum_to", "one", shape=(1, 3))
    w.op("square", "mul", "k", "k")
    w.op("other", "mul", "d", "square")
    w.op("b", "sum_to", "other", shape=(1, 3))
    w.op("both", "add", "a", "b")

    assert ops(factor_deviations(w.block("both"))).count("sum_to") == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_reach_the_sum(bad):
    x = np.ones((5, 3))
    x[2, 1] = bad

    (found,) = execute(factor_deviations(deviations()), [x, np.ones((1, 3))])

    assert np.isnan(found[0, 1])
    assert np.isfinite(found[0, [0, 2]]).all()


def test_a_sum_of_float16_deviations_that_would_overflow_keeps_its_factor():
    b = BlockBuilder()
    x, k = b.param(TensorType((2**19, 1), "float16")), b.param(TensorType((1, 1), "float16"))
    mean = b.emit("reduce_mean", x, axes=(0,), keepdims=True)
    part = b.emit("mul", k, b.emit("sub", x, mean))
    block = b.build([b.emit("reduce_sum", part, axes=(0,), keepdims=True)])
    numbers = np.tile(np.array([1000.0, 1000.5], "float16"), 2**18).reshape(
        -1, 1
    )  # the mean 1000.25 is rounded to 1000

    (found,) = execute(factor_deviations(block), [numbers, np.full((1, 1), 2.0**-10, "float16")])

    assert found == 0.5 * 2**18 * 2.0**-10


@pytest.mark.parametrize(
    "block",
    [
        deviations(k=(5, 3)),  # the factor varies along the sum
        deviations(axes=(1,)),  # the mean is one over another axis
        deviations(axes=(0, 1)),  # the sum is one over fewer axes
    ],
    ids=["factor", "other axis", "fewer axes"],
)
def test_other_sums_stay_as_they_are(block):
    found = factor_deviations(block)

    assert ops(found) == ops(block)
    args = [np.random.default_rng(1).standard_normal(block.types[p].shape) for p in block.params]
    np.testing.assert_array_equal(execute(found, args), execute(block, args))
