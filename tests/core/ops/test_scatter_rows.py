"""Scatter-add of rows, the gradient of every look-up: all implementations give the same sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ops.common.scatter_rows import scatter_rows
from core.ops.common.types import as_dtype
from core.runtime.reference import execute

R = np.random.default_rng(5)


def one_by_one(count: int, index: np.ndarray, values: np.ndarray) -> np.ndarray:
    out = np.zeros((count, *values.shape[1:]), values.dtype)
    with np.errstate(over="ignore"):
        for i, row in zip(index, values, strict=True):
            out[i] = out[i] + row
    return out


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(2000,), (2000, 1), (2000, 8), (500, 4, 3), (3, 2), (0, 8), (40, 0), (0,)])
def test_sums_equal_adding_row_by_row_in_order_bit_for_bit(shape, dtype):
    index = R.integers(0, 7, shape[0])
    values = (R.normal(size=shape) * 100).astype(dtype)

    np.testing.assert_array_equal(scatter_rows(np, 7, index, values), one_by_one(7, index, values))


def test_infinities_and_nans_stay_in_their_rows():
    values = np.ones((1000, 4))
    values[0, 1], values[1, 2] = np.inf, np.nan
    index = np.arange(1000) % 10

    out = scatter_rows(np, 10, index, values)

    assert np.isinf(out[0, 1]) and np.isnan(out[1, 2]) and np.isfinite(out).sum() == 38


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_16_bit_numbers_are_added_in_float32(dtype):
    """In float16 a sum of ones stops at 2048, in bfloat16 at 256."""
    ones = np.ones((4096, 2), as_dtype(dtype))
    b = BlockBuilder()
    x, index, like = (b.param(TensorType(s, d)) for s, d in (((4096, 2), dtype), ((4096,), "int64"), ((3, 2), dtype)))
    block = b.build([b.emit("scatter_add_like", x, index, like), b.emit("segment_sum", x, index, like)])

    for out in execute(block, [ones, np.zeros(4096, "int64"), np.zeros((3, 2), ones.dtype)]):
        assert out.dtype == ones.dtype
        assert out.astype("float64")[:, 0].tolist() == [4096, 0, 0]


def test_an_inner_axis_gives_the_same_as_the_first():
    values, index = R.normal(size=(3, 700, 5)), R.integers(-6, 6, 700)
    b = BlockBuilder()
    x, at, like = (
        b.param(TensorType((3, 700, 5), "float64")),
        b.param(TensorType((700,), "int64")),
        b.param(TensorType((3, 6, 5), "float64")),
    )
    (out,) = execute(b.build([b.emit("scatter_add_like", x, at, like, axis=1)]), [values, index, np.zeros((3, 6, 5))])

    wanted = [[[math.fsum(values[i, index % 6 == k, j]) for j in range(5)] for k in range(6)] for i in range(3)]
    np.testing.assert_allclose(out, wanted, rtol=1e-12)
