"""Models that the command line and the Python client send to a service."""

from __future__ import annotations

import json
import sys
import zipfile

import numpy as np
import pytest

import backpass_client as bp
from service.cli.main import main
from tests.service.models.build import B, W, X, Y, external, linear


@pytest.fixture
def remote(service):
    with bp.Service(service.url) as connection:
        yield connection


@pytest.fixture
def run(service, capsys, monkeypatch):
    """Run `backpass import` with the address of the service: exit status, standard output, standard error."""
    monkeypatch.setenv("BACKPASS_URL", service.url)

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["import", *map(str, arguments)])
        return status, *capsys.readouterr()

    return run


def test_the_command_registers_a_zip_file_with_external_data(run, remote, tmp_path):
    model, data = external()
    with zipfile.ZipFile(tmp_path / "model", "w") as file:
        file.writestr("linear.onnx", model.SerializeToString())
        file.writestr("linear.data", data)

    status, out, err = run(tmp_path / "model", "--zip", "--loss", "mse", "--label", "target")
    made = json.loads(out)

    assert (status, err) == (0, "")
    assert made["signature"]["inputs"] == ["x", "target"]
    assert bp.Program(remote, made["id"]).values()["0.weight"].tolist() == W.tolist()


def test_a_dry_run_prints_the_program_and_sends_nothing(run, tmp_path, monkeypatch):
    (tmp_path / "linear.onnx").write_bytes(linear().SerializeToString())
    monkeypatch.setenv("BACKPASS_URL", "http://127.0.0.1:9")

    status, out, _ = run(tmp_path / "linear.onnx", "--dry-run", "--loss", "mse", "--trainable", "0.bias")

    variables = {each["name"]: each["role"] for each in json.loads(out)["blocks"][0]["vars"]}
    assert status == 0
    assert variables["0.bias"] == "parameter"
    assert variables["label"] == "feed"
    status, out, err = run(tmp_path / "linear.onnx")
    assert (status, out) == (1, "")
    assert "cannot be reached" in err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_the_command_prints_every_reason_of_a_refusal(run, tmp_path, more):
    model = linear()
    for node in model.graph.node:
        node.op_type = "StringNormalizer"
        del node.input[1:]
    model.graph.node[1].input[0] = "x"
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())

    status, out, err = run(tmp_path / "bad.onnx", *more)

    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 2
    assert "/0/MatMul" in err and "/0/Add" in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.onnx"], 1),
        (["{}", "--axis", "1"], 2),
        (["{}", "--loss", "none"], 2),
        (["{}", "--trainable", "none"], 2),
        (["{}", "--url", "file:///etc/passwd"], 2),
    ],
)
def test_wrong_arguments_end_with_one_line(run, tmp_path, arguments, expected):
    path = tmp_path / "linear.onnx"
    path.write_bytes(linear().SerializeToString())

    status, out, err = run(*(each.format(path) for each in arguments))

    assert (status, out) == (expected, "")
    assert len(err.splitlines()) == 1
    assert expected == 1 or err.startswith(f"{arguments[1]}: ")


def test_the_client_trains_a_model_from_its_weights(remote):
    with bp.Program.from_onnx(remote, linear(), loss="mse", label="target") as program:
        feeds = {"x": X, "target": np.zeros_like(Y)}
        assert (program.inputs, program.outputs, program.loss) == (["x", "target"], ["y"], "loss")
        found = program.gradients(feeds=feeds)
        with program.session(optimizer={"type": "sgd", "learning_rate": 0.5}) as session:
            first = session.parameters()
            step = session.step(feeds)
            after = session.parameters()

    np.testing.assert_allclose(found.gradients["0.weight"], 2 * X.T @ Y / 3, rtol=1e-5)
    assert step.loss == pytest.approx(float((Y**2).mean()))
    assert first["0.weight"].tolist() == W.tolist()
    np.testing.assert_allclose(after["0.bias"], B - Y.mean(0), rtol=1e-5)


def test_the_client_asks_for_gradients_of_outputs_without_a_loss(remote):
    program = bp.Program.from_onnx(remote, linear().SerializeToString())
    seed = np.ones_like(Y)

    found = program.gradients(
        feeds={"x": X, "target_gradients/0": seed}, targets=program.outputs, inputs=["0.weight"], fetch=["y"]
    )

    np.testing.assert_allclose(found.fetched["y"], Y)
    np.testing.assert_allclose(found.gradients["0.weight"], X.T @ seed)
    assert program.loss is None
    assert bp.Program(remote, program.id).values()["0.bias"].tolist() == B.tolist()


def test_the_client_sends_a_file_with_external_data_inside(remote, tmp_path, monkeypatch):
    model, data = external()
    (tmp_path / "linear.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "linear.data").write_bytes(data)

    program = bp.Program.from_onnx(remote, tmp_path / "linear.onnx")
    assert program.id == bp.Program.from_onnx(remote, linear()).id
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(bp.Refused, match="was not given"):
        bp.Program.from_onnx(remote, str(tmp_path / "linear.onnx"))


def test_the_client_sends_initial_values_with_a_document(remote):
    document = bp.Program.from_onnx(remote, linear()).document()
    del document["values"]

    with bp.Program(remote, document, {"0.bias": B + 1}) as program:
        assert program.values()["0.bias"].tolist() == (B + 1).tolist()
        with pytest.raises(ValueError, match="with a document"):
            bp.Program(remote, program.id, {"0.bias": B})


def test_the_client_says_what_is_no_model(remote):
    with pytest.raises(TypeError, match="not int"):
        bp.Program.from_onnx(remote, 7)
    with pytest.raises(bp.Refused, match="not an ONNX model"):
        bp.Program.from_onnx(remote, b"nothing")
