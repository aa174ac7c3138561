"""Elementwise operators: arithmetic, mathematical functions, comparisons and logic."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

_SAME = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "IsNaN": "isnan",
    "Log": "log", "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softsign": "softsign", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh", "Relu": "relu",
    "Add": "add", "Sub": "sub", "Mul": "mul", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "Equal": "equal", "Greater": "greater_than", "GreaterOrEqual": "greater_equal", "Less": "less_than",
    "LessOrEqual": "less_equal",
}  # fmt: skip


@converter(*_SAME)
def same(node: Node) -> Tensor:
    result: Tensor = node.emit(_SAME[node.op], *node.tensors())
    return result


@converter("Identity")
def identity(node: Node) -> object:
    return node.value(0)
