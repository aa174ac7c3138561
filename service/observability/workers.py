"""Metrics of the workers, read at each scrape, because workers are replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.engine.protocol import Engine, WorkerInfo

__all__ = ["EngineCollector"]

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
EVENTS = {
    "restart": ("backpass_worker_restarts", "Replaced worker processes by reason.", "reason"),
    "lost_sessions": ("backpass_lost_sessions", "Sessions and tapes in replaced workers by reason.", "reason"),
    "stopped": ("backpass_cancellations", "Calls stopped by a cancellation or a deadline.", "source"),
    "rejected": ("backpass_admission_rejections", "Calls refused by reason.", "reason"),
}


class EngineCollector(Collector):
    """The state of each worker, its memory and its processor time. The label worker is the number of its slot."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        workers = self._engine.workers()
        yield from _states(workers)
        yield from _resources(workers)
        yield GaugeMetricFamily("backpass_waiting_calls", "Calls that wait for a worker.", self._engine.waiting)
        families = {
            event: CounterMetricFamily(name, text, labels=[label]) for event, (name, text, label) in EVENTS.items()
        }
        for (event, reason), count in self._engine.events.items():
            families[event].add_metric([reason], count)
        yield from families.values()


def _states(workers: list[WorkerInfo]) -> Iterator[Metric]:
    columns: dict[str, tuple[str, list[float]]] = {
        "backpass_worker_up": (
            "1 if the worker accepts calls, else 0.",
            [w.state in ("idle", "busy") for w in workers],
        ),
        "backpass_worker_busy": ("1 if the worker runs a call, else 0.", [w.state == "busy" for w in workers]),
        "backpass_worker_sessions": ("Sessions and tapes in the worker.", [w.sessions for w in workers]),
        "backpass_worker_heartbeat_age_seconds": (
            "Time since the last heartbeat of the worker.",
            [w.heartbeat_age for w in workers],
        ),
        "backpass_queue_depth": ("Calls that wait for this worker only.", [w.queued for w in workers]),
        "backpass_worker_parked_calls": ("Calls that wait for a compilation.", [w.parked for w in workers]),
    }
    for name, (text, values) in columns.items():
        gauge = GaugeMetricFamily(name, text, labels=["worker"])
        for worker, value in zip(workers, values, strict=True):
            gauge.add_metric([str(worker.slot)], float(value))
        yield gauge


def _resources(workers: list[WorkerInfo]) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "backpass_worker_memory_bytes",
        "Memory of the worker: private (what its limit counts), resident, and the limit.",
        labels=["worker", "kind"],
    )
    spent = CounterMetricFamily(
        "backpass_worker_cpu_seconds", "Processor time of the worker process that runs now.", labels=["worker"]
    )
    device = GaugeMetricFamily(
        "backpass_gpu_memory_bytes",
        "Memory of the worker's GPU: total, used by any process, and free in the pool of the worker.",
        labels=["worker", "kind"],
    )
    for worker in workers:
        slot = str(worker.slot)
        found = None if worker.pid is None else _process(worker.pid)
        if found is not None:
            private, resident, seconds = found
            memory.add_metric([slot, "private"], private)
            memory.add_metric([slot, "resident"], resident)
            spent.add_metric([slot], seconds)
        if worker.memory_limit is not None:
            memory.add_metric([slot, "limit"], worker.memory_limit)
        if worker.device_memory[0]:
            for kind, size in zip(("total", "used", "pool_free"), worker.device_memory, strict=True):
                device.add_metric([slot, kind], size)
    yield from (memory, spent, device)


def _process(pid: int) -> tuple[int, int, float] | None:
    """(bytes of private memory, resident bytes, seconds of processor time) of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            pages = file.read().split()
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
    except (OSError, IndexError):
        return None
    resident, shared = int(pages[1]), int(pages[2])
    return (resident - shared) * PAGE, resident * PAGE, (int(fields[11]) + int(fields[12])) / TICKS
