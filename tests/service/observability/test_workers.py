"""Metrics of workers: memory of GPUs, and processes that have just ended."""

from __future__ import annotations

import os
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from service.engine.protocol import WorkerInfo
from service.ipc.signal_page import PAGE_BYTES, SignalPage
from service.observability.workers import EngineCollector
from service.worker.main import _measure_device

GIB = 2**30


def page_of(**worker: Any) -> str:
    common = {
        "id": "wrk_a", "slot": 0, "generation": 1, "device": "cuda", "state": "idle", "pid": None, "restarts": 0,
        "sessions": 0, "heartbeat_age": 0.1, "queued": 0, "last_fatal": None,
    }  # fmt: skip
    engine: Any = SimpleNamespace(
        workers=lambda: [WorkerInfo(**{**common, **worker})], waiting=0, events=Counter({("restart", "crash"): 2})
    )
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine))
    return generate_latest(registry).decode()


def test_a_worker_reports_the_memory_of_its_gpu_through_the_signal_page() -> None:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, PAGE_BYTES)
    theirs, ours = SignalPage(descriptor), SignalPage(descriptor)
    os.close(descriptor)
    runtime = SimpleNamespace(memGetInfo=lambda: (30 * GIB, 80 * GIB))
    xp = SimpleNamespace(
        cuda=SimpleNamespace(runtime=runtime), get_default_memory_pool=lambda: SimpleNamespace(free_bytes=lambda: GIB)
    )
    assert ours.device_memory == (0, 0, 0)

    _measure_device(theirs, xp, interval=0, rounds=1)

    assert ours.device_memory == (80 * GIB, 50 * GIB, GIB)
    assert (ours.cancelled, ours.heartbeat) == (0, 0)  # the words beside it
    ours.close()
    theirs.close()


def test_the_memory_of_a_gpu_is_a_metric_by_kind() -> None:
    page = page_of(device_memory=(80 * GIB, 50 * GIB, GIB))

    for kind, size in (("total", 80), ("used", 50), ("pool_free", 1)):
        found = re.search(rf'^backpass_gpu_memory_bytes\{{kind="{kind}",worker="0"\}} (\S+)$', page, re.M)
        assert found is not None
        assert float(found[1]) == size * GIB
    assert "backpass_gpu_memory_bytes{" not in page_of()
    assert 'backpass_worker_restarts_total{reason="crash"} 2.0' in page


def test_a_worker_that_has_just_ended_has_no_memory() -> None:
    assert 'kind="resident"' in page_of(pid=os.getpid())
    assert 'kind="resident"' not in page_of(pid=2**22 + 1)
