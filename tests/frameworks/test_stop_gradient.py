"""The operators of the domain `backpass`, which models of PyTorch contain."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import core
from core.onnx import read_model

HALF = 0.4769362762044699
"""erf(HALF) is 0.5."""


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


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "wanted", "gradient"),
    [
        ("Atan2", {}, [[2.0, 0.0], [0.0, -1.0]], [np.pi / 2, np.pi], [0.0, -1.0]),
        ("Hypot", {}, [[3.0, 0.0], [4.0, 2.0]], [5.0, 2.0], [0.6, 0.0]),
        ("Logaddexp", {}, [[-200.0, 5.0], [-200.0, 300.0]], [-200 + np.log(2), 300.0], [0.5, 0.0]),
        ("Xlogy", {}, [[0.0, 2.0], [0.5, 3.0]], [0.0, 2 * np.log(3)], [np.log(0.5), np.log(3)]),
        ("Lgamma", {}, [[1.0, 3.0]], [0.0, np.log(2)], [-np.euler_gamma, 1.5 - np.euler_gamma]),
        ("Digamma", {}, [[1.0, 2.0]], [-np.euler_gamma, 1 - np.euler_gamma], [np.pi**2 / 6, np.pi**2 / 6 - 1]),
        ("Erfinv", {}, [[0.0, 0.5]], [0.0, HALF], [np.sqrt(np.pi) / 2, np.sqrt(np.pi) / 2 * np.exp(HALF**2)]),
        ("Cumprod", {"axis": 0}, [[2.0, 0.0]], [2.0, 0.0], [1.0, 2.0]),
        ("Logcumsumexp", {"axis": -1}, [[-100.0, 100.0]], [-100.0, 100.0], [1.0, 1.0]),
    ],
)
def test_functions_that_onnx_lacks_have_the_values_and_gradients_of_their_ops(
    name: str, attributes: dict[str, int], inputs: list[list[float]], wanted: list[float], gradient: list[float]
):
    names = [f"x{i}" for i in range(len(inputs))]
    tensors = [helper.make_tensor_value_info(each, TensorProto.DOUBLE, [2]) for each in (*names, "y")]
    nodes = [helper.make_node(name, names, ["y"], domain="backpass", **attributes)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("backpass", 1)]
    graph = helper.make_graph(nodes, "g", tensors[:-1], tensors[-1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)

    program = core.read(read_model(model.SerializeToString()).program)
    query = core.GradientQuery(targets=("y",), inputs=("x0",))
    step = core.compile_gradient(program, query, ["y"], dict.fromkeys(names, (2,)))
    found = step.step(dict(zip(names, map(np.array, inputs), strict=True)))

    np.testing.assert_allclose(found.fetched["y"], wanted, 1e-9, 1e-12)
    np.testing.assert_allclose(found.gradients["x0"], gradient, 1e-9, 1e-12)
