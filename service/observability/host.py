"""Metrics of the service process and of its disk, read at each scrape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["HostCollector"]


class HostCollector(Collector):
    """The free space of the data directory, its floor, and whether the service is shutting down."""

    def __init__(self, directory: Path, floor: int, draining: Callable[[], bool]) -> None:
        """floor: bytes below which the service is not ready for work."""
        self._directory, self._floor, self._draining = directory, floor, draining

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "backpass_draining", "1 from the signal to end until the end, else 0.", float(self._draining())
        )
        yield GaugeMetricFamily(
            "backpass_disk_floor_bytes", "Free space below which the service is not ready for work.", self._floor
        )
        try:
            about = os.statvfs(self._directory)
        except OSError:  # readiness tells about a missing directory
            return
        free = float(about.f_bavail * about.f_frsize)
        yield GaugeMetricFamily("backpass_disk_free_bytes", "Free space of the data directory.", free)
