"""The fast histogram gives the same samples as the one of the client library."""

from __future__ import annotations

import random

import prometheus_client
import pytest

from service.observability.histogram import Histogram

BOUNDS = (0.001, 0.5, 1.0, 10.0)


@pytest.mark.parametrize("names", [(), ("route",), ("method", "status")])
def test_the_histogram_exports_the_same_samples_as_the_client_library(names: tuple[str, ...]):
    ours, theirs = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    fast = Histogram("some_seconds", "Time.", names, buckets=BOUNDS)
    ours.register(fast)
    slow = prometheus_client.Histogram("some_seconds", "Time.", names, buckets=BOUNDS, registry=theirs)
    assert page(ours) == page(theirs)
    rng = random.Random(7)

    for value in [*BOUNDS, 0.0, 11.0, *(rng.lognormvariate(0, 3) for _ in range(200))]:
        labels = [rng.choice("abc") for _ in names]
        fast.observe(value, *labels)
        (slow.labels(*labels) if names else slow).observe(value)

    assert page(ours) == page(theirs)


def page(registry: prometheus_client.CollectorRegistry) -> list[str]:
    text = prometheus_client.generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if "_created" not in line)
