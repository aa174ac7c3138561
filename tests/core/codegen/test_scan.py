"""Running sums, products, extremes and recurrences equal numpy's in float64, for rows of any length on any axis."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.codegen.stepwise import compiled

SHAPES = [(1,), (7,), (3, 1), (4, 5, 16), (2, 3, 21), (2, 33, 2), (3, 1, 300), (5, 50), (75, 37), (140, 4), (270, 19)]


def values(shape, dtype="float32"):
    return np.random.default_rng(0).uniform(-1.5, 1.5, shape).astype(dtype)


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cumulative_sums_and_products_equal_numpys_to_the_bit(shape, axis, dtype):
    x = values(shape, dtype)

    np.testing.assert_array_equal(compiled("cumsum", x, axis=axis), np.cumsum(x, axis, "float64").astype(dtype))
    np.testing.assert_array_equal(compiled("cumprod", x, axis=axis), np.cumprod(x, axis, "float64").astype(dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("inner", [16, 17, 40, 128, 300, 1000])
@pytest.mark.parametrize("outer", [1, 9])
def test_scans_of_wide_rows_equal_numpys_to_the_bit(outer, inner):
    x = values((outer, 5, inner))

    np.testing.assert_array_equal(compiled("cumsum", x, axis=1), np.cumsum(x, 1, "float64").astype("float32"))
    best = np.maximum.accumulate(x, 1)
    np.testing.assert_array_equal(np.take_along_axis(x, compiled("running_argmax", x, axis=1, sign="max"), 1), best)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 21), (150, 21)])
def test_exclusive_and_reversed_sums_leave_out_an_element_and_start_at_the_end(shape):
    x = values(shape)

    found = compiled("cumsum", x, axis=-1, exclusive=True, reverse=True)

    backwards = np.flip(np.cumsum(np.flip(x, -1), -1, "float64"), -1).astype("float32")
    wanted = np.concatenate([backwards[..., 1:], np.zeros_like(x[..., :1])], -1)
    np.testing.assert_array_equal(found, wanted)


def test_integers_wrap_around():
    x = np.array([2**31 - 1, 1, 5], "int32")

    np.testing.assert_array_equal(compiled("cumsum", x), np.cumsum(x, dtype="int32"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrence_equals_a_loop(shape, reverse):
    a, b = values(shape, "float64"), values(shape, "float64") + 1
    steps = range(shape[-1])
    wanted, state = np.empty_like(b), np.zeros(shape[:-1])
    for t in reversed(steps) if reverse else steps:
        state = wanted[..., t] = a[..., t] * state + b[..., t]

    np.testing.assert_allclose(compiled("linear_scan", a, b, axis=-1, reverse=reverse), wanted, rtol=1e-14)


@pytest.mark.sampled(2, each="axis")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_a_recurrence_begins_again_even_after_an_infinity(shape, reverse, axis):
    a, b = values(shape, "float64"), values(shape, "float64") + 1
    begins = np.arange(shape[axis]) % 3 == 0
    np.moveaxis(b, axis, 0)[1::3] = np.inf
    np.moveaxis(a, axis, 0)[begins] = np.nan
    steps, wanted = range(shape[axis]), np.empty_like(b)
    rows, factors, state = np.moveaxis(wanted, axis, 0), np.moveaxis(a, axis, 0), 0.0
    for t in reversed(steps) if reverse else steps:
        given = np.moveaxis(b, axis, 0)[t]
        state = rows[t] = given if begins[t] else factors[t] * state + given

    found = compiled("linear_scan", a, b, begins, axis=axis, reverse=reverse)

    assert np.isfinite(rows[begins]).all()
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_running_logarithms_of_sums_handle_infinities_and_large_numbers(dtype):
    x = np.array([-np.inf, -np.inf, 1.0, 80.0, -np.inf, 81.0, 81.0, np.inf, 3.0], dtype)

    found = compiled("logcumsumexp", x)

    np.testing.assert_allclose(found, np.logaddexp.accumulate(x), rtol=1e-6 if dtype == "float32" else 1e-14)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sign", ["max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("shape", "dtype"), [((12, 19), "float32"), ((140, 37), "float32"), ((70, 21), "float64")])
def test_running_positions_of_extremes_keep_the_first_of_equals_and_stay_at_a_nan(sign, axis, shape, dtype):
    x = np.round(values(shape, dtype), 1)
    x[:, 0] = -np.inf if sign == "max" else np.inf
    x[3, 4] = np.nan
    rows = x if axis else x.T
    wanted = np.zeros(rows.shape, int)
    for r, row in enumerate(rows):
        at = 0
        for t, value in enumerate(row):
            better = value > row[at] if sign == "max" else value < row[at]
            if (better or np.isnan(value)) and not np.isnan(row[at]):
                at = t
            wanted[r, t] = at

    found = compiled("running_argmax", x, axis=axis, sign=sign)

    np.testing.assert_array_equal(found, wanted if axis else wanted.T)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 70, 257, 270])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logarithms_of_running_sums_of_some_rows(rows, dtype):
    x = 40 * values((rows, 9), dtype)
    x[:, 3] = -np.inf

    found = compiled("logcumsumexp", x, axis=1)

    wanted = np.logaddexp.accumulate(x.astype("float64"), 1)
    np.testing.assert_allclose(found, wanted, 2e-6 if dtype == "float32" else 1e-14)
