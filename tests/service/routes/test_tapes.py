"""Tapes over HTTP: immediate and lazy values, playback, sequence numbers, invalid requests and failures."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.conftest import serve
from tests.service.openapi import DOCUMENT
from tests.service.wire import FILE, array, file_of, problem, read_file, tensor, tensors

W, X = np.array([0.5, -1.0]), np.array([3.0, 4.0])


def op(type: str, out: str | None = None, /, attrs: dict[str, Any] | None = None, **inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": type, "inputs": inputs, "attrs": attrs or {}}
    return found if out is None else found | {"outputs": {"out": [out]}}


LINE = [op("mul", "wx", x="w", y="x"), op("tanh", "big", x="wx"), op("reduce_sum", "loss", x="wx")]
BODY = {"parameters": tensors({"w": W}), "constants": tensors({"x": X}), "ops": LINE}


@contextmanager
def opened(client: httpx.Client, **settings: Any) -> Iterator[str]:
    answer = client.post("/v1/tapes", json=settings)
    assert answer.status_code == 201, answer.text
    path = answer.headers["location"]
    try:
        yield path
    finally:
        client.delete(path)


@pytest.fixture(params=["immediate", "lazy"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(client: httpx.Client, mode: str) -> Iterator[str]:
    with opened(client, mode=mode) as path:
        yield path


def append(client: httpx.Client, path: str, *ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = client.post(f"{path}/ops", json={"ops": list(ops), **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def value(client: httpx.Client, path: str, name: str) -> np.ndarray:
    answer = client.get(f"{path}/values/{name}")
    assert answer.status_code == 200, answer.text
    return array(answer.json()["value"])


# Values


def test_immediate_values_come_with_the_answer_and_lazy_values_on_request(client):
    with opened(client) as now, opened(client, mode="lazy") as later:
        first = client.post(f"{now}/ops", json=BODY).json()
        second = client.post(f"{later}/ops", json=BODY).json()

        assert {name: array(v).tolist() for name, v in first["values"].items()} == {
            "wx": [1.5, -4.0],
            "big": np.tanh([1.5, -4.0]).tolist(),
            "loss": -2.5,
        }
        assert (second["values"], second["bytes"]) == ({}, W.nbytes + X.nbytes)
        assert [o["op"] for o in second["appended"]] == [0, 1, 2]
        assert second["appended"][0]["outputs"] == [{"name": "wx", "dtype": "float64", "shape": [2]}]
        asked = client.get(f"{later}/values/loss").json()
        assert (array(asked["value"]).item(), asked["ran"]) == (-2.5, [0, 2])
        assert client.get(f"{later}/values/loss").json()["ran"] == []
        assert client.get(f"{now}/values/loss").json()["ran"] == []


def test_values_to_return_can_be_named(client, path):
    said = append(client, path, *LINE, **{k: v for k, v in BODY.items() if k != "ops"}, return_values=["loss", "w"])
    assert said["values"].keys() == {"loss", "w"}
    assert append(client, path, op("exp", x="w"), return_values="none")["values"] == {}
    assert append(client, path, op("exp", x="w"), return_values="all")["values"].keys() == {"exp_4"}


def test_tape_calls_read_and_write_safetensors(client, path):
    request = file_of({"parameter/w": W, "constant/x": X}, ops=LINE, return_values=["wx"])
    said, arrays = read_file(client.post(f"{path}/ops", **request))
    np.testing.assert_array_equal(arrays["value/wx"], W * X)
    assert said["ops"] == 3
    _, arrays = read_file(client.get(f"{path}/values/big", headers={"accept": FILE}))
    np.testing.assert_array_equal(arrays["value"], np.tanh(W * X))
    request = file_of({"target_gradient": np.array([2.0, 3.0])}, target="wx")
    said, arrays = read_file(client.post(f"{path}/backward", **request))
    np.testing.assert_array_equal(arrays["grad/w"], X * [2.0, 3.0])
    assert said["played_back"] == [0]


def test_values_with_a_slash_in_their_name_can_be_read(client, path):
    append(client, path, op("exp", "layer/1/out", x="w"), parameters=tensors({"w": W}))
    np.testing.assert_array_equal(value(client, path, "layer/1/out"), np.exp(W))


# Playback


def test_only_ops_that_reach_the_target_are_played_back(client, path, mode):
    client.post(f"{path}/ops", json=BODY)
    said = client.post(f"{path}/backward", json={"target": "loss"}).json()

    assert said["played_back"] == [2, 0]
    assert said["final"] == [{"variable": "w", "after": 0}]
    assert said["ran"] == ([0, 2] if mode == "lazy" else [])
    assert (array(said["value"]).item(), array(said["gradients"]["w"]).tolist()) == (-2.5, X.tolist())
    other = client.post(f"{path}/backward", json={"target": "loss", "wrt": ["x", "big", "w"]}).json()
    assert other["missing"] == {"big": "unused"}
    assert array(other["gradients"]["x"]).tolist() == W.tolist()


def test_the_cotangent_is_a_tensor_or_a_variable(client, path):
    client.post(f"{path}/ops", json=BODY)
    for given in (tensor(X), "x"):
        said = client.post(f"{path}/backward", json={"target": "wx", "target_gradient": given}).json()
        assert array(said["gradients"]["w"]).tolist() == (X * X).tolist()


def test_recorded_gradients_can_be_differentiated_again(client, path):
    append(client, path, op("tanh", "y", x="x"), parameters=tensors({"x": np.array(0.3)}))
    name, wanted, t = "y", [], np.tanh(0.3)
    for _ in range(2):
        said = client.post(f"{path}/backward", json={"target": name, "record": True}).json()
        name = said["recorded"]["x"]
        wanted.append(value(client, path, name).item())
        assert said["appended"][-1]["outputs"][0]["dtype"] == "float64"
    np.testing.assert_allclose(wanted, [1 - t * t, -2 * t * (1 - t * t)], rtol=1e-12)


def test_iterations_with_the_same_structure_are_compiled_once_for_all_tapes_of_a_worker(tmp_path: Path):
    with serve(tmp_path, workers=1) as served:
        fresh = []
        for factor in (1.0, 2.0, 3.0):
            with opened(served.client) as path:
                body = {**BODY, "parameters": tensors({"w": W * factor})}
                first = served.client.post(f"{path}/ops", json=body).json()
                second = served.client.post(f"{path}/backward", json={"target": "loss"}).json()
                fresh.append((first["compiled"], second["compiled"]))
        assert fresh == [(True, True), (False, False), (False, False)]


# The tape as a program


def test_a_tape_can_be_registered_as_a_program(client, path):
    client.post(f"{path}/ops", json=BODY)
    document = client.get(f"{path}/program").json()

    made = client.post("/v1/programs", json=document)
    assert made.status_code in (200, 201), made.text
    values = {"parameters": tensors({"w": W}), "feeds": tensors({"x": X})}
    found = client.post(f"/v1/programs/{made.json()['id']}/gradients", json={"loss": "loss", **values}).json()
    assert array(found["gradients"]["w"]).tolist() == X.tolist()


def test_a_renewed_tape_keeps_its_parameters(client, path):
    client.post(f"{path}/ops", json=BODY)
    assert client.delete(f"{path}/ops").status_code == 204
    view = client.get(path).json()
    assert (view["ops"], view["renewals"], view["bytes"], view["next_seq"]) == (0, 1, W.nbytes, 3)
    problem(client.get(f"{path}/values/wx"), 404, "not-found")
    np.testing.assert_array_equal(value(client, path, "w"), W)
    append(client, path, parameters=tensors({"w": 2 * W}))
    np.testing.assert_array_equal(value(client, path, "w"), 2 * W)


def test_refused_ops_do_not_renew_the_tape(client, path):
    client.post(f"{path}/ops", json=BODY)
    problem(client.post(f"{path}/ops", json={"ops": [{"type": "tahn"}], "renew": True}), 422, "invalid-program")
    assert client.get(path).json()["renewals"] == 0
    np.testing.assert_array_equal(value(client, path, "loss"), (W * X).sum())


def test_released_names_free_ops_that_no_other_name_needs(client, path):
    client.post(f"{path}/ops", json=BODY)
    assert append(client, path, release=["big", "nothing"])["ops"] == 2
    assert append(client, path, release=["wx"])["ops"] == 2
    assert append(client, path, release=["loss", "x"])["ops"] == 0
    assert client.get(path).json()["bytes"] == W.nbytes


# Sequence numbers


def test_ops_sent_twice_are_appended_once(client, path):
    body = {"seq": 1, **BODY}
    first, again = (client.post(f"{path}/ops", json=body) for _ in range(2))

    assert first.content == again.content
    assert again.headers["idempotency-replayed"] == "true"
    assert client.get(path).json()["ops"] == 3
    problem(client.post(f"{path}/ops", json={"seq": 1, "ops": []}), 409, "sequence-conflict")
    assert problem(client.post(f"{path}/ops", json={"seq": 3, "ops": []}), 409, "sequence-gap")["expected_seq"] == 2
    record = {"seq": 2, "target": "loss", "record": True}
    first, again = (client.post(f"{path}/backward", json=record) for _ in range(2))
    assert first.content == again.content


def test_ops_sent_six_times_at_once_are_appended_once(client, path):
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: client.post(f"{path}/ops", json={"seq": 1, **BODY}), range(6)))
    assert len({answer.content for answer in answers}) == 1
    assert client.get(path).json()["ops"] == 3


# Invalid requests


def test_every_mistake_is_reported_with_its_place_on_the_tape_and_in_the_body(client, path):
    client.post(f"{path}/ops", json=BODY)
    wrong = [op("exp", x="w"), op("matmul", x="w", y="v"), op("add", x="w", y="c"), op("tahn", x="w")]
    body = {"ops": wrong, "constants": tensors({"c": np.zeros(3)}), "seq": 2}

    refusal = problem(client.post(f"{path}/ops", json=body), 422, "invalid-program")

    errors = [(e["code"], e["pointer"], e["location"]["op"]) for e in refusal["errors"]]
    assert errors == [
        ("unknown-variable", "/ops/1/inputs/y", 4),
        (errors[1][0], "/ops/2", 5),
        ("unknown-op", "/ops/3", 6),
    ]
    assert (refusal["errors"][0]["location"]["slot"], refusal["errors"][0]["location"]["variable"]) == ("y", "v")
    view = client.get(path).json()
    assert (view["ops"], view["next_seq"]) == (3, 2)


def test_control_flow_is_refused_on_a_tape(client, path):
    body = {"ops": [{"type": "while", "inputs": {"condition": ["x"]}, "attrs": {"sub_block": 1}}]}
    refusal = problem(client.post(f"{path}/ops", json=body), 422, "invalid-program")
    assert (refusal["reason"], refusal["errors"][0]["pointer"]) == ("control-flow-on-tape", "/ops/0")


def test_an_op_that_fails_at_run_time_is_reported_with_its_place(client):
    gather = op("gather", "g", x="w", index="i")
    leaves = {"parameters": tensors({"w": W}), "constants": tensors({"i": np.array([7])})}
    with opened(client) as now, opened(client, mode="lazy") as later:
        refusal = problem(client.post(f"{now}/ops", json={"ops": [gather], **leaves}), 422, "execution-failed")
        assert refusal["location"]["op"] == 0
        assert client.get(now).json()["ops"] == 0
        append(client, later, gather, **leaves)
        refusal = problem(client.get(f"{later}/values/g"), 422, "execution-failed")
        assert (refusal["location"]["op"], refusal["location"]["type"]) == (0, "gather")


@pytest.mark.parametrize(
    ("call", "body", "code"),
    [
        ("ops", {"ops": 3}, "invalid-request"),
        ("ops", {"ops": [3]}, "invalid-program"),
        ("ops", {"ops": [], "seq": 0}, "invalid-request"),
        ("ops", {"parameters": tensors({"a": W}), "constants": tensors({"a": W})}, "invalid-request"),
        ("ops", {"parameters": tensors({"w": X})}, "invalid-program"),
        ("ops", {"parameters": tensors({"w@GRAD": X})}, "invalid-program"),
        ("ops", {"return_values": ["nothing"]}, "invalid-program"),
        ("ops", {"unknown": 1}, "invalid-request"),
        ("backward", {"target": "nothing"}, "invalid-program"),
        ("backward", {"target": "wx"}, "invalid-program"),
        ("backward", {"target": "wx", "target_gradient": tensor(np.ones(3))}, "shape-mismatch"),
        ("backward", {"target": "wx", "target_gradient": 3}, "invalid-request"),
        ("backward", {"target": "loss", "wrt": ["nothing"]}, "invalid-program"),
        ("backward", {"target": "loss", "seq": 2}, "invalid-request"),
        ("backward", {"target": "wx", "record": True, "target_gradient": tensor(X)}, "invalid-request"),
        ("backward", {}, "invalid-request"),
    ],
)
def test_an_invalid_call_is_refused_and_changes_nothing(client, path, call, body, code):
    client.post(f"{path}/ops", json=BODY)
    before = client.get(path).json()
    problem(client.post(f"{path}/{call}", json=body), 422, code)
    after = client.get(path).json()
    assert (before["ops"], before["next_seq"]) == (after["ops"], after["next_seq"])


def test_a_tensor_without_a_role_prefix_is_refused(client, path):
    problem(client.post(f"{path}/ops", **file_of({"w": W})), 422, "invalid-request")
    problem(client.post(f"{path}/backward", **file_of({"w": W}, target="w")), 422, "invalid-request")


@pytest.mark.parametrize(
    ("body", "code"), [({"mode": "eager"}, "invalid-request"), ({"lease_s": 1e9}, "limit-exceeded")]
)
def test_an_invalid_tape_is_refused(client, body, code):
    problem(client.post("/v1/tapes", json=body), 422, code)


# Opening, listing, closing, lost workers


def test_a_closed_tape_is_gone_and_can_be_closed_again(client):
    with opened(client, mode="lazy", seed=3) as path:
        view = client.get(path).json()
        assert (view["mode"], view["seed"], view["state"]) == ("lazy", 3, "ready")
        assert view["id"] in {t["id"] for t in client.get("/v1/tapes", params={"page_size": 200}).json()["tapes"]}
        assert [client.delete(path).status_code for _ in range(2)] == [204, 204]
        problem(client.get(path), 410, "gone")
        problem(client.post(f"{path}/ops", json=BODY), 410, "gone")
    unknown = "/v1/tapes/tap_" + "a" * 26
    problem(client.get(unknown), 404, "not-found")
    problem(client.get(f"{unknown}/values/x"), 404, "not-found")
    problem(client.delete(unknown), 404, "not-found")
    assert client.get("/v1/tapes/ses_" + "a" * 26).status_code == 422


def test_tapes_are_limited_in_number_ops_bytes_and_idle_time(tmp_path: Path):
    with serve(tmp_path, tapes=2, ops=4, tape_bytes=4096) as served:
        client = served.client
        with opened(client) as one:
            with opened(client):
                problem(client.post("/v1/tapes", json={}), 429, "quota-exceeded")
            client.post(f"{one}/ops", json=BODY)
            for body in (
                {"ops": [op("exp", x="w")] * 2},
                {"constants": tensors({"c": np.zeros(1000)})},
                {"ops": [op("fill_constant", attrs={"shape": [9999], "value": 1.0, "dtype": "float64"})]},
            ):
                refusal = problem(client.post(f"{one}/ops", json=body), 422, "limit-exceeded")
                assert refusal["reason"] == "tape-full"
            with opened(client, lease_s=0.3) as idle:
                time.sleep(0.4)
                with opened(client):  # replaces the tape with the expired lease
                    assert "lease" in problem(client.get(idle), 410, "gone")["detail"]


def test_a_killed_worker_loses_only_its_own_tapes(tmp_path: Path):
    with serve(tmp_path, workers=2) as served:
        client = served.client
        with opened(client) as doomed, opened(client) as other:
            client.post(f"{other}/ops", json=BODY)
            client.post(f"{doomed}/ops", json=BODY)
            workers = {path: client.get(path).json()["worker"] for path in (doomed, other)}
            assert workers[doomed] != workers[other]
            pid = next(w["pid"] for w in client.get("/v1/workers").json()["workers"] if w["id"] == workers[doomed])
            os.kill(pid, signal.SIGKILL)

            end = time.monotonic() + 60
            while client.get(doomed).json()["state"] != "lost" and time.monotonic() < end:
                time.sleep(0.05)
            problem(client.post(f"{doomed}/ops", json={"ops": []}), 410, "gone")
            assert client.post(f"{other}/backward", json={"target": "loss"}).status_code == 200
            assert "backpass_tapes" in client.get("/metrics").text
            assert client.delete(doomed).status_code == 204


def test_the_api_examples_work_unchanged(client):
    paths = DOCUMENT["paths"]

    def examples(path: str) -> list[Any]:
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        return [example["value"] for example in content["examples"].values()]

    for body in examples("/v1/tapes"):
        with opened(client, **body) as tape:
            for call in ("ops", "backward"):
                for each in examples(f"/v1/tapes/{{tape_id}}/{call}"):
                    answer = client.post(f"{tape}/{call}", json=each)
                    assert answer.status_code == 200, answer.text
                    shown = paths[f"/v1/tapes/{{tape_id}}/{call}"]["post"]["responses"]["200"]["content"]
                    if body["mode"] == "immediate" and "record" not in each:
                        assert answer.json().keys() == shown["application/json"]["example"].keys()


# Structures, and playback in the same request


LONG = [*LINE[:1], *(op("tanh", f"t{i}", x=f"t{i - 1}" if i else "wx") for i in range(8)), op("mean", "end", x="t7")]


def by_formula(w: np.ndarray) -> np.ndarray:
    """The gradient of the mean of tanh applied eight times to w * X, by the chain rule."""
    slope, t = X / 2, w * X
    for _ in range(8):
        t = np.tanh(t)
        slope = slope * (1 - t**2)
    return slope


@pytest.mark.parametrize("as_file", [False, True])
def test_a_structure_is_appended_again_and_played_back_in_one_request(client, path, mode, as_file):
    structure, w = None, W
    for step in range(12):  # more than the runs after which a plan becomes machine code
        asked: dict[str, Any] = {"seq": step + 1, "renew": True, "backward": {"target": "end"}, "return_values": "none"}
        asked |= {"ops": LONG} if structure is None else {"structure": structure}
        if as_file:
            answer = client.post(f"{path}/ops", **file_of({"parameter/w": w, "constant/x": X}, **asked))
            said, found = read_file(answer)
            gradient = found["grad/w"]
        else:
            answer = client.post(
                f"{path}/ops", json={**asked, "parameters": tensors({"w": w}), "constants": tensors({"x": X})}
            )
            said = answer.json()
            gradient = array(said["gradients"]["w"])
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(gradient, by_formula(w), rtol=1e-12)
        assert ("appended" in said) == (step == 0)
        assert said["first"] == 0 and said["played_back"] == list(range(9, -1, -1))
        structure = said["structure"]
        w = w + 0.1


def test_a_structure_of_other_types_is_described_again(client, path):
    said = append(client, path, *LONG, **{**BODY, "ops": LONG})
    more = {"parameters": tensors({"w": np.ones(3)}), "constants": tensors({"x": np.ones(3)})}
    again = client.post(f"{path}/ops", json={"structure": said["structure"], "renew": True, **more}).json()
    assert again["appended"][0]["outputs"][0]["shape"] == [3]
    assert again["structure"] == said["structure"]


def test_an_unknown_structure_is_refused_and_changes_nothing(client, path):
    unknown = {"structure": "0" * 32, "renew": True}
    document = problem(client.post(f"{path}/ops", json=unknown), 422, "invalid-program")
    assert [(e["pointer"], e["code"]) for e in document["errors"]] == [("/structure", "unknown-structure")]
    problem(client.post(f"{path}/ops", json={**unknown, "ops": LINE}), 422, "invalid-request")
    problem(client.post(f"{path}/ops", json={"structure": "x"}), 422, "invalid-request")
    assert client.get(path).json()["next_seq"] == 1
    assert "structure" not in append(client, path, **BODY)  # short ops have no name


def test_playback_in_the_same_request_takes_a_cotangent_and_is_replayed(client, path):
    asked = {
        **BODY,
        "seq": 1,
        "backward": {"target": "wx", "wrt": ["w"], "target_gradient": tensor(np.array([2.0, 3]))},
    }
    first = client.post(f"{path}/ops", json=asked)
    assert array(first.json()["gradients"]["w"]).tolist() == [6.0, 12.0]
    again = client.post(f"{path}/ops", json=asked)
    assert (again.headers["idempotency-replayed"], again.content) == ("true", first.content)


def test_a_failed_playback_appends_nothing(client, path):
    refused = client.post(f"{path}/ops", json={**BODY, "backward": {"target": "wx"}})
    problem(refused, 422, "invalid-program")
    assert client.get(path).json()["ops"] == 0


@pytest.mark.parametrize("as_file", [False, True])
def test_stacked_constants_are_leaves_of_their_own(client, path, as_file):
    ops = [op("mul", "a", x="w", y="one"), op("mul", "b", x="a", y="two"), op("reduce_sum", "loss", x="b")]
    stack = np.array([[3.0, 4.0], [5.0, 6.0]])
    asked = {"ops": ops, "stacked": {"all": ["one", "two"]}, "backward": {"target": "loss"}}
    if as_file:
        _, found = read_file(client.post(f"{path}/ops", **file_of({"parameter/w": W, "constant/all": stack}, **asked)))
        gradient = found["grad/w"]
    else:
        body = {**asked, "parameters": tensors({"w": W}), "constants": tensors({"all": stack})}
        gradient = array(client.post(f"{path}/ops", json=body).json()["gradients"]["w"])
    assert gradient.tolist() == [15.0, 24.0]
    assert client.get(f"{path}/values/one").status_code == 200
    problem(client.get(f"{path}/values/all"), 404, "not-found")


@pytest.mark.parametrize(
    ("stacked", "place"),
    [
        ({"missing": ["a"]}, "/stacked/missing"),
        ({"x": ["a"]}, "/stacked/x"),
        ({"x": ["a", "b", "c"]}, "/stacked/x"),
        ({"x": ["a", "a"]}, "/stacked/x"),
        ({"x": ["a", "y"]}, "/stacked/x"),
    ],
)
def test_invalid_stacks_are_refused_with_their_place(client, path, stacked, place):
    body = {"constants": tensors({"x": X, "y": X}), "stacked": stacked}
    answer = client.post(f"{path}/ops", json=body)
    assert answer.status_code == 422
    assert [e["pointer"] for e in answer.json()["errors"]] == [place]
    assert client.get(path).json()["next_seq"] == 1


@pytest.mark.parametrize(
    ("call", "body", "pointer"),
    [
        ("ops", {"ops": [op("exp", "e", x="wx")], "return_values": ["wx", "nope"]}, "/return_values/1"),
        (
            "ops",
            {"backward": {"target": "wx", "target_gradient": tensor(np.ones(3))}},
            "/backward/target_gradient/shape",
        ),
        ("ops", {"backward": {"target": "wx"}}, "/backward/target"),
        ("ops", {"backward": {"target": "wx", "wrt": ["nope"]}}, "/backward/wrt/0"),
        ("backward", {"target": "wx", "target_gradient": tensor(np.ones(3))}, "/target_gradient/shape"),
        ("backward", {"target": "wx", "target_gradient": "nope"}, "/target_gradient"),
        ("backward", {"target": "wx", "target_gradient": "loss"}, "/target_gradient"),
        ("backward", {"target": "wx", "target_gradient": "nope", "record": True}, "/target_gradient"),
        ("backward", {"target": "wx", "target_gradient": "loss", "record": True}, "/target_gradient"),
        ("ops", {"constants": tensors({"s": X}), "stacked": {"s": ["good", "@x"]}}, "/stacked/s/1"),
        ("ops", {"constants": tensors({"s": X}), "stacked": {"s": ["loss", "good"]}}, "/stacked/s/0"),
    ],
)
def test_a_mistake_points_to_the_member_of_the_body_that_has_it(client, path, call, body, pointer):
    client.post(f"{path}/ops", json=BODY)
    answer = client.post(f"{path}/{call}", json=body)
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_the_order_of_stacks_does_not_matter(client, path):
    stacks = {"one": ["two", "three"], "two": ["four", "five"]}
    for number, names in enumerate([("one", "two"), ("two", "one")]):
        body = {
            "renew": True,
            "constants": tensors({"one": X + number, "two": W}),
            "stacked": {name: stacks[name] for name in names},
        }
        append(client, path, **body)
        assert [value(client, path, name).item() for name in ("two", "three", "four", "five")] == [
            *(X + number).tolist(),
            *W.tolist(),
        ]


def test_a_late_call_names_the_member_of_the_tape_that_shows_whether_it_took_effect(client):
    big = op("fill_constant", "m0", {"shape": [1500, 1500], "value": 0.0, "dtype": "float32"})
    ops = [big, *(op("matmul", f"m{i + 1}", x=f"m{i}", y="m0") for i in range(60))]
    body = {"ops": ops, "return_values": "none", "seq": 1, "deadline_s": 0.1}
    with opened(client) as path:
        told = problem(client.post(f"{path}/ops", json=body), 504, "deadline-exceeded")
        assert "read the tape to see its next seq" in told["detail"]
