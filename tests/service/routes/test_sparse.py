"""Sparse gradients of tables over HTTP: in answers of both forms, in sessions, and in updates."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from service.settings import Settings
from service.worker import sessions, training
from service.worker.state import WorkerState
from tests.programs import Sketch
from tests.service.wire import array, file_of, opened, problem, read_file, tensor, tensors

TABLE = np.random.default_rng(3).standard_normal((6, 2))
IDS = np.array([4, 1, 4, -5])
FEEDS = {"ids": IDS}
BODY = {"feeds": tensors(FEEDS)}
SGD = {"type": "sgd", "learning_rate": 0.5}


def sketch(sparse: bool, tied: bool = False) -> Sketch:
    """sum(E[ids]^2). Its gradient is 2 E[row] for each lookup of a row."""
    s = Sketch()
    s.param("E", TABLE)
    s.feed("ids", IDS, "int64")
    rows = s.op("square", s.op("embedding", "E", "ids", is_sparse=sparse), out="squares")
    s.total(rows, out="loss" if not tied else "part")
    if tied:
        s.op("add", "part", s.op("reduce_sum", s.op("square", "E")), out="loss")
    return s


def rows_of(table: np.ndarray) -> tuple[list[int], np.ndarray]:
    return [1, 4], 4 * table[[1, 4]]


def whole(rows: Any, values: np.ndarray) -> np.ndarray:
    table = np.zeros(TABLE.shape)
    np.add.at(table, rows, values)
    return table


def table_of(client: httpx.Client, path: str) -> np.ndarray:
    return array(client.get(f"{path}/parameters").json()["parameters"]["E"])


def ask(sparse: bool, **more: Any) -> dict[str, Any]:
    given = {"parameters": tensors({"E": TABLE}), "loss": "loss"}
    return {"program": sketch(sparse).document, **given, **BODY, **more}


def test_the_gradient_of_a_table_has_rows_values_and_shape(client):
    said = client.post("/v1/gradients", json=ask(True)).json()
    found = said["gradients"]["E"]

    rows, values = rows_of(TABLE)
    assert found.keys() == {"rows", "values", "shape"}
    assert (found["rows"]["data"], found["rows"]["dtype"], found["shape"]) == (rows, "int64", [6, 2])
    np.testing.assert_allclose(array(found["values"]), values)
    assert (said["sparse"], said["densified"], said["missing"]) == ({"E": [6, 2]}, [], {})
    assert said["gradient_norms"]["E"] == pytest.approx(np.linalg.norm(values))
    dense = client.post("/v1/gradients", json=ask(False)).json()
    np.testing.assert_array_equal(whole(rows, array(found["values"])), array(dense["gradients"]["E"]))
    assert dense["sparse"] == {}


def test_a_file_holds_row_numbers_and_values_as_two_tensors(client):
    asked = {"program": sketch(True).document, "loss": "loss"}
    said, arrays = read_file(client.post("/v1/gradients", **file_of({"E": TABLE, "ids": IDS}, **asked)))

    assert arrays.keys() == {"loss", "grad/E", "rows/E"}
    np.testing.assert_array_equal(arrays["rows/E"], [1, 4])
    np.testing.assert_allclose(arrays["grad/E"], rows_of(TABLE)[1])
    assert said["sparse"] == {"E": [6, 2]}


def test_a_stream_sends_sparse_gradients(client):
    lines = [
        json.loads(line)
        for answer in [client.post("/v1/gradients", json=ask(True), headers={"accept": "application/x-ndjson"})]
        for line in answer.text.splitlines()
    ]

    told, done = lines
    plain = client.post("/v1/gradients", json=ask(True)).json()
    assert (told["event"], told["name"], done["event"]) == ("gradient", "E", "done")
    assert told["gradient"] == plain["gradients"]["E"]
    assert done["sparse"] == {"E": [6, 2]} and "gradients" not in done


def test_the_answer_has_norms_without_sparse_gradients_on_request(client):
    said = client.post("/v1/gradients", json=ask(True, return_gradients="norms")).json()

    assert (said["gradients"], said["sparse"]) == ({}, {})
    assert "E" in said["gradient_norms"]


def test_answers_and_the_analysis_give_the_reason_of_a_dense_gradient(client):
    said = client.post("/v1/gradients", json=ask(True) | {"program": sketch(True, tied=True).document}).json()

    (told,) = said["densified"]
    assert (told["variable"], told["reason"]) == ("0:E", "dense_contribution:square")
    assert (told["at"]["block"], told["at"]["type"]) == (0, "square")
    np.testing.assert_allclose(array(said["gradients"]["E"]), whole(*rows_of(TABLE)) + 2 * TABLE)
    program = client.post("/v1/programs", json={"program": sketch(True, tied=True).document}).json()["id"]
    analysis = client.get(f"/v1/programs/{program}/analysis?loss=loss").json()
    assert analysis["densified"] == [told]


def test_an_id_outside_the_table_is_refused(client):
    problem(client.post("/v1/gradients", json=ask(True, feeds=tensors({"ids": [1, 2, 6, 0]}))), 422, "execution-failed")


def test_a_check_compares_the_whole_table_with_differences(client):
    program = client.post("/v1/programs", json={"program": sketch(True).document}).json()["id"]
    said = client.post(f"/v1/programs/{program}/check", json={"parameters": tensors({"E": TABLE}), **BODY}).json()

    assert said["passed"] and said["parameters"]["E"]["checked"] == TABLE.size


# Sessions


@pytest.mark.parametrize("optimizer", [SGD, {"type": "adagrad", "learning_rate": 0.5}, {"type": "adam"}])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_sparse_and_dense_gradients_train_a_session_equally(client, optimizer, clip):
    more = {"optimizer": optimizer} | ({"clip_norm": clip} if clip else {})
    with opened(client, sketch(True), **more) as sparse, opened(client, sketch(False), **more) as dense:
        for _ in range(3):
            found = client.post(f"{sparse}/steps", json={**BODY, "return_gradients": "all"}).json()
            wanted = client.post(f"{dense}/steps", json=BODY).json()
            assert found["loss"] == wanted["loss"]
            assert found["sparse"] == {"E": [6, 2]}
            reasons = [each["reason"] for each in found["densified"]]
            assert reasons == (["optimizer:adam"] if optimizer["type"] == "adam" else [])
            np.testing.assert_allclose(table_of(client, sparse), table_of(client, dense), rtol=1e-14 if clip else 0)


def test_a_step_fetches_the_table_from_before_its_update(client):
    """The step updates the table in place; an answer and a state that contain the table must not change with it."""
    s = sketch(True)
    s.blocks[0]["vars"].append({"name": "old", "dtype": "float64", "shape": [6, 2], "role": "state"})
    s.values["old"] = np.zeros((6, 2))
    s.op("transpose", "E", axes=[1, 0], out="turned")
    s.op("assign", "E", out="old")
    with opened(client, s, optimizer=SGD) as path:
        table = TABLE
        for _ in range(3):
            said = client.post(f"{path}/steps", json={**BODY, "fetch": ["E", "turned"]}).json()
            np.testing.assert_array_equal(array(said["fetched"]["E"]), table)
            np.testing.assert_array_equal(array(said["fetched"]["turned"]), table.T)
            held = client.get(f"{path}/parameters").json()
            np.testing.assert_array_equal(array(held["states"]["old"]), table)
            table = table - 0.5 * whole(*rows_of(table))
            np.testing.assert_allclose(array(held["parameters"]["E"]), table, rtol=1e-15)


def test_a_failed_step_does_not_change_the_table(client):
    with opened(client, sketch(True), optimizer=SGD) as path:
        client.post(f"{path}/steps", json=BODY)
        before = table_of(client, path)
        client.put(f"{path}/parameters", headers={"if-match": "*"},
                   json={"parameters": tensors({"E": np.where(before == before[4], 1e200, before)})})  # fmt: skip
        before = table_of(client, path)
        problem(client.post(f"{path}/steps", json={**BODY, "require_finite": True}), 422, "numeric-error")
        np.testing.assert_array_equal(table_of(client, path), before)


def test_an_update_with_the_answered_rows_equals_a_step(client):
    with opened(client, sketch(True), optimizer=SGD) as stepped, opened(client, sketch(True), optimizer=SGD) as told:
        for _ in range(2):
            client.post(f"{stepped}/steps", json=BODY)
            found = client.post(f"{told}/gradients", json=BODY).json()["gradients"]
            assert client.post(f"{told}/updates", json={"gradients": found}).status_code == 200
            np.testing.assert_array_equal(table_of(client, stepped), table_of(client, told))
            client.post(f"{stepped}/steps", json=BODY)
            _, arrays = read_file(client.post(f"{told}/gradients", **file_of(FEEDS)))
            arrays.pop("loss")
            assert client.post(f"{told}/updates", **file_of(arrays)).status_code == 200
            np.testing.assert_array_equal(table_of(client, stepped), table_of(client, told))


@pytest.mark.parametrize("optimizer", [SGD, {"type": "momentum", "learning_rate": 0.5}])
def test_an_update_accepts_unordered_and_repeated_rows(client, optimizer):
    rows, values = np.array([4, 0, 4, -1]), np.arange(8.0).reshape(4, 2)
    with opened(client, sketch(False), optimizer=optimizer) as path:
        given = {"E": {"rows": tensor(rows), "values": tensor(values)}}
        said = client.post(f"{path}/updates", json={"gradients": given}).json()

        assert [each["reason"] for each in said["densified"]] == ([] if optimizer is SGD else ["optimizer:momentum"])
        np.testing.assert_allclose(table_of(client, path), TABLE - 0.5 * whole(rows, values))


WRONG = {
    "a row outside of the table": ({"rows": tensor([6])}, "invalid-request"),
    "rows of int32": ({"rows": tensor(np.array([1], "int32"))}, "dtype-mismatch"),
    "rows of two axes": ({"rows": tensor([[1]])}, "shape-mismatch"),
    "more rows than values": ({"rows": tensor([1, 2])}, "shape-mismatch"),
    "values of another width": ({"values": tensor([[1.0]])}, "shape-mismatch"),
    "values of another dtype": ({"values": tensor(np.ones((1, 2), "float32"))}, "dtype-mismatch"),
    "the shape of another table": ({"shape": [7, 2]}, "shape-mismatch"),
    "an invalid shape": ({"shape": "6"}, "invalid-request"),
    "another member": ({"row": 1}, "invalid-request"),
    "no tensor": ({"rows": 3}, "invalid-request"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_are_refused_and_change_nothing(client, name):
    change, code = WRONG[name]
    given = {"rows": tensor([1]), "values": tensor([[1.0, 2.0]]), **change}
    with opened(client, sketch(True), optimizer=SGD) as path:
        problem(client.post(f"{path}/updates", json={"gradients": {"E": given}}), 422, code)
        np.testing.assert_array_equal(table_of(client, path), TABLE)


def test_rows_without_values_and_rows_of_a_scalar_are_refused(client):
    s = sketch(True)
    s.param("b", 1.0)
    with opened(client, s, optimizer=SGD) as path:
        problem(client.post(f"{path}/updates", **file_of({"rows/E": np.array([1])})), 422, "invalid-request")
        given = {"rows/b": np.array([0]), "grad/b": np.ones(1)}
        problem(client.post(f"{path}/updates", **file_of(given)), 422, "shape-mismatch")


def test_a_parameter_may_have_the_name_of_a_rows_tensor(client):
    s = Sketch()
    s.param("rows/E", TABLE)
    s.total("rows/E")
    with opened(client, s, optimizer=SGD) as path:
        for gradient in ({"rows/E": TABLE}, {"grad/rows/E": TABLE}):
            assert client.post(f"{path}/updates", **file_of(gradient)).status_code == 200

        held = client.get(f"{path}/parameters").json()["parameters"]
        np.testing.assert_allclose(array(held["rows/E"]), TABLE - 0.5 * TABLE - 0.5 * TABLE, atol=1e-15)


def test_a_step_on_a_large_table_allocates_little_memory():
    """The test calls the handler directly, so that it can count allocations."""
    size, width, count = 1_000_000, 64, 32
    s = Sketch()
    s.blocks[0]["vars"] += [
        {"name": "E", "dtype": "float32", "shape": [size, width], "role": "parameter"},
        {"name": "ids", "dtype": "int64", "shape": [count], "role": "feed"},
    ]
    s.total(s.op("square", s.op("embedding", "E", "ids", is_sparse=True)))
    state = WorkerState("w", "cpu", np, Settings().model_dump(mode="json"), SimpleNamespace(check=lambda: None,  # type: ignore[arg-type]
        deadline=None, should_stop=lambda: False))  # fmt: skip
    table = np.zeros((size, width), "float32")
    ids = np.random.default_rng(5).integers(0, size, count)
    table[ids] = 1.0
    created = {
        "id": "s", "document": s.document, "query": {"loss": "loss"}, "clip": {"by": "global_norm", "max_norm": 1e9},
        "optimizer": {"type": "sgd", "attrs": {"learning_rate": 0.25}}, "seed": 0, "initializers": {},
    }  # fmt: skip
    sessions.create(state, created, {"E": table})
    step = {"id": "s", "seq": 1, "fetch": [], "returned": "all", "require_finite": True}

    tracemalloc.start()
    try:
        said, arrays = training.step(state, step, {"ids": ids})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2_000_000  # the table has 256 MB
    assert said["sparse"] == {"E": [size, width]}
    np.testing.assert_array_equal(arrays["rows/E"], np.unique(ids))
    held = state.sessions["s"].parameters["E"]
    np.testing.assert_array_equal(held[ids[0]], np.float32(1.0 - 0.25 * 2 * (ids == ids[0]).sum()))
    assert held.sum(dtype="float64") == pytest.approx(width * sum(1 - 0.5 * (ids == i).sum() for i in np.unique(ids)))
