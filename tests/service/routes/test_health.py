"""Health: startup, readiness with each check, the paths of the Open Inference Protocol, and the port for metrics."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.routes import health
from service.settings import Settings
from tests.ports import free_port
from tests.service.conftest import serve
from tests.service.wire import problem


def test_the_paths_of_the_open_inference_protocol_answer_like_our_own(client: httpx.Client) -> None:
    assert client.get("/v2/health/live").json() == {"status": "alive"}
    ready = client.get("/v2/health/ready")
    assert (ready.status_code, ready.json().keys()) == (200, {"status", "checks"})
    assert client.get("/v2").json()["name"] == "backpass"


def test_readiness_lists_each_check(client: httpx.Client) -> None:
    checks = client.get("/healthz/ready").json()["checks"]

    assert set(checks) == {"running", "workers", "data_directory", "store", "objects", "disk"}
    assert all(check["ok"] and check["detail"] for check in checks.values())


def test_startup_is_complete_once_the_store_is_open_and_a_worker_was_ready(client: httpx.Client) -> None:
    answer = client.get("/healthz/startup")

    assert (answer.status_code, set(answer.json()["checks"])) == (200, {"migrations", "first_worker"})


def test_startup_waits_for_the_first_worker_and_stays_complete_when_it_is_lost(tmp_path: Any) -> None:
    app = create_app(Settings(data_dir=tmp_path, device="cpu"))
    states: list[Any] = []
    app.state.engine = SimpleNamespace(workers=lambda: states)
    client = TestClient(app, base_url="http://localhost")  # without its lifespan: nothing has started

    both = client.get("/healthz/startup")
    app.state.begun = True
    states.append(SimpleNamespace(state="starting"))
    one = client.get("/healthz/startup")
    states[0].state = "idle"
    none = client.get("/healthz/startup")
    states[0].state = "restarting"
    later = client.get("/healthz/startup")

    assert [each.status_code for each in (both, one, none, later)] == [503, 503, 200, 200]
    assert [name for name, check in one.json()["checks"].items() if not check["ok"]] == ["first_worker"]


@pytest.mark.parametrize(("free", "ok"), [(1000, True), (999, False)])
def test_a_disk_with_less_space_than_the_floor_is_not_ready(
    tmp_path: Any, monkeypatch: Any, free: int, ok: bool
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=2**20))

    assert health.disk(Settings(data_dir=tmp_path, disk_floor=1000 * 2**20))["ok"] is ok


def test_metrics_and_health_have_a_port_of_their_own(tmp_path: Any) -> None:
    port = free_port()
    with serve(tmp_path, workers=1, metrics_port=port) as served:
        inside = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"Host": f"api:{port}"}, timeout=60, verify=False
        )
        problem(served.client.get("/metrics"), 404, "not-found")
        page = inside.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain; version=")
        assert "backpass_build_info" in page.text
        assert inside.get("/healthz/ready").status_code == 200
        assert inside.get("/healthz/live").status_code == 200
        for path in ("/", "/v1", "/v1/programs", "/docs"):
            problem(inside.get(path), 404, "not-found")
