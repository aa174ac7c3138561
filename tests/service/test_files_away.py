"""A service whose directory of files goes away while it runs, and comes back."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from examples.models import digits_mlp
from tests.service.conftest import Served, serve
from tests.service.routes.test_jobs import COLUMNS, asked, ended, stored
from tests.service.wire import FILE, problem, tensors

BATCH = {"x": COLUMNS["x"][:32], "y": COLUMNS["y"][:32]}


@pytest.fixture
def house(tmp_path):
    with serve(tmp_path, park_after=0.2) as served:
        yield served


def opened(served: Served, **more: Any) -> str:
    body = {"program": digits_mlp(16), "loss": "loss", "optimizer": {"type": "adam", "learning_rate": 0.01}}
    answer = served.client.post("/v1/sessions", json={**body, "init": {"seed": 3}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def parked(served: Served, session: str) -> None:
    end = time.monotonic() + 30
    while served.client.get(f"/v1/sessions/{session}").json()["state"] != "parked":
        assert time.monotonic() < end
        time.sleep(0.05)


def step(served: Served, session: str, seq: int) -> Any:
    return served.client.post(f"/v1/sessions/{session}/steps", json={"feeds": tensors(BATCH), "seq": seq})


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
def test_files_that_are_away_are_unavailable_until_they_are_back(house, tmp_path, left):
    client, root = house.client, tmp_path / "objects"
    dataset, session = stored(client, COLUMNS), opened(house)
    assert step(house, session, 1).status_code == 200
    made = client.post(f"/v1/sessions/{session}/checkpoints", json={"name": "kept"}).json()["id"]
    upload = client.post("/v1/uploads", json={"size": 100}).json()["id"]
    spec = asked(dataset, steps=100_000) | {
        "save_every": {"steps": 500}
    }  # it needs files soon, even if its session is in memory
    waiting = client.post("/v1/jobs", json=spec).json()["id"]
    assert client.post(f"/v1/jobs/{waiting}/pause").is_success
    ended(client, waiting, "paused")
    parked(house, session)
    parked(house, client.get(f"/v1/jobs/{waiting}").json()["session_id"])
    root.rename(tmp_path / "away")
    if left == "an empty directory":
        root.mkdir()

    ready = client.get("/healthz/ready")
    assert ready.status_code == 503
    assert ready.json()["checks"]["objects"] == {"ok": False, "detail": "the directory of files is not in its place"}
    append = {"upload-offset": "0", "content-type": "application/offset+octet-stream"}
    for answer in (
        step(house, session, 2),
        client.get(f"/v1/checkpoints/{made}/content"),
        client.post(f"/v1/sessions/{session}/checkpoints", json={"name": "new"}),
        client.post("/v1/sessions", json={"from_checkpoint": made}),
        client.get(f"/v1/datasets/{dataset}/preview"),
        client.get(f"/v1/datasets/{dataset}/content"),
        client.post("/v1/jobs", json=asked(dataset, steps=20)),
        client.post("/v1/datasets", content=save({"x": np.arange(3.0)}), headers={"content-type": FILE}),
        client.patch(f"/v1/uploads/{upload}", content=b"x" * 50, headers=append),
    ):
        problem(answer, 503, "storage-unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert str(tmp_path) not in answer.text
    assert client.post(f"/v1/jobs/{waiting}/resume").is_success
    end, found = time.monotonic() + 60, client.get(f"/v1/jobs/{waiting}").json()
    while found["state"] == "queued" or found["waiting"] is None:
        assert time.monotonic() < end
        time.sleep(0.1)
        found = client.get(f"/v1/jobs/{waiting}").json()
    assert (found["state"], found["waiting"]["reason"]) == ("running", "storage")
    assert "not in its place" in found["waiting"]["detail"]
    assert 0 < time.time() - found["waiting"]["since"] < 60
    assert not root.exists() or list(root.iterdir()) == []

    if root.exists():
        root.rmdir()
    (tmp_path / "away").rename(root)
    assert client.get("/healthz/ready").status_code == 200
    assert step(house, session, 2).json()["step"] == 2
    assert client.get(f"/v1/checkpoints/{made}/content").status_code == 200
    assert client.get(f"/v1/datasets/{dataset}/content").status_code == 200
    assert client.patch(f"/v1/uploads/{upload}", content=b"x" * 50, headers=append).status_code in (200, 204)
    end, steps = time.monotonic() + 30, found["step"]
    while client.get(f"/v1/jobs/{waiting}").json()["step"] == steps:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert client.get(f"/v1/jobs/{waiting}").json()["waiting"] is None
    client.post(f"/v1/jobs/{waiting}/cancel")
    assert ended(client, waiting)["state"] == "canceled"


def test_rows_are_deleted_while_their_files_are_away(house, tmp_path):
    client, root = house.client, tmp_path / "objects"
    session = opened(house)
    assert step(house, session, 1).status_code == 200
    made = client.post(f"/v1/sessions/{session}/checkpoints", json={"name": "kept"}).json()["id"]
    dataset = stored(client, COLUMNS)
    root.rename(tmp_path / "away")

    assert client.delete(f"/v1/sessions/{session}").status_code == 204
    assert client.delete(f"/v1/checkpoints/{made}").status_code == 204
    assert client.delete(f"/v1/datasets/{dataset}").status_code == 204
    assert client.get(f"/v1/sessions/{session}").status_code in (404, 410)
    assert not root.exists()
