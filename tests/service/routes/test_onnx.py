"""ONNX models over HTTP: registered, trained, refused."""

from __future__ import annotations

import re
import time
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from core.onnx.reading.losses import LossKind
from service.models.losses import KINDS
from tests.paths import ROOT
from tests.service.wire import array, problem, tensor, tensors

ONNX = {"content-type": "application/x-onnx"}
LINEAR = (ROOT / "service" / "static" / "linear.onnx").read_bytes()
X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], np.float32)
"""y = x w + b, with w = [0.5, -0.25] and b = 0.125."""
Y = np.array([[0.125], [1.875], [0.25]], np.float32)


def model(*nodes: onnx.NodeProto, weights: dict[str, np.ndarray], out: str = "y", **more: Any) -> bytes:
    """A model with the feed x: float32 [rows, 2] and one output."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("org.example", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9, **more)
    return made.SerializeToString()


def posted(client: Any, content: bytes, status: int = 201, **query: Any) -> dict[str, Any]:
    answer = client.post("/v1/programs", content=content, headers=ONNX, params=query)
    assert answer.status_code in (status, 200), answer.text
    return answer.json()


def test_a_model_becomes_a_program_with_its_own_names_and_values(client):
    made = posted(client, LINEAR)
    detail = client.get(f"/v1/programs/{made['id']}").json()

    signature = made["signature"]
    assert [(each["name"], each["shape"]) for each in signature["feeds"]] == [("x", [-1, 2])]
    assert {each["name"] for each in signature["parameters"]} == {"w", "b"}
    assert (signature["inputs"], signature["outputs"], signature["loss"]) == (["x"], ["y"], None)
    assert detail["signature"] == signature
    assert [(each["name"], each["shape"]) for each in detail["values"]["tensors"]] == [("b", [1]), ("w", [2, 1])]
    again = client.post("/v1/programs", content=LINEAR, headers=ONNX)
    assert (again.status_code, again.json()) == (200, made)


def test_gradients_of_any_model_need_neither_a_loss_nor_values(client):
    made = posted(client, LINEAR)
    seed = np.array([[1.0], [2.0], [-1.0]], np.float32)
    body = {
        "targets": made["signature"]["outputs"], "target_gradients": [tensor(seed)], "inputs": ["w", "b", "x"],
        "feeds": {"x": tensor(X)}, "fetch": ["y"],
    }  # fmt: skip

    found = client.post(f"/v1/programs/{made['id']}/gradients", json=body).json()

    np.testing.assert_allclose(array(found["fetched"]["y"]), Y, rtol=1e-6)
    np.testing.assert_allclose(array(found["gradients"]["w"]), X.T @ seed, rtol=1e-6)
    np.testing.assert_allclose(array(found["gradients"]["b"]), seed.sum(0), rtol=1e-6)
    np.testing.assert_allclose(array(found["gradients"]["x"]), seed @ [[0.5, -0.25]], rtol=1e-6)


def test_an_appended_loss_trains_the_weights_of_the_model(client):
    made = posted(client, LINEAR, loss="mse", of="y", label="target")
    target = np.zeros((3, 1), np.float32)
    settings = {"program_id": made["id"], "loss": made["signature"]["loss"]}
    opened = client.post("/v1/sessions", json=settings | {"optimizer": {"type": "sgd", "learning_rate": 0.5}})
    path = f"/v1/sessions/{opened.json()['id']}"
    step = client.post(f"{path}/steps", json={"seq": 1, "feeds": tensors({"x": X, "target": target})})
    after = client.get(f"{path}/parameters").json()["parameters"]
    client.delete(path)

    assert made["signature"]["inputs"] == ["x", "target"]
    assert array(step.json()["loss"]) == pytest.approx(float((Y**2).mean()))
    np.testing.assert_allclose(array(after["w"]), [[0.5], [-0.25]] - 0.5 * 2 * X.T @ Y / 3, rtol=1e-5)
    np.testing.assert_allclose(array(after["b"]), 0.125 - 0.5 * 2 * Y.mean(0), rtol=1e-5)


def test_an_output_can_be_the_loss_and_weights_can_be_frozen(client):
    content = model(
        helper.make_node("MatMul", ["x", "0.weight"], ["/layer/MatMul_output_0"], "/layer/MatMul"),
        helper.make_node("ReduceSumSquare", ["/layer/MatMul_output_0"], ["total"], keepdims=0),
        weights={"0.weight": np.array([[1.0], [2.0]], np.float32)},
        out="total",
    )
    made, frozen = posted(client, content, loss="total"), posted(client, content, trainable=[""])
    body = {"loss": "total", "feeds": {"x": tensor(X)}}
    found = client.post(f"/v1/programs/{made['id']}/gradients", json=body).json()

    assert made["signature"]["loss"] == "total"
    np.testing.assert_allclose(array(found["gradients"]["0.weight"]), 2 * X.T @ (X @ [[1.0], [2.0]]), rtol=1e-5)
    assert [each["name"] for each in frozen["signature"]["parameters"]] == []


def test_all_nodes_that_cannot_be_read_are_reported_at_once(client):
    content = model(
        helper.make_node("StringNormalizer", ["x"], ["a"], "first"),
        helper.make_node("Secret", ["x"], ["b"], "second", domain="org.example"),
        helper.make_node("Add", ["x", "w"], ["y"], "third"),
        weights={"w": np.ones(2, np.float32)},
    )
    found = problem(client.post("/v1/programs", content=content, headers=ONNX), 422, "invalid-program")["errors"]

    assert len(found) == 2
    assert "first" in found[0]["detail"]
    assert "second" in found[1]["detail"]


@pytest.mark.parametrize("content", [b"", b"\x00", b"{}", b"GET / HTTP/1.1", LINEAR[:-20], LINEAR + b"\xff\xff\xff"])
def test_bytes_that_are_no_model_are_refused(client, content):
    problem(client.post("/v1/programs", content=content, headers=ONNX), 422, "invalid-program")


@pytest.mark.parametrize(
    ("query", "parameter", "detail"),
    [
        ({"loss": "nowhere"}, "loss", "its outputs are y, and losses to append are cross_entropy, nll"),
        ({"loss": "y"}, "loss", "a loss has one element"),
        ({"loss": "y", "of": "y"}, "of", "of goes with a loss to append"),
        ({"loss": "mse", "of": "z"}, "of", "the model has no output 'z'; its outputs are y"),
        ({"label": "t"}, "label", "label goes with a loss to append"),
        ({"loss": "mse", "label": "x"}, "label", "the model already has an input 'x'"),
        ({"loss": "cross_entropy", "axis": 3}, "axis", "it has no axis 3"),
        ({"loss": "mse", "axis": 100}, "axis", "must be less than or equal to 64"),
        ({"trainable": "c"}, "trainable", "there is no initializer 'c' to train"),
        ({"los": "mse"}, "los", "unknown parameter"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(client, query, parameter, detail):
    answer = client.post("/v1/programs", content=LINEAR, headers=ONNX, params=query)

    [error] = problem(answer, 422, "invalid-request")["errors"]
    assert error["parameter"] == f"query: {parameter}"
    assert detail in error["detail"]


def test_parameters_of_models_are_refused_with_other_bodies(client):
    answer = client.post("/v1/programs", params={"loss": "mse"}, json={"program": {"blocks": []}})

    assert problem(answer, 422, "invalid-request")["errors"][0]["parameter"] == "query: loss"


def test_the_losses_of_the_route_are_those_of_the_reader():
    assert {*KINDS, "output"} == set(get_args(LossKind))


def test_a_model_is_validated_without_being_stored(client):
    content = model(helper.make_node("Mul", ["x", "w"], ["y"]), weights={"w": np.float32([8, 9])})
    valid = posted(client, content, validate_only=True)

    assert valid["valid"] is True
    problem(client.get(f"/v1/programs/{valid['id']}"), 404, "not-found")


def test_a_model_is_registered_in_the_background_and_once_by_key(client):
    content = model(helper.make_node("Mul", ["x", "w"], ["y"]), weights={"w": np.float32([3, 4])})
    key = {"idempotency-key": f"onnx-{time.time()}"}
    deferred = client.post("/v1/programs", content=content, headers={**ONNX, **key, "prefer": "respond-async, wait=0"})
    assert deferred.status_code in (201, 202), deferred.text
    path = deferred.headers["location"]
    for _ in range(300):
        done = client.get(path)
        if done.json().get("state") != "running":
            break
        time.sleep(0.02)
    made = client.get(f"{path}/result") if deferred.status_code == 202 else deferred
    again = client.post("/v1/programs", content=content, headers=ONNX)

    assert again.status_code == 200
    assert made.json()["id"] == again.json()["id"]


def test_the_sample_of_the_documentation_is_a_model_that_can_be_sent(client):
    document = client.get("/openapi.json").json()["paths"]["/v1/programs"]["post"]["requestBody"]["content"]
    description = document["application/x-onnx"]["schema"]["description"]
    content = client.get(re.search(r"`GET (\S+)`", description).group(1))

    assert content.content == LINEAR
    posted(client, content.content)
