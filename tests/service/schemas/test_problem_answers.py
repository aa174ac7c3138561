"""Each documented error of each operation that a request alone can cause is what the service answers to one.

Errors that depend on a state (409, 410, 412, 504, 507) have tests elsewhere; `check_documented` compares every answer
with the document.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest

from tests.service.conftest import Served
from tests.service.openapi import DOCUMENT, OPERATIONS, filled
from tests.service.tenants.conftest import Keyed, keyed
from tests.service.tenants.test_access import limits

__all__ = ["keyed"]

PROBLEM = "application/problem+json"
UNKNOWN = {"name": "nothing", "type": "nothing", "code": "nothing", "tenant": "nobody"}
"""Values of parameters of paths that are no ids, for things that do not exist."""
GUARDED = ("/v1/keys", "/v1/tenants", "/v1/audit")


def sent(method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    """A request as the API page shows it, with the first example of its body."""
    request = filled(path, method)
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        examples = [each["value"] for each in content["application/json"].get("examples", {}).values()]
        body = examples[0] if examples else {}
        request |= {"content": json.dumps(body)}
        request["headers"] = {**request["headers"], "content-type": "application/json"}
    elif content:
        request |= {"content": b"x"}
        request["headers"] = {**request["headers"], "content-type": next(iter(content))}
    return request


def wrong(status: int, path: str, request: dict[str, Any]) -> dict[str, Any]:
    """`request` with the mistake that this status is for."""
    headers = request["headers"]
    match status:
        case 400:
            return request | {"content": b"{", "headers": headers | {"content-type": "application/json"}}
        case 404:
            unknown = re.sub(r"\{(\w+)\}", lambda m: (UNKNOWN | ID)[m[1]], path)
            return request | {"url": unknown}
        case 406:
            return request | {"headers": headers | {"accept": "image/png"}}
        case 415:
            return request | {"headers": headers | {"content-type": "image/png"}}
        case 416:
            return request | {"headers": headers | {"range": "bytes=999999999999-"}}
        case 422:
            return request | {"params": {**(request["params"] or {}), "surprise": "1"}}
    return request | {"headers": {k: v for k, v in headers.items() if k.lower() != "if-match"}}


ID = {
    f"{kind}_id": f"{prefix}_{'a' * 26}"
    for kind, prefix in {
        "program": "prg", "session": "ses", "tape": "tap", "checkpoint": "ckp", "dataset": "dst", "job": "job",
        "upload": "upl", "operation": "opn", "key": "key", "worker": "wrk",
    }.items()
}  # fmt: skip


def documented(operation: dict[str, Any], status: int) -> dict[str, Any]:
    """The example of this error, by code."""
    return {
        name: each["value"]
        for name, each in operation["responses"][str(status)]["content"][PROBLEM]["examples"].items()
    }


def check(answer: httpx.Response, operation: dict[str, Any], status: int, where: str) -> None:
    assert answer.status_code == status, (where, answer.text[:300])
    if answer.request.method == "HEAD":  # its answer has no content
        return
    found, examples = answer.json(), documented(operation, status)
    assert found["instance"].partition("#")[0] == httpx.URL(str(answer.request.url)).path[:200], where
    if found["code"] in examples:
        shown = examples[found["code"]]
        told = {name: value for name, value in found.items() if name in shown}
        free = {"detail", "instance", "request_id"}
        assert {**told, **dict.fromkeys(free)} == {**shown, **dict.fromkeys(free)}, where


ID_OF_PATH = re.compile(r"\{\w+\}")
CAUSED = (400, 404, 406, 415, 416, 422, 428)


@pytest.mark.parametrize("status", CAUSED)
def test_each_error_that_a_request_causes_is_answered_as_documented(client: httpx.Client, status: int):
    seen, fails = 0, []
    for path, method, operation in OPERATIONS:
        if str(status) not in operation["responses"] or (status == 404 and not ID_OF_PATH.search(path)):
            continue
        request = wrong(status, path, sent(method, path, operation))
        try:
            check(client.request(method.upper(), **request), operation, status, f"{method} {path}")
        except AssertionError as error:
            fails.append(str(error).replace("\n", " ")[:170])
        seen += 1

    assert not fails, "\n".join(fails)
    assert seen > (1 if status in (416, 428) else 10)


def test_no_other_operation_refuses_what_a_client_accepts(client: httpx.Client):
    for path, method, operation in OPERATIONS:
        if "406" not in operation["responses"]:
            answer = client.request(method.upper(), **wrong(406, path, sent(method, path, operation)))
            assert answer.status_code != 406, (method, path)


def test_each_operation_with_a_body_refuses_a_declared_length_beyond_the_limit(service: Served):
    host, port = service.url.removeprefix("http://").split(":")
    seen = 0
    for path, method, operation in OPERATIONS:
        if "413" not in operation["responses"]:
            continue
        request = sent(method, path, operation)
        lines = [
            f"{method.upper()} {httpx.Request('GET', 'http://h' + request['url']).url.raw_path.decode()} HTTP/1.1",
            f"host: {host}:{port}",
            "content-length: 99999999999999",
            "expect: 100-continue",
            *(f"{name}: {value}" for name, value in request["headers"].items()),
        ]
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            head = connection.recv(65536)
            assert head.startswith(b"HTTP/1.1 413 "), (method, path, head)
        seen += 1

    assert seen > 20


def test_each_operation_with_a_rate_tells_when_to_come_again(keyed: Keyed):
    with keyed.client("limited") as client:
        client.get("/v1/me")
        with limits(keyed, "limited", requests_per_second=1e-3, burst=1):
            client.get("/v1/me")
            seen = 0
            for path, method, operation in OPERATIONS:
                if "429" not in operation["responses"] or path.startswith((*GUARDED, "/v1/workers", "/metrics")):
                    continue
                answer = client.request(method.upper(), **sent(method, path, operation))
                check(answer, operation, 429, f"{method} {path}")
                assert method == "head" or answer.json()["code"] == "rate-limited"
                assert int(answer.headers["retry-after"]) > 1
                seen += 1

    assert seen > 70


def test_every_error_has_an_example_of_its_status_and_code():
    for path, method, operation in OPERATIONS:
        for status, answer in operation["responses"].items():
            if status == "default" or int(status) < 400 or PROBLEM not in answer["content"]:
                continue
            for code, shown in documented(operation, int(status)).items():
                assert (shown["code"], shown["status"]) == (code, int(status)), (method, path)
                assert f"`{code}`" in answer["description"]


def test_the_example_of_the_schema_is_the_answer_to_such_a_request(client: httpx.Client):
    (shown,) = DOCUMENT["components"]["schemas"]["Problem"]["examples"]
    body = DOCUMENT["paths"]["/v1/gradients"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    request = json.loads(json.dumps(body["regression"]["value"]))
    request["feeds"]["x"] = {"dtype": "float32", "shape": [3, 2], "data": [1, 2, 3, 4, 5]}
    found = client.post("/v1/gradients", json=request).json()

    assert {**found, "instance": "", "request_id": ""} == {**shown, "instance": "", "request_id": ""}
