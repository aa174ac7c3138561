"""The metrics of the service, in base units. Labels never contain ids or text from clients."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service import __version__
from service.engine.protocol import Engine, Reply
from service.observability.histogram import Histogram
from service.observability.workers import EngineCollector

__all__ = ["Metrics"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BYTES = tuple(4.0**power for power in range(4, 16))
PHASES = ("queue", "transfer_in", "compute", "transfer_out")


class Metrics:
    """The instruments of one application, in their own registry. active: number of requests in progress."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._good: dict[str, Counter] = {}
        own: dict[str, Any] = {"registry": self.registry}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, **own)

        def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
            made = Histogram(name, text, labels, buckets=buckets)
            self.registry.register(made)
            return made

        self.requests = histogram(
            "http_server_request_duration_seconds",
            "Time from the start of the request to the end of the response.",
            "method",
            "route",
            "status",
        )
        self.active = 0
        Gauge("http_server_active_requests", "Requests in progress.", **own).set_function(lambda: self.active)
        self.body_bytes = histogram("http_server_request_body_bytes", "Size of request bodies.", "route", buckets=BYTES)
        self.phases = histogram("backpass_step_phase_seconds", "Time of a worker call by phase.", "phase")
        self.steps = counter(
            "backpass_steps", "Calls to workers by kind, outcome and reason of failure.", "kind", "outcome", "reason"
        )
        self.queue_wait = histogram("backpass_queue_wait_seconds", "Time a call waited for a worker.")
        self.sessions = Gauge("backpass_sessions", "Sessions by state.", ["state"], **own)
        self.tapes = Gauge("backpass_tapes", "Tapes by state.", ["state"], **own)
        self.recoveries = histogram("backpass_session_recovery_seconds", "Time to rebuild a session in a worker.")
        self.repeated_calls = counter("backpass_session_repeated_calls", "Calls of journals that were run again.")
        self.journal_seconds = histogram(
            "backpass_journal_seconds", "Time from the end of a call to the end of its journal entry."
        )
        self.compile_seconds = histogram("backpass_program_compile_seconds", "Time a call spent compiling programs.")
        self.cache_hits = counter("backpass_compile_cache_hits", "Calls whose program was already compiled.")
        self.cache_misses = counter("backpass_compile_cache_misses", "Calls whose program had to be compiled.")
        self.nonfinite_results = counter("backpass_nonfinite_results", "Results that contain NaN or infinity.")
        self.replays = counter("backpass_idempotency_replays", "Answers that were stored before and are sent again.")
        self.disconnects = counter(
            "backpass_client_disconnects", "Requests whose client disconnected before the response."
        )
        self.loop_lag = Gauge(
            "backpass_event_loop_lag_seconds", "Delay of the last scheduled wake-up of the event loop.", **own
        )
        info = Gauge(
            "backpass_build_info", "Version of the service as a label; the value is always 1.", ["version"], **own
        )
        info.labels(__version__).set(1)
        self.registry.register(EngineCollector(engine))
        ProcessCollector(registry=self.registry)

    def request(self, method: str, route: str, status: int, seconds: float, body_bytes: int) -> None:
        """Count an answered request, and the size of its body if it has one."""
        self.requests.observe(seconds, method, route, str(status))
        if body_bytes:
            self.body_bytes.observe(body_bytes, route)

    def reply(self, kind: str, reply: Reply) -> None:
        """Count a successful call to a worker and its phases. kind: the handler, such as "session.step"."""
        self._counted(kind)
        for phase in PHASES:
            if phase in reply.timing_ms:
                self.phases.observe(reply.timing_ms[phase] / 1e3, phase)
        self.queue_wait.observe(reply.timing_ms.get("queue", 0.0) / 1e3)
        if reply.compile_ms:
            self.compile_seconds.observe(reply.compile_ms / 1e3)

    def _counted(self, kind: str) -> None:
        good = self._good.get(kind)
        if good is None:  # cached, because `labels` is slow
            good = self._good[kind] = self.steps.labels(kind, "ok", "")
        good.inc()

    def failed(self, kind: str, reason: str) -> None:
        """Count a failed call to a worker. reason: a problem code."""
        self.steps.labels(kind, "error", reason).inc()

    def recovered(self, seconds: float, calls: int) -> None:
        """Count a rebuilt session. calls: of its journal that ran again."""
        self.recoveries.observe(seconds)
        self.repeated_calls.inc(calls)

    def cache(self, hit: bool) -> None:
        """Count one lookup in the cache of compiled programs."""
        (self.cache_hits if hit else self.cache_misses).inc()

    async def watch_event_loop(self, interval: float = 0.5) -> None:
        """Measure the delay of the event loop's wake-ups, until cancelled. Run it as a task."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval
            await asyncio.sleep(interval)
            self.loop_lag.set(max(0.0, loop.time() - due))

    def render(self) -> tuple[bytes, str]:
        """(page for /metrics, its content type)."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST
