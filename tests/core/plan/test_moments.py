"""Mean and variance in one pass: equal to two passes in float64, safe from cancellation, the same for any threads."""

from __future__ import annotations

import numpy as np
import pytest

from core.codegen import backend, parallel
from core.codegen.backend import CPU
from core.codegen.cpu_target import CPU_TARGET
from core.compiler.compile import optimize
from core.ir import Block, TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.types import as_dtype
from core.plan import plan_block
from core.plan.instructions import Rows
from core.runtime.native import native_interpreter
from core.runtime.reference import execute
from core.runtime.run import Run

SHAPES = [
    ((8, 3, 6, 6), (0, 2, 3)),  # a row of 36
    ((8, 3, 5, 7), (0, 2, 3)),  # a row that ends within a vector
    ((4, 5, 200), (0, 2)),
    ((2, 3, 96, 96), (0, 2, 3)),  # a long row, in parts
    ((3, 4, 5, 40), (1, 3)),  # the first axis is kept
    ((3, 2, 2, 130, 130), (0, 2, 3, 4)),
    ((6, 2, 3, 40), (0, 2, 3)),
    ((2, 3, 2, 4, 5, 8), (0, 2, 4, 5)),  # two kept axes, apart
    ((1, 3, 8, 20000), (0, 2, 3)),
    ((4, 2, 5000), (0, 2)),  # a long row of a single axis, in parts
    ((2, 3, 1, 96, 96), (0, 3, 4)),  # an axis of one element before the row
]
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 2e-2, "float16": 3e-3}


def moments_block(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, square: str = "square") -> Block:
    """x -> mean, variance, sum of the distances, and x normalised."""
    b = BlockBuilder()
    x = b.param(TensorType(shape, dtype))
    mean = b.emit("reduce_mean", x, axes=axes, keepdims=True)
    centred = b.emit("sub", x, mean)
    squares = b.emit("square", centred) if square == "square" else b.emit("mul", centred, centred)
    variance = b.emit("reduce_mean", squares, axes=axes, keepdims=True)
    out = b.emit("mul", centred, b.emit("rsqrt", b.emit("scale", variance, scale=1.0, bias=1e-3)))
    rest = b.emit("reduce_sum", centred, axes=axes, keepdims=True)
    return b.build([mean, variance, rest, out])


def compiled(block: Block, *args: np.ndarray) -> list[np.ndarray]:
    return native_interpreter(optimize(block), CPU)(Run(), *args)


def over_memory(block: Block, elements: int) -> list[Rows]:
    """The passes over arrays of at least so many elements."""
    instructions = plan_block(optimize(block), CPU_TARGET).body.instructions
    return [i for i in instructions if isinstance(i, Rows) and i.kernel.rows * i.kernel.inner >= elements]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_mean_and_variance_equal_those_of_numpy_in_float64(shape, axes, dtype):
    x = (np.random.default_rng(0).standard_normal(shape) * 2 + 3).astype(as_dtype(dtype))
    wide = x.astype("float64")

    mean, variance, rest, out = (np.asarray(each) for each in compiled(moments_block(shape, axes, dtype), x))

    m, v = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    near = TOLERANCE[dtype]
    np.testing.assert_allclose(mean.astype("float64"), m, rtol=near)
    np.testing.assert_allclose(variance.astype("float64"), v, rtol=near)
    np.testing.assert_allclose(out.astype("float64"), (wide - m) / np.sqrt(v + 1e-3), rtol=near * 4, atol=near * 4)
    count = x.size // mean.size
    expected = (wide - mean.astype("float64")).sum(axes, keepdims=True)  # not zero: the mean was rounded
    np.testing.assert_allclose(rest.astype("float64"), expected, rtol=0.02, atol=count * 20 * np.finfo("float32").eps)


@pytest.mark.parametrize("square", ["square", "mul"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_both_need_one_pass_and_the_normalised_array_another_one(shape, axes, square):
    passes = over_memory(moments_block(shape, axes, "float32", square), int(np.prod(shape)))

    assert [sum(i.kind == "reduce" for i in each.kernel.code) for each in passes] == [2, 0]
    assert not any(i.kind == "accumulate" for each in passes for i in each.kernel.code)


@pytest.mark.parametrize("mean", [1e3, 1e6, -3e4])
def test_a_mean_far_from_zero_cancels_no_digits_of_the_variance(mean):
    shape, axes = (16, 4, 12, 12), (0, 2, 3)
    x = (np.random.default_rng(1).standard_normal(shape) * abs(mean) * 1e-3 + mean).astype("float32")

    variance = compiled(moments_block(shape, axes, "float32"), x)[1]

    expected = x.astype("float64").var(axes, keepdims=True)
    np.testing.assert_allclose(variance, expected, rtol=2e-5)  # the squared error of the mean included


def test_rows_with_means_far_apart_keep_their_variance():
    shape, axes = (16, 3, 8, 8), (0, 2, 3)
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(shape) + np.array([0.0] * 15 + [1e5]).reshape(-1, 1, 1, 1)).astype("float32")

    variance = compiled(moments_block(shape, axes, "float32"), x)[1]

    np.testing.assert_allclose(variance, x.astype("float64").var(axes, keepdims=True), rtol=1e-5)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_the_bits_do_not_depend_on_the_number_of_threads(shape, axes, dtype, monkeypatch):
    monkeypatch.setattr(parallel, "LONG", 1)
    x = np.random.default_rng(3).standard_normal(shape).astype(as_dtype(dtype))
    block = moments_block(shape, axes, dtype)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(backend, "thread_count", lambda n=threads: n)
        found.append([np.asarray(each).tobytes() for each in compiled(block, x)])

    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_reach_their_channel_and_no_other(bad):
    shape, axes = (4, 3, 6, 6), (0, 2, 3)
    x = np.random.default_rng(4).standard_normal(shape).astype("float32")
    x[2, 1, 3, 3] = bad
    block = moments_block(shape, axes, "float32")

    found = compiled(block, x)

    with np.errstate(all="ignore"):
        expected = execute(optimize(block), [x])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((4, 3, 2, 2), (0, 2, 3)), ((40, 3), (0,)), ((4, 3, 64), (2,)), ((4, 6, 5, 3), (0, 1, 2)), ((9, 1, 24), (0, 2))],
    ids=["short rows", "columns", "whole rows", "last axis kept", "one channel"],
)
def test_other_variances_are_computed_as_they_are_written(shape, axes):
    x = np.random.default_rng(5).standard_normal(shape)
    block = moments_block(shape, axes, "float64")

    for one, other in zip(compiled(block, x), execute(optimize(block), [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
