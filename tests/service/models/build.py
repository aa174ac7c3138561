"""ONNX models for the tests of this folder, with their values by numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["X", "Y", "external", "graph_model", "linear", "perceptron"]

X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]], np.float32)
W, B = np.array([[0.5], [-0.25]], np.float32), np.array([0.125], np.float32)
Y = X @ W + B
FLOAT = TensorProto.FLOAT


def graph_model(
    nodes: Iterable[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    out: str = "y",
    inputs: Iterable[onnx.ValueInfoProto] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    """A model with one output; by default with the feed x: float32 [rows, 2]."""
    fed = [helper.make_tensor_value_info("x", FLOAT, ["rows", 2])] if inputs is None else list(inputs)
    initial = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(
        list(nodes), "graph", fed, [helper.make_tensor_value_info(out, FLOAT, ["rows", "n"])], initial
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9, **more)


def linear() -> onnx.ModelProto:
    """y = x w + b."""
    nodes = [
        helper.make_node("MatMul", ["x", "0.weight"], ["/0/MatMul_output_0"], "/0/MatMul"),
        helper.make_node("Add", ["/0/MatMul_output_0", "0.bias"], ["y"], "/0/Add"),
    ]
    return graph_model(nodes, {"0.weight": W, "0.bias": B})


def external(location: str = "linear.data") -> tuple[onnx.ModelProto, bytes]:
    """The same model with its weights in another file, and the content of that file."""
    model, data = linear(), b""
    for tensor in model.graph.initializer:
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", len(data)), ("length", len(raw))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        data += raw
    return model, data


def perceptron() -> onnx.ModelProto:
    """Layers, a shape that is computed, a branch and a loop: something of everything that a reader meets."""
    draw = np.random.default_rng(0)
    weights = {f"{n}.weight": draw.normal(size=s).astype(np.float32) for n, s in (("a", (2, 3)), ("b", (3, 1)))}
    weights |= {"axes": np.array([1]), "trips": np.array(3), "on": np.array(True), "shape": np.array([-1, 1])}
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["goes_on"]),
            helper.make_node("Tanh", ["h"], ["h_next"], "inner"),
        ],
        "body",
        [
            helper.make_tensor_value_info("trip", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h_next", FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "a.weight"], ["h0"], "first"),
        helper.make_node("Relu", ["h0"], ["h1"], "relu"),
        helper.make_node("Loop", ["trips", "on", "h1"], ["h2"], "loop", body=body),
        helper.make_node("Softmax", ["h2"], ["h3"], "softmax", axis=-1),
        helper.make_node("Gemm", ["h3", "b.weight"], ["h4"], "gemm", alpha=0.5),
        helper.make_node("Reshape", ["h4", "shape"], ["h5"], "reshape"),
        helper.make_node("ReduceMean", ["h5", "axes"], ["y"], "mean", keepdims=1),
    ]
    return graph_model(nodes, weights)
