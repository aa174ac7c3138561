"""How gradients are computed, over HTTP: hooks, checkpoints, memory of loops, functions with their own gradients."""

from __future__ import annotations

import pytest

from tests.core.test_constructs import custom
from tests.core.test_hooks import in_a_loop
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
def test_a_hook_records_every_trip_whatever_the_loop_keeps(client, policy):
    hooks = [{"match": {"variable": "1:h"}, "do": "record"}]
    answer = client.post("/v1/gradients", json=asked(in_a_loop(), hooks=hooks, loop_memory=policy)).json()

    assert answer["recorded"]["1:h"]["shape"] == [3, 2]
    assert answer["recorded"]["1:h"]["data"][4:] == [1.0, 1.0]


def test_checkpoints_and_clipping(client):
    plain = gradient(client, asked(in_a_loop()))
    hooks = [{"match": {"role": "parameter"}, "do": "clip_value", "max": 0.1}]

    assert gradient(client, asked(in_a_loop(), checkpoints=["1:h"])) == pytest.approx(plain, rel=1e-12)
    assert max(gradient(client, asked(in_a_loop(), hooks=hooks))) == 0.1


def test_a_function_brings_its_own_gradient(client):
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
def test_wrong_options_are_refused(client, wrong):
    answer = client.post("/v1/gradients", json=asked(in_a_loop(), **wrong))

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_backward_pass_with_hooks_can_be_read(client):
    known = client.post("/v1/programs", json={"program": in_a_loop().document}).json()["id"]
    hooks = [{"match": {"variable": "1:h"}, "do": "clip_value", "max": 1.0}]
    answer = client.post(f"/v1/programs/{known}/backward", json={"loss": "loss", "hooks": hooks}).json()

    assert answer["hooked"] == [[0, "1:h@VER@1"]]
    assert any(op["type"] == "clip" for block in answer["program"]["blocks"] for op in block["ops"])
    again = client.get(f"/v1/programs/{known}/backward", params={"loss": "loss", "loop_memory": "recompute"}).json()
    assert again["params_grads"] == [["w", "w@GRAD"], ["x", "x@GRAD"]]
