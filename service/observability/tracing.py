"""Traces of requests by OpenTelemetry: one trace from the header of a request to its answer, workers included.

    request                 from the header to the end of the answer; continues the trace of a `traceparent` header
      admission             wait at a gate
      decode                reading of the request
      <call>                one call to a worker, such as session.step
        queue, compile, transfer_in, compute, transfer_out
      encode                writing of the answer

Workers send their times with their answers, on the clock that all processes of a machine share, and the service makes
the spans: so a worker needs no exporter, no network and no memory for them. The exporter and the sampler have the
standard variables, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER. Without tracing, a request costs one
comparison more.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from service import __version__
from service.engine.memory import UnusableSettings
from service.engine.protocol import Reply
from service.logs import note
from service.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["TRACE", "RequestTrace", "Tracing", "open_tracing"]

GAP_S = 0.0005
FLUSH_MS = 2000


def open_tracing(settings: Settings) -> Tracing | None:
    """The traces of a service that asks for them, else None. Raises UnusableSettings without the packages."""
    if settings.tracing == "off":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UnusableSettings("tracing", f"install backpass[telemetry] for traces: {error}") from error
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "backpass"}
    provider = TracerProvider(resource=Resource.create({**named, "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class Tracing:
    """Makes the spans of a service."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._api = trace
        self._extract = TraceContextTextMapPropagator().extract
        self.tracer = provider.get_tracer("backpass", __version__)

    def begin(self, scope: Any, request_id: str) -> RequestTrace:
        """The trace of a request, which begins when its header arrived."""
        now, began = time.time_ns(), scope.get("arrived")
        carrier = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        start = now if began is None else now - (time.monotonic_ns() - began)
        span = self.tracer.start_span(
            scope["method"],
            context=self._extract(carrier) if carrier else None,
            kind=self._api.SpanKind.SERVER,
            start_time=start,
            attributes={"http.request.method": scope["method"], "backpass.request_id": request_id},
        )
        found = RequestTrace(self, span, now - time.monotonic_ns())
        found.part("admission", start, now)
        context = span.get_span_context()
        note(trace_id=f"{context.trace_id:032x}", span_id=f"{context.span_id:016x}")
        TRACE.set(found)
        return found

    def span(self, name: str, parent: Span, start: int, **attributes: Any) -> Span:
        """A new span inside `parent`. start: nanoseconds since 1970."""
        context = self._api.set_span_in_context(parent)
        return self.tracer.start_span(name, context=context, start_time=start, attributes=attributes)

    def fail(self, span: Span, reason: str) -> None:
        span.set_attribute("error.type", reason)
        span.set_status(self._api.StatusCode.ERROR, reason)

    def close(self) -> None:
        """Send the spans that wait, for 2 seconds at most. It blocks."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


class RequestTrace:
    """The spans of one request. Times are nanoseconds of the monotonic clock where nothing else is said."""

    def __init__(self, tracing: Tracing, span: Span, offset: int) -> None:
        """offset: what the clock of the day is ahead of the monotonic one."""
        self._tracing, self._span, self._offset = tracing, span, offset
        self._recording = span.is_recording()
        self._began = time.monotonic_ns()
        self._replied = 0

    def part(self, name: str, start: int, end: int, parent: Span | None = None, **attributes: Any) -> None:
        """A span of which both ends are known. start, end: nanoseconds since 1970."""
        if self._recording:
            parent = self._span if parent is None else parent
            self._tracing.span(name, parent, start, **attributes).end(max(start, end))

    def call(self, op: str, began: int, reply: Reply | None, failure: str = "") -> None:
        """A call to a worker has ended now, with a reply or a failure."""
        if not self._recording:
            return
        now, offset = time.monotonic_ns(), self._offset
        if not self._replied:
            self.part("decode", self._began + offset, began + offset)
        self._replied = now
        span = self._tracing.span(op, self._span, began + offset)
        if reply is None:
            self._tracing.fail(span, failure)
        else:
            span.set_attribute("backpass.worker", reply.worker)
            self._phases(span, began, reply)
        span.end(now + offset)

    def _phases(self, span: Span, began: int, reply: Reply) -> None:
        took = {phase: round(ms * 1e6) for phase, ms in reply.timing_ms.items()}
        at = began + self._offset
        self.part("queue", at, at + took.get("queue", 0), span)
        at += took.get("queue", 0)
        if not reply.started:
            return
        started = reply.started + self._offset
        if reply.compile_ms and started - at > GAP_S * 1e9:  # the call was parked meanwhile
            self.part("compile", at, started, span)
            took["compute"] -= min(took["compute"], started - at)
        for phase in ("transfer_in", "compute", "transfer_out"):
            end = started + took.get(phase, 0)
            compiled = {"backpass.compile_ms": reply.compile_ms} if phase == "compute" and reply.compile_ms else {}
            self.part(phase, started, end, span, **compiled)
            started = end

    def answering(self) -> None:
        """The answer begins now."""
        if self._replied:
            self.part("encode", self._replied + self._offset, time.monotonic_ns() + self._offset)

    def end(self, method: str, route: str, status: int, tenant: str) -> None:
        """The request has ended. route: the template of its path."""
        span = self._span
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        span.set_attribute("backpass.tenant", tenant)
        if status >= 500 or status == 499:
            self._tracing.fail(span, str(status))
        span.end()


TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
"""The trace of the current request; None without tracing."""
