"""The OpenAPI document is fresh and complete, and its examples are valid requests."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.schemas.examples import (
    REGRESSION_FEEDS,
    REGRESSION_ID,
    SAMPLE_DATASET,
    SAMPLE_JOB,
    SAMPLE_SESSION,
    SAMPLE_TAPE,
    WHILE_ID,
)
from tests.paths import ROOT
from tests.service.conftest import serve
from tests.service.openapi import BY_PATH, DOCUMENT, OPERATIONS, at, filled

PROGRAMS = [f"/v1/programs/{id}" for id in (REGRESSION_ID, WHILE_ID)]
FILE = ROOT / "openapi" / "openapi.json"
ACTIONS = ("/cancel", "/pause", "/resume")
"""Endings of the paths of requests without a body."""
NAMES = [f"{method.upper()} {path}" for path, method, _ in OPERATIONS]


def test_the_stored_document_equals_the_generated_one():
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(DOCUMENT)), "run `make openapi`"


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=NAMES)
def test_every_operation_has_a_description_and_error_responses(path, method, operation):
    assert operation["summary"]
    assert operation.get("description") or path.startswith("/problems")
    assert operation["tags"]
    for status, answer in operation["responses"].items():
        assert answer["description"]
        if status != "default" and int(status) >= 400 and "/health" not in path:
            assert list(answer["content"]) == ["application/problem+json"], status
    if method in ("post", "put"):
        assert any(s != "default" and int(s) >= 400 for s in operation["responses"])
    if method in ("post", "put") and not path.endswith(ACTIONS):
        assert "examples" in operation["requestBody"]["content"]["application/json"]


def test_every_reference_has_a_target():
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for each in value.values():
                yield from references(each)
        elif isinstance(value, list):
            for each in value:
                yield from references(each)

    for reference in references(DOCUMENT):
        assert at(DOCUMENT, reference), reference


def test_every_end_has_one_name_and_earlier_names_are_deprecated():
    former = {"expires": "expires_at", "expires_in_s": "ttl_s"}
    found = 0
    for name, schema in DOCUMENT["components"]["schemas"].items():
        members = schema.get("properties", {})
        for old in former.keys() & members:
            found += 1
            assert members[old].get("deprecated") is True, name
            assert former[old] in members and not members[former[old]].get("deprecated"), name
    assert found > 4


SHOWN = [
    pytest.param(content["schema"], example, id=f"{method} {path} {status} {kind} {i}")
    for path, method, operation in OPERATIONS
    for status, answer in operation["responses"].items()
    for kind, content in answer.get("content", {}).items()
    for i, example in enumerate(
        [content["example"]] if "example" in content else [e["value"] for e in content.get("examples", {}).values()]
    )
]


@pytest.mark.parametrize(("schema", "example"), SHOWN)
def test_every_example_of_an_answer_has_the_form_of_its_schema(schema, example):
    validator = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    is_stream = schema == {"$ref": "#/components/schemas/StreamEvent"}  # an example has several lines of this schema

    for value in map(json.loads, example.splitlines()) if is_stream else [example]:
        assert [error.message for error in validator.iter_errors(value)] == []


SENT = [
    (path, method, name, example["value"])
    for path, method, operation in OPERATIONS
    for name, example in operation.get("requestBody", {"content": {}})["content"]
    .get("application/json", {"examples": {}})["examples"]
    .items()
]
BODIES = {(path, method, name): value for path, method, name, value in SENT}


@pytest.fixture
def opened(client) -> Iterator[dict[str, str]]:
    """A session and a tape, opened by the examples, and the id of a program that neither uses."""
    found = {"program_id": WHILE_ID}
    for member, kind, example in (("session_id", "sessions", "regression"), ("tape_id", "tapes", "immediate")):
        answer = client.post(f"/v1/{kind}", json=BODIES[f"/v1/{kind}", "post", example])
        assert answer.status_code == 201, answer.text
        found[member] = answer.json()["id"]
    yield found
    client.delete(f"/v1/sessions/{found['session_id']}")
    client.delete(f"/v1/tapes/{found['tape_id']}")


@pytest.mark.parametrize(("path", "method", "name", "value"), SENT, ids=[f"{m} {p} {n}" for p, m, n, _ in SENT])
def test_every_example_is_a_valid_request(client, opened, path, method, name, value):
    ids = {each: id for each, id in opened.items() if each != "program_id"}
    if path.endswith("/backward") and "tape_id" in path:
        client.post(f"/v1/tapes/{opened['tape_id']}/ops", json=BODIES["/v1/tapes/{tape_id}/ops", "post", "line"])
    answer = client.request(method, **filled(path, method, **ids), json=value)

    assert answer.status_code in (200, 201), answer.text
    if answer.status_code == 201 and path != "/v1/programs":
        client.delete(answer.headers["location"])
    shown = BY_PATH[path, method]["responses"].get(str(answer.status_code), {}).get("content", {})
    example = shown.get("application/json", {}).get("example")
    if example is not None and name not in ("record", "accumulate"):  # their answers have other members
        assert _members(example) == _members(answer.json())


def test_the_example_with_null_limits_resets_the_limits_of_a_tenant(client):
    path = "/v1/tenants/{tenant}"
    url = filled(path, "put")["url"]
    changed, reset = (client.put(url, json=BODIES[path, "put", name]).json()["own"] for name in ("limits", "default"))

    assert changed.keys() == {"jobs", "compute_seconds"}
    assert reset == {}


def _members(document: dict[str, Any]) -> set[str]:
    """The members that are not null."""
    return {name for name, each in document.items() if each is not None}


@pytest.mark.parametrize(
    "path", ["/v1/gradients", "/v1/sessions/{session_id}/gradients", "/v1/sessions/{session_id}/steps"]
)
def test_the_documented_stream_equals_the_streamed_answer(client, opened, path):
    def events(text: str) -> list[tuple[str, str | None]]:
        return [(each["event"], each.get("name")) for each in map(json.loads, text.splitlines())]

    shown = BY_PATH[path, "post"]["responses"]["200"]["content"]["application/x-ndjson"]["example"]
    url = path.format(**opened)
    body = {name: value for name, value in BODIES[path, "post", "regression"].items() if name != "return_gradients"}
    answer = client.post(url, json=body, headers={"accept": "application/x-ndjson"})

    assert events(answer.text) == events(shown)


def asked(client, method: str, **request: Any) -> httpx.Response:
    """The answer; the request is repeated while the sample job still trains on the sample dataset."""
    end = time.monotonic() + 60
    while True:
        answer = client.request(method, **request)
        if answer.status_code != 409 or answer.json()["code"] != "in-use" or time.monotonic() > end:
            return answer
        time.sleep(0.1)


ASKED = [(path, method) for path, method, operation in OPERATIONS if "requestBody" not in operation]
OCTETS = [
    (path, method, next(iter(operation["requestBody"]["content"])))
    for path, method, operation in OPERATIONS
    if "requestBody" in operation and "application/json" not in operation["requestBody"]["content"]
]
"""Forms whose body is a file. They can be sent without one."""


@pytest.mark.parametrize(("path", "method"), ASKED, ids=[f"{m} {p}" for p, m in ASKED])
def test_every_form_without_a_body_is_a_valid_request(client, opened, path, method):
    ids = opened if method == "delete" else {each: id for each, id in opened.items() if each != "program_id"}
    client.post(f"/v1/tapes/{opened['tape_id']}/ops", json=BODIES["/v1/tapes/{tape_id}/ops", "post", "line"])
    answer = asked(client, method, **filled(path, method, **ids))

    assert answer.status_code in (200, 202, 204), answer.text


def test_the_sample_dataset_is_deleted_though_the_sample_job_waits_on_it(client):
    """GET makes the job in the state paused: without an end of it, no wait lets the dataset go."""
    dataset, job = f"/v1/datasets/{SAMPLE_DATASET}", f"/v1/jobs/{SAMPLE_JOB}"
    client.delete(job)
    assert client.get(job).json()["state"] == "paused"
    answer = client.delete(dataset)

    assert answer.status_code == 204, answer.text
    assert client.get(job).json()["state"] == "aborted"  # it never ran


# --- the forms of the API page, sent as they are ------------------------------------------------------------------


def forget_job(client, job: dict[str, Any]) -> None:
    """Cancel a job, and delete it with its session."""
    path, end = f"/v1/jobs/{job['id']}", time.monotonic() + 60
    client.post(f"{path}/cancel")
    while client.delete(path).status_code != 204:
        assert time.monotonic() < end
        time.sleep(0.02)
    client.delete(f"/v1/sessions/{job['session_id']}")


def sent(client, path: str, method: str, body: Any = None, media_type: str = "") -> None:
    """Send the form as the page shows it. Whatever it creates is deleted again."""
    request = filled(path, method)
    if media_type:
        answer = client.request(method, **request | {"headers": request["headers"] | {"content-type": media_type}})
    else:
        answer = asked(client, method, **request, json=body)

    assert answer.status_code in (200, 201, 202, 204), (method, path, answer.text)
    if answer.status_code == 201 and path != "/v1/programs":
        client.delete(answer.headers["location"])
    if answer.status_code == 201 and path == "/v1/jobs":
        forget_job(client, answer.json())


FORMS = [(path, method, name, value) for path, method, name, value in SENT]
FORMS += [(path, method, "", None) for path, method in ASKED]


def test_every_form_succeeds_as_shown_twice_and_after_the_samples_are_deleted(client):
    """The forms that delete a sample leave the next ones without it, too."""
    for times in range(3):
        for path, method, _, value in FORMS:
            sent(client, path, method, value)
        for path, method, media_type in OCTETS:
            sent(client, path, method, media_type=media_type)
        if times == 1:
            for sample in (f"/v1/sessions/{SAMPLE_SESSION}", f"/v1/tapes/{SAMPLE_TAPE}", *PROGRAMS):
                deleted = client.delete(sample)
                # other tests may hold sessions of a sample program
                assert deleted.status_code == 204 or deleted.json()["code"] == "in-use", deleted.text


@pytest.mark.slow
def test_a_sample_that_was_lost_with_its_worker_is_opened_again(tmp_path):
    with serve(tmp_path, workers=1) as served:
        step = {"feeds": REGRESSION_FEEDS}
        path = f"/v1/sessions/{SAMPLE_SESSION}/steps"
        assert served.client.post(path, json=step).json()["step"] == 1
        os.kill(served.client.get("/v1/workers").json()["workers"][0]["pid"], signal.SIGKILL)
        lost = served.client.post(path, json=step)
        assert lost.status_code == 200 or lost.json()["retryable"]
        served.wait_until_ready()

        assert served.client.post(path, json=step).json()["step"] == (2 if lost.status_code == 200 else 1)
