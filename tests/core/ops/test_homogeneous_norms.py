"""Norms of large and small numbers: a norm is homogeneous, so all follows from the norm of numbers around 1."""

from __future__ import annotations

import numpy as np
import pytest

from core.compiler.compile import GradientQuery, compile_gradient
from core.wire import read
from tests.programs import Sketch

X = np.array([[1.0, -2.0, 0.75, 0.0], [1.25, 3.0, -0.5, 2.0]])
W = np.array([[0.5, -1.0, 0.25, 1.0], [1.0, 0.5, 2.0, -0.5]])
FAR = {"float64": 2.0**600, "float32": 2.0**70, "float16": 2.0**9}
"""Factors whose third powers leave the dtype."""


def derivatives(x: np.ndarray, p: float, dtype: str, machine_code: bool) -> list[np.ndarray]:
    """The p-norms of the rows of x, their gradient, and the gradient of its product with W."""
    s = Sketch()
    s.feed("x", x, dtype)
    s.feed("w", W, dtype)
    lengths = s.op("norm", "x", p=p, axes=[1])
    inner = {"inputs": {"targets": [lengths], "inputs": ["x"]}, "outputs": {"out": ["dx"]}}
    s.document["blocks"][0]["ops"].append({"type": "gradients", **inner})
    s.op("reduce_sum", s.op("mul", "dx", "w"), out="loss")
    executable = compile_gradient(read(s.document), GradientQuery(targets=("loss",), inputs=("x",)), (lengths, "dx"))
    if machine_code:
        executable = executable.compiled()
    found = executable.step({"x": x.astype(dtype), "w": W.astype(dtype)})
    return [found.fetched[lengths], found.fetched["dx"], found.gradients["x"]]


@pytest.mark.sampled(2, each="dtype")
@pytest.mark.parametrize("machine_code", [False, True], ids=["reference", "machine code"])
@pytest.mark.parametrize("dtype", FAR)
@pytest.mark.parametrize("p", [3.0, 2.5, 1.5, -2.0])
def test_norms_and_their_derivatives_follow_a_factor_of_all_numbers(p, dtype, machine_code):
    x = np.where(X == 0, 0.125, X) if p < 0 else X
    value, gradient, second = derivatives(x, p, dtype, machine_code)
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 5e-3}[dtype]

    for factor in (FAR[dtype], 1 / FAR[dtype]):
        for found, wanted in zip(
            derivatives(x * factor, p, dtype, machine_code), (value * factor, gradient, second / factor), strict=True
        ):
            scale = np.abs(wanted.astype("float64")).max()
            np.testing.assert_allclose(found.astype("float64"), wanted.astype("float64"), tolerance, tolerance * scale)


def test_the_norm_of_a_row_with_an_infinity_is_infinite_and_with_a_nan_is_nan():
    x = np.array([[np.inf, 1.0], [np.nan, 1.0], [0.0, 0.0], [3.0, 4.0]])
    s = Sketch()
    s.feed("x", x)
    lengths, inverse = s.op("norm", "x", p=3.0, axes=[1]), s.op("norm", "x", p=-2.0, axes=[1])
    s.op("reduce_sum", lengths, out="loss")

    found = compile_gradient(read(s.document), GradientQuery(loss="loss"), (lengths, inverse)).step({"x": x}).fetched

    np.testing.assert_allclose(found[lengths], [np.inf, np.nan, 0.0, 91 ** (1 / 3)])
    np.testing.assert_allclose(found[inverse], [1.0, np.nan, 0.0, 2.4])
