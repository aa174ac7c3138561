"""Two services on one PostgreSQL and one directory of objects: what one creates is known to the other."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from service.schemas.examples import (
    REGRESSION,
    REGRESSION_FEEDS,
    REGRESSION_ID,
    REGRESSION_PARAMETERS,
    SAMPLE_CSV,
    SAMPLE_SETTINGS,
    WHILE_ID,
)
from tests.paths import ROOT
from tests.postgres import Postgres
from tests.service.conftest import Served, serve

SESSION = {**SAMPLE_SETTINGS, "program_id": REGRESSION_ID}
LONG = {
    "program_id": WHILE_ID,
    "loss": "loss",
    "feeds": {"n": {"dtype": "int64", "shape": [], "data": [9000]}},
    "parameters": {"w": {"dtype": "float64", "shape": [2], "data": [0.5, 0.25]}},
}
ASYNC = {"Prefer": "respond-async"}


@pytest.fixture(scope="module")
def cluster_url(postgres_server: Postgres) -> str:
    return postgres_server.new_database()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, cluster_url: str) -> Iterator[list[Served]]:
    """Two services that start at the same time on an empty database."""
    folder = tmp_path_factory.mktemp("cluster")
    settings = {
        "workers": 1,
        "database_url": cluster_url,
        "objects_url": folder / "objects",
        "step_deadline": 60.0,
    }
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        contexts = [serve(folder / f"data{i}", **settings) for i in range(2)]
        started = list(pool.map(stack.enter_context, contexts))
        yield started


@pytest.fixture
def one(pair: list[Served]) -> httpx.Client:
    return pair[0].client


@pytest.fixture
def other(pair: list[Served]) -> httpx.Client:
    return pair[1].client


def key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def until(ready: Any, seconds: float = 60.0) -> Any:
    """The first value of `ready()` that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.1)
    raise AssertionError("it does not happen")


def test_numbered_steps_at_alternating_services_are_those_of_one_service(one, other):
    moving = one.post("/v1/sessions", json=SESSION).headers["location"]
    calm = one.post("/v1/sessions", json=SESSION).headers["location"]

    for seq, client in zip(range(1, 7), itertools.cycle([other, one, one]), strict=False):
        body = {"feeds": REGRESSION_FEEDS, "seq": seq}
        answers = [client.post(f"{moving}/steps", json=body), one.post(f"{calm}/steps", json=body)]
        again = (one if client is other else other).post(f"{moving}/steps", json=body)

        assert [each.status_code for each in answers] == [200, 200], answers[0].text
        assert answers[0].json()["loss"] == answers[1].json()["loss"]
        assert again.json()["loss"] == answers[0].json()["loss"]
        assert again.json()["step"] == seq
    values = [each.json()["parameters"] for each in (other.get(f"{moving}/parameters"), one.get(f"{calm}/parameters"))]
    assert values[0] == values[1]
    assert other.delete(moving).status_code == 204
    assert one.get(moving).status_code == 404
    assert one.post(f"{moving}/steps", json={"feeds": REGRESSION_FEEDS}).status_code == 404
    one.delete(calm)


def test_clients_that_step_one_session_at_both_services_at_a_time_lose_no_step(one, other):
    path = one.post("/v1/sessions", json=SESSION).headers["location"]

    def steps(client: httpx.Client) -> int:
        done = 0
        while done < 10:
            answer = client.post(f"{path}/steps", json={"feeds": REGRESSION_FEEDS})
            assert answer.status_code == 200 or answer.json()["retryable"], answer.text
            done += answer.status_code == 200
        return done

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(steps, (one, other))) == 20
    assert one.get(path).json()["step"] == 20
    other.delete(path)


def test_a_session_looks_the_same_at_a_service_that_does_not_hold_it(one, other):
    path = one.post("/v1/sessions", json=SESSION).headers["location"]
    worker = one.get(path).json()["worker"]
    bodies = [{"feeds": REGRESSION_FEEDS, "accumulate": True}, {}, {"feeds": REGRESSION_FEEDS}]
    requests: list[tuple[str, str, Any]] = [
        ("POST", f"{path}/{name}", body) for name, body in zip(("gradients", "updates", "steps"), bodies, strict=True)
    ]
    requests.append(("PATCH", path, {"optimizer": {"learning_rate": 0.5}}))
    for method, target, body in requests:
        answer = one.request(method, target, json=body)
        assert answer.status_code == 200, answer.text

        seen, held = other.get(path), one.get(path)

        members = ("step", "next_seq", "weights_version", "accumulated", "optimizer")
        assert {name: seen.json()[name] for name in members} == {name: held.json()[name] for name in members}
        assert seen.headers["etag"] == held.headers["etag"]
    assert one.get(path).json()["worker"] == worker  # looking has not moved it
    one.delete(path)


def test_parameters_that_another_service_has_changed_are_not_answered_as_known(one, other):
    path = one.post("/v1/sessions", json=SESSION).headers["location"]
    known = one.get(f"{path}/parameters").headers["etag"]
    assert one.get(f"{path}/parameters", headers={"If-None-Match": known}).status_code == 304
    other.post(f"{path}/steps", json={"feeds": REGRESSION_FEEDS})

    answer = one.get(f"{path}/parameters", headers={"If-None-Match": known})

    assert answer.status_code == 200
    assert answer.json()["step"] == 1
    one.delete(path)


def test_a_key_of_one_service_is_known_to_the_other(one, other):
    headers = key()
    first = one.post("/v1/sessions", json=SESSION, headers=headers)

    again = other.post("/v1/sessions", json=SESSION, headers=headers)
    changed = other.post("/v1/sessions", json={**SESSION, "loss": "prediction"}, headers=headers)

    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert again.headers["idempotency-replayed"] == "true"
    assert changed.json()["code"] == "idempotency-conflict"
    one.delete(first.headers["location"])


def test_equal_requests_at_both_services_at_a_time_create_one_session(one, other):
    headers = key()

    def created(client: httpx.Client) -> str:
        def tried() -> str | None:
            answer = client.post("/v1/sessions", json=SESSION, headers=headers)
            assert answer.status_code == 201 or answer.json()["code"] == "idempotency-in-flight", answer.text
            return answer.headers.get("location")

        return until(tried)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(created, [one, other] * 4))
    assert len(found) == 1
    other.delete(found.pop())


def test_programs_are_shared(one, other):
    renamed = json.loads(json.dumps(REGRESSION).replace('"prediction"', '"predicted"'))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda client: client.post("/v1/programs", json={"program": renamed}), (one, other)))

    assert {each.status_code for each in answers} <= {200, 201}, [each.text for each in answers]
    assert len({each.json()["id"] for each in answers}) == 1
    call = {"loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS}
    call["program_id"] = answers[0].json()["id"]
    assert other.post("/v1/gradients", json=call).status_code == 200


def test_checkpoints_are_shared(one, other):
    path = one.post("/v1/sessions", json=SESSION).headers["location"]
    one.post(f"{path}/steps", json={"feeds": REGRESSION_FEEDS})
    made = one.post(f"{path}/checkpoints", json={})
    assert made.status_code == 201, made.text
    checkpoint = made.json()["id"]

    from_other = other.post("/v1/sessions", json={"from_checkpoint": checkpoint})

    assert from_other.status_code == 201, from_other.text
    content = [client.get(f"/v1/checkpoints/{checkpoint}/content").content for client in (one, other)]
    assert content[0] == content[1]
    copy = from_other.headers["location"]
    assert one.get(f"{copy}/parameters").json()["parameters"] == one.get(f"{path}/parameters").json()["parameters"]
    assert other.delete(f"/v1/checkpoints/{checkpoint}").status_code == 204
    assert one.get(f"/v1/checkpoints/{checkpoint}").status_code == 404
    for each in (path, copy):
        one.delete(each)


def test_uploads_continue_at_another_service_and_datasets_are_shared(one, other):
    data = (SAMPLE_CSV + "3,3,3\n").encode()
    upload = one.post("/v1/uploads", json={"size": len(data)})
    assert upload.status_code == 201, upload.text
    path, half = upload.headers["location"], len(data) // 2
    for client, at, part in ((one, 0, data[:half]), (other, half, data[half:])):
        headers = {"Upload-Offset": str(at), "Content-Type": "application/offset+octet-stream"}
        sent = client.patch(path, content=part, headers=headers)
        assert sent.status_code in (200, 204), sent.text

    made = other.post("/v1/datasets", json={"upload": path.rpartition("/")[2], "format": "csv"})

    assert made.status_code == 201, made.text
    dataset = f"/v1/datasets/{made.json()['id']}"
    assert one.get(dataset).json()["rows"] == other.get(dataset).json()["rows"] == 9
    assert one.delete(dataset).status_code == 204
    assert other.get(dataset).status_code == 404


def test_a_tape_is_in_one_service_and_the_other_says_so(one, other):
    path = one.post("/v1/tapes", json={}).headers["location"]

    answer = other.get(path)

    assert answer.status_code == 404
    assert "in the memory of the process that created them" in answer.json()["detail"]
    assert one.delete(path).status_code == 204


def test_a_session_without_durability_is_in_one_service_and_the_other_says_so(one, other):
    path = one.post("/v1/sessions", json={**SESSION, "durability": "none"}).headers["location"]

    answer = other.post(f"{path}/steps", json={"feeds": REGRESSION_FEEDS})

    assert answer.status_code == 404
    assert "in the memory of the process that created them" in answer.json()["detail"]
    assert one.delete(path).status_code == 204


def test_an_operation_of_one_service_is_awaited_and_read_at_the_other(one, other):
    path = one.post("/v1/gradients", json=LONG, headers=ASYNC).headers["location"]

    found = until(lambda: _ended(other.get(path, headers={"Prefer": "wait=20"}).json()))

    assert found["state"] == "succeeded"
    at_once = one.post("/v1/gradients", json=LONG).json()
    assert other.get(found["result"]).json()["gradients"] == at_once["gradients"]
    assert other.delete(path).status_code == 204
    assert one.get(path).status_code == 404


def test_an_operation_of_one_service_is_canceled_at_the_other(one, other):
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(one.post, "/v1/gradients", json=LONG)  # the operation waits for the only worker
        path = one.post("/v1/gradients", json=LONG, headers=ASYNC).headers["location"]

        answer = other.post(f"{path}/cancel")

        assert answer.status_code == 200
        found = until(lambda: _ended(other.get(path, headers={"Prefer": "wait=20"}).json()))
        assert found["state"] in ("canceled", "succeeded")
        assert busy.result().status_code == 200
    assert one.get(path).json()["state"] == found["state"]


def test_calls_end_at_their_deadline_while_the_database_is_silent_and_go_on_when_it_answers(
    postgres_server, pair, one, other
):
    """And the process that holds the session counts as alive, but not as ready."""
    path = one.post("/v1/sessions", json=SESSION).headers["location"]
    calm = one.post("/v1/sessions", json=SESSION).headers["location"]
    body = {"feeds": REGRESSION_FEEDS, "seq": 1, "deadline_s": 0.5}
    took: list[float] = []

    def sent(client: httpx.Client, method: str, path: str, **more: Any) -> httpx.Response:
        begin = time.monotonic()
        answer = client.request(method, path, timeout=30.0, **more)
        took.append(time.monotonic() - begin)
        return answer

    with postgres_server.silent(), ThreadPoolExecutor(3) as pool:
        stepped = pool.submit(sent, one, "POST", f"{path}/steps", json=body)
        ready = pool.submit(sent, other, "GET", "/healthz/ready")
        live = pool.submit(sent, one, "GET", "/healthz/live")
        answers = [each.result() for each in (stepped, ready, live)]

    assert [each.status_code for each in answers] == [503, 503, 200], answers[0].text
    assert answers[0].json()["code"] == "storage-unavailable", answers[0].text
    assert "retry-after" in answers[0].headers
    assert max(took) < 9.0, took  # without a deadline, 10 s and more
    again = until(lambda: _well(other.post(f"{path}/steps", json={**body, "deadline_s": 30})))
    assert (again["step"], again["loss"]) == (
        1,
        one.post(f"{calm}/steps", json={"feeds": REGRESSION_FEEDS}).json()["loss"],
    )
    assert until(lambda: one.get("/healthz/ready").status_code == 200)
    for each in (path, calm):
        other.delete(each)


def _well(answer: httpx.Response) -> dict[str, Any] | None:
    return answer.json() if answer.status_code == 200 else None


def _ended(operation: dict[str, Any]) -> dict[str, Any] | None:
    return operation if operation["state"] != "running" else None


def test_an_api_key_of_one_service_is_known_to_the_other_within_seconds(pair, cluster_url, one, other):
    """The last test of requests: afterwards every request needs a key."""
    command = [
        sys.executable,
        "-m",
        "service",
        "keys",
        "--data-dir",
        str(pair[0].data_dir),
        "create",
        "--scopes",
        "read,write,admin",
    ]
    environment = os.environ | {"BACKPASS_DATABASE_URL": cluster_url}
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    admin = {"Authorization": f"Bearer {re.findall(r'bp_[a-z2-7]{52}', printed.stdout)[0]}"}
    for client in (one, other):
        assert until(lambda client=client: client.get("/v1/sessions").status_code == 401)
    made = one.post("/v1/keys", json={"name": "second", "tenant": "acme", "scopes": ["read", "write"]}, headers=admin)
    assert made.status_code == 201, made.text
    second = {"Authorization": f"Bearer {made.json()['key']}"}
    assert until(lambda: other.get("/v1/sessions", headers=second).status_code == 200)

    limited = one.put("/v1/tenants/acme", json={"limits": {"sessions": 3}}, headers=admin)

    assert limited.status_code == 200, limited.text
    assert until(lambda: other.get("/v1/me", headers=second).json()["quotas"]["sessions"]["limit"] == 3)
    opened = other.post("/v1/sessions", json=SESSION, headers=second)
    assert opened.status_code == 201, opened.text
    assert (
        other.post(f"{opened.headers['location']}/steps", json={"feeds": REGRESSION_FEEDS}, headers=second).status_code
        == 200
    )
    suspended = one.post("/v1/tenants/acme/suspend", json={"reason": "unpaid"}, headers=admin)
    assert suspended.status_code == 200, suspended.text
    refused = until(lambda: (found := other.get("/v1/me", headers=second)).status_code == 403 and found, 4.0)
    assert refused.json()["reason"] == "unpaid"
    assert other.post("/v1/tenants/acme/resume", headers=admin).status_code == 200
    assert until(lambda: one.get("/v1/me", headers=second).status_code == 200, 4.0)
    assert one.delete(f"/v1/keys/{made.json()['id']}", headers=admin).status_code == 204
    assert until(lambda: other.get("/v1/sessions", headers=second).status_code == 401)
    assert one.delete("/v1/tenants/acme", headers=admin).status_code == 202
    assert until(lambda: other.get("/v1/tenants/acme", headers=admin).json()["state"] == "deleted")
    third = one.post("/v1/keys", json={"tenant": "acme"}, headers=admin).json()["key"]
    again = {"Authorization": f"Bearer {third}"}
    assert until(lambda: other.get("/v1/sessions", headers=again).status_code == 200)
    assert other.get("/v1/sessions", headers=again).json()["sessions"] == []
    assert other.get(opened.headers["location"], headers=again).status_code in (404, 410)


def test_no_service_has_ended(pair):
    assert all(each.process.poll() is None for each in pair)
