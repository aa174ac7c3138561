"""Percentiles of durations against sorted lists."""

from __future__ import annotations

import math
import random

import pytest

from service.observability.statistics import duration

BOUNDS = (0.001, 0.01, 0.1, 1.0)


def test_without_observations_there_are_no_percentiles():
    assert duration({}, 0.0) == {"count": 0, "mean": None, "median": None, "p95": None}
    assert duration(dict.fromkeys((*BOUNDS, math.inf), 0.0), 0.0)["median"] is None


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 500])
def test_a_percentile_is_the_upper_bound_of_its_interval(count):
    values = sorted(random.Random(count).uniform(0.0, 3.0) ** 4 for _ in range(count))
    found = duration({b: sum(v <= b for v in values) for b in (*BOUNDS, math.inf)}, sum(values))

    def bound(share: float) -> float:
        value = values[math.ceil(share * count) - 1]
        return min((b for b in BOUNDS if value <= b), default=BOUNDS[-1])

    assert found["count"] == count
    assert found["mean"] == pytest.approx(sum(values) / count)
    assert (found["median"], found["p95"]) == (bound(0.5), bound(0.95))
