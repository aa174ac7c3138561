"""Options of gradients over HTTP: hooks, checkpoints, memory of loops, custom gradients of functions."""

from __future__ import annotations

import pytest

from tests.core.autodiff.test_hooks import in_a_loop
from tests.core.passes.loops import tanh_loop
from tests.core.wire.constructs import custom
from tests.programs import Sketch


def asked(s: Sketch, **more: object) -> dict[str, object]:
    leaves = {v["name"]: v for v in s.blocks[0]["vars"] if "role" in v}
    groups: dict[str, dict[str, object]] = {"feeds": {}, "parameters": {}}
    for name, value in s.values.items():
        tensor = {"dtype": str(value.dtype), "shape": list(value.shape), "data": value.ravel().tolist()}
        groups["feeds" if leaves[name]["role"] == "feed" else "parameters"][name] = tensor
    return {"program": s.document, "loss": "loss", **groups, **more}


def gradient(client, body: dict[str, object], name: str = "w") -> list[float]:
    answer = client.post("/v1/gradients", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["gradients"][name]["data"]


@pytest.mark.parametrize("policy", ["store", "recompute", "sqrt", "binomial"])
def test_a_hook_records_every_trip_under_each_memory_policy(client, policy):
    hooks = [{"match": {"variable": "1:h"}, "do": "record"}]
    answer = client.post("/v1/gradients", json=asked(in_a_loop(), hooks=hooks, loop_memory=policy)).json()

    assert answer["recorded"]["1:h"]["shape"] == [3, 2]
    assert answer["recorded"]["1:h"]["data"][4:] == [1.0, 1.0]


def test_checkpoints_keep_the_gradient_and_clips_bound_it(client):
    plain = gradient(client, asked(in_a_loop()))
    hooks = [{"match": {"role": "parameter"}, "do": "clip_value", "max": 0.1}]

    assert gradient(client, asked(in_a_loop(), checkpoints=["1:h"])) == pytest.approx(plain, rel=1e-12)
    assert max(gradient(client, asked(in_a_loop(), hooks=hooks))) == 0.1


def test_a_function_uses_its_custom_gradient(client):
    assert gradient(client, asked(custom(-1.0))) == pytest.approx([-2.0, -2.8])


@pytest.mark.parametrize(
    "wrong",
    [
        {"hooks": [{"match": {"variable": "nothing"}, "do": "scale", "factor": 2}]},
        {"hooks": [{"match": {"variable": "h"}, "do": "allreduce"}]},
        {"hooks": [{"match": {}, "do": "record"}]},
        {"checkpoints": ["nothing"]},
        {"loop_memory": "most"},
    ],
)
def test_invalid_options_are_refused(client, wrong):
    answer = client.post("/v1/gradients", json=asked(in_a_loop(), **wrong))

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_backward_program_contains_the_hooks(client):
    known = client.post("/v1/programs", json={"program": in_a_loop().document}).json()["id"]
    hooks = [{"match": {"variable": "1:h"}, "do": "clip_value", "max": 1.0}]
    answer = client.post(f"/v1/programs/{known}/backward", json={"loss": "loss", "hooks": hooks}).json()

    assert answer["hooked"] == [[0, "1:h@VER@1"]]
    assert any(op["type"] == "clip" for block in answer["program"]["blocks"] for op in block["ops"])
    again = client.get(f"/v1/programs/{known}/backward", params={"loss": "loss", "loop_memory": "recompute"}).json()
    assert again["params_grads"] == [["w", "w@GRAD"], ["x", "x@GRAD"]]


BUDGET = {"bytes": 40_000, "trips": 100}


def test_a_budget_chooses_loop_policies_and_the_answer_reports_them(client):
    s = tanh_loop(100, 100)
    plain = gradient(client, asked(s))
    answer = client.post("/v1/gradients", json=asked(s, loop_memory=BUDGET)).json()

    assert answer["gradients"]["w"]["data"] == pytest.approx(plain, rel=1e-12)
    memory = answer["memory"]
    assert memory["predicted_peak"] <= memory["bytes"] == 40_000
    assert [each["memory"] for each in memory["loops"]] != ["store"]
    assert memory["extra_flops"] > 0
    assert "memory" not in client.post("/v1/gradients", json=asked(s)).json()


def test_a_budget_too_small_is_refused_with_the_smallest_possible_peak(client):
    s = tanh_loop(100, 100)
    body = asked(s, loop_memory={"bytes": 1000})
    answer = client.post("/v1/gradients", json=body)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["reason"] == "budget-too-small"
    smallest = int(problem["detail"].split()[-2])
    assert client.post("/v1/gradients", json=body | {"loop_memory": {"bytes": smallest - 1}}).status_code == 422
    fitting = client.post("/v1/gradients", json=body | {"loop_memory": {"bytes": smallest}}).json()
    assert fitting["memory"]["predicted_peak"] == smallest


@pytest.mark.parametrize("wrong", [{}, {"bytes": 0}, {"bytes": "many"}, {"bytes": 9, "trips": -1}, {"byte": 9}, 9])
@pytest.mark.parametrize("member", ["loop_memory", "checkpoints"])
def test_an_invalid_budget_is_refused(client, member, wrong):
    answer = client.post("/v1/gradients", json=asked(in_a_loop(), **{member: wrong}))

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith(f"/{member}")


def test_an_analysis_and_a_backward_pass_choose_the_same_policies_for_a_budget(client):
    known = client.post("/v1/programs", json={"program": tanh_loop(100, 100).document}).json()["id"]
    params = {"loss": "loss", "loop_bytes": 40_000}
    report = client.get(f"/v1/programs/{known}/analysis", params=params).json()["memory"]
    backward = client.get(f"/v1/programs/{known}/backward", params=params).json()["memory"]

    assert report["choice"] == backward
    assert report["peak"] == backward["predicted_peak"] <= 40_000 < report["by_loop_memory"]["store"]
    cut = client.get(f"/v1/programs/{known}/analysis", params={"loss": "loss", "checkpoint_bytes": 10**6}).json()
    assert cut["memory"]["choice"]["checkpoints"] == []
    for name in ("loop_bytes", "checkpoint_bytes"):
        for value in (0, 9, 2**63):
            refused = client.get(f"/v1/programs/{known}/analysis", params={"loss": "loss", name: value})
            assert [each["parameter"] for each in refused.json()["errors"]] == [f"query: {name}"], refused.text


def test_a_session_trains_within_a_budget(client):
    s = tanh_loop(100, 100)
    leaves = asked(s)["parameters"]
    body = {"program": s.document, "loss": "loss", "init": {"parameters": leaves}, "optimizer": {"type": "adam"}}
    made = [client.post("/v1/sessions", json=body | more).json()["id"] for more in ({}, {"loop_memory": BUDGET})]

    plain, within = (client.post(f"/v1/sessions/{id}/steps", json={"feeds": {}}).json() for id in made)

    assert "memory" not in plain
    assert within["memory"]["predicted_peak"] <= 40_000
    assert within["loss"]["data"] == pytest.approx(plain["loss"]["data"], rel=1e-12)  # one of them is interpreted
