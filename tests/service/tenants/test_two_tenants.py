"""Every route of the OpenAPI document without a key, with wrong keys, and with the key of another tenant.

Nothing here lists routes: a new one is tested as soon as it is documented, and fails while it lets anyone in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from service.schemas.examples import REGRESSION_FEEDS, SAMPLE_SESSION, SAMPLE_TAPE
from tests.service import openapi
from tests.service.openapi import DOCUMENT
from tests.service.tenants.conftest import Keyed
from tests.service.wire import problem, regression

OPERATIONS = [(path, method.upper(), operation) for path, method, operation in openapi.OPERATIONS]
NAMES = [f"{method} {path}" for path, method, _ in OPERATIONS]
PUBLIC = {
    "/healthz/live", "/healthz/ready", "/healthz/startup", "/v2", "/v2/health/live", "/v2/health/ready", "/problems",
    "/problems/{code}",
}  # fmt: skip
ADMIN = ("/v1/keys", "/v1/tenants", "/v1/audit", "/v1/workers", "/metrics")
PROGRAM = regression(rows=3).document  # no program of the documentation: those exist for every tenant
SHARED = {"name": "x", "type": "relu", "code": "gone", "tenant": "acme", "key_id": "key_mfrggzdfmztwq2lknnwg23tpob"}
"""Parameters of paths that name no tenant's thing."""

every_operation = pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS, ids=NAMES)


def example(operation: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a request with the first documented body."""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        values = [each["value"] for each in content["application/json"].get("examples", {}).values()]
        return {"json": values[0] if values else {}}
    if content:
        return {"content": b"", "headers": {"content-type": next(iter(content))}}
    return {}


def headers(operation: dict[str, Any]) -> dict[str, str]:
    """The headers that the operation demands."""
    wanted = [each for each in operation.get("parameters", ()) if each["in"] == "header" and each.get("required")]
    return {each["name"]: "0" if "ffset" in each["name"] else '"e1.v0"' for each in wanted}


def queries(operation: dict[str, Any]) -> dict[str, Any]:
    """The query parameters that the operation demands or shows."""
    found = {}
    for each in operation.get("parameters", ()):
        shown = [e["value"] for e in each.get("examples", {}).values()] + [each[k] for k in ("example",) if k in each]
        if each["in"] == "query" and shown and each.get("required"):
            found[each["name"]] = shown[0]
    return found


@dataclass
class Things:
    """Things of the tenant acme by the parameter of paths that names them."""

    ids: dict[str, str]

    def fill(self, path: str) -> str:
        return path.format(**SHARED, **self.ids)


def made(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in (statuses or (201,)), answer.text
    return answer.json()


@pytest.fixture(scope="module")
def things(keyed: Keyed) -> Iterator[Things]:
    """One thing of each kind."""
    with keyed.client("one") as client:
        program = made(client.post("/v1/programs", json={"program": PROGRAM}), 200, 201)["id"]
        session = made(client.post("/v1/sessions", json={"program_id": program, "loss": "loss"}))["id"]
        ids = {"program_id": program, "session_id": session}
        ids["tape_id"] = made(client.post("/v1/tapes", json={}))["id"]
        prefer = {"prefer": "respond-async"}
        body = {"program_id": program, "loss": "loss"}
        operation = client.post("/v1/sessions", json=body, headers=prefer)
        ids["operation_id"] = made(operation, 202)["id"]
        for kind, parameter in OTHERS.items():
            if f"/v1/{kind}" in DOCUMENT["paths"]:
                ids[parameter] = MAKERS[kind](client, ids)
        yield Things(ids)


def upload(client: httpx.Client, ids: dict[str, str]) -> str:
    return made(client.post("/v1/uploads", json={"size": 1000}))["id"]


def dataset(client: httpx.Client, ids: dict[str, str]) -> str:
    return made(
        client.post("/v1/datasets?name=rows", content=b"x,y\n1,2\n3,4\n", headers={"content-type": "text/csv"}),
        200,
        201,
    )["id"]


def checkpoint(client: httpx.Client, ids: dict[str, str]) -> str:
    return made(client.post(f"/v1/sessions/{ids['session_id']}/checkpoints", json={}))["id"]


def job(client: httpx.Client, ids: dict[str, str]) -> str:
    body = DOCUMENT["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    return made(client.post("/v1/jobs", json=next(iter(body.values()))["value"]), 201, 202)["id"]


OTHERS = {"uploads": "upload_id", "datasets": "dataset_id", "checkpoints": "checkpoint_id", "jobs": "job_id"}
MAKERS = {"uploads": upload, "datasets": dataset, "checkpoints": checkpoint, "jobs": job}


def test_every_parameter_of_a_path_names_a_known_kind_of_thing(things: Things):
    for path, _, _ in OPERATIONS:
        things.fill(path)


@pytest.mark.sampled(3)
@every_operation
def test_a_request_without_a_valid_key_is_answered_401(keyed, things, path, method, operation):
    """Bodies are valid, so that nothing but the key is wrong."""
    for name in (None, "bp_" + "a" * 52, "expired", "revoked"):
        with keyed.client(name) as client:
            answer = client.request(method, things.fill(path), **example(operation))
            if path in PUBLIC:
                assert answer.status_code != 401
                continue
            assert answer.status_code == 401
            if method != "HEAD":
                problem(answer, 401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")


@every_operation
def test_a_key_without_the_scope_is_answered_403(keyed, things, path, method, operation):
    if path in PUBLIC:
        return
    wrong = "one" if path.startswith(ADMIN) else "writer" if method in ("GET", "HEAD") else "reader"
    with keyed.client(wrong) as client:
        answer = client.request(method, things.fill(path), **example(operation))
        assert answer.status_code == 403
        if method != "HEAD":
            problem(answer, 403, "forbidden")


@pytest.mark.sampled(3)
@every_operation
def test_a_thing_of_another_tenant_is_answered_404(keyed, things, path, method, operation):
    """As is a thing that never existed: the answers are the same."""
    if not any(f"{{{name}}}" in path for name in things.ids):
        return
    given = example(operation)
    given["headers"] = {**given.get("headers", {}), **headers(operation)}
    with keyed.client("two") as client:
        answer = client.request(method, things.fill(path), params=queries(operation), **given)
        unknown = Things({name: id[:-8] + "aaaaaaaa" for name, id in things.ids.items()})
        none = client.request(method, unknown.fill(path), params=queries(operation), **given)
        assert answer.status_code == none.status_code
        assert answer.status_code == 404, answer.text
        assert method == "HEAD" or answer.json()["code"] == "not-found"
        assert "acme" not in answer.text


def test_bodies_cannot_name_things_of_another_tenant(keyed, things):
    with keyed.client("two") as client:
        asked = {"program_id": things.ids["program_id"], "loss": "loss"}
        problem(client.post("/v1/sessions", json=asked), 404, "not-found")


def test_lists_show_the_things_of_their_tenant_alone(keyed, things):
    """With two clients of different tenants, in turn, so that no cache mixes them up."""
    lists = [p for p, m, o in OPERATIONS if m == "GET" and "{" not in p and p not in PUBLIC and not p.startswith(ADMIN)]
    with keyed.client("one") as one, keyed.client("two") as two:
        for path in lists:
            for _ in range(2):
                theirs, ours = one.get(path), two.get(path)
                assert theirs.status_code == ours.status_code == 200
                assert [id for id in things.ids.values() if id in ours.text] == [], path
        for kind, parameter in {"programs": "program_id", "sessions": "session_id", "tapes": "tape_id"}.items():
            assert things.ids[parameter] in one.get(f"/v1/{kind}").text


def test_the_same_program_of_two_tenants_is_two_things(keyed, things):
    id = things.ids["program_id"]
    with keyed.client("one") as one, keyed.client("limited") as other:
        assert made(other.post("/v1/programs", json={"program": PROGRAM}), 201)["id"] == id
        assert one.get(f"/v1/programs/{id}").status_code == other.get(f"/v1/programs/{id}").status_code == 200
        assert other.delete(f"/v1/programs/{id}").status_code == 204
        assert one.get(f"/v1/programs/{id}").status_code == 200
        problem(other.get(f"/v1/programs/{id}"), 404, "not-found")


def test_equal_idempotency_keys_of_two_tenants_are_two_requests(keyed):
    header = {"idempotency-key": f"same-{time.time()}"}
    body = {"program": PROGRAM, "loss": "loss"}
    with keyed.client("one") as one, keyed.client("two") as two:
        first, second = (client.post("/v1/sessions", json=body, headers=header) for client in (one, two))
        assert made(first)["id"] != made(second)["id"]
        assert "idempotency-replayed" not in second.headers
        for client, answer in ((one, first), (two, second)):
            assert client.delete(answer.headers["location"]).status_code == 204


def test_the_samples_of_the_documentation_are_different_things_for_each_tenant(keyed):
    step = {"feeds": REGRESSION_FEEDS}
    with keyed.client("one") as one, keyed.client("two") as two:
        for expected in (1, 2):
            assert made(one.post(f"/v1/sessions/{SAMPLE_SESSION}/steps", json=step), 200)["step"] == expected
        assert made(two.post(f"/v1/sessions/{SAMPLE_SESSION}/steps", json=step), 200)["step"] == 1
        assert one.get(f"/v1/tapes/{SAMPLE_TAPE}").status_code == 200
        assert one.delete(f"/v1/sessions/{SAMPLE_SESSION}").status_code == 204
        assert made(two.post(f"/v1/sessions/{SAMPLE_SESSION}/steps", json=step), 200)["step"] == 2


def test_the_things_of_the_first_tenant_are_all_still_there(keyed, things):
    """Runs last: no request of the tests above changed them."""
    with keyed.client("one") as client:
        for parameter, id in things.ids.items():
            assert client.get(f"/v1/{parameter.removesuffix('_id')}s/{id}").status_code == 200, parameter
