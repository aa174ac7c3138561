"""One-shot gradients over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.programs import Sketch
from tests.service.conftest import serve
from tests.service.wire import FILE, array, endless, file_of, problem, read_file, regression, tensor, tensors


def parts(sketch: Sketch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(feeds, parameters) of a sketch."""
    roles = {v["name"]: v["role"] for v in sketch.blocks[0]["vars"]}
    feeds = {name: value for name, value in sketch.values.items() if roles[name] == "feed"}
    return feeds, {name: value for name, value in sketch.values.items() if roles[name] != "feed"}


def asked(sketch: Sketch, **more: object) -> dict:
    feeds, parameters = parts(sketch)
    body = {"program": sketch.document, "loss": "loss", "feeds": tensors(feeds), "parameters": tensors(parameters)}
    return body | more


def expected(sketch: Sketch) -> tuple[float, np.ndarray]:
    """Loss of the regression and its gradient with respect to w, from the formula."""
    x, y, w = (sketch.values[name] for name in "xyw")
    error = x @ w - y
    return float((error**2).mean()), 2 * x.T @ error / len(x)


@pytest.fixture
def registered(client: httpx.Client) -> str:
    return client.post("/v1/programs", json={"program": regression().document}).json()["id"]


def test_a_json_request_gets_the_correct_gradients_as_json(client):
    sketch = regression()
    loss, gradient = expected(sketch)

    answer = client.post("/v1/gradients", json=asked(sketch, fetch=["prediction"]))

    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert array(said["loss"]).item() == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(array(said["gradients"]["w"]), gradient, rtol=1e-12)
    np.testing.assert_allclose(array(said["fetched"]["prediction"]), sketch.values["x"] @ sketch.values["w"])
    assert said["gradient_norms"]["w"] == pytest.approx(np.linalg.norm(gradient))
    assert said["finite"] is True
    assert "compute;dur=" in answer.headers["server-timing"]


def test_a_safetensors_request_gets_the_correct_gradients_as_safetensors(client, registered):
    sketch = regression()
    loss, gradient = expected(sketch)

    answer = client.post(f"/v1/programs/{registered}/gradients", **file_of(sketch.values, loss="loss", fetch=["x"]))

    said, arrays = read_file(answer)
    assert arrays.keys() == {"loss", "grad/w", "fetch/x"}
    assert arrays["loss"].item() == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(arrays["grad/w"], gradient, rtol=1e-12)
    np.testing.assert_array_equal(arrays["fetch/x"], sketch.values["x"])
    assert said["finite"] is True


def test_only_the_accept_header_chooses_the_form_of_the_answer(client, registered):
    sketch = regression()
    feeds, parameters = parts(sketch)
    body = {"loss": "loss", "feeds": tensors(feeds), "parameters": tensors(parameters)}
    path = f"/v1/programs/{registered}/gradients"

    as_file = client.post(path, json=body, headers={"accept": FILE})
    request = file_of(sketch.values, loss="loss")
    request["headers"]["accept"] = "application/json"
    as_json = client.post(path, **request)

    np.testing.assert_array_equal(read_file(as_file)[1]["grad/w"], array(as_json.json()["gradients"]["w"]))
    problem(client.post(path, json=body, headers={"accept": "image/png"}), 406, "not-acceptable")


def test_a_request_contains_either_a_program_or_its_id(client, registered):
    answer = client.post("/v1/gradients", json=asked(regression()) | {"program_id": registered, "program": None})
    assert answer.status_code == 200, answer.text
    problem(client.post("/v1/gradients", json=asked(regression(), program_id=registered)), 422, "invalid-request")
    missing = asked(regression()) | {"program_id": "prg_" + "a" * 26, "program": None}
    problem(client.post("/v1/gradients", json=missing), 404, "not-found")
    problem(client.post(f"/v1/programs/prg_{'a' * 26}/gradients", json={}), 404, "not-found")


def test_the_same_request_has_the_same_answer_bit_for_bit(client):
    sketch = Sketch()
    sketch.param("w", np.ones(8))
    sketch.op("gaussian_random", shape=[8], dtype="float64", out="noise")
    sketch.op("mul", "w", "noise", out="product")
    sketch.total("product")

    first, again, other = (
        client.post("/v1/gradients", json=asked(sketch, seed=seed)).json()["gradients"]["w"]["data"]
        for seed in (7, 7, 8)
    )

    assert first == again
    assert first != other


def test_return_gradients_selects_the_returned_gradients(client):
    sketch = regression()
    norms = client.post("/v1/gradients", json=asked(sketch, return_gradients="norms")).json()
    none = client.post("/v1/gradients", json=asked(sketch, return_gradients="none")).json()
    named = client.post("/v1/gradients", json=asked(sketch, return_gradients=["w"])).json()

    assert (norms["gradients"], norms["gradient_norms"].keys()) == ({}, {"w", "global"})
    assert (none["gradients"], "gradient_norms" in none) == ({}, False)
    assert named["gradients"].keys() == {"w"}
    problem(client.post("/v1/gradients", json=asked(sketch, return_gradients=["x"])), 422, "invalid-request")


def test_gradients_of_targets_use_the_given_cotangents(client):
    sketch = regression()
    feeds, parameters = parts(sketch)
    body = {
        "program": sketch.document,
        "targets": ["prediction"],
        "inputs": ["w", "x"],
        "feeds": tensors({"x": feeds["x"]}),
        "parameters": tensors(parameters),
    }
    cotangent = np.array([[1.0], [0.0], [2.0], [0.0]])

    ones = client.post("/v1/gradients", json=body).json()
    given = client.post("/v1/gradients", json=body | {"target_gradients": [tensor(cotangent)]}).json()
    arrays = {"x": feeds["x"], **parameters, "target_gradients/0": cotangent}
    question = {"program": sketch.document, "targets": ["prediction"], "inputs": ["w", "x"]}
    filed = client.post("/v1/gradients", **file_of(arrays, **question))

    np.testing.assert_allclose(array(ones["gradients"]["w"]), feeds["x"].T @ np.ones((4, 1)))
    np.testing.assert_allclose(array(given["gradients"]["w"]), feeds["x"].T @ cotangent)
    np.testing.assert_allclose(array(given["gradients"]["x"]), cotangent @ parameters["w"].T)
    np.testing.assert_array_equal(read_file(filed)[1]["grad/w"], array(given["gradients"]["w"]))
    too_many = client.post("/v1/gradients", json=body | {"target_gradients": [None, tensor(cotangent)]})
    problem(too_many, 422, "invalid-request")
    wrong = client.post("/v1/gradients", json=body | {"target_gradients": [tensor(np.ones(3))]})
    problem(wrong, 422, "shape-mismatch")


def test_the_answer_lists_missing_gradients(client):
    sketch = regression()
    sketch.param("unused", 1.0)
    said = client.post("/v1/gradients", json=asked(sketch)).json()
    assert said["gradients"].keys() == {"w"}
    assert said["missing"].keys() == {"unused"}


def test_feeds_set_the_open_sizes(client):
    sketch = regression()
    for variable in sketch.blocks[0]["vars"][:2]:
        variable["shape"][0] = -1
    for rows in (2, 5):
        sketch.values |= {"x": np.ones((rows, 2)), "y": np.ones((rows, 1))}
        said = client.post("/v1/gradients", json=asked(sketch)).json()
        np.testing.assert_allclose(array(said["gradients"]["w"]), expected(sketch)[1], rtol=1e-12)


def test_an_answer_marks_nan_as_not_finite(client):
    sketch = Sketch()
    sketch.param("w", [-1.0])
    sketch.op("log", "w", out="l")
    sketch.total("l")

    answer = client.post("/v1/gradients", json=asked(sketch))
    said = answer.json()

    assert answer.status_code == 200
    assert said["finite"] is False
    assert said["loss"]["finite"] is False
    assert np.isnan(array(said["loss"]))
    assert "NaN" not in answer.text


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("x", np.ones((4, 3)), "shape-mismatch"),
        ("x", np.ones(8), "shape-mismatch"),
        ("x", np.ones((4, 2), "float32"), "dtype-mismatch"),
        ("x", None, "invalid-request"),
        ("w", None, "invalid-request"),
        ("extra", np.ones(1), "invalid-request"),
        ("prediction", np.ones((4, 1)), "invalid-request"),
    ],
)
def test_an_error_names_the_invalid_value(client, name, value, code):
    sketch = regression()
    values = {k: v for k, v in {**sketch.values, name: value}.items() if v is not None}

    answer = client.post("/v1/gradients", **file_of(values, program=sketch.document, loss="loss"))

    assert name in problem(answer, 422, code)["detail"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"loss": "nothing"}, "invalid-program"),
        ({"loss": "prediction"}, "invalid-program"),
        ({"loss": None}, "invalid-request"),
        ({"targets": ["loss"], "inputs": ["w"]}, "invalid-request"),
        ({"fetch": ["nothing"]}, "invalid-program"),
        ({"fetch": "loss"}, "invalid-request"),
        ({"seed": -1}, "invalid-request"),
        ({"seed": 2**64}, "invalid-request"),
        ({"deadline_s": 0}, "invalid-request"),
        ({"deadline_s": 1e9}, "limit-exceeded"),
        ({"feeds": []}, "invalid-request"),
        ({"feeds": {"x": 3}}, "invalid-request"),
        ({"unknown": 1}, "invalid-request"),
        ({"program": {}}, "invalid-program"),
        ({"program": {"blocks": []}}, "invalid-program"),
        ({"program": {"blocks": "no"}}, "invalid-program"),
        ({"no_grad_set": ["nothing"]}, "invalid-program"),
        ({"parameter_list": ["x"]}, "invalid-program"),
        ({"parameter_list": ["w", "w"]}, None),
        ({"target_gradients": [3]}, "invalid-request"),
    ],
)
def test_a_wrong_request_is_refused_and_explained(client, change, code):
    answer = client.post("/v1/gradients", json=asked(regression()) | change)
    if code is None:
        assert answer.status_code == 200
    else:
        assert problem(answer, 422, code)["detail"]


def test_all_problems_of_a_program_are_reported_with_pointers(client):
    sketch = regression()
    sketch.raw({"type": "tanh", "inputs": {"x": ["nothing"]}, "outputs": {"out": ["a"]}})
    sketch.raw({"type": "tnah", "inputs": {"x": ["x"]}, "outputs": {"out": ["b"]}})

    told = problem(client.post("/v1/gradients", json=asked(sketch)), 422, "invalid-program")

    assert {error["pointer"].rpartition("/ops/")[2][0] for error in told["errors"]} == {"2", "3"}
    assert all(error["pointer"].startswith("/program/blocks/0") for error in told["errors"])


def test_a_name_given_twice_is_refused(client):
    body = asked(regression())
    body["parameters"]["x"] = body["feeds"]["x"]
    assert "/parameters/x" in str(problem(client.post("/v1/gradients", json=body), 422, "invalid-request")["errors"])


@pytest.mark.parametrize("index", [[5], [-6], [2**40]])
def test_an_index_out_of_range_names_the_op(client, index):
    sketch = Sketch()
    sketch.param("table", np.ones((5, 2)))
    sketch.feed("index", index, dtype="int64")
    sketch.op("gather", "table", "index", out="rows")
    sketch.total("rows")

    told = problem(client.post("/v1/gradients", json=asked(sketch)), 422, "execution-failed")

    assert told["reason"] == "index-out-of-range"
    assert told["location"]["type"] == "gather"


def test_an_endless_loop_stops_at_its_trip_limit(client):
    told = problem(client.post("/v1/gradients", json=asked(endless())), 422, "iteration-limit")
    assert told["reason"] in ("too-many-trips", "too-many-ops")


def test_an_endless_loop_stops_at_its_deadline(tmp_path: Path):
    with serve(tmp_path, workers=2, loop_trips=10**12, op_executions=10**12) as served:
        started = time.monotonic()
        answer = served.client.post("/v1/gradients", json=asked(endless(), deadline_s=0.5))
        took = time.monotonic() - started
        restarts = [worker["restarts"] for worker in served.client.get("/v1/workers").json()["workers"]]

    problem(answer, 504, "deadline-exceeded")
    assert took < 20
    assert restarts == [0, 0]


def test_sizes_beyond_the_limits_are_refused(tmp_path: Path):
    with serve(tmp_path, tensor_elements=100, ops=10, blocks=2, json_body_bytes=20_000) as served:
        post = served.client.post
        large = regression(rows=60)
        refused = problem(post("/v1/gradients", json=asked(large)), 422, "invalid-program")
        pointers = {error["pointer"] for error in refused["errors"] if error["code"] == "limit-exceeded"}
        assert pointers == {"/program/blocks/0/vars/0/shape", "/feeds/x/shape"}
        long = Sketch()
        name = long.param("w", 1.0)
        for _ in range(12):
            name = long.op("tanh", name)
        long.total(name)
        problem(post("/v1/gradients", json=asked(long)), 422, "invalid-program")
        problem(post("/v1/gradients", json=asked(regression()) | {"fetch": ["x" * 30_000]}), 413, "body-too-large")
        assert post("/v1/gradients", json=asked(regression())).status_code == 200


def test_the_answer_contains_printed_messages(client):
    s = Sketch()
    s.param("w", [1.0, 0.0], dtype="float32")
    s.op("print", s.op("log", "w"), out="w2", message="here")
    s.op("reduce_sum", "w2", out="loss")

    said = client.post("/v1/gradients", json=asked(s)).json()

    place = {"block": 0, "op": 1}
    message = {"message": "here", "at": place, "dtype": "float32", "shape": [2], "data": [0.0, "-inf"]}
    assert (said["messages"], said["messages_left_out"]) == ([message], 0)
