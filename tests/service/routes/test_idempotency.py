"""Requests with an Idempotency-Key take effect once: when repeated, in parallel, and across a kill of the service."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.http.idempotency import is_uncertain
from service.http.recorded import Recorded
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID, SAMPLE_SETTINGS
from tests.service.conftest import serve
from tests.service.wire import problem

SESSION = {**SAMPLE_SETTINGS, "program_id": REGRESSION_ID}


def key() -> dict[str, str]:
    return {"Idempotency-Key": str(uuid.uuid4())}


def ids(client: httpx.Client) -> set[str]:
    return {each["id"] for each in client.get("/v1/sessions", params={"page_size": 200}).json()["sessions"]}


def test_a_repeated_request_gets_the_stored_answer_and_creates_nothing(client):
    headers = key()
    first = client.post("/v1/sessions", json=SESSION, headers=headers)
    before = ids(client)

    again = client.post("/v1/sessions", json=SESSION, headers=headers)

    assert first.status_code == again.status_code == 201
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert ids(client) == before
    client.delete(first.headers["location"])


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a"], [""], ["a b"]])
def test_a_request_has_one_key(client, keys):
    """With several, a proxy and the service might each take another one."""
    headers = [("content-type", "application/json"), *(("idempotency-key", key) for key in keys)]

    refusal = client.post("/v1/sessions", content=json.dumps(SESSION), headers=headers)

    problem(refusal, 422, "invalid-request")


def test_fifty_equal_requests_at_a_time_create_one_session(client):
    headers = key()
    before = ids(client)

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: client.post("/v1/sessions", json=SESSION, headers=headers), range(50)))

    created = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(created) == 1
    assert {answer.status_code for answer in answers} <= {201, 429}  # refused before anything began
    assert ids(client) - before == created
    client.delete(f"/v1/sessions/{created.pop()}")


@pytest.mark.parametrize("other", [{**SESSION, "labels": {}}, {**SESSION, "loss": "prediction"}])
def test_a_key_with_another_body_is_refused(client, other):
    headers = key()
    first = client.post("/v1/sessions", json=SESSION, headers=headers)

    again = client.post("/v1/sessions", json=other, headers=headers)

    assert (again.status_code, again.json()["code"]) == (422, "idempotency-conflict")
    client.delete(first.headers["location"])


def test_a_key_with_another_path_is_refused(client):
    headers = key()
    client.post("/v1/programs", json={"program": REGRESSION}, headers=headers)

    again = client.post("/v1/gradients", json={"program": REGRESSION}, headers=headers)

    assert again.json()["code"] == "idempotency-conflict"


def test_a_refusal_is_repeated_too(client):
    headers, wrong = key(), {**SESSION, "loss": "no such variable"}
    first = client.post("/v1/sessions", json=wrong, headers=headers)

    again = client.post("/v1/sessions", json=wrong, headers=headers)

    assert first.status_code == again.status_code == 422
    assert again.json() == first.json()


@pytest.mark.parametrize("bad", ["", "a b", "x" * 256])
def test_a_malformed_key_is_refused(client, bad):
    answer = client.post("/v1/sessions", json=SESSION, headers={"Idempotency-Key": bad})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["parameter"] == "header: Idempotency-Key"


STEP = {"feeds": REGRESSION_FEEDS}
LINES = {"Accept": "application/x-ndjson"}


def steps_of(client: httpx.Client, path: str) -> int:
    return client.get(path).json()["step"]


def test_a_streamed_step_with_a_key_is_taken_once(client):
    """Its answer is not kept, so the key knows only that it has run."""
    path, headers = client.post("/v1/sessions", json=SESSION).headers["location"], key() | LINES
    answers = [client.post(f"{path}/steps", json=STEP, headers=headers) for _ in range(3)]

    assert [each.status_code for each in answers] == [200, 409, 409]
    assert answers[1].json()["code"] == "outcome-unknown"
    assert steps_of(client, path) == 1
    client.delete(path)


def test_an_answer_kept_for_a_key_has_a_form_that_the_request_accepts(client):
    path, headers = client.post("/v1/sessions", json=SESSION).headers["location"], key()
    assert client.post(f"{path}/steps", json=STEP, headers=headers).status_code == 200

    refused = client.post(f"{path}/steps", json=STEP, headers=headers | {"Accept": "application/x-safetensors"})
    again = client.post(f"{path}/steps", json=STEP, headers=headers)

    assert (refused.status_code, refused.json()["code"]) == (406, "not-acceptable")
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert steps_of(client, path) == 1
    client.delete(path)


@pytest.mark.parametrize(
    ("status", "content", "uncertain"),
    [
        (200, b"{}", False),
        (422, b"{}", False),
        (503, b'{"code": "recovering"}', True),
        (503, b'{"code": "worker-lost"}', True),
        (503, b'{"code": "storage-unavailable"}', False),
        (504, b'{"code": "deadline-exceeded"}', False),
        (500, b"no JSON", True),
    ],
)
def test_an_answer_says_whether_its_call_may_have_taken_effect(status, content, uncertain):
    assert is_uncertain(Recorded(status, {}, [content])) == uncertain
    assert is_uncertain(None)


def test_keys_survive_a_kill_of_the_service(tmp_path):
    headers = key()
    with serve(tmp_path, workers=1) as first:
        answer = first.client.post("/v1/programs", json={"program": REGRESSION}, headers=headers)
        first.process.kill()
        first.process.wait()
    with serve(tmp_path, workers=1) as second:
        again = second.client.post("/v1/programs", json={"program": REGRESSION}, headers=headers)

    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == answer.json()
