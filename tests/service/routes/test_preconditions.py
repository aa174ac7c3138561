"""Resources with an ETag: calls take effect only at a version that their client accepts, and GET answers 304."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from service.schemas.examples import (
    FITTED_ID,
    REGRESSION,
    SAMPLE_CHECKPOINT,
    SAMPLE_JOB,
    SAMPLE_LINE,
    SAMPLE_OPERATION,
    SAMPLE_SESSION,
    SAMPLE_TAPE,
    SAMPLE_UPLOAD,
)
from tests.service.openapi import BY_PATH, OPERATIONS, filled
from tests.service.wire import opened, problem, regression, tensors

TAGGED = {
    "/v1/sessions/{session_id}": {"session_id": SAMPLE_SESSION},
    "/v1/checkpoints/{checkpoint_id}": {"checkpoint_id": SAMPLE_CHECKPOINT},
    "/v1/programs/{program_id}": {},
    "/v1/datasets/{dataset_id}": {},
    "/v1/uploads/{upload_id}": {"upload_id": SAMPLE_UPLOAD},
    "/v1/jobs/{job_id}": {"job_id": SAMPLE_JOB},
    "/v1/operations/{operation_id}": {"operation_id": SAMPLE_OPERATION},
    "/v1/tapes/{tape_id}": {"tape_id": SAMPLE_TAPE},
}
"""Resources with an ETag, and the ids of their samples."""
PURE = ("/check", "/clone", "/gradients", "/backward", "/evaluations")
"""Endings of the paths of a program whose POST depends on nothing that changes."""
CONDITIONAL = [
    (root, path, method)
    for root in TAGGED
    for path, method in BY_PATH
    if path.startswith(root)
    and method not in ("get", "head")
    and not (root.endswith("{program_id}") and path.endswith(PURE))
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
    if root.endswith("{dataset_id}"):
        columns = {"n": {"dtype": "int64", "shape": [3], "data": [3, 1, len(method)]}}
        ids["dataset_id"] = client.post("/v1/datasets", json={"columns": columns}).json()["id"]
    request = filled(path, method, **ids)
    content = BY_PATH[path, method].get("requestBody", {}).get("content", {})
    if "application/json" in content and (examples := content["application/json"]["examples"]):
        request["json"] = next(iter(examples.values()))["value"]
    elif content:
        request["content"] = b""
        request["headers"] |= {"content-type": next(iter(content))}
    resource = root.format(**ids)
    if path.endswith("/backward"):
        client.post(f"{resource}/ops", json=SAMPLE_LINE)
    if "job_id" in ids:
        client.post(f"{resource}/{'cancel' if method == 'delete' else 'pause'}")
    before, tag = shown(client, resource), client.get(resource).headers["etag"]

    refused = client.request(method, **request | {"headers": request["headers"] | {"If-Match": '"another"'}})
    after = shown(client, resource)
    taken = client.request(method, **request | {"headers": request["headers"] | {"If-Match": f'"another", {tag}'}})

    problem(refused, 412, "precondition-failed")
    assert after == before
    assert taken.is_success, taken.text
    if "etag" in taken.headers and "location" not in taken.headers and not path.endswith("resume"):
        assert client.get(resource).headers["etag"] == taken.headers["etag"]


def test_labels_in_any_order_give_one_etag(client):
    """The answer to a change and a later one have the same ETag, whatever order the store keeps."""
    made = client.post("/v1/datasets", json={"columns": {"n": {"dtype": "int64", "shape": [2], "data": [7, 7]}}})
    path = made.headers["location"]

    changed = client.patch(path, json={"labels": {"z": "1", "a": "2", "m": "3"}})
    again = client.patch(path, json={"labels": {"a": None}}), client.patch(path, json={"labels": {"a": "2"}})

    assert client.get(path).headers["etag"] == again[1].headers["etag"] == changed.headers["etag"]


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


def test_another_version_is_refused_whatever_number_the_call_has(client, path):
    """Two clients take the same number: the second one knows from 412 that its version is out of date."""
    known = {"If-Match": client.get(path).headers["etag"]}
    client.post(f"{path}/steps", json={"seq": 1, **STEP})
    other = {"feeds": tensors({**FEEDS, "y": FEEDS["y"] + 1})}

    for seq in (1, 3):  # used, and not the next one
        problem(client.post(f"{path}/steps", json={"seq": seq, **other}, headers=known), 412, "precondition-failed")
    for seq, code in ((1, "sequence-conflict"), (3, "sequence-gap")):
        current = {"If-Match": client.get(path).headers["etag"]}
        problem(client.post(f"{path}/steps", json={"seq": seq, **other}, headers=current), 409, code)


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


def test_a_sum_of_gradients_gives_a_session_another_etag(client, path):
    """It changes the next update, although it changes neither parameters nor settings."""
    accumulating = {**STEP, "accumulate": True}
    tags = [client.get(path).headers["etag"]]
    for seq in (1, 2):
        added = client.post(f"{path}/gradients", json={"seq": seq, **accumulating}, headers={"If-Match": tags[-1]})
        assert added.json()["weights_version"] == "e1.v0"
        tags.append(added.headers["etag"])
        assert {client.get(f"{path}{part}").headers["etag"] for part in ("", "/parameters", "/optimizer")} == {tags[-1]}
        assert client.get(f"{path}/parameters", headers={"If-None-Match": tags[-2]}).json()["accumulated"] == seq
    for stale in tags[:2]:
        problem(client.post(f"{path}/updates", json={}, headers={"If-Match": stale}), 412, "precondition-failed")
    assert client.delete(f"{path}/gradients", headers={"If-Match": tags[2]}).status_code == 204
    assert client.get(path).headers["etag"] == tags[0], "without a sum the session is as it was"
    again = client.post(f"{path}/gradients", json={"seq": 3, **accumulating})

    assert len({*tags, again.headers["etag"]}) == 4, "another sum, although of as many gradients"
    update = client.post(f"{path}/updates", json={}, headers={"If-Match": again.headers["etag"]})
    assert (update.status_code, update.headers["etag"]) == (200, '"e1.v1"')


WITHOUT = {
    "/v1/keys/{key_id}": "the time of its last use changes with each use",
    "/v1/tenants/{tenant}": "the use of its limits changes with each call",
    "/problems/{code}": "a page for people",
}
"""Resources without an ETag, and the reason."""
READ = [(path, operation) for path, method, operation in OPERATIONS if method == "get"]
CACHED = [path for path, operation in READ if "304" in operation["responses"]]


def test_every_resource_has_an_etag_or_a_reason_to_have_none():
    assert {path for path, _ in READ if path.endswith("}") and path not in CACHED} == WITHOUT.keys()


def end_sample_job(client) -> None:
    """Cancel the sample job, and wait until it changes no more."""
    path, end = f"/v1/jobs/{SAMPLE_JOB}", time.monotonic() + 60
    client.post(f"{path}/cancel")
    while client.get(path).json()["ended"] is None:
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("path", CACHED)
def test_every_get_of_a_resource_with_an_etag_obeys_its_conditions(client, path):
    request = filled(path, "get", program_id=FITTED_ID)
    headers = request.pop("headers")
    if "{job_id}" in path:
        end_sample_job(client)  # an earlier test may have resumed it
    first = client.get(**request, headers=headers)
    tag = first.headers["etag"]

    def answer(**conditions: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in conditions.items()}
        return client.get(**request, headers=headers | named)

    known = answer(if_none_match=f'"other", W/{tag}')
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    assert known.headers.get("vary") == first.headers.get("vary")
    assert answer(if_none_match="*", if_match=tag).status_code == 304
    assert answer(if_none_match='"other"').status_code == answer(if_match=f'"other", {tag}').status_code == 200
    problem(answer(if_match='"other"', if_none_match=tag), 412, "precondition-failed")
    assert problem(answer(if_match="x"), 422, "invalid-request")["errors"][0]["parameter"] == "header: If-Match"
    head = client.head(**request, headers=headers | {"if-none-match": tag})
    assert (head.status_code, head.headers["etag"]) == (304, tag)


PREFIXES = {"session": "ses", "checkpoint": "ckp", "program": "prg", "dataset": "dst", "upload": "upl", "job": "job"}
PREFIXES |= {"operation": "opn", "tape": "tap"}
ABSENT = {f"{name}_id": f"{prefix}_{'a' * 26}" for name, prefix in PREFIXES.items()}
ABSENT |= {"type": "no_such_op", "name": "absent"}


def same_problem(one: httpx.Response, other: httpx.Response) -> bool:
    code = one.json()["code"]
    return problem(other, one.status_code, code)["detail"] == problem(one, one.status_code, code)["detail"]


@pytest.mark.parametrize("path", CACHED)
def test_if_none_match_of_an_absent_resource_or_a_wrong_query_gets_the_error(client, path):
    absent, wrong = (filled(path, "get", **ids) for ids in (ABSENT, {"program_id": FITTED_ID}))
    wrong["params"] = wrong["params"] | {"no_such_parameter": "1"}
    for request in (absent, wrong) if "{" in path else (wrong,):
        plain = client.get(**request)
        conditional = client.get(**request | {"headers": request["headers"] | {"If-None-Match": "*"}})

        assert plain.status_code in (404, 422)
        assert same_problem(plain, conditional)


WRONG = [
    *(f"/v1/programs/{FITTED_ID}/{part}?loss=absent" for part in ("analysis", "backward", "graph")),
    f"/v1/programs/{FITTED_ID}/analysis?loss=loss&shape=x:two",
    *(f"/v1/sessions/{SAMPLE_SESSION}/{part}?names=absent" for part in ("parameters", "optimizer")),
    f"/v1/tapes/{SAMPLE_TAPE}/values/absent",
]
"""Questions without an answer, about resources that exist."""


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("known", ["*", "the tag of the resource"])
def test_if_none_match_of_a_question_without_an_answer_gets_the_error(client, url, known):
    tag = "*" if known == "*" else client.get("/".join(url.split("/")[:4])).headers["etag"]

    plain, conditional = client.get(url), client.get(url, headers={"If-None-Match": tag})

    assert plain.status_code in (404, 422)
    assert same_problem(plain, conditional)


def test_if_none_match_of_some_parameters_gets_304(client):
    url = f"/v1/sessions/{SAMPLE_SESSION}/parameters?names=w"
    tag = client.get(url).headers["etag"]

    answers = [client.get(url, headers={"If-None-Match": each}) for each in (tag, "*")]

    assert [(each.status_code, each.headers["etag"], each.content) for each in answers] == 2 * [(304, tag, b"")]


def test_every_answer_with_an_etag_is_documented(client):
    for path, operation in READ:
        answer = client.get(**filled(path, "get", program_id=FITTED_ID))
        headers = operation["responses"].get(str(answer.status_code), {}).get("headers", {})
        assert ("etag" in answer.headers) == ("ETag" in headers), path
        names = {each["name"] for each in operation["parameters"]}
        assert ("304" in operation["responses"]) <= ({"If-Match", "If-None-Match"} <= names), path
