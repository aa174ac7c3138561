"""Initial values of registered programs: sent, stored, used, downloaded, shared and deleted."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from service.engine import RemoteError
from service.problems import from_exception
from service.routes import named_programs
from tests.programs import Sketch
from tests.service.prepared import prepared
from tests.service.wire import array, file_of, problem, read_file, tensor, tensors

X, W = [[1.0, 2.0], [3.0, -1.0]], [[0.5], [-2.0]]


@pytest.fixture(scope="module")
def sketch():
    """loss = mean((x w)^2 * scale), whose state `steps` counts the runs."""
    s = Sketch()
    s.feed("x", X)
    s.param("w", W)
    s.param("scale", [3.0])
    s._leaf("state", "steps", [5.0], "float64")
    s.op("matmul", "x", "w", out="prediction")
    s.op("square", "prediction", out="squares")
    s.op("mul", "squares", "scale", out="scaled")
    s.op("reduce_mean", "scaled", out="loss")
    s.op("scale", "steps", out="steps", scale=1.0, bias=1.0)
    return s


def values_of(sketch: Sketch, *names: str) -> dict[str, np.ndarray]:
    return {name: sketch.values[name] for name in names}


@pytest.fixture
def stored(client, sketch):
    """A program with values of w and steps, deleted afterwards."""
    given = tensors(values_of(sketch, "w", "steps"))
    answer = client.post("/v1/programs", json={"program": sketch.document, "values": given})
    assert answer.status_code in (200, 201), answer.text
    yield answer.json()
    client.delete(f"/v1/programs/{answer.json()['id']}")


def loss_of(x: Any, w: Any, scale: float) -> tuple[float, np.ndarray]:
    """The loss and its gradient with respect to w."""
    prediction = np.asarray(x) @ np.asarray(w)
    return float((prediction**2 * scale).mean()), 2 * scale * np.asarray(x).T @ prediction / prediction.size


def test_the_answer_tells_names_types_and_the_file(client, stored):
    detail = client.get(f"/v1/programs/{stored['id']}").json()
    file = client.get(stored["values"]["content"])

    assert [(each["name"], each["shape"], each["dtype"], each["bytes"]) for each in detail["values"]["tensors"]] == [
        ("steps", [1], "float64", 8),
        ("w", [2, 1], "float64", 16),
    ]
    assert detail["program"]["values"] == stored["values"]["sha256"] == hashlib.sha256(file.content).hexdigest()
    assert stored["values"]["size"] == len(file.content)
    assert {name: each.tolist() for name, each in load(file.content).items()} == {"w": W, "steps": [5.0]}
    listed = client.get("/v1/programs", params={"page_size": 200}).json()["programs"]
    assert [each["values"] for each in listed if each["id"] == stored["id"]] == [stored["values"]]


def test_the_file_is_sent_in_ranges_and_not_again(client, stored):
    path, whole = stored["values"]["content"], client.get(stored["values"]["content"]).content
    etag = client.get(path).headers["etag"]

    part = client.get(path, headers={"Range": "bytes=8-15"})

    assert (part.status_code, part.content) == (206, whole[8:16])
    assert client.get(path, headers={"If-None-Match": etag}).status_code == 304
    problem(client.get(path, headers={"Range": f"bytes={len(whole)}-"}), 416, "range-not-satisfiable")


def test_a_one_shot_call_uses_stored_values_and_values_of_the_request_win(client, stored):
    path = f"/v1/programs/{stored['id']}/gradients"
    body = {"loss": "loss", "feeds": {"x": tensor(np.array(X))}, "parameters": {"scale": tensor(np.array([3.0]))}}

    first = client.post(path, json=body).json()
    other = np.array([[1.0], [1.0]])
    second = client.post(path, json=body | {"parameters": {**body["parameters"], "w": tensor(other)}}).json()

    for found, w in ((first, W), (second, other)):
        loss, gradient = loss_of(X, w, 3.0)
        assert array(found["loss"]) == pytest.approx(loss)
        np.testing.assert_allclose(array(found["gradients"]["w"]), gradient)
        assert array(found["states"]["steps"]).tolist() == [6.0]
    lacking = client.post(path, json={**body, "parameters": {}})
    assert "scale" in problem(lacking, 422, "invalid-request")["detail"]


def test_the_route_with_a_program_id_and_an_inline_program_use_them_too(client, stored):
    document = client.get(f"/v1/programs/{stored['id']}").json()["program"]
    body = {"loss": "loss", "feeds": {"x": tensor(np.array(X))}, "parameters": {"scale": tensor(np.array([3.0]))}}

    for named in ({"program_id": stored["id"]}, {"program": document}):
        answer = client.post("/v1/gradients", json={**named, **body})
        assert array(answer.json()["loss"]) == pytest.approx(loss_of(X, W, 3.0)[0])


def test_a_gradient_check_uses_them(client, stored):
    body = {"loss": "loss", "feeds": {"x": tensor(np.array(X))}, "samples": 2}
    parameters = client.post(f"/v1/programs/{stored['id']}/check", json=body).json()["parameters"]

    assert parameters["w"]["passed"]
    given = {"scale": tensor(np.array([3.0]))}
    found = client.post(f"/v1/programs/{stored['id']}/check", json=body | {"parameters": given}).json()["parameters"]
    assert found["w"]["analytic"] == pytest.approx(loss_of(X, W, 3.0)[1][tuple(found["w"]["worst"])])


@pytest.mark.parametrize("durability", ["journal", "none"])
def test_a_session_opens_with_them(client, stored, durability):
    answer = client.post(
        "/v1/sessions",
        json={
            "program_id": stored["id"],
            "loss": "loss",
            "durability": durability,
            "optimizer": {"type": "sgd", "learning_rate": 0.1},
            "init": {"parameters": {"scale": tensor(np.array([3.0]))}},
        },
    )
    path = f"/v1/sessions/{answer.json()['id']}"
    read = client.get(f"{path}/parameters").json()
    client.post(f"{path}/steps", json={"seq": 1, "feeds": {"x": tensor(np.array(X))}})
    after = client.get(f"{path}/parameters").json()

    assert array(read["parameters"]["w"]).tolist() == W
    assert array(read["states"]["steps"]).tolist() == [5.0]
    np.testing.assert_allclose(array(after["parameters"]["w"]), W - 0.1 * loss_of(X, W, 3.0)[1])
    assert array(after["states"]["steps"]).tolist() == [6.0]
    assert load(client.get(stored["values"]["content"]).content)["w"].tolist() == W, "a session trains its own copy"
    problem(client.delete(f"/v1/programs/{stored['id']}"), 409, "in-use")
    client.delete(path)


def test_initialisers_of_the_request_go_before_them(client, stored):
    init = {"initializers": {"w": {"type": "constant", "value": 7.0}, "scale": {"type": "constant", "value": 2.0}}}
    answer = client.post("/v1/sessions", json={"program_id": stored["id"], "loss": "loss", "init": init})
    path = f"/v1/sessions/{answer.json()['id']}"
    read = client.get(f"{path}/parameters").json()
    client.delete(path)

    assert array(read["parameters"]["w"]).tolist() == [[7.0], [7.0]]
    assert array(read["states"]["steps"]).tolist() == [5.0]


def test_a_session_from_a_checkpoint_takes_from_them_what_the_checkpoint_lacks(client, stored):
    only = {"name": "part", "tensors": {"w": tensor(np.array([[9.0], [9.0]]))}}
    saved = client.post("/v1/checkpoints", json=only).json()["id"]
    body = {"from_checkpoint": saved, "program_id": stored["id"], "loss": "loss"}

    refused = client.post("/v1/sessions", json=body)
    answer = client.post("/v1/sessions", json=body | {"missing": "initialize"})
    path = f"/v1/sessions/{answer.json()['id']}"
    read = client.get(f"{path}/parameters").json()
    client.delete(path)

    problem(refused, 422, "invalid-request")
    assert array(read["parameters"]["w"]).tolist() == [[9.0], [9.0]]
    assert array(read["states"]["steps"]).tolist() == [5.0]


def test_a_safetensors_body_brings_values(client, sketch):
    given = values_of(sketch, "w", "scale", "steps")
    sent = file_of(given, program=sketch.document)
    sent["headers"]["accept"] = "application/json"
    answer = client.post("/v1/programs", **sent)
    again = client.post("/v1/programs", json={"program": sketch.document, "values": tensors(given)})

    assert (answer.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == answer.json()["id"], "the id depends on the content alone"
    assert client.delete(f"/v1/programs/{answer.json()['id']}").status_code == 204


def test_other_values_are_another_program_and_a_stored_document_is_the_same_one(client, stored, sketch):
    plain = client.post("/v1/programs", json={"program": sketch.document}).json()
    other = client.post("/v1/programs", json={"program": sketch.document, "values": tensors(values_of(sketch, "w"))})
    document = client.get(f"/v1/programs/{stored['id']}").json()["program"]
    again = client.post("/v1/programs", json={"program": document})
    changed = client.post("/v1/programs", json={"program": document, "values": tensors(values_of(sketch, "w"))})

    assert len({plain["id"], other.json()["id"], stored["id"]}) == 3
    assert plain["values"] is None
    problem(client.get(f"/v1/programs/{plain['id']}/values"), 404, "not-found")
    assert (again.status_code, again.json()["id"]) == (200, stored["id"])
    assert (changed.status_code, changed.json()["id"]) == (200, other.json()["id"])
    for id in (plain["id"], other.json()["id"]):
        client.delete(f"/v1/programs/{id}")


def test_validation_alone_tells_the_id_and_stores_nothing(client, sketch):
    body = {"program": sketch.document, "values": tensors(values_of(sketch, "scale"))}
    valid = client.post("/v1/programs", params={"validate_only": True}, json=body).json()

    problem(client.get(f"/v1/programs/{valid['id']}"), 404, "not-found")
    assert client.post("/v1/programs", json=body).json()["id"] == valid["id"]
    client.delete(f"/v1/programs/{valid['id']}")


def test_all_wrong_values_are_reported_at_once(client, sketch):
    values = {
        "w": tensor(np.ones((3, 1))),
        "steps": tensor(np.ones(1, np.float32)),
        "x": tensor(np.array(X)),
        "wight": tensor(np.ones(1)),
        "scale": {"dtype": "float64", "shape": [2], "data": [1.0]},
    }
    answer = client.post("/v1/programs", json={"program": sketch.document, "values": values})

    found = problem(answer, 422, "invalid-request")["errors"]
    assert {each["pointer"] for each in found} == {
        "/values/w/shape", "/values/steps/dtype", "/values/x", "/values/wight", "/values/scale/data",
    }  # fmt: skip


@pytest.mark.parametrize("values", ["0" * 64, "0" * 63, "G" * 64, 7, [], None])
def test_a_program_that_names_values_which_are_not_stored_is_refused(client, sketch, values):
    document = sketch.document | {"values": values}
    answers = [
        client.post("/v1/programs", json={"program": document}),
        client.post("/v1/gradients", json={"program": document, "loss": "loss"}),
        client.post("/v1/sessions", json={"program": document, "loss": "loss"}),
    ]

    if values is None:
        assert answers[0].status_code in (200, 201)
    else:
        assert {each.status_code for each in answers} == {422}, [each.text for each in answers]


def test_an_inline_program_cannot_take_values_of_other_shapes(client, stored, sketch):
    s = Sketch()
    s.param("w", np.ones((200, 200)))
    s.total("w")
    document = s.document | {"values": stored["values"]["sha256"]}

    for answer in (
        client.post("/v1/programs", json={"program": document}),
        client.post("/v1/gradients", json={"program": document, "loss": "loss"}),
        client.post("/v1/sessions", json={"program": document, "loss": "loss"}),
    ):
        assert answer.status_code == 422, answer.text
        assert {each["pointer"] for each in answer.json()["errors"]} == {"/values/w/shape", "/values/steps"}


def test_a_clone_keeps_the_values_when_the_program_goes(client, sketch):
    given = tensors(values_of(sketch, "w"))
    first = client.post("/v1/programs", json={"program": sketch.document, "values": given}).json()
    clone = client.post(f"/v1/programs/{first['id']}/clone", json={}).json()
    client.delete(f"/v1/programs/{first['id']}")

    assert clone["id"] != first["id"]
    assert load(client.get(f"/v1/programs/{clone['id']}/values").content)["w"].tolist() == W
    client.delete(f"/v1/programs/{clone['id']}")


def test_a_job_trains_from_them(client, stored):
    rows = "\n".join(["x0,x1", *(f"{a},{b}" for a, b in X)])
    columns = {"name": "rows"}
    data = client.post("/v1/datasets", params=columns, content=rows, headers={"content-type": "text/csv"}).json()["id"]
    body = {
        "program_id": stored["id"], "loss": "loss", "dataset_id": data, "feeds": {"x": ["x0", "x1"]}, "batch_size": 2,
        "steps": 1, "shuffle": False, "optimizer": {"type": "sgd", "learning_rate": 0.1}, "init": {"parameters":
        {"scale": tensor(np.array([3.0]))}},
    }  # fmt: skip
    job = client.post("/v1/jobs", json=body)
    assert job.status_code in (201, 202), job.text
    path = f"/v1/jobs/{job.json()['id']}"
    for _ in range(200):
        if (state := client.get(path).json())["state"] in ("succeeded", "failed"):
            break
    assert state["state"] == "succeeded", state
    metrics = client.get(f"{path}/metrics").json()
    assert metrics["columns"]["loss"][0] == pytest.approx(loss_of(X, W, 3.0)[0])
    client.delete(f"/v1/datasets/{data}")


def test_the_file_goes_with_the_last_program(service, client, sketch):
    folder = service.data_dir / "objects" / "values"
    first = client.post("/v1/programs", json={"program": sketch.document, "values": tensors(values_of(sketch, "w"))})
    path = folder / f"{first.json()['values']['sha256']}.safetensors"
    clone = client.post(f"/v1/programs/{first.json()['id']}/clone", json={}).json()["id"]

    assert path.exists()
    client.delete(f"/v1/programs/{first.json()['id']}")
    assert path.exists()
    client.delete(f"/v1/programs/{clone}")
    assert not path.exists()


@pytest.mark.parametrize("damage", ["changed", "cut off", "missing"])
def test_damaged_values_are_not_used(service, client, sketch, damage):
    """The session was saved when it was opened, so it does not need the file."""
    values = {"w": np.array(W) + len(damage), "steps": sketch.values["steps"]}
    made = client.post("/v1/programs", json={"program": sketch.document, "values": tensors(values)}).json()
    named = {"program_id": made["id"], "loss": "loss"}
    session = f"/v1/sessions/{client.post('/v1/sessions', json=named).json()['id']}"
    path = service.data_dir / "objects" / "values" / f"{made['values']['sha256']}.safetensors"
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-1] if damage == "cut off" else content[:-1] + b"!")

    feeds = tensors({"x": X})
    problem(client.post("/v1/gradients", json={**named, "feeds": feeds}), 409, "values-damaged")
    problem(client.post("/v1/sessions", json=named), 409, "values-damaged")
    given = tensors({"w": W, "scale": [3.0], "steps": [0.0]})
    in_request = {"parameters": {n: given[n] for n in ("w", "scale")}, "states": {"steps": given["steps"]}}
    assert client.post("/v1/gradients", json={**named, "feeds": feeds, **in_request}).status_code == 200
    client.post(f"{session}/steps", json={"seq": 1, "feeds": feeds}).raise_for_status()
    client.delete(session)
    assert client.delete(f"/v1/programs/{made['id']}").status_code == 204
    again = client.post("/v1/programs", json={"program": sketch.document, "values": tensors(values)}).json()
    assert client.get(again["values"]["content"]).content == content
    client.delete(f"/v1/programs/{again['id']}")


def test_a_file_of_values_in_the_request_goes_with_stored_ones(client, stored):
    sent = file_of({"x": np.array(X), "scale": np.array([3.0])}, loss="loss")

    _, arrays = read_file(client.post(f"/v1/programs/{stored['id']}/gradients", **sent))

    np.testing.assert_allclose(arrays["grad/w"], loss_of(X, W, 3.0)[1])


@pytest.mark.anyio
@pytest.mark.parametrize("is_back", [True, False])
async def test_values_that_were_deleted_and_stored_again_during_a_call_can_be_asked_for_again(
    monkeypatch, tmp_path, is_back
):
    files = prepared(str(tmp_path))
    if is_back:
        files.write("values/a", [b"values"])

    async def found(request: Any, id: str) -> Any:
        return SimpleNamespace(values=SimpleNamespace(key="values/a"))

    monkeypatch.setattr(named_programs, "program", found)
    monkeypatch.setattr(named_programs, "objects", lambda request: files)
    missing = RemoteError("execution", "values_missing", "the file is missing", {})

    with pytest.raises(Exception, match="stored again" if is_back else "is missing") as caught:
        async with named_programs.reading_values(None, "prg_a"):  # type: ignore[arg-type]
            raise missing

    told = from_exception(caught.value)
    assert (told.code, told.retryable) == ("values-damaged", is_back)
