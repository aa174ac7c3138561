"""Programs, backward passes and trained models as ONNX files over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from core.onnx import writing
from service.routes import onnx_models
from service.schemas.examples import REGRESSION_ID, WHILE_ID
from tests.core.onnx.exported import run
from tests.service.routes.test_onnx import LINEAR, X, Y, posted
from tests.service.wire import array, problem, tensors

ONNX = {"accept": "application/x-onnx"}
FEEDS = {"x": X, "y": np.array([[1.0], [2.0], [3.0]], np.float32)}
WEIGHTS = {"w": np.array([[0.1], [-0.2]], np.float32), "b": np.zeros(1, np.float32)}


def graph_of(answer: Any) -> onnx.GraphProto:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-onnx"
    model = onnx.load_from_string(answer.content)
    onnx.checker.check_model(model, full_check=True)
    return model.graph


def names(values: Any) -> list[str]:
    return [each.name for each in values]


def test_a_program_leaves_as_an_onnx_model(client):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}?outputs=prediction", headers=ONNX)

    graph = graph_of(answer)
    assert set(names(graph.input)) == {"x", "w", "b"}
    assert names(graph.output) == ["prediction"]
    found = run(answer.content, FEEDS | WEIGHTS)["prediction"]
    np.testing.assert_allclose(found, X @ WEIGHTS["w"] + WEIGHTS["b"], rtol=1e-6)


def test_json_stays_the_answer_without_the_header(client):
    for accept in ("*/*", "application/json", "application/json, application/x-onnx", "text/html"):
        answer = client.get(f"/v1/programs/{REGRESSION_ID}", headers={"accept": accept})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["vary"] == "Accept"


def test_an_onnx_answer_has_an_etag_of_its_own(client):
    path = f"/v1/programs/{REGRESSION_ID}"
    as_json, first = client.get(path), client.get(path, headers=ONNX)

    again = client.get(path, headers={**ONNX, "if-none-match": first.headers["etag"]})

    assert again.status_code == 304
    assert first.headers["etag"] != as_json.headers["etag"]


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_backward_pass_equals_the_gradients_of_the_service(client, method):
    path = f"/v1/programs/{REGRESSION_ID}/backward"
    if method == "get":
        answer = client.get(path, params={"loss": "loss"}, headers=ONNX)
    else:
        answer = client.post(path, json={"loss": "loss"}, headers=ONNX)

    graph = graph_of(answer)
    assert set(names(graph.input)) == {"x", "y", "w", "b"}
    assert names(graph.output) == ["loss", "w@GRAD", "b@GRAD"]
    body = {"loss": "loss", "feeds": tensors(FEEDS), "parameters": tensors(WEIGHTS)}
    wanted = client.post(f"/v1/programs/{REGRESSION_ID}/gradients", json=body).json()
    found = run(answer.content, FEEDS | WEIGHTS)
    np.testing.assert_allclose(found["loss"], array(wanted["loss"]), rtol=1e-6)
    for name in ("w", "b"):
        np.testing.assert_allclose(found[f"{name}@GRAD"], array(wanted["gradients"][name]), rtol=1e-5)


def test_the_backward_pass_of_a_loop_is_a_loop(client):
    answer = client.get(f"/v1/programs/{WHILE_ID}/backward?loss=loss", headers=ONNX)

    assert [n.op_type for n in graph_of(answer).node].count("Loop") == 2


def test_a_model_that_came_from_onnx_returns_with_its_names_and_weights(client):
    made = posted(client, LINEAR)

    answer = client.get(f"/v1/programs/{made['id']}", headers=ONNX)

    graph, given = graph_of(answer), onnx.load_from_string(LINEAR).graph
    assert names(graph.input) == names(given.input) == ["x"]
    assert names(graph.output) == names(given.output) == ["y"]
    assert set(names(given.initializer)) <= set(names(graph.initializer))
    np.testing.assert_allclose(run(answer.content, {"x": X})["y"], Y, rtol=1e-6)


def test_a_trained_model_leaves_with_its_weights(client):
    made = posted(client, LINEAR, loss="mse", of="y", label="wanted")
    opened = client.post(
        "/v1/sessions",
        json={
            "program_id": made["id"],
            "loss": made["signature"]["loss"],
            "optimizer": {"type": "sgd", "learning_rate": 0.1},
        },
    )
    assert opened.status_code == 201, opened.text
    path = f"/v1/sessions/{opened.json()['id']}"
    step = client.post(f"{path}/steps", json={"feeds": tensors({"x": X, "wanted": Y + 1}), "seq": 1})
    assert step.status_code == 200, step.text

    answer = client.get(f"{path}/model", headers=ONNX)

    graph = graph_of(answer)
    assert names(graph.input) == ["x"]
    trained = {n: array(v) for n, v in client.get(f"{path}/parameters").json()["parameters"].items()}
    assert not np.allclose(trained["b"], 0.125)
    np.testing.assert_allclose(run(answer.content, {"x": X})["y"], X @ trained["w"] + trained["b"], rtol=1e-5)
    client.delete(path)


def test_dropout_leaves_in_evaluation(client):
    ops = [
        {"type": "dropout", "inputs": {"x": ["w"]}, "outputs": {"out": ["dropped"]}, "attrs": {"p": 0.5}},
        {"type": "reduce_sum", "inputs": {"x": ["dropped"]}, "outputs": {"out": ["total"]}},
    ]
    leaf = {"name": "w", "dtype": "float32", "shape": [3], "role": "parameter"}
    document = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": [leaf], "ops": ops}]}
    id = client.post("/v1/programs", json={"program": document}).json()["id"]

    refused = problem(client.get(f"/v1/programs/{id}", headers=ONNX), 422, "invalid-program")
    tested = client.get(f"/v1/programs/{id}?for_test=true", headers=ONNX)

    assert "draw other numbers" in refused["errors"][0]["detail"]
    assert refused["errors"][0]["code"] == "onnx-unsupported"
    assert refused["errors"][0]["pointer"].endswith("/ops/0")
    np.testing.assert_allclose(run(tested.content, {"w": np.ones(3, "float32")})["total"], 3.0)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("outputs=nothing", 422, "invalid-program"),
        ("opset=7", 422, "invalid-request"),
        ("opset=99", 422, "invalid-request"),
    ],
)
def test_a_wrong_question_is_a_problem(client, query, status, code):
    problem(client.get(f"/v1/programs/{REGRESSION_ID}?{query}", headers=ONNX), status, code)


def test_an_opset_can_be_chosen(client):
    answer = client.get(f"/v1/programs/{REGRESSION_ID}?opset=21", headers=ONNX)

    assert onnx.load_from_string(answer.content).opset_import[0].version == 21


def test_the_model_of_a_session_is_only_onnx(client):
    opened = client.post("/v1/sessions", json={"program_id": REGRESSION_ID, "loss": "loss"}).json()
    path = f"/v1/sessions/{opened['id']}/model"

    problem(client.get(path, headers={"accept": "application/json"}), 406, "not-acceptable")
    assert client.get(path).headers["content-type"] == "application/x-onnx"
    problem(client.get("/v1/sessions/ses_" + "a" * 26 + "/model"), 404, "not-found")
    client.delete(path.removesuffix("/model"))


def test_the_documented_opsets_are_those_of_the_core():
    assert (onnx_models.OLDEST, onnx_models.NEWEST) == (writing.OLDEST, writing.NEWEST)
