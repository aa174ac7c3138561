"""The member `compile` of calls that change nothing: machine code for calls that are repeated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from tests.core.analysis.test_compiled import lengthening_inside, printing_between, sections
from tests.core.passes.loops import tanh_loop
from tests.programs import Sketch
from tests.service.conftest import serve
from tests.service.openapi import DOCUMENT, OPERATIONS, whole
from tests.service.wire import array, file_of, opened, problem, read_file, regression, tensors

TAKERS = {
    "/v1/gradients",
    "/v1/programs/{program_id}/gradients",
    "/v1/programs/{program_id}/evaluations",
    "/v1/sessions/{session_id}/evaluations",
}
GRADIENTS = "/v1/sessions/{session_id}/gradients"
"""Compiles in any case; the member chooses between code for these shapes and for many."""

ALWAYS_COMPILED = {
    "/v1/sessions/{session_id}/steps",
    "/v1/sessions/{session_id}/updates",
    "/v1/tapes/{tape_id}/ops",
    "/v1/tapes/{tape_id}/values/{name}",
    "/v1/tapes/{tape_id}/backward",
}
"""Routes that decide themselves: sessions and tapes expect many calls with the same shapes."""

NATIVE, AUTO, DYNAMIC = ({"compile": how} for how in ("always", "auto", "dynamic"))


def only_reported() -> Sketch:
    """A program of one op, which has no machine code."""
    s = Sketch()
    s.param("w", 1.5)
    s.op("print", "w", out="loss")
    return s


def deep(depth: int = 60) -> Sketch:
    """Many different ops on little data: compiling takes much longer than interpreting."""
    s = Sketch()
    name = s.param("w", np.linspace(-0.5, 0.5, 35).reshape(5, 7))
    for i in range(depth):
        name = s.op("mul", s.op("tanh", name), s.op("softmax", name, axis=i % 2))
    s.total(name)
    return s


SKETCHES = {
    "regression": regression,
    "loop": lambda: tanh_loop(3),
    "op_between": printing_between,
    "loop_interpreted": lengthening_inside,
    "unknown_sizes": sections,
    "no_machine_code": only_reported,
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service with one worker, which compiles a repeated call once."""
    with serve(tmp_path_factory.mktemp("data"), compile="auto") as served:
        yield served.client


@contextmanager
def request_of(client: httpx.Client, path: str, sketch: Sketch) -> Iterator[tuple[str, dict[str, Any]]]:
    """The path and the members of a call of the route `path` with the values of a sketch."""
    roles = {v["name"]: v["role"] for v in sketch.blocks[0]["vars"] if "role" in v}
    feeds = {"feeds": tensors({n: value for n, value in sketch.values.items() if roles[n] == "feed"})}
    leaves = {"parameters": tensors({n: value for n, value in sketch.values.items() if roles[n] == "parameter"})}
    if path == "/v1/gradients":
        yield path, {"program": sketch.document, "loss": "loss", **feeds, **leaves}
    elif "{program_id}" in path:
        id = client.post("/v1/programs", json={"program": sketch.document}).json()["id"]
        asked = {"fetch": ["loss"]} if path.endswith("/evaluations") else {"loss": "loss"}
        yield path.format(program_id=id), {**asked, **feeds, **leaves}
    else:
        with opened(client, sketch) as session:
            yield f"{session}/{path.rpartition('/')[2]}", feeds


def numbers_of(said: dict[str, Any]) -> dict[str, np.ndarray]:
    found = {**said["fetched"], **said.get("gradients", {})}
    return {name: array(value) for name, value in found.items()} | (
        {"loss": array(said["loss"])} if said.get("loss") else {}
    )


def test_every_route_that_may_compile_takes_the_member_or_decides_itself():
    compiling, taking = set(), set()
    for path, method, operation in OPERATIONS:
        for status, answer in operation["responses"].items():
            schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
            if status.startswith("2") and "compiled" in whole(DOCUMENT, schema).get("properties", {}):
                compiling.add(path)
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if method == "post" and "compile" in whole(DOCUMENT, body).get("properties", {}):
            taking.add(path)

    assert taking == TAKERS | {GRADIENTS}
    assert compiling == taking | ALWAYS_COMPILED


@pytest.mark.parametrize("path", sorted(TAKERS))
@pytest.mark.parametrize("name", SKETCHES)
def test_a_repeated_call_has_equal_bits_and_the_results_of_the_interpreter(alone: httpx.Client, path: str, name: str):
    with request_of(alone, path, SKETCHES[name]()) as (at, body):
        answers = [alone.post(at, json=body | more) for more in (AUTO, NATIVE, NATIVE, AUTO, {})]

    assert [answer.status_code for answer in answers] == [200] * 5, answers[1].text
    interpreted, first, second, again, default = (answer.json() for answer in answers)
    assert second["compiled"] is False
    assert numbers_of(first).keys() == numbers_of(interpreted).keys()
    for name, value in numbers_of(interpreted).items():
        np.testing.assert_allclose(numbers_of(first)[name], value, rtol=1e-12, err_msg=name)
        for one, other in ((first, second), (interpreted, again), (interpreted, default)):
            assert numbers_of(one)[name].tobytes() == numbers_of(other)[name].tobytes(), name


def open_regression() -> Sketch:
    """A regression with an open number of rows."""
    sketch = regression(rows=12)
    for v in sketch.blocks[0]["vars"]:
        if v["name"] in "xy":
            v["shape"] = [-1, *v["shape"][1:]]
    return sketch


@pytest.mark.parametrize("path", sorted({*TAKERS, GRADIENTS}))
def test_dynamic_calls_on_feeds_of_other_sizes_compile_nothing(alone: httpx.Client, path: str):
    sketch = open_regression()
    with request_of(alone, path, sketch) as (at, body):
        answers = {}
        for rows in (12, 5, 9, 12):
            feeds = {"feeds": tensors({name: sketch.values[name][:rows] for name in "xy"})}
            answers[rows] = [alone.post(at, json=body | feeds | how).json() for how in (DYNAMIC, AUTO)]

    assert [answers[rows][0]["compiled"] for rows in (5, 9, 12)] == [False] * 3
    for dynamic, plain in answers.values():
        assert numbers_of(dynamic).keys() == numbers_of(plain).keys()
        for name, value in numbers_of(plain).items():
            np.testing.assert_allclose(numbers_of(dynamic)[name], value, rtol=1e-12, err_msg=name)


def test_a_call_that_accumulates_refuses_the_member(client: httpx.Client):
    sketch = regression()
    with opened(client, sketch) as session:
        feeds = {"feeds": tensors({name: sketch.values[name] for name in "xy"})}
        refused = client.post(f"{session}/gradients", json={**feeds, "accumulate": True, **DYNAMIC})

    assert [each["pointer"] for each in problem(refused, 422, "invalid-request")["errors"]] == ["/compile"]


def test_a_file_takes_the_member_with_the_request(alone: httpx.Client):
    sketch = regression(rows=6)
    id = alone.post("/v1/programs", json={"program": sketch.document}).json()["id"]
    request = file_of(sketch.values, loss="loss", **NATIVE)

    answer = alone.post(f"/v1/programs/{id}/gradients", params={"profile": True}, **request)

    said, arrays = read_file(answer)
    x, y, w = (sketch.values[name] for name in "xyw")
    np.testing.assert_allclose(arrays["grad/w"], 2 * x.T @ (x @ w - y) / len(x), rtol=1e-12)
    assert all(each["compiled"] for each in said["profile"]["kernels"])


@pytest.mark.parametrize("path", sorted({*TAKERS, GRADIENTS}))
@pytest.mark.parametrize("value", ["never", "", True, None, ["always"]])
def test_another_value_is_refused_with_its_place(client: httpx.Client, path: str, value: object):
    with request_of(client, path, regression()) as (at, body):
        refused = problem(client.post(at, json=body | {"compile": value}), 422, "invalid-request")

    assert [error["pointer"] for error in refused["errors"]] == ["/compile"]


@pytest.mark.parametrize("path", sorted(TAKERS))
def test_a_call_whose_deadline_passes_while_it_compiles_can_be_sent_again(alone: httpx.Client, path: str):
    with request_of(alone, path, deep(60 + sorted(TAKERS).index(path))) as (at, body):
        interpreted = alone.post(at, json=body)
        late = [alone.post(at, json=body | NATIVE | {"deadline_s": 0.05})]
        while late[-1].status_code == 504 and len(late) < 200:  # of growing patience: 100 s in all
            late.append(alone.post(at, json=body | NATIVE | {"deadline_s": 0.05 + 0.005 * len(late)}))
        ready = alone.post(at, json=body | NATIVE)

    assert interpreted.status_code == 200, interpreted.text
    problem(late[0], 504, "deadline-exceeded")
    assert ready.status_code == 200, ready.text
    assert (late[-1].status_code, ready.json()["compiled"]) == (200, False), late[-1].text
