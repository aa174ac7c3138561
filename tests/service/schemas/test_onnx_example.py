"""The ONNX model of the documentation. Run this file to write it again."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.paths import ROOT

FILE = ROOT / "service" / "static" / "linear.onnx"


def linear() -> onnx.ModelProto:
    """y = x w + b for any number of rows; `w` and `b` have the values of the regression of the documentation."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], "multiply"),
            helper.make_node("Add", ["product", "b"], ["y"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(np.array([[0.5], [-0.25]], np.float32), "w"),
            numpy_helper.from_array(np.array([0.125], np.float32), "b"),
        ],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="backpass")


def test_the_stored_file_is_this_model():
    assert onnx.load(FILE) == linear()
    onnx.checker.check_model(linear())


if __name__ == "__main__":
    FILE.write_bytes(linear().SerializeToString())
