"""Running sums, products and logarithms of many float32 numbers, as machine code and in the reference executor."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.runtime.reference import execute
from tests.core.codegen.stepwise import block_of, compiled

COUNT = 90_000
LAYOUTS = {"one row": ((-1,), 0), "rows": ((-1, 9_000), 1), "columns": ((9_000, -1), 0), "wide": ((300, -1), 0)}


def both(name: str, *values: np.ndarray, **attrs: Any) -> dict[str, np.ndarray]:
    """The result of one op as machine code and in the reference executor, in float64."""
    reference = execute(block_of(name, *values, **attrs), list(values))[0]
    return {
        "machine code": compiled(name, *values, **attrs).astype("float64"),
        "reference": reference.astype("float64"),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_running_sums_and_products_round_once(layout):
    shape, axis = LAYOUTS[layout]
    tenths = np.full(COUNT, np.float32(0.1)).reshape(shape)
    factors = np.full(COUNT, np.float32(1.0001)).reshape(shape)

    for out in both("cumsum", tenths, axis=axis).values():
        np.testing.assert_allclose(out, np.cumsum(tenths, axis, "float64"), rtol=6e-8)
    with np.errstate(over="ignore"):
        wanted = np.cumprod(factors, axis, "float64").astype("float32")
    for out in both("cumprod", factors, axis=axis).values():
        np.testing.assert_allclose(out, wanted, rtol=2e-7)


def test_a_running_sum_is_finite_again_after_an_overflow():
    x = np.float32([3e38, 3e38, -3e38, -2e38])

    with np.errstate(over="ignore"):
        wanted = np.cumsum(x, dtype="float64").astype("float32")
    assert np.isinf(wanted[1]) and np.isfinite(wanted[2:]).all()
    for out in both("cumsum", x).values():
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_recurrence_of_many_steps_is_precise(layout):
    shape, axis = LAYOUTS[layout]
    ones, tenths = (np.full(COUNT, np.float32(value)).reshape(shape) for value in (1, 0.1))

    for out in both("linear_scan", ones, tenths, axis=axis).values():
        np.testing.assert_allclose(out, np.cumsum(tenths, axis, "float64"), rtol=1e-6)


def test_a_recurrence_is_finite_again_after_an_overflow():
    a, b = np.float32([1, 1e30, 1e-30, 1, 1e-20]), np.float32([1e20, 0, 0, 0, 1])
    begins = np.array([True, False, False, False, False])

    for out in both("linear_scan", a, b, begins).values():
        np.testing.assert_allclose(out, [1e20, np.inf, 1e20, 1e20, 2], rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slope", [0.0, 1e-4, -1e-4, 3e-2])
def test_the_logarithm_of_a_running_sum_of_exponentials_is_precise(layout, slope):
    shape, axis = LAYOUTS[layout]
    x = (np.arange(COUNT) * slope).astype("float32").reshape(shape)

    wanted = np.logaddexp.accumulate(x.astype("float64"), axis)

    for out in both("logcumsumexp", x, axis=axis).values():
        np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_16_bit_results_are_rounded_once(dtype):
    a, b = np.random.default_rng(0).uniform(0.8, 1, (2, 1000)).astype(dtype)
    wide = a.astype("float64"), b.astype("float64")
    recurrence = np.zeros(1000)
    for t in range(1000):
        recurrence[t] = wide[0][t] * recurrence[t - 1] + wide[1][t]

    wanted = {
        "cumsum": (np.cumsum(wide[1]), b),
        "logcumsumexp": (np.logaddexp.accumulate(wide[1]), b),
        "linear_scan": (recurrence, a, b),
    }

    for name, (exact, *given) in wanted.items():
        found = execute(block_of(name, *given), given)[0].astype("float64")
        np.testing.assert_allclose(found, exact, rtol=0.51 * float(ml_dtypes.finfo(dtype).eps), err_msg=name)
