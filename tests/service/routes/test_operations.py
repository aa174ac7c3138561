"""Long calls as operations: `Prefer: respond-async`."""

from __future__ import annotations

import time

import httpx
import pytest

from service.http.sse import EVENT_STREAM
from service.schemas.examples import (
    REGRESSION_FEEDS,
    REGRESSION_ID,
    REGRESSION_PARAMETERS,
    SAMPLE_SETTINGS,
    WHILE_ID,
)
from tests.service.conftest import serve
from tests.service.openapi import OPERATIONS, filled

ASYNC = {"Prefer": "respond-async"}
SHORT = {"program_id": REGRESSION_ID, "loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS}
LONG = {
    "program_id": WHILE_ID,
    "loss": "loss",
    "feeds": {"n": {"dtype": "int64", "shape": [], "data": [9000]}},
    "parameters": {"w": {"dtype": "float64", "shape": [2], "data": [0.5, 0.25]}},
}
"""A call of many trips, which takes longer than the answer 202 in the reference executor, and less in machine code."""

STEPS = {"feeds": REGRESSION_FEEDS, "batches": 200_000, "return_gradients": "none"}
"""Steps of a session that take seconds."""


def ended(client: httpx.Client, path: str, seconds: float = 60.0) -> dict:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = client.get(path, headers={"Prefer": "wait=5"}).json()
        if found["state"] != "running":
            return found
    raise AssertionError("the operation does not end")


@pytest.mark.reference
def test_an_operation_has_the_answer_of_the_call(client):
    at_once = client.post("/v1/gradients", json=LONG)
    accepted = client.post("/v1/gradients", json=LONG, headers=ASYNC)

    assert accepted.status_code == 202
    assert accepted.headers["preference-applied"] == "respond-async"
    found = ended(client, accepted.headers["location"])
    assert (found["state"], found["status"], found["request"]) == ("succeeded", 200, "POST /v1/gradients")
    answer = client.get(found["result"])
    assert answer.status_code == 200
    assert answer.headers["content-type"] == at_once.headers["content-type"]
    assert answer.json()["gradients"] == at_once.json()["gradients"]


def test_a_call_that_ends_within_the_wait_is_answered_at_once(client):
    answer = client.post("/v1/gradients", json=SHORT, headers={"Prefer": "respond-async, wait=20"})

    assert answer.status_code == 200
    assert answer.json()["gradients"]


@pytest.mark.reference
@pytest.mark.parametrize("accept", ["application/json", "application/x-safetensors"])
def test_the_result_keeps_the_form_that_the_request_accepts(client, accept):
    accepted = client.post("/v1/gradients", json=LONG, headers={**ASYNC, "Accept": accept})

    found = ended(client, accepted.headers["location"])

    assert client.get(found["result"]).headers["content-type"] == accept


def test_a_failed_call_is_a_failed_operation_with_its_problem(client):
    endless = {**LONG, "feeds": {"n": {"dtype": "int64", "shape": [], "data": [10**6]}}}
    accepted = client.post("/v1/gradients", json=endless, headers=ASYNC)

    found = ended(client, accepted.headers["location"])

    assert (found["state"], found["status"]) == ("failed", 422)
    answer = client.get(found["result"])
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.reference
def test_operations_are_listed_and_deleted(client):
    accepted = client.post("/v1/gradients", json=LONG, headers=ASYNC)
    path = accepted.headers["location"]
    ended(client, path)
    listed = client.get("/v1/operations", params={"page_size": 200}).json()["operations"]
    assert accepted.json()["id"] in {each["id"] for each in listed}

    assert client.delete(path).status_code == 204
    assert client.delete(path).status_code == 404
    assert client.get(path).status_code == 404
    assert client.get(f"{path}/result").status_code == 404


@pytest.mark.reference
@pytest.mark.parametrize("accept", ["application/json", "application/x-safetensors"])
def test_an_operation_and_a_key_go_together(client, accept):
    headers = {**ASYNC, "Accept": accept, "Idempotency-Key": f"operation-{time.time()}"}
    first = client.post("/v1/gradients", json=LONG, headers=headers)

    again = client.post("/v1/gradients", json=LONG, headers=headers)

    assert (first.status_code, again.status_code) == (202, 202), again.text
    assert again.headers["location"] == first.headers["location"]


def long_steps(client: httpx.Client) -> tuple[str, str]:
    """The paths of a session and of an operation that runs STEPS in it."""
    session = client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"]
    accepted = client.post(f"{session}/steps", json=STEPS, headers=ASYNC)
    assert accepted.status_code == 202, accepted.text
    return session, accepted.headers["location"]


def test_canceled_steps_end_after_the_one_that_runs_and_the_operation_reports_them(client):
    for wait in (0.3, 1.0, 2.0, 4.0, 8.0):  # a busy worker may not have taken a step yet
        session, path = long_steps(client)
        time.sleep(wait)
        client.post(f"{path}/cancel")
        found = ended(client, path)
        if found["state"] == "succeeded":
            break

    answer = client.get(f"{path}/result").json()
    assert (found["state"], answer["stopped"]["code"]) == ("succeeded", "canceled")
    assert 0 < answer["applied"] == answer["stopped"]["batch"] < STEPS["batches"]
    assert client.get(session).json()["step"] == answer["step"] == answer["applied"]
    assert client.post(f"{session}/steps", json={"feeds": REGRESSION_FEEDS}).json()["step"] == answer["step"] + 1
    client.delete(session)


def test_the_steps_of_a_deleted_operation_end_after_the_one_that_runs(client):
    session, path = long_steps(client)

    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.post(f"{session}/steps", json={"feeds": REGRESSION_FEEDS}).json()["step"] <= STEPS["batches"]
    client.delete(session)


@pytest.mark.reference
def test_a_canceled_call_that_changes_nothing_stops(client):
    path = client.post("/v1/gradients", json=LONG, headers=ASYNC).headers["location"]

    assert client.post(f"{path}/cancel").json()["state"] in ("canceled", "succeeded")


def test_steps_that_ran_at_a_kill_have_an_unknown_outcome(tmp_path):
    with serve(tmp_path, workers=1) as first:
        _, path = long_steps(first.client)
        first.process.kill()
        first.process.wait()
    with serve(tmp_path, workers=1) as second:
        found = second.client.get(path).json()
        problem = second.client.get(found["result"]).json()

    assert (found["state"], found["status"]) == ("failed", 409)
    assert (problem["code"], problem["retryable"]) == ("outcome-unknown", False)


@pytest.mark.reference
def test_unfinished_operations_are_ended_after_a_kill(tmp_path):
    with serve(tmp_path, workers=1) as first:
        paths = [first.client.post("/v1/gradients", json=LONG, headers=ASYNC).headers["location"] for _ in range(20)]
        done = {path for path in paths if first.client.get(path).json()["state"] != "running"}
        first.process.kill()
        first.process.wait()
    with serve(tmp_path, workers=1) as second:
        for path in paths:
            found = second.client.get(path).json()
            assert found["state"] in ("succeeded", "failed"), found
            answer = second.client.get(found["result"])
            if found["state"] == "succeeded":
                assert answer.json()["gradients"]
            else:
                assert path not in done
                assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (
                    503,
                    "canceled",
                    True,
                )


def test_a_step_beyond_the_limit_of_operations_is_answered_when_it_ends(tmp_path):
    """It has begun when its operation is refused: an error would deny its effect."""
    with serve(tmp_path, operations=1, workers=2) as served:
        client = served.client
        busy, other = (client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"] for _ in range(2))
        assert client.post(f"{busy}/steps", json=STEPS, headers=ASYNC).status_code == 202

        answer = client.post(f"{other}/steps", json={"feeds": REGRESSION_FEEDS}, headers=ASYNC)
        refused = client.post("/v1/gradients", json=LONG, headers=ASYNC)

        assert (answer.status_code, client.get(other).json()["step"]) == (200, 1)
        assert refused.status_code == 429


def test_a_request_without_a_body_is_answered_at_once_with_respond_async(client):
    path = client.post("/v1/sessions", json=SAMPLE_SETTINGS).headers["location"]

    for headers in ({}, ASYNC):
        answer = client.post(f"{path}/steps", content=b"", headers={"content-type": "application/json", **headers})
        if answer.status_code == 202:
            answer = client.get(ended(client, answer.headers["location"])["result"])
        assert answer.status_code == 400
    client.delete(path)


def test_only_methods_that_document_202_become_operations(client):
    for path, method, operation in OPERATIONS:
        if method in ("get", "patch") and EVENT_STREAM not in str(operation["responses"].get("200")):
            request = filled(path, method)
            answer = client.request(method, **request | {"headers": request["headers"] | ASYNC})
            assert "202" not in operation["responses"]
            assert answer.status_code != 202, path
