"""Headers and metrics of every answer, and the cancellation of calls whose client has disconnected."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from starlette.responses import Response
from starlette.testclient import TestClient

from service import problems
from service.engine.protocol import WorkerInfo
from service.http.middleware import READ_AHEAD_BYTES, install
from service.observability.metrics import Metrics

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class OneWorker:
    """An engine that only the metrics read."""

    waiting = 3
    events = Counter({("restart", "crash"): 2, ("stopped", "cancel"): 1})

    def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo("wrk_1", 0, 1, "cpu", "idle", 7, 2, 5, 0.1, 4, None, 6)]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(OneWorker())


@pytest.fixture
def app(metrics: Metrics) -> FastAPI:
    app = FastAPI()
    problems.install(app)
    install(app, metrics)

    @app.get("/things/{thing}")
    async def read(thing: str) -> Response:
        return Response("x", headers={"Cache-Control": "private", "Content-Security-Policy": "sandbox"})

    app.state.outcomes, app.state.works = [], asyncio.Event()

    @app.post("/work")
    async def work() -> None:
        app.state.works.set()
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            app.state.outcomes.append("cancelled")
            raise

    return app


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    yield TestClient(app, raise_server_exceptions=False)


def test_a_valid_request_id_is_echoed_and_an_invalid_one_replaced(client: TestClient):
    assert client.get("/things/1", headers={"request-id": "abc-1.2_3"}).headers["request-id"] == "abc-1.2_3"
    for bad in ("", "a b", "x" * 65, "a\tb"):
        assert client.get("/things/1", headers={"request-id": bad}).headers["request-id"].startswith("req_")


def test_answers_have_security_headers_unless_the_route_sets_its_own(client: TestClient):
    own, default = client.get("/things/1").headers, client.get("/nowhere").headers

    assert (own["cache-control"], own["content-security-policy"]) == ("private", "sandbox")
    assert default["cache-control"] == "no-store"
    assert "default-src 'none'" in default["content-security-policy"]
    assert own["x-content-type-options"] == default["x-content-type-options"] == "nosniff"


def test_all_paths_of_a_route_share_one_time_series(client: TestClient, metrics: Metrics):
    for number in range(100):
        client.get(f"/things/{number}")
        client.get(f"/nowhere/{number}")

    page = metrics.render()[0].decode()

    assert 'http_server_request_duration_seconds_count{method="GET",route="/things/{thing}",status="200"} 100.0' in page
    assert 'http_server_request_duration_seconds_count{method="GET",route="unmatched",status="404"} 100.0' in page
    assert page.count("http_server_request_duration_seconds_count") == 2
    assert "http_server_active_requests 0.0" in page


def test_a_scrape_reads_the_metrics_of_the_engine(metrics: Metrics):
    page = metrics.render()[0].decode()

    for line in (
        'backpass_worker_up{worker="0"} 1.0',
        'backpass_worker_sessions{worker="0"} 5.0',
        'backpass_queue_depth{worker="0"} 4.0',
        'backpass_worker_parked_calls{worker="0"} 6.0',
        "backpass_waiting_calls 3.0",
        'backpass_worker_restarts_total{reason="crash"} 2.0',
        'backpass_cancellations_total{source="cancel"} 1.0',
    ):
        assert line in page


SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/work",
    "raw_path": b"/work",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"x")],
}


async def test_a_disconnect_cancels_the_handler(app: FastAPI, metrics: Metrics):
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}])
    sent = []

    async def receive() -> dict:
        message = next(messages)
        if message["type"] == "http.disconnect":
            await app.state.works.wait()
        return message

    async def send(message: dict) -> None:
        sent.append(message)

    await asyncio.wait_for(app({**SCOPE, "app": app, "state": {}}, receive, send), 30)

    assert app.state.outcomes == ["cancelled"]
    assert sent == []
    assert "backpass_client_disconnects_total 1.0" in metrics.render()[0].decode()


async def test_a_request_stopped_by_a_shutdown_gets_status_503(app: FastAPI):
    sent = []

    async def receive() -> dict:
        await asyncio.sleep(10)
        raise AssertionError

    async def send(message: dict) -> None:
        sent.append(message)

    running = asyncio.create_task(app({**SCOPE, "app": app, "state": {}}, receive, send))
    await asyncio.wait_for(app.state.works.wait(), 30)
    running.cancel()
    await asyncio.wait({running}, timeout=30)

    assert app.state.outcomes == ["cancelled"]
    assert sent[0]["status"] == 503
    assert b'"code":"draining"' in sent[1]["body"]


async def test_reading_ahead_stops_when_the_buffer_is_full(app: FastAPI):
    taken = 0

    async def receive() -> dict:
        nonlocal taken
        taken += 2**16
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(2**16), "more_body": True}

    async def send(message: dict) -> None:
        return None

    running = asyncio.create_task(app({**SCOPE, "app": app, "state": {}}, receive, send))
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.wait({running})

    assert taken <= READ_AHEAD_BYTES + 3 * 2**16
