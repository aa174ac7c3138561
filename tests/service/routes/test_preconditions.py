"""If-Match: calls of a resource with an ETag take effect only at a version that their client accepts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.schemas.examples import REGRESSION, SAMPLE_CHECKPOINT, SAMPLE_SESSION
from tests.service.openapi import BY_PATH, filled
from tests.service.wire import opened, problem, regression, tensors

TAGGED = {
    "/v1/sessions/{session_id}": {"session_id": SAMPLE_SESSION},
    "/v1/checkpoints/{checkpoint_id}": {"checkpoint_id": SAMPLE_CHECKPOINT},
    "/v1/programs/{program_id}": {},
}
"""Resources with an ETag, and the ids of their samples."""
PURE = ("/check", "/clone", "/gradients", "/backward", "/evaluations")
"""Endings of the paths of a program whose POST depends on nothing that changes."""
CONDITIONAL = [
    (root, path, method)
    for root in TAGGED
    for path, method in BY_PATH
    if path.startswith(root) and method != "get" and not (root.endswith("{program_id}") and path.endswith(PURE))
]
SKETCH = regression()
FEEDS = {name: SKETCH.values[name] for name in "xy"}
STEP = {"feeds": tensors(FEEDS)}
STALE = {"If-Match": '"e1.v0"'}


@pytest.fixture
def path(client):
    with opened(client, SKETCH, optimizer={"type": "sgd", "learning_rate": 0.1}) as path:
        yield path


def shown(client: httpx.Client, path: str) -> dict[str, Any]:
    """The resource, without what changes by itself."""
    return {name: value for name, value in client.get(path).json().items() if name not in ("lease_left_s", "state")}


@pytest.mark.parametrize(("root", "path", "method"), CONDITIONAL)
def test_every_call_of_a_resource_with_an_etag_declares_if_match(root, path, method):
    operation = BY_PATH[path, method]
    names = [each["name"] for each in operation["parameters"]]

    assert names.count("If-Match") == 1
    assert "`precondition-failed`" in operation["responses"]["412"]["description"]


@pytest.mark.parametrize(("root", "path", "method"), CONDITIONAL)
def test_every_call_of_a_resource_with_an_etag_obeys_if_match(client, root, path, method):
    ids = dict(TAGGED[root])
    if root.endswith("{program_id}"):
        with_name = REGRESSION | {"aliases": {"x": "input of the test"}}
        ids["program_id"] = client.post("/v1/programs", json={"program": with_name}).json()["id"]
    request = filled(path, method, **ids)
    content = BY_PATH[path, method].get("requestBody", {}).get("content", {})
    if content:
        request["json"] = next(iter(content["application/json"]["examples"].values()))["value"]
    resource = root.format(**ids)
    before, tag = shown(client, resource), client.get(resource).headers["etag"]

    refused = client.request(method, **request | {"headers": request["headers"] | {"If-Match": '"another"'}})
    after = shown(client, resource)
    taken = client.request(method, **request | {"headers": request["headers"] | {"If-Match": f'"another", {tag}'}})

    problem(refused, 412, "precondition-failed")
    assert after == before
    assert taken.is_success, taken.text


def test_of_two_trainers_that_know_one_version_only_one_takes_a_step(client, path):
    known = {"If-Match": client.get(path).headers["etag"]}

    first = client.post(f"{path}/steps", json=STEP, headers=known)
    second = client.post(f"{path}/steps", json=STEP, headers=known)
    again = client.post(f"{path}/steps", json=STEP, headers={"If-Match": first.headers["etag"]})

    assert (first.status_code, first.json()["step"]) == (200, 1)
    refusal = problem(second, 412, "precondition-failed")
    assert (refusal["expected_seq"], refusal["weights_version"]) == (2, "e1.v1")
    assert (again.status_code, again.json()["step"]) == (200, 2)


def test_a_step_sent_twice_with_its_seq_and_if_match_gets_the_stored_answer(client, path):
    """The version has moved on because of the step itself."""
    body, known = {"seq": 1, **STEP}, {"If-Match": client.get(path).headers["etag"]}

    first, second = (client.post(f"{path}/steps", json=body, headers=known) for _ in range(2))
    other = client.post(f"{path}/steps", json={"seq": 2, **STEP}, headers=known)

    assert second.headers["idempotency-replayed"] == "true"
    assert second.json() == first.json()
    problem(other, 412, "precondition-failed")
    assert client.get(path).json()["next_seq"] == 2, "a refused call uses no number"


def test_a_refused_step_leaves_its_idempotency_key_free(client, path):
    client.post(f"{path}/steps", json=STEP)
    key = {"Idempotency-Key": f"step of {path}".replace(" ", "-")}

    refused = client.post(f"{path}/steps", json=STEP, headers=key | STALE)
    taken, repeated = (client.post(f"{path}/steps", json=STEP, headers=key | {"If-Match": '"e1.v1"'}) for _ in range(2))

    problem(refused, 412, "precondition-failed")
    assert (taken.status_code, taken.json()["step"]) == (200, 2)
    assert repeated.headers["idempotency-replayed"] == "true"
    assert client.get(path).json()["step"] == 2


@pytest.mark.parametrize("route", ["steps", "gradients"])
def test_a_stream_that_if_match_refuses_is_a_problem(client, path, route):
    client.post(f"{path}/steps", json=STEP)

    stream = client.post(f"{path}/{route}", json=STEP, headers=STALE | {"Accept": "application/x-ndjson"})

    problem(stream, 412, "precondition-failed")
    assert client.get(path).json()["step"] == 1


@pytest.mark.parametrize("part", ["parameters", "optimizer"])
def test_if_match_is_compared_before_if_none_match(client, path, part):
    client.post(f"{path}/steps", json=STEP)
    both = STALE | {"If-None-Match": '"e1.v1"'}

    problem(client.get(f"{path}/{part}", headers=both), 412, "precondition-failed")
    assert client.get(f"{path}/{part}", headers=both | {"If-Match": '"e1.v1"'}).status_code == 304
