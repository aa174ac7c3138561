"""The Python client writes programs, backward passes and trained models as ONNX files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import backpass_client as bp
from examples.models import line
from tests.core.onnx.exported import run
from tests.core.onnx.test_names import model
from tests.paths import ROOT

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])


def test_a_program_and_its_backward_pass_are_written(service, tmp_path):
    program = bp.Program(service, line())
    file = tmp_path / "line.onnx"

    content = program.to_onnx(file, outputs=["error", "loss"])
    backward = program.backward_to_onnx("loss", opset=21)

    assert file.read_bytes() == content
    np.testing.assert_allclose(run(content, {**FEEDS, "w": W})["error"], [-1.0, 0.5])
    found = run(backward, {**FEEDS, "w": W})
    wanted = program.gradients("loss", FEEDS, {"w": W})
    np.testing.assert_allclose(found["loss"], wanted.loss)
    np.testing.assert_allclose(found["w@GRAD"], wanted.gradients["w"])


def test_a_trained_session_is_written_with_its_weights(service):
    program = bp.Program(service, line())
    with program.session("loss", {"w": W}, optimizer={"type": "sgd", "learning_rate": 0.5}) as session:
        session.step(FEEDS)
        content = session.to_onnx(outputs=["error"])
        trained = session.parameters()["w"]

    assert not np.allclose(trained, W)
    np.testing.assert_allclose(run(content, FEEDS)["error"], FEEDS["x"] @ trained - FEEDS["y"], rtol=1e-12)


def test_an_imported_model_returns_as_it_came(service):
    x = np.array([[1.0, 2.0]], np.float32)
    model = ROOT / "service" / "static" / "linear.onnx"

    returned = bp.Program.from_onnx(service, model).to_onnx()

    np.testing.assert_allclose(run(returned, {"x": x})["y"], run(model.read_bytes(), {"x": x})["y"], rtol=1e-6)


def test_a_trained_model_leaves_with_the_names_that_it_came_with(service):
    names = ["in put:0", "größe w", "a b", "a_b", "out put", "flag"]
    given = model(["in put:0", "größe w", "a b", "a_b", "y", "out put", "flag", "else"])
    program = bp.Program.from_onnx(service, given, loss="mse", of="y")

    with program.session(optimizer={"type": "sgd", "learning_rate": 0.1}) as session:
        x, flag, label = program.inputs
        session.step({x: np.float32([[1, 2, 3]]), flag: np.array(True), label: np.zeros((1, 2), np.float32)})
        trained = onnx.load_from_string(session.to_onnx()).graph

    assert {each.name for each in trained.input} == {names[0], names[5]}
    assert [each.name for each in trained.output] == ["y", names[4]]
    assert {each.name for each in trained.initializer if len(each.dims)} >= {names[1], names[2]}
    assert trained.input[0].type.tensor_type.shape.dim[0].dim_param == "größe N"


def test_a_refused_op_is_reported_with_its_place(service):
    ops = [{"type": "svd", "inputs": {"x": ["m"]}, "outputs": {"u": ["u"], "s": ["s"], "v": ["v"]}}]
    leaf = {"name": "m", "dtype": "float64", "shape": [2, 2], "role": "parameter"}
    program = bp.Program(service, {"blocks": [{"idx": 0, "parent_idx": -1, "vars": [leaf], "ops": ops}]})

    with pytest.raises(bp.Refused, match="svd cannot be written as ONNX"):
        program.to_onnx()
