"""Traces: one for each request, from its header over the worker to its answer."""

from __future__ import annotations

import builtins
import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from starlette.testclient import TestClient

from service.app import create_app
from service.cli.main import main
from service.observability.tracing import Tracing, open_tracing
from service.settings import Settings
from tests.paths import ROOT
from tests.service.wire import opened, regression, tensors

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SKETCH = regression()
FEEDS = tensors({name: SKETCH.values[name] for name in ("x", "y")})


def traced(tmp_path: Any, act: Any, sampler: Sampler | None = None) -> list[ReadableSpan]:
    """The spans of the requests that act(client) sends. A session compiles its step when it opens."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    settings = Settings(data_dir=tmp_path, device="cpu", workers=1, compile="always")
    with TestClient(create_app(settings, tracing=Tracing(provider)), base_url="http://localhost") as client:
        act(client)
        return list(exporter.get_finished_spans())


def test_a_step_is_one_trace_whose_spans_lie_inside_their_parents(tmp_path: Any) -> None:
    before = time.time_ns()

    def act(client: Any) -> None:
        with opened(client, SKETCH) as session:
            for _ in range(2):
                assert client.post(
                    f"{session}/steps", json={"feeds": FEEDS}, headers={"traceparent": PARENT, "request-id": "mine"}
                ).is_success
        assert client.get("/v1/programs/prg_" + "a" * 26).status_code == 404

    spans = traced(tmp_path, act)

    steps = [span for span in spans if span.name == "POST /v1/sessions/{session_id}/steps"]
    assert len(steps) == 2
    request = steps[1]
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == "b7ad6b7169203331"
    assert request.attributes is not None
    assert request.attributes["backpass.request_id"] == "mine"
    assert request.attributes["http.response.status_code"] == 200
    trace = [span for span in spans if f"{span.context.trace_id:032x}" == PARENT[3:35]]
    children: dict[int, list[ReadableSpan]] = {}
    for span in trace:
        assert span.parent is not None
        children.setdefault(span.parent.span_id, []).append(span)
    inside = {span.name: span for span in children[request.context.span_id]}
    assert list(inside) == ["admission", "decode", "session.step", "encode"]
    (compile,) = [span for span in spans if span.name == "compile"]
    (opening,) = [span for span in spans if compile.parent and span.context.span_id == compile.parent.span_id]
    compiling = [span for span in spans if span.parent and span.parent.span_id == opening.context.span_id]
    assert [span.name for span in compiling] == ["queue", "compile", "transfer_in", "compute", "transfer_out"]
    phases = children[inside["session.step"].context.span_id]
    assert [span.name for span in phases] == ["queue", "transfer_in", "compute", "transfer_out"]
    slack = 1_000_000  # the clocks are read one after another
    for parent, found in ((request, list(inside.values())), (opening, compiling), (inside["session.step"], phases)):
        for span in found:
            assert before < parent.start_time - slack < span.start_time + slack  # type: ignore[operator]
            assert parent.start_time - slack <= span.start_time <= span.end_time <= parent.end_time + slack  # type: ignore[operator]
        assert [span.start_time for span in found] == sorted(span.start_time for span in found)  # type: ignore[type-var]


def test_a_failed_call_and_a_failed_request_are_marked(tmp_path: Any) -> None:
    def act(client: Any) -> None:
        with opened(client, SKETCH) as session:
            assert client.post(f"{session}/steps", json={"feeds": {}}).status_code == 422

    spans = traced(tmp_path, act)

    (step,) = [span for span in spans if span.name == "session.step"]
    assert not step.status.is_ok
    (request,) = [span for span in spans if span.name.endswith("/steps")]
    assert request.status.is_unset  # the fault of a client


def test_a_sampler_that_is_off_records_no_span(tmp_path: Any) -> None:
    assert traced(tmp_path, lambda client: client.get("/v1"), ALWAYS_OFF) == []


def test_without_the_setting_nothing_is_imported() -> None:
    program = (
        "import sys; from service.app import create_app; from service.settings import Settings\n"
        "create_app(Settings()); sys.exit('opentelemetry.sdk' in sys.modules)"
    )

    assert open_tracing(Settings()) is None
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def test_without_the_packages_the_service_does_not_start(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setenv("BACKPASS_TRACING", "otlp")
    monkeypatch.setenv("BACKPASS_DATA_DIR", str(tmp_path))

    assert main(["serve", "--port", "0"]) == 2
    assert capsys.readouterr().err.startswith("BACKPASS_TRACING: install backpass[telemetry]")


def test_the_exporter_follows_the_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.invalid:4318")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer")

    tracing = open_tracing(Settings(tracing="otlp"))

    assert tracing is not None
    provider = tracing._provider
    processor: Any = provider._active_span_processor._span_processors[0]
    assert processor.span_exporter._endpoint == "http://collector.invalid:4318/v1/traces"
    assert provider.resource.attributes["service.name"] == "trainer"
    provider.shutdown()
