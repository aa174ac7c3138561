"""Curves are stored without loss and shown with fewer points."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from service.formats import json_tensors as wire
from service.jobs.curves import Row, joined, mean, packed, thinned, unpacked
from service.jobs.early_stop import EarlyStop, Judged


def listed(values: np.ndarray) -> list[float | None]:
    """The values as clients get them."""
    return json.loads(wire.dumps(values))


def test_columns_come_back_with_nan_for_values_that_are_not_finite():
    found = unpacked(packed({"a": [0.1, None, 3], "b": []}))
    assert found["a"].tolist()[::2] == [0.1, 3.0]
    assert math.isnan(found["a"][1])
    assert listed(found["a"]) == [0.1, None, 3.0]
    assert found["b"].size == 0


def test_rows_with_other_columns_are_joined():
    steps, columns = joined([Row(1, 2, {"a": np.array([1.0, 2.0])}), Row(3, 1, {"b": np.array([5.0])})])
    assert steps.tolist() == [1, 2, 3]
    assert listed(columns["a"]) == [1.0, 2.0, None]
    assert listed(columns["b"]) == [None, None, 5.0]
    assert joined([])[0].tolist() == []


@pytest.mark.parametrize(("count", "points"), list(itertools.product((1, 5, 10, 97), (1, 2, 3, 10, 100))))
def test_thinned_curves_have_the_mean_of_each_range(count, points):
    values = np.random.default_rng(count).standard_normal(count)
    values[count // 2] = np.nan
    steps, found = thinned(np.arange(1, count + 1), {"a": values}, points)
    assert len(steps) == len(found["a"]) == min(points, count)
    assert steps[-1] == count
    start = 0
    for end, value in zip(steps.tolist(), found["a"].tolist(), strict=True):
        finite = [each for each in values[start:end].tolist() if math.isfinite(each)]
        if finite:
            assert value == pytest.approx(sum(finite) / len(finite))
        else:
            assert math.isnan(value)
        start = end


@pytest.mark.parametrize("value", [0.01, 0.1, 1e308, -1e308, 5e-324])
def test_the_mean_of_equal_values_is_that_value(value):
    _, found = thinned(np.arange(1, 1001), {"a": np.full(1000, value)}, 7)

    assert found["a"].tolist() == [value] * 7


def test_a_mean_does_not_depend_on_the_order():
    values = [1e16, 1.0, -1e16, 3.0]
    assert mean(values) == mean(values[::-1]) == 1.0
    assert mean([math.nan, 2.0]) == 2.0
    assert mean([]) is None


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_rule_ends_after_patience_judgements_without_an_improvement(mode):
    sign = 1 if mode == "min" else -1
    rule, judged = EarlyStop("loss", 2, 0.1, mode), Judged()
    values = [1.0, 0.95, 0.8, 0.75, None, 0.1]
    ends = [judged.add(rule, None if v is None else sign * v, i) for i, v in enumerate(values)]
    assert ends == [False, False, False, False, True, False]
    assert (judged.best, judged.best_step, judged.since) == (sign * 0.1, 5, 0)
