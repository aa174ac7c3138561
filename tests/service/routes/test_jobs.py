"""Jobs over HTTP: submitted, watched, steered, and equal to the same steps sent one by one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from sqlalchemy import insert
from starlette.requests import Request

from examples.models import digits_mlp
from service.datasets import Datasets
from service.jobs import Job, JobStore, Spec
from service.jobs.curves import Row
from service.problems import HttpProblem
from service.routes import job_submission, jobs
from service.sampling import Sampling
from service.store.errors import StorageUnavailable
from service.store.store import Store
from service.store.tables import datasets as datasets_table
from tests.service.conftest import Served, serve
from tests.service.prepared import prepared
from tests.service.wire import FILE, file_of, read_file

ROWS = 203
RNG = np.random.default_rng(5)
COLUMNS = {
    "x": RNG.random((ROWS, 64)).astype("float32"),
    "y": RNG.integers(0, 10, ROWS),
    "other": RNG.random(ROWS),
}


def stored(client: httpx.Client, columns: dict[str, np.ndarray]) -> str:
    """The id of a dataset with these columns."""
    answer = client.post("/v1/datasets", content=save(columns), headers={"content-type": FILE})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["id"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    root = tmp_path_factory.mktemp("jobs")
    with serve(root) as served:
        yield served, stored(served.client, COLUMNS)


@pytest.fixture
def client(house: tuple[Served, str]) -> httpx.Client:
    return house[0].client


@pytest.fixture
def dataset(house: tuple[Served, str]) -> str:
    return house[1]


def asked(dataset: str, **more: Any) -> dict[str, Any]:
    session = {"program": digits_mlp(16), "loss": "loss", "optimizer": {"type": "adam", "learning_rate": 0.01}}
    return {**session, "init": {"seed": 3}, "dataset_id": dataset, "batch_size": 32, **more}


def ended(client: httpx.Client, id: str, *states: str) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = client.get(f"/v1/jobs/{id}").json()
        if found["state"] in (states or ("succeeded", "failed", "canceled", "aborted")):
            return found
        time.sleep(0.02)
    raise AssertionError(found)


def submitted(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def opened(client: httpx.Client) -> str:
    """The id of a session with the settings of the jobs."""
    body = {name: value for name, value in asked("").items() if name not in ("dataset_id", "batch_size")}
    return client.post("/v1/sessions", json=body).json()["id"]


def parameters(client: httpx.Client, session: str) -> dict[str, np.ndarray]:
    answer = client.get(f"/v1/sessions/{session}/parameters", headers={"accept": "application/x-safetensors"})
    assert answer.status_code == 200, answer.text
    return read_file(answer)[1]


def test_a_job_equals_the_same_steps_over_http(client, dataset):
    job = submitted(client, asked(dataset, epochs=2, metrics=["accuracy"], seed=9))
    done = ended(client, job["id"])
    sampling = Sampling(ROWS, 32, False, True, 9)
    assert (done["state"], done["reason"], done["step"]) == ("succeeded", "completed", 2 * sampling.batches)
    assert done["session_id"] in [each["id"] for each in client.get("/v1/sessions").json()["sessions"]]
    metrics = client.get(f"/v1/jobs/{job['id']}/metrics").json()

    session = client.post(
        "/v1/sessions", json={k: v for k, v in asked("").items() if k not in ("dataset_id", "batch_size")}
    )
    path, losses = f"/v1/sessions/{session.json()['id']}", []
    for position in range(2 * sampling.batches):
        epoch, index = divmod(position, sampling.batches)
        rows = sampling.epoch(epoch)[index * 32 : index * 32 + sampling.size(position)]
        answer = client.post(f"{path}/steps", **file_of({"x": COLUMNS["x"][rows], "y": COLUMNS["y"][rows]}))
        losses.append(float(read_file(answer)[1]["loss"]))
    assert metrics["step"] == list(range(1, len(losses) + 1))
    assert metrics["columns"]["loss"] == losses
    one, other = (parameters(client, each) for each in (done["session_id"], path.rpartition("/")[2]))
    assert all(one[name].tobytes() == other[name].tobytes() for name in other)
    assert client.post(f"/v1/sessions/{done['session_id']}/evaluations", json={"feeds": {}}).status_code == 422
    for id in (done["session_id"], path.rpartition("/")[2]):
        client.delete(f"/v1/sessions/{id}")
    assert client.delete(f"/v1/jobs/{job['id']}").status_code == 204
    assert client.get(f"/v1/jobs/{job['id']}").status_code == 404


def test_all_mistakes_of_a_submission_are_told_at_once(client, dataset):
    before = client.get("/v1/jobs", params={"page_size": 200}).json()["jobs"]
    body = asked(dataset, feeds={"x": "other", "z": "y"}, metrics=["nope"], validation={"fraction": 0.2})
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert {(each["pointer"], each["code"]) for each in answer.json()["errors"]} == {
        ("/feeds/x", "feed-dtype"), ("/feeds/z", "feed-unknown"), ("/metrics/0", "bad-query"),
    }  # fmt: skip
    body |= {"dataset_id": "dst_x", "early_stop": {"metric": "other"}, "optimizer": {"type": "adamm"}}
    answer = client.post("/v1/jobs", json=body).json()
    assert {each["pointer"] for each in answer["errors"]} == {
        "/dataset_id", "/early_stop/metric", "/optimizer/type"
    }  # fmt: skip
    assert client.get("/v1/jobs", params={"page_size": 200}).json()["jobs"] == before


@pytest.mark.parametrize(
    ("more", "pointer"),
    [
        ({"epochs": 1, "steps": 3}, "/steps"),
        ({"program_id": "prg_x"}, "/program"),
        ({"validation": {}}, "/validation"),
        ({"validation": {"fraction": 0.0001}}, "/validation/fraction"),
        ({"validation": {"dataset_id": "dst_x"}}, "/validation/dataset_id"),
        ({"priority": 10}, "/priority"),
        ({"batch_size": 0}, "/batch_size"),
        ({"batch_size": 500, "drop_last": True}, "/batch_size"),
        ({"save_every": {}}, "/save_every"),
        ({"save_every": {"best": True}}, "/save_every/best"),
        ({"save_every": {"best": True, "keep": 2}}, "/save_every"),
        ({"save_every": {"steps": 5, "keep": 0}}, "/save_every/keep"),
        ({"feeds": {"x": []}}, "/feeds/x"),
        ({"loss": "nope"}, "/loss"),
        ({"deadline_s": -1}, "/deadline_s"),
        ({"unknown": 1}, "/unknown"),
        ({"session_id": "ses_" + "a" * 26}, "/program"),
    ],
)
def test_a_mistake_has_its_place(client, dataset, more, pointer):
    answer = client.post("/v1/jobs", json=asked(dataset, **more))
    assert answer.status_code == 422, answer.text
    assert pointer in [each["pointer"] for each in answer.json().get("errors", [])] or "nope" in answer.text


def test_a_job_trains_an_open_session(client, dataset):
    session = opened(client)
    wrong = client.post("/v1/jobs", json={"session_id": session, "dataset_id": dataset, "optimizer": {"type": "sgd"}})
    assert [each["pointer"] for each in wrong.json()["errors"]] == ["/optimizer"]
    for count in (1, 2):
        job = submitted(client, {"session_id": session, "dataset_id": dataset, "steps": 5, "batch_size": 16})
        assert ended(client, job["id"])["state"] == "succeeded"
        assert client.get(f"/v1/sessions/{session}").json()["step"] == 5 * count
    client.delete(f"/v1/sessions/{session}")
    gone = client.post("/v1/jobs", json={"session_id": session, "dataset_id": dataset})
    assert gone.json()["errors"][0]["pointer"] == "/session_id"


def events(client: httpx.Client, id: str, after: int = 0, most: int = 10**9) -> list[tuple[int, str, Any]]:
    """Server-sent events, until the stream ends or `most` have come."""
    found, fields = [], {}
    headers = {"accept": "text/event-stream", "last-event-id": str(after)}
    with client.stream("GET", f"/v1/jobs/{id}/events", headers=headers) as answer:
        if answer.status_code == 204:
            return []
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
            elif "event" in fields:
                found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                fields = {}
                if len(found) >= most:
                    break
    return found


def test_the_stream_of_events_goes_on_where_it_broke_and_ends_with_the_job(client, dataset):
    job = submitted(client, asked(dataset, epochs=60, validation={"fraction": 0.2}, save_every={"steps": 100}))
    seen: list[Any] = []
    for most in (1, 2, 3, 10**9):
        seen += events(client, job["id"], seen[-1][0] if seen else 0, most)
    assert [id for id, *_ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1][1:] == ("state", {**seen[-1][2], "state": "succeeded", "reason": "completed"})
    assert {kind for _, kind, _ in seen} >= {"state", "progress", "mean", "validation", "checkpoint"}
    assert events(client, job["id"], seen[-1][0]) == []
    page = client.get(f"/v1/jobs/{job['id']}/events", params={"after": 2, "limit": 3}).json()
    assert [(e["id"], e["kind"]) for e in page["events"]] == [each[:2] for each in seen[2:5]]
    assert (page["newest"], page["ended"]) == (len(seen), True)
    found = client.get(f"/v1/jobs/{job['id']}/metrics", params={"points": 7}).json()
    assert len(found["step"]) == len(found["columns"]["loss"]) == 7
    assert found["validation"]["step"] == [each["step"] for _, kind, each in seen if kind == "validation"]
    assert found["columns"]["loss"][-1] < found["columns"]["loss"][0]
    assert client.get(f"/v1/jobs/{job['id']}/metrics", params={"first": 3, "last": 3}).json()["step"] == [3]
    refused = client.get(f"/v1/jobs/{job['id']}/metrics", params={"first": 3, "last": 2})
    assert (refused.status_code, refused.json()["detail"]) == (422, "first is after last")


def test_curves_are_joined_thinned_and_written_in_a_thread(monkeypatch):
    class Jobs:
        async def get(self, tenant: str, id: str) -> Any:
            return SimpleNamespace(id=id)

        async def curves(self, id: str, kind: str, first: int, last: int | None) -> list[Row]:
            return [Row(1, 3, {"loss": np.array([1.0, 2.0, 6.0])})] if kind == "training" else []

    threads = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*given)

        return call

    for name in ("joined", "thinned", "tagged"):
        monkeypatch.setattr(jobs, name, noted(getattr(jobs, name)))
    monkeypatch.setattr(jobs, "job_store", lambda request: Jobs())
    request = Request({"type": "http", "headers": []})
    answer = asyncio.run(jobs.get_job_metrics(request, "job_" + "a" * 26, 1, 1, None))

    assert json.loads(answer.body) == {"step": [3], "columns": {"loss": [3.0]}, "validation": {}}
    assert len(threads) == 4
    assert threading.main_thread() not in threads


def test_the_best_parameters_of_a_job_are_in_the_checkpoint_that_it_names(client, dataset):
    rule = {"metric": "validation/loss", "patience": 1000}
    more = {"validation": {"fraction": 0.2}, "early_stop": rule, "save_every": {"best": True}}
    job = submitted(client, asked(dataset, epochs=40, **more))
    best = ended(client, job["id"])["best"]
    kept = client.get(f"/v1/jobs/{job['id']}/checkpoints").json()["checkpoints"]
    assert [(each["id"], each["step"]) for each in kept] == [(best["checkpoint_id"], best["step"])]
    opened = client.post("/v1/sessions", json={"from_checkpoint": best["checkpoint_id"]}).json()
    assert opened["step"] == best["step"]
    client.delete(f"/v1/sessions/{opened['id']}")


def test_the_last_checkpoints_of_a_job_stay_and_the_others_are_deleted(client, dataset):
    job = submitted(client, asked(dataset, steps=22, save_every={"steps": 5, "keep": 2}))
    ended(client, job["id"])
    kept = client.get(f"/v1/jobs/{job['id']}/checkpoints").json()["checkpoints"]
    assert [(each["step"], each["expires_at"]) for each in sorted(kept, key=lambda each: each["step"])] == [
        (20, None),
        (22, None),
    ]


def test_checkpoints_that_later_ones_replace_take_no_room(client, dataset):
    def without_use() -> float:
        """Bytes of checkpoints that count, and that no list shows."""
        listed, token = [], ""
        while token is not None:
            page = client.get("/v1/checkpoints", params={"page_size": 200, "page_token": token}).json()
            listed, token = [*listed, *page["checkpoints"]], page["next_page_token"]
        used = client.get("/v1/me").json()["quotas"]["checkpoint_bytes"]["used"]
        return used - sum(each["size"] for each in listed)

    before = without_use()
    ended(client, submitted(client, asked(dataset, steps=22, save_every={"steps": 2, "keep": 2}))["id"])
    assert without_use() <= before


def test_a_job_is_paused_resumed_and_canceled(client, dataset):
    job = submitted(client, asked(dataset, epochs=100_000, priority=9, name="long", labels={"a": "b"}))["id"]
    assert ended(client, job, "running")["labels"] == {"a": "b"}
    for _ in range(2):
        client.post(f"/v1/jobs/{job}/pause")
    paused = ended(client, job, "paused")
    assert client.get("/v1/jobs", params={"state": "paused"}).json()["jobs"][0]["id"] == job
    time.sleep(0.1)
    assert client.get(f"/v1/jobs/{job}").json()["step"] == paused["step"]
    refused = client.delete(f"/v1/jobs/{job}")
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid-state")
    assert client.post(f"/v1/jobs/{job}/resume").json()["state"] == "queued"
    ended(client, job, "running")
    client.post(f"/v1/jobs/{job}/cancel")
    done = ended(client, job)
    assert (done["state"], done["reason"]) == ("canceled", "requested")
    again = client.post(f"/v1/jobs/{job}/resume")
    assert (again.status_code, "paused" in again.json()["allowed_states"]) == (409, True)


def test_a_job_leaves_room_for_other_calls(client, dataset):
    jobs = [submitted(client, asked(dataset, epochs=100_000))["id"] for _ in range(2)]
    for job in jobs:
        ended(client, job, "running")
    waits = []
    session = opened(client)
    for _ in range(5):
        started = time.monotonic()
        assert client.get(f"/v1/sessions/{session}/parameters").status_code == 200
        waits.append(time.monotonic() - started)
    for job in jobs:
        client.post(f"/v1/jobs/{job}/cancel")
        ended(client, job)
    client.delete(f"/v1/sessions/{session}")
    assert sorted(waits)[2] < 2.0, waits


def test_a_job_goes_on_after_a_kill_with_the_same_numbers(client, dataset, tmp_path):
    body = {"epochs": 100, "validation": {"fraction": 0.1, "every": 50}}
    done = ended(client, submitted(client, asked(dataset, **body))["id"])
    curves = client.get(f"/v1/jobs/{done['id']}/metrics", params={"points": 100_000}).json()
    held = parameters(client, done["session_id"])

    with serve(tmp_path) as served:
        job = submitted(served.client, asked(stored(served.client, COLUMNS), **body))["id"]
        end = time.monotonic() + 60
        while served.client.get(f"/v1/jobs/{job}").json()["step"] < 60 and time.monotonic() < end:
            time.sleep(0.01)
        served.process.kill()
        served.process.wait()
    with serve(tmp_path) as served:
        again = ended(served.client, job)
        assert (again["state"], again["step"]) == ("succeeded", done["step"])
        assert served.client.get(f"/v1/jobs/{job}/metrics", params={"points": 100_000}).json() == curves
        found = parameters(served.client, again["session_id"])
        kinds = [e["kind"] for e in served.client.get(f"/v1/jobs/{job}/events?limit=1000").json()["events"]]
    assert all(found[name].tobytes() == held[name].tobytes() for name in held)
    assert "continued" in kinds


def test_the_disk_gets_the_space_of_a_deleted_dataset_back(client):
    data = stored(client, {"x": COLUMNS["x"][:90], "y": COLUMNS["y"][:90]})
    job = ended(client, submitted(client, asked(data, steps=3))["id"])
    client.delete(f"/v1/sessions/{job['session_id']}")
    (worker,) = client.get("/v1/workers").json()["workers"]
    maps = Path(f"/proc/{worker['pid']}/maps")
    digest = client.get(f"/v1/datasets/{data}").json()["sha256"]
    assert digest in maps.read_text()
    assert client.delete(f"/v1/datasets/{data}").status_code == 204
    end = time.monotonic() + 20
    while digest in maps.read_text() and time.monotonic() < end:
        time.sleep(0.02)
    assert digest not in maps.read_text()


@pytest.mark.parametrize("end", ["succeeded", "canceled while paused"])
def test_the_session_of_an_ended_job_does_not_need_the_dataset(client, end):
    data = stored(client, {"x": COLUMNS["x"][:100], "y": COLUMNS["y"][:100]})
    job = submitted(client, asked(data, steps=20 if end == "succeeded" else 2**40))
    if end != "succeeded":
        while client.get(f"/v1/jobs/{job['id']}").json()["step"] == 0:
            time.sleep(0.02)
        client.post(f"/v1/jobs/{job['id']}/pause")
        ended(client, job["id"], "paused")
        client.post(f"/v1/jobs/{job['id']}/cancel")
    session = ended(client, job["id"])["session_id"]
    before = parameters(client, session)
    assert client.delete(f"/v1/datasets/{data}").status_code == 204

    (worker,) = client.get("/v1/workers").json()["workers"]
    os.kill(worker["pid"], signal.SIGKILL)
    end_of_wait = time.monotonic() + 60
    while client.get(f"/v1/sessions/{session}/parameters").status_code == 503 and time.monotonic() < end_of_wait:
        time.sleep(0.05)

    after = parameters(client, session)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_session_takes_one_unfinished_job(client, dataset):
    session = opened(client)
    body = {"session_id": session, "dataset_id": dataset, "batch_size": 32}
    first = submitted(client, {**body, "steps": 10**6})
    refused = client.post("/v1/jobs", json={**body, "steps": 5})
    client.post(f"/v1/jobs/{first['id']}/cancel")
    ended(client, first["id"])

    assert (refused.status_code, refused.json()["code"], refused.json()["jobs"]) == (409, "in-use", [first["id"]])
    assert ended(client, submitted(client, {**body, "steps": 5})["id"])["state"] == "succeeded"
    client.delete(f"/v1/sessions/{session}")


@pytest.mark.parametrize(
    "error, is_stored",
    [(None, True), (HttpProblem("in-use", "another job was faster"), False), (StorageUnavailable("no answer"), True)],
    ids=["stored", "refused", "stored without an answer"],
)
def test_a_client_that_leaves_while_its_job_is_stored_keeps_the_session_of_a_stored_job(monkeypatch, error, is_stored):
    async def scenario() -> list[str]:
        begun, go_on = asyncio.Event(), asyncio.Event()
        seen: list[str] = []

        async def add(*args: Any) -> None:
            begun.set()
            await go_on.wait()
            seen.append("added")
            if error is not None:
                raise error

        async def close(tenant: str, id: str) -> None:
            seen.append("closed")

        async def give(value: Any) -> Any:
            return value

        jobs = SimpleNamespace(add=add, exists=lambda tenant, id: give(is_stored))
        runner = SimpleNamespace(jobs=jobs, wake=lambda: seen.append("woken"))
        request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(runner=runner)))
        session = SimpleNamespace(tenant="local", id="ses_1", job="job_1")
        for name, value in {
            "_mistakes": lambda asked: [],
            "_datasets": lambda *args: give((None, None)),
            "_checked": lambda *args: give(SimpleNamespace(state="queued")),
            "open_session": lambda *args, **more: give(session),
            "sessions": lambda request: SimpleNamespace(close=close),
        }.items():
            monkeypatch.setattr(job_submission, name, value)
        asked = SimpleNamespace(session_id=None, session=lambda: None)
        task = asyncio.create_task(job_submission.submitted(request, None, asked))  # type: ignore[arg-type]
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        return seen

    wanted = ["added", "woken"] if error is None else ["added"] if is_stored else ["added", "closed"]
    assert asyncio.run(scenario()) == wanted


@pytest.mark.parametrize("deleted", ["/dataset_id", "/validation/dataset_id"])
def test_a_job_whose_dataset_is_deleted_during_its_submission_is_refused_and_not_stored(tmp_path, monkeypatch, deleted):
    closed: list[str] = []

    async def scenario() -> tuple[HttpProblem, list[Any]]:
        store, objects = Store(tmp_path), prepared(str(tmp_path / "objects"))
        await store.open()
        kept = Datasets(store, objects, tmp_path)
        ids = {"/dataset_id": "dst_1", "/validation/dataset_id": "dst_2"}
        for pointer, id in ids.items():
            if pointer != deleted:
                row = {"id": id, "tenant": "local", "name": "", "key": "datasets/a", "size": 1, "rows": 1}
                row |= {"sha256": "a", "columns": "[]", "about": "{}", "created": 0.0}
                await store.write(lambda db, row=row: db.execute(insert(datasets_table).values(**row)).rowcount)
        rows = JobStore(store, "me")

        async def close(tenant: str, id: str) -> None:
            closed.append(id)

        state = SimpleNamespace(runner=SimpleNamespace(jobs=rows), datasets=kept, sessions=SimpleNamespace(close=close))
        request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
        asked: Any = SimpleNamespace(
            session_id=None, dataset_id="dst_1", validation=SimpleNamespace(dataset_id="dst_2")
        )
        spec = Spec("prg_1", "dst_1", "loss", {}, steps=1, every=1)
        job = Job("job_1", "local", "ses_1", spec, 5, 0.0, 0.0)
        session: Any = SimpleNamespace(tenant="local", id="ses_1", job="job_1")
        with pytest.raises(HttpProblem) as refused:
            await job_submission._added(request, asked, session, job, lambda connection: None)
        found = await rows.page("local", "", 10)
        await store.close()
        return refused.value, found

    problem, found = asyncio.run(scenario())

    assert (problem.code, [(each.pointer, each.code) for each in problem.errors]) == (
        "invalid-request",
        [(deleted, "not-found")],
    )
    assert found == [] and closed == ["ses_1"]
