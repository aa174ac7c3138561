"""Invalid requests of every kind get a problem document: no 500, no hang, no dead worker."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import httpx
import pytest

from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS, WHILE
from tests.service.conftest import Served

JSON = {"Content-Type": "application/json"}
GRADIENTS = {
    "program": REGRESSION,
    "loss": "loss",
    "feeds": REGRESSION_FEEDS,
    "parameters": REGRESSION_PARAMETERS,
    "fetch": ["prediction"],
}
LOOP = {
    "program": WHILE,
    "loss": "loss",
    "feeds": {"n": {"dtype": "int64", "shape": [], "data": [3]}},
    "parameters": {"w": {"dtype": "float64", "shape": [2], "data": [0.5, 0.7]}},
}
BODIES = [
    ("/v1/programs", {"program": REGRESSION}),
    ("/v1/programs", {"program": WHILE}),
    ("/v1/gradients", GRADIENTS),
    ("/v1/gradients", LOOP),
    ("/v1/sessions", {"program": REGRESSION, "loss": "loss", "optimizer": {"type": "sgd", "learning_rate": 0.1}}),
]
JUNK: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, 1e-320, "", "x", "w",
    "loss", "@", "w@GRAD", "\u202e", "\ud83d\ude00", "a" * 300, [], [[]], [None], ["x", "x"], {}, {"x": 1}, [1] * 9,
    {"dtype": "float32", "shape": [1], "data": [1]}, {"dtype": "float32", "shape": [2**40], "b64": ""},
]  # fmt: skip
RAW = [
    b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b'{"a":1,}',
    b'{"a":1}x', b"{'a':1}", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":1,"a":2}',
    b'{"a":' + b"9" * 5000 + b"}", b'{"a":' * 100 + b"1" + b"}" * 100, b"[" * 100_000, b'{"a":' * 100_000,
    b"// x\n{}", b"\x00", b'{"program":' + b" " * 10_000 + b"}",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        for key, each in value.items():
            found += places(each, (*path, key))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            found += places(each, (*path, i))
    return found


def mutated(value: Any, draw: random.Random) -> Any:
    """`value` with one to three places replaced, removed, doubled or renamed."""
    value = copy.deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(places(value)[1:] or [()])
        if not path:
            return draw.choice(JUNK)
        holder = value
        for step in path[:-1]:
            holder = holder[step]
        match draw.randrange(5):
            case 0 | 1:
                holder[path[-1]] = copy.deepcopy(draw.choice(JUNK))
            case 2 if isinstance(holder, dict):
                holder[draw.choice(["x", "sub_block", "w@GRAD", "idx", ""])] = holder.pop(path[-1])
            case 3:
                del holder[path[-1]]
            case _:
                other = draw.choice(places(value)[1:] or [()])
                taken: Any = value
                for step in other:
                    taken = taken[step]
                holder[path[-1]] = copy.deepcopy(taken)
    return value


def check(answer: httpx.Response) -> None:
    assert answer.status_code < 500 or answer.status_code in (503, 504), (answer.status_code, answer.text)
    if answer.status_code >= 400:
        assert answer.headers["content-type"].startswith("application/problem+json")
        document = answer.json()
        assert document["status"] == answer.status_code and document["code"] and document["request_id"]
        assert len(answer.content) < 32 * 1024


def generations(service: Served) -> list[int]:
    return [w["generation"] for w in service.client.get("/v1/workers").json()["workers"]]


def test_eight_hundred_mutated_bodies_get_valid_answers_and_kill_no_worker(service):
    before = generations(service)
    refused = 0
    for i in range(800):
        draw = random.Random(i)
        path, body = BODIES[i % len(BODIES)]
        text = json.dumps(mutated(body, draw))
        answer = service.client.post(path, content=text.encode("utf-8", "replace"), headers=JSON, timeout=120)
        check(answer)
        refused += answer.status_code >= 400
        if path == "/v1/sessions" and answer.status_code == 201:
            service.client.delete(f"/v1/sessions/{answer.json()['id']}")

    assert refused > 300
    assert generations(service) == before
    assert service.client.get("/healthz/ready").status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/programs", "/v1/gradients", "/v1/sessions", f"/v1/programs/{REGRESSION_ID}/gradients"]
)
def test_bodies_other_than_json_objects_are_refused(client, path):
    for raw in RAW:
        answer = client.post(path, content=raw, headers=JSON)
        check(answer)
        assert 400 <= answer.status_code < 500, raw[:40]
    for media_type in ("text/plain", "application/xml", "multipart/form-data", "application/json; charset=latin-1"):
        answer = client.post(path, content=b"{}", headers={"Content-Type": media_type})
        check(answer)
        assert answer.status_code == 415


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/programs/x", "/v1/nothing", "/v1/programs/prg_%00", "/v1/sessions/..%2f.."]
)
def test_wrong_paths_and_methods_get_problem_documents(client, method, path):
    check(client.request(method, path))


def test_truncated_and_forged_tensor_files_are_refused(client):
    import numpy as np

    from service.formats import safetensors as tensorfile

    values = {"x": np.ones((3, 2), np.float32), "y": np.ones((3, 1), np.float32)}
    values |= {"w": np.ones((2, 1), np.float32), "b": np.ones(1, np.float32)}
    good = bytes(tensorfile.pack(values, {"loss": "loss"}, key="request"))
    path, headers = f"/v1/programs/{REGRESSION_ID}/gradients", {"Content-Type": "application/x-safetensors"}
    assert client.post(path, content=good, headers=headers).status_code == 200
    draw = random.Random(0)
    for _ in range(100):
        broken = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            broken[draw.randrange(min(len(broken), 400))] = draw.randrange(256)
        check(client.post(path, content=bytes(broken), headers=headers))
    for cut in range(0, len(good), 37):
        answer = client.post(path, content=good[:cut], headers=headers)
        check(answer)
        assert answer.status_code >= 400
