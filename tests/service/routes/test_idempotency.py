"""Requests with an Idempotency-Key take effect once: when repeated, in parallel, and across a kill of the service."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.schemas.examples import REGRESSION, REGRESSION_ID, SAMPLE_SETTINGS
from tests.service.conftest import serve

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
    assert answer.json()["errors"][0]["parameter"] == "Idempotency-Key"


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
