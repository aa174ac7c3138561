"""The operator StopGradient of the domain `backpass`, which models of PyTorch contain."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import core
from core.onnx import read_model


def test_a_model_may_say_where_gradients_end():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    nodes = [
        helper.make_node("StopGradient", ["x"], ["fixed"], domain="backpass"),
        helper.make_node("Mul", ["x", "fixed"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("backpass", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9)

    program = core.read(read_model(model.SerializeToString()).program)
    step = core.compile_gradient(program, core.GradientQuery(targets=("y",), inputs=("x",)), shapes={"x": (2,)})
    found = step.step({"x": np.array([2.0, -3.0], "float32")}).gradients["x"]

    assert found.tolist() == [2.0, -3.0]


@pytest.mark.parametrize("dtype", [TensorProto.INT64, TensorProto.BOOL])
def test_values_without_a_gradient_pass(dtype: int):
    x, y = (helper.make_tensor_value_info(name, dtype, [2]) for name in "xy")
    nodes = [helper.make_node("StopGradient", ["x"], ["y"], domain="backpass")]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("backpass", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)

    found = read_model(model.SerializeToString())

    assert found.inputs == ("x",)
    assert found.outputs == ("y",)
