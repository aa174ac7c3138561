"""Random arrays shaped like another array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from core.compiler.compile import GradientQuery, compile_gradient
from core.ir.errors import ProgramError
from core.wire import read
from tests.core.ops.test_random_ops import MANY, draw

LIKE: dict[str, dict[str, Any]] = {
    "uniform_random": {"min": -2.0, "max": 3.0},
    "gaussian_random": {"mean": 1.0, "std": 2.0},
    "truncated_gaussian": {"mean": 1.0, "std": 0.5},
    "exponential": {"rate": 2.5},
    "randint": {"low": -3, "high": 9},
}


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 4), (MANY,)])
def test_the_numbers_are_those_of_the_op_that_takes_a_shape(name, shape):
    dtype = "int32" if name == "randint" else "float64"
    wanted = draw(name, shape=shape, dtype=dtype, seed=3, **LIKE[name])

    found = draw(f"{name}_like", np.zeros(shape, dtype), seed=3, **LIKE[name])

    np.testing.assert_array_equal(found, wanted)
    assert (found.shape, found.dtype) == (shape, wanted.dtype)


@pytest.mark.parametrize("name", LIKE)
def test_a_given_dtype_replaces_that_of_x(name):
    dtype = "int32" if name == "randint" else "float32"
    found = draw(f"{name}_like", np.zeros((2, 3), "int64"), dtype=dtype, **LIKE[name])
    assert (found.shape, found.dtype.name) == ((2, 3), dtype)


def test_uniform_noise_is_from_0_to_1_unless_a_range_is_given():
    found = draw("uniform_random_like", np.zeros(MANY))
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_each_bernoulli_element_is_1_with_the_given_probability():
    found = draw("bernoulli_like", np.zeros((MANY,), "float32"), p=0.3)

    assert found.dtype == np.float32 and set(np.unique(found)) == {0.0, 1.0}
    assert stats.binomtest(int(found.sum()), MANY, 0.3).pvalue > 1e-3


@pytest.mark.parametrize(
    ("name", "x", "wanted"),
    [
        ("gaussian_random", np.zeros(2, "int64"), "not int64: give dtype|float dtype, not int64"),
        ("randint", np.zeros(2), "randint_like gives int32 or int64, not float64: give dtype"),
    ],
)
def test_a_dtype_that_the_op_cannot_draw_is_refused(name, x, wanted):
    with pytest.raises(ProgramError, match=wanted):
        draw(f"{name}_like", x, **LIKE[name])


def test_bernoulli_noise_needs_a_float_dtype():
    with pytest.raises(ProgramError, match="gives floats, not int64"):
        draw("bernoulli_like", np.zeros(2, "int64"))


@pytest.mark.parametrize("name", [*LIKE, "bernoulli"])
def test_noise_fits_a_batch_of_any_length(name):
    """loss = sum(w * x + noise): the noise adds nothing to the gradient, which is the sum of x."""
    attrs = {**LIKE.get(name, {}), "dtype": "int64" if name == "randint" else "float32"}
    document = {
        "blocks": [
            {
                "idx": 0,
                "parent_idx": -1,
                "vars": [
                    {"name": "x", "dtype": "float32", "shape": [-1, 2], "role": "feed"},
                    {"name": "w", "dtype": "float32", "shape": [2], "role": "parameter"},
                ],
                "ops": [
                    {"type": f"{name}_like", "inputs": {"x": ["x"]}, "outputs": {"out": ["drawn"]}, "attrs": attrs},
                    {
                        "type": "cast",
                        "inputs": {"x": ["drawn"]},
                        "outputs": {"out": ["noise"]},
                        "attrs": {"dtype": "float32"},
                    },
                    {"type": "mul", "inputs": {"x": ["x"], "y": ["w"]}, "outputs": {"out": ["y"]}},
                    {"type": "add", "inputs": {"x": ["y"], "y": ["noise"]}, "outputs": {"out": ["z"]}},
                    {"type": "reduce_sum", "inputs": {"x": ["z"]}, "outputs": {"out": ["loss"]}},
                ],
            }
        ]
    }
    step = compile_gradient(read(document), GradientQuery(loss="loss"), fetch=["noise"])
    for rows in (0, 1, 5):
        x = np.arange(2.0 * rows, dtype="float32").reshape(rows, 2)
        found, again, other = (step.step({"x": x, "w": np.ones(2, "float32")}, seed=seed) for seed in (1, 1, 2))
        assert found.fetched["noise"].shape == (rows, 2)
        np.testing.assert_array_equal(found.gradients["w"], x.sum(0))
        np.testing.assert_array_equal(found.fetched["noise"], again.fetched["noise"])
        assert rows < 5 or not np.array_equal(found.fetched["noise"], other.fetched["noise"])
