"""A model becomes a program with feeds, parameters, outputs and a loss under their own names."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import core
from core.ir.errors import ProgramError
from core.onnx import Loss, read_model
from tests.core.onnx.models import imported, model_of, run

X = np.array([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], "float32")
W = np.array([0.5, 1.0, 2.0], "float32")


def product(**more):
    return model_of(
        [helper.make_node("Mul", ["x", "fc.w"], ["y"], name="times")],
        {"x": (TensorProto.FLOAT, ["batch", 3])},
        ["y"],
        {"fc.w": W},
        **more,
    )


def test_names_and_values_are_those_of_the_model():
    found = imported(product())

    assert (found.inputs, found.outputs, list(found.values)) == (("x",), ("y",), ["fc.w"])
    np.testing.assert_array_equal(found.values["fc.w"], W)
    np.testing.assert_array_equal(run(found, [X])[0], X * W)


def test_an_appended_loss_gives_the_gradient_of_its_formula():
    found = imported(product(), Loss("mse", label="target"))
    step = core.compile_gradient(core.read(found.program), core.GradientQuery(loss=found.loss))

    gradient = step.step({**found.values, "x": X, "target": np.zeros_like(X)}).gradients["fc.w"]

    assert found.inputs == ("x", "target")
    np.testing.assert_allclose(gradient, 2 * (X * X * W).sum(0) / X.size, rtol=1e-6)


def test_all_refused_nodes_are_reported_at_once():
    nodes = [
        helper.make_node("Sin", ["x"], ["a"], name="ok"),
        helper.make_node("StringNormalizer", ["x"], ["b"], name="text"),
        helper.make_node("Add", ["x", "w"], ["c"], name="dtypes"),
        helper.make_node("Exp", ["c"], ["d"], name="after"),
    ]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [2])}, ["a", "b", "d"], {"w": np.ones(2, "float64")})

    with pytest.raises(ProgramError) as error:
        imported(model)

    messages = [each.message for each in error.value.problems]
    assert len(messages) == 2
    assert messages[0].startswith("node 'text' (StringNormalizer): ")
    assert messages[1].startswith("node 'dtypes' (Add): ")


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x08\x07"])
def test_other_bytes_are_refused(data):
    with pytest.raises(ProgramError) as error:
        read_model(data)

    assert error.value.code == "malformed_model"
