"""Sums of many float32 numbers by the reference executor are as precise along the first axes as along the last ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.ir.builder import BlockBuilder
from core.runtime.reference import execute
from tests.laws.test_ops import type_of

TENTHS = np.full((300_000, 3), np.float32(0.1))
"""The worst case for a sum: all roundings err in the same direction. Added one by one they give 29,970 or so."""

TENTH = float(np.float32(0.1))


def run(type: str, *inputs: Any, **attrs: Any) -> np.ndarray:
    b = BlockBuilder()
    block = b.build([b.emit(type, *[b.param(type_of(x)) for x in inputs], **attrs)])
    return execute(block, list(inputs))[0]


def close(found: np.ndarray, wanted: Any) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.broadcast_to(wanted, found.shape), rtol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("x", "axes"),
    [
        (TENTHS, (0,)),
        (TENTHS.T, (1,)),
        (TENTHS.reshape(500, 600, 3), (0, 1)),
        (TENTHS.reshape(30_000, 3, 10), (0, 2)),
        (TENTHS.reshape(3, 100_000, 3)[::-1], (1,)),
        (TENTHS.reshape(300, 3, 1000).transpose(1, 0, 2), None),
        (np.broadcast_to(TENTHS[0], (9_000_001, 3)), (0,)),
        (np.broadcast_to(TENTHS[0, 0], (3, 300_000)), None),
    ],
    ids=["rows", "a transposed array", "two axes", "the first and the last axis", "an axis in the middle",
         "all axes of a transposed array", "a repeated row", "a repeated number"],
)  # fmt: skip
def test_a_sum_of_equal_numbers_is_their_product_with_the_count(x, axes):
    count = np.prod([x.shape[axis] for axis in (range(x.ndim) if axes is None else axes)])

    close(run("reduce_sum", x, axes=axes), TENTH * count)
    close(run("reduce_sum", x, axes=axes, keepdims=True), TENTH * count)
    close(run("reduce_mean", x, axes=axes), TENTH)


def test_the_gradient_of_a_row_that_many_rows_read_is_precise():
    close(run("sum_to", TENTHS, shape=(3,)), TENTH * 300_000)
    close(run("sum_to_like", TENTHS, TENTHS[:1]), TENTH * 300_000)
    close(run("sum_tiles_like", TENTHS, TENTHS[:1], repeats=(300_000, 1)), TENTH * 300_000)


def test_the_softmax_of_many_equal_numbers_adds_up_to_one():
    total = run("logsumexp", TENTHS, axes=(0,)).astype("float64")

    np.testing.assert_allclose(300_000 * np.exp(TENTH - total), 1, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "int32"])
def test_sums_of_other_dtypes_keep_their_shape_and_dtype(dtype):
    x = np.ones((5000, 2, 2), dtype)

    for axes, shape in (((0,), (2, 2)), ((0, 2), (2,)), (None, ())):
        found = run("reduce_sum", x, axes=axes)
        assert (found.dtype, found.shape) == (np.dtype(dtype), shape)
        np.testing.assert_array_equal(found, np.full(shape, x.size // max(int(np.prod(shape)), 1), dtype))
