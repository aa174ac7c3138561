"""Bounds of 16-bit results contain the results of numbers between the bounds of the operands, rounded and not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.ir.precision import HALVES, largest
from core.ops.common.types import as_dtype
from core.plan.intervals import applied

FUNCTIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "square": np.square,
    "abs": np.abs,
    "exp": np.exp,
    "maximum": np.maximum,
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_bounds_of_16_bit_results_contain_the_results_rounded_or_in_float32(op, dtype):
    rng, kind, function = np.random.default_rng(0), as_dtype(dtype), FUNCTIONS[op]
    count = 1 if op in ("square", "abs", "exp") else 2
    for size in (1e-4, 1.0, 11.0, 300.0, 6e4):
        most = largest(dtype)
        ends = np.clip(np.sort(size * rng.standard_normal((count, 40, 2))), -most, most).astype(kind)
        low, high = np.moveaxis(ends.astype(np.float32), -1, 0)
        inside = np.clip((low + (high - low) * rng.random(low.shape, np.float32)).astype(kind), low, high)
        with np.errstate(all="ignore"):
            wide = function(*(x.astype(np.float32) for x in inside))
            rounded, wide = wide.astype(kind).astype(np.float64), wide.astype(np.float64)
        for at, (short, long) in enumerate(zip(rounded, wide, strict=True)):
            found = applied(op, {}, [tuple(map(float, ends[i, at])) for i in range(count)], dtype)
            if found is None:
                continue
            last = 1e-6 * abs(long) if math.isfinite(long) else 0.0  # the rounding of float32
            assert found[0] <= short <= found[1]
            assert found[0] - last <= long <= found[1] + last


@pytest.mark.parametrize(("dtype", "most"), [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38)])
def test_bounds_beyond_the_largest_number_are_infinite(dtype, most):
    assert applied("cast", {}, [(-most, most)], dtype) == (-most, most)
    assert applied("cast", {}, [(-1.1 * most, 1.0)], dtype) == (-math.inf, 1.0)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_exponential_has_the_bounds_zero_where_it_vanishes_in_float32(dtype):
    assert applied("exp", {}, [(-math.inf, -111.0)], dtype) == (0.0, 0.0)
    assert np.exp(np.float32(-111.0)) == 0


def test_an_exponential_that_only_rounding_makes_zero_has_a_positive_bound():
    low, high = applied("exp", {}, [(-math.inf, -18.5)], "float16")

    assert np.exp(np.float32(-18.5)).astype(np.float16) == 0
    assert low == 0 < np.exp(-18.5) <= high


def test_a_clip_keeps_bounds_inside_of_its_own():
    assert applied("clip", {"min": -2.0, "max": 3.0}, [(-1.0, math.inf)], "float32") == (-1.0, 3.0)
    assert applied("clip", {"min": -2.0, "max": 3.0}, [(4.0, 5.0)], "float32") == (3.0, 3.0)
    assert applied("clip", {"min": -2.0, "max": 3.0}, [None], "float32") is None


@pytest.mark.parametrize(
    ("x", "y", "equal"),
    [
        ((0.0, 0.0), (0.0, 0.0), (1.0, 1.0)),
        ((0.0, 1.0), (2.0, 3.0), (0.0, 0.0)),
        ((2.0, 3.0), (0.0, 1.0), (0.0, 0.0)),
        ((0.0, 1.0), (1.0, 2.0), (0.0, 1.0)),
        ((0.0, 1.0), (0.0, 0.0), (0.0, 1.0)),
        (None, (0.0, 0.0), (0.0, 1.0)),
    ],
)
def test_numbers_are_known_to_be_equal_or_different_by_their_bounds(x, y, equal):
    assert applied("equal", {}, [x, y], "bool") == equal
    assert applied("not_equal", {}, [x, y], "bool") == (1 - equal[1], 1 - equal[0])
