"""A Prometheus histogram for one thread, ten times faster than the one of the client library."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["Histogram"]


class Histogram(Collector):
    """Counts of observations by bucket, for each observed combination of labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        """buckets: increasing upper bounds, inclusive. Larger values fall into one more bucket."""
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._bounds = tuple(buckets)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        if not labels:
            self._empty(())

    def observe(self, value: float, *labels: str) -> None:
        """Count `value` under `labels`, one value for each label name. Raises ValueError for another number of them."""
        counts = self._counts.get(labels)
        if counts is None:
            if len(labels) != len(self._labels):
                raise ValueError(f"{self._name} has the labels {self._labels}, not {labels}")
            counts = self._empty(labels)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def _empty(self, labels: tuple[str, ...]) -> list[int]:
        self._sums[labels] = 0.0
        counts = self._counts[labels] = [0] * (len(self._bounds) + 1)
        return counts

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(labels, buckets, self._sums[labels])
        yield family
