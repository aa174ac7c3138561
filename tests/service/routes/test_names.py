"""Names of PyTorch and ONNX over HTTP: in members, queries, paths, files and hooks."""

from __future__ import annotations

import urllib.parse

import numpy as np
import pytest

from service.schemas.examples import SAMPLE_CHECKPOINT, SAMPLE_DATASET, SAMPLE_SESSION
from tests.programs import Sketch
from tests.service.wire import array, file_of, opened, problem, read_file, tensor, tensors

NAMES = {"x": "/encoder/input:0", "w": "0.weight", "y": "/encoder/Add_output_0"}


@pytest.fixture
def sketch():
    s = Sketch()
    s.feed(NAMES["x"], [1.0, 2.0])
    s.param(NAMES["w"], [3.0, 5.0])
    s.op("mul", NAMES["x"], NAMES["w"], out=NAMES["y"])
    s.op("square", NAMES["y"], out="squares")
    s.total("squares")
    return s


def test_a_call_with_a_file_of_values_takes_and_answers_the_names(client, sketch):
    sent = file_of(sketch.values, program=sketch.document, loss="loss", fetch=[NAMES["y"]])

    document, arrays = read_file(client.post("/v1/gradients", **sent))

    assert arrays[f"grad/{NAMES['w']}"].tolist() == [6.0, 40.0]
    assert arrays[f"fetch/{NAMES['y']}"].tolist() == [3.0, 10.0]
    assert document["gradient_norms"]["0.weight"] == pytest.approx(np.hypot(6, 40))


def test_queries_and_hooks_name_the_variables(client, sketch):
    id = client.post("/v1/programs", json={"program": sketch.document}).json()["id"]
    shape = client.get(f"/v1/programs/{id}/analysis", params={"loss": "loss", "shape": f"{NAMES['x']}:2"})
    hook = {"match": {"variable": f"0:{NAMES['y']}"}, "do": "scale", "factor": 2.0}
    values = {"feeds": tensors({NAMES["x"]: [1.0, 2.0]}), "parameters": tensors({NAMES["w"]: [3.0, 5.0]})}
    found = client.post(f"/v1/programs/{id}/gradients", json={"loss": "loss", "hooks": [hook], **values})
    backward = client.get(f"/v1/programs/{id}/backward", params={"targets": [NAMES["y"]], "inputs": [NAMES["w"]]})

    assert shape.status_code == 200, shape.text
    assert array(found.json()["gradients"]["0.weight"]).tolist() == [12.0, 80.0]
    assert f"{NAMES['w']}@GRAD" in backward.text


def test_a_session_trains_reads_and_saves_the_parameters(client, sketch):
    with opened(client, sketch, optimizer={"type": "sgd", "learning_rate": 0.5}) as path:
        feeds = tensors({NAMES["x"]: [1.0, 2.0]})
        client.post(f"{path}/steps", json={"seq": 1, "feeds": feeds}).raise_for_status()
        found = client.get(f"{path}/parameters", params={"names": ["0.weight"]}).json()["parameters"]
        saved = client.post(f"{path}/checkpoints", json={"name": "names"}).json()["id"]
        again = f"/v1/sessions/{client.post('/v1/sessions', json={'from_checkpoint': saved}).json()['id']}"
        assert client.get(f"{again}/parameters").json()["parameters"] == found
        client.delete(again)

    assert array(found["0.weight"]).tolist() == [0.0, -15.0]


@pytest.mark.parametrize("escaped", [True, False])
def test_a_value_on_a_tape_is_read_by_a_name_that_starts_with_a_slash(client, escaped):
    path = f"/v1/tapes/{client.post('/v1/tapes', json={}).json()['id']}"
    body = {"seq": 1, "parameters": {"0.weight": tensor([2.0, 3.0])}, "ops": [
        {"type": "square", "inputs": {"x": "0.weight"}, "outputs": {"out": "/layer/Mul:0"}},
    ]}  # fmt: skip
    answer = client.post(f"{path}/ops", json=body)
    name = urllib.parse.quote("/layer/Mul:0", safe="" if escaped else "/:")

    assert answer.status_code == 200, answer.text
    assert array(client.get(f"{path}/values/{name}").json()["value"]).tolist() == [4.0, 9.0]
    client.delete(path)


UNSEEN = ["two\nlines", "\x1b[31mred", "\x9b31mred", "a\u2028b", "gnp.\u202egpj", "\u2066x"]
"""Names that another line, another colour of a terminal or another direction of the text would follow."""
NAMED = [
    ("POST", "/v1/keys", {"tenant": "acme"}, 128),
    ("POST", "/v1/jobs", {}, 128),
    ("POST", "/v1/datasets", {"columns": {}}, 128),
    ("PATCH", f"/v1/datasets/{SAMPLE_DATASET}", {}, 128),
    ("POST", f"/v1/sessions/{SAMPLE_SESSION}/checkpoints", {}, 128),
    ("PATCH", f"/v1/checkpoints/{SAMPLE_CHECKPOINT}", {}, 128),
]


@pytest.mark.parametrize(("method", "path", "body", "longest"), NAMED, ids=[f"{m} {p}" for m, p, *_ in NAMED])
def test_a_name_for_people_is_one_line_that_changes_no_text_around_it(client, method, path, body, longest):
    for name in (*UNSEEN, "x" * (longest + 1)):
        errors = problem(client.request(method, path, json={**body, "name": name}), 422, "invalid-request")["errors"]
        assert "/name" in [each["pointer"] for each in errors], name
    fine = "\u0627\u0644\u0646\u0645\u0648\u0630\u062c \U0001f469\u200d\U0001f52c"  # Arabic, and a joined emoji
    answer = client.request(method, path, json={**body, "name": fine})
    assert answer.status_code < 300 or "/name" not in [each["pointer"] for each in answer.json().get("errors", [])]


@pytest.mark.parametrize(
    ("method", "path", "body"), [row[:3] for row in NAMED[1:]], ids=[f"{m} {p}" for m, p, *_ in NAMED[1:]]
)
def test_a_label_is_one_line_of_limited_length(client, method, path, body):
    for name, value in [
        *((each, "x") for each in UNSEEN),
        *(("x", each) for each in UNSEEN),
        ("n" * 65, ""),
        ("x", "v" * 257),
    ]:
        answer = client.request(method, path, json={**body, "labels": {name: value}})
        errors = problem(answer, 422, "invalid-request")["errors"]
        assert [each for each in errors if each["pointer"].startswith("/labels")], (name, value[:9])
