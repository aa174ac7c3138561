"""Clipping and unscaling of gradients: at the limit, beyond the range of float16, and with infinities."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ExecutionError
from tests.programs import Sketch, close, grads, step


def clipped(value: object, max_norm: float, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    s = Sketch()
    s.param("x", value, dtype)
    s.op("clip_by_norm", "x", out="y", max_norm=max_norm)
    s.total(s.op("cast", "y", dtype="float64"))
    return step(s, ["y"]).fetched["y"], grads(s)["x"]


@pytest.mark.parametrize(
    ("value", "max_norm", "out", "gradient"),
    [
        ([0.0, 0.0], 1.0, [0, 0], [1, 1]),
        ([3.0, 4.0], 5.0, [3, 4], [1, 1]),
        ([3.0, 4.0], 6.0, [3, 4], [1, 1]),
        ([3.0, 4.0], 1.0, [0.6, 0.8], [0.2 * (1 - 0.6 * 1.4), 0.2 * (1 - 0.8 * 1.4)]),
        ([np.inf, 4.0], 1.0, [np.inf, 4], [1, 1]),
    ],
)
def test_clip_by_norm_includes_the_gradient_of_the_norm(value, max_norm, out, gradient):
    found = clipped(value, max_norm)

    close(found[0], out, 1e-12)
    close(found[1], gradient, 1e-12)


def test_float16_values_are_clipped_even_if_their_squares_overflow():
    found, _ = clipped([3000.0, 4000.0], 5.0, "float16")

    close(found, [3, 4], 1e-3)
    assert found.dtype == np.float16


def test_a_nonfinite_value_is_an_error_with_a_location():
    s = Sketch()
    s.param("x", [0.0, 1.0])
    s.total(s.op("check_finite", s.op("log", "x")))

    with pytest.raises(ExecutionError) as error:
        step(s)
    assert error.value.code == "not_finite"
    assert error.value.location is not None and error.value.location.op == 1


def test_unscaling_reports_nonfinite_values():
    s = Sketch()
    s.feed("scale", 4.0)
    s.param("x", [8.0, 2.0])
    s.param("y", [np.nan])
    s.op("unscale", "scale", ["x", "y"], out=["u", "v", "found"])
    s.total("u")
    out = step(s, ["u", "found"])

    close(out.fetched["u"], [2, 0.5])
    assert bool(out.fetched["found"])
    close(out.gradients["x"], [0.25, 0.25])
