"""Histograms of a session's arrays equal those of numpy, for every type and value."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.ir.errors import ProgramError
from service.worker import histograms
from service.worker.histograms import histogram

RNG = np.random.default_rng(5)
CASES: dict[str, np.ndarray] = {
    "float32": RNG.standard_normal((40, 30)).astype("float32"),
    "float64": RNG.standard_normal(1000),
    "float16": RNG.standard_normal(333).astype("float16"),
    "bfloat16": RNG.standard_normal(333).astype(ml_dtypes.bfloat16),
    "int64": RNG.integers(-50, 50, (7, 9)),
    "bool": RNG.integers(0, 2, 30).astype(bool),
    "complex": RNG.standard_normal(50) + 1j * RNG.standard_normal(50),
    "constant": np.full((4, 4), 2.5, "float32"),
    "scalar": np.array(3.0),
    "several chunks": RNG.standard_normal(3 * histograms.CHUNK // 2).astype("float32"),
}


def answered(bins: int = 40, names: Any = None, **arrays: np.ndarray) -> Any:
    session = SimpleNamespace(parameters=arrays, states={}, about=lambda: {"step": 1})
    state: Any = SimpleNamespace(sessions={"s": session}, to_host=lambda array: array)
    return histogram(state, {"id": "s", "names": names, "bins": bins}, {})[0]["histograms"]


@pytest.mark.parametrize("case", CASES)
def test_counts_and_moments_equal_those_of_numpy(case):
    array = CASES[case]
    (found,) = answered(x=array)
    values = (np.abs(array) if array.dtype.kind == "c" else array).astype("float64").reshape(-1)

    assert sum(found["counts"]) == found["count"] == values.size
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-9, abs=1e-12)
    assert found["std"] == pytest.approx(values.std(), rel=1e-9, abs=1e-12)
    assert found["zeros"] == (values == 0).sum()
    if values.min() < values.max():
        wanted, _ = np.histogram(values, 40)
        assert np.abs(np.cumsum(found["counts"]) - np.cumsum(wanted)).max() <= (case != "float32") * values.size // 20
        assert np.abs(np.array(found["counts"]) - wanted).sum() <= 2 * (case in ("int64", "bool")) * values.size


def test_values_that_are_not_finite_are_counted_apart():
    (found,) = answered(4, x=np.array([1.0, math.nan, math.inf, -math.inf, 3.0, math.nan]))

    assert (found["nan"], found["infinite"], found["count"]) == (2, 2, 6)
    assert (found["min"], found["max"], found["mean"], found["std"]) == (1.0, 3.0, 2.0, 1.0)
    assert found["counts"] == [1, 0, 0, 1]


def test_an_array_without_finite_elements_has_no_range():
    for array in (np.array([math.nan]), np.zeros((0, 3))):
        (found,) = answered(x=array)
        assert (found["min"], found["max"], found["mean"], found["std"], found["counts"]) == (
            None,
            None,
            None,
            None,
            [],
        )


def test_the_largest_range_does_not_overflow():
    most = np.finfo("float64").max
    (found,) = answered(4, x=np.array([-most, 0.0, most]))

    assert found["counts"] == [1, 0, 1, 1]
    assert found["mean"] == 0.0
    assert found["std"] == pytest.approx(most * math.sqrt(2 / 3))


def test_named_arrays_are_answered_in_order_and_unknown_names_are_refused():
    arrays = {"a": np.ones(2), "b": np.zeros(3)}

    assert [each["name"] for each in answered(names=["b", "a"], **arrays)] == ["b", "a"]
    with pytest.raises(ProgramError, match="'aa'"):
        answered(names=["aa"], **arrays)
