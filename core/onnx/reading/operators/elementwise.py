"""Elementwise operators: arithmetic, mathematical functions, comparisons, logic, casts and selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor, Value

_SAME = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "IsNaN": "isnan",
    "Log": "log", "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal", "Round": "round",
    "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Softsign": "softsign", "Sqrt": "sqrt",
    "Tan": "tan", "Tanh": "tanh", "BitwiseNot": "bitwise_not",
}  # fmt: skip
_PAIRS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "Equal": "equal", "Greater": "greater_than", "GreaterOrEqual": "greater_equal", "Less": "less_than",
    "LessOrEqual": "less_equal", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip


@converter(*_SAME)
def same(node: Node) -> Tensor:
    result: Tensor = node.emit(_SAME[node.op], node[0])
    return result


@converter("Identity")
def identity(node: Node) -> Value:
    return node.value(0)


@converter(*_PAIRS)
def pair(node: Node) -> Tensor:
    result: Tensor = node.emit(_PAIRS[node.op], *_aligned(node))
    return result


def _aligned(node: Node) -> tuple[Tensor, Tensor]:
    """The two operands. Before opset 7 the attribute `axis` places the second one at the axes of the first."""
    x, y = node[0], node[1]
    if node.opset < 7 and node.has("axis"):
        axis = node.axis()
        missing = x.rank - axis - y.rank
        if missing > 0:
            y = node.emit("unsqueeze", y, axes=list(range(y.rank, y.rank + missing)))
    return x, y


@converter("Div")
def div(node: Node) -> Tensor:
    x, y = _aligned(node)
    if x.is_float:
        result: Tensor = node.emit("div", x, y)
        return result
    return _truncated(node, x, y)


def _truncated(node: Node, x: Tensor, y: Tensor) -> Tensor:
    """The quotient of integers, rounded towards 0: the exact multiple x - fmod(x, y), divided by y."""
    result: Tensor = node.emit("floor_div", node.emit("sub", x, node.emit("fmod", x, y)), y)
    return result


@converter("Mod")
def mod(node: Node) -> Tensor:
    result: Tensor = node.emit("fmod" if node.attr("fmod", 0) else "mod", node[0], node[1])
    return result


@converter("Pow")
def power(node: Node) -> Tensor:
    x, y = _aligned(node)
    if x.is_float:
        result: Tensor = node.emit("pow", x, node.cast(y, x.dtype))
        return result
    wide = "float64"
    found = node.emit("pow", node.cast(x, wide), node.cast(y, wide))
    return node.cast(found, x.dtype)


@converter("Max", "Min")
def extreme(node: Node) -> Tensor:
    op = {"Max": "maximum", "Min": "minimum"}[node.op]
    return reduce(lambda x, y: node.emit(op, x, y), node.tensors())


@converter("Sum")
def total(node: Node) -> Tensor:
    return reduce(lambda x, y: node.emit("add", x, y), node.tensors())


@converter("Mean")
def mean(node: Node) -> Tensor:
    result: Tensor = node.emit("scale", total(node), scale=1.0 / len(node))
    return result


@converter("Clip")
def clip(node: Node) -> Tensor:
    x = node[0]
    if node.opset < 11:  # without bounds: the finite numbers of float32
        largest = math.inf if x.dtype == "float16" else float(np.finfo("float32").max)
        lower, upper = node.attr("min", -largest), node.attr("max", largest)
    else:
        lower, upper = node.get(1), node.get(2)
    low, high = _number(lower, -math.inf), _number(upper, math.inf)
    if x.is_float and low is not None and high is not None and low <= high:
        result: Tensor = node.emit("clip", x, min=low, max=high)
        return result
    for op, bound in (("maximum", lower), ("minimum", upper)):
        if bound is not None:
            x = node.emit(op, x, bound if isinstance(bound, Tensor) else node.const(bound, x.dtype))
    return x


def _number(bound: Tensor | float | None, default: float) -> float | None:
    """A bound as a number; `default` if there is none, None if only the run knows it."""
    if bound is None:
        return default
    if isinstance(bound, Tensor):
        return None if bound.value is None or bound.value.size != 1 else float(bound.value.reshape(-1)[0])
    return float(bound)


@converter("Cast")
def cast(node: Node) -> Tensor:
    return node.cast(node[0], dtype_name(node.attr("to")))


@converter("CastLike")
def cast_like(node: Node) -> Tensor:
    return node.cast(node[0], node[1].dtype)


@converter("Where")
def where(node: Node) -> Tensor:
    condition, x, y = node[0], node[1], node[2]
    y = _kept_rows(node, y, lambda: node.emit("logical_not", condition), condition)
    x = _kept_rows(node, x, lambda: condition, condition)
    result: Tensor = node.emit("where", condition, x, y)
    return result


def _kept_rows(node: Node, x: Tensor, kept: Callable[[], Tensor], condition: Tensor) -> Tensor:
    """`x`, whose rows that the selection drops get a gradient of 0, if it is a softmax and whole rows are dropped.

    A row whose scores are all -inf has a softmax of NaN. The selection replaces it, but the gradient of a softmax
    multiplies by its result, and 0 * NaN is NaN.
    """
    casts: list[str] = []
    source = x
    while source.origin is not None and source.origin.op == "cast":
        casts.append(source.dtype)
        source = source.origin.inputs[0]
    made = source.origin
    if made is None or made.op != "softmax":
        return x
    axis = made.attrs.get("axis", -1) % source.rank - source.rank
    if condition.rank > source.rank or (condition.rank >= -axis and condition.shape[axis] != 1):
        return x
    found: Tensor = node.emit("softmax", node.emit("mask_gradient", kept(), made.inputs[0]), **made.attrs)
    for dtype in reversed(casts):
        found = node.cast(found, dtype)
    return found


@converter("IsInf")
def is_infinite(node: Node) -> Tensor:
    signs = {"positive": bool(node.attr("detect_positive", 1)), "negative": bool(node.attr("detect_negative", 1))}
    result: Tensor = node.emit("isinf", node[0], **signs)
    return result


@converter("BitShift")
def bit_shift(node: Node) -> Tensor:
    ops = {"LEFT": "bitwise_left_shift", "RIGHT": "bitwise_right_shift"}
    direction = node.attr("direction")
    if direction not in ops:
        raise node.refuse(f"the direction must be LEFT or RIGHT, not {direction!r}")
    x, bits = node[0], node[1]
    if not x.dtype.startswith("u"):  # a negative number of bits counts as all of them
        negative = node.emit("less_than", bits, node.const(0, x.dtype))
        bits = node.emit("where", negative, node.const(8 * _width(x.dtype), x.dtype), bits)
    result: Tensor = node.emit(ops[direction], x, bits)
    return result


@converter("BitCast")
def bit_cast(node: Node) -> Tensor:
    result: Tensor = node.emit("bitcast", node[0], dtype=dtype_name(node.attr("to")))
    return result


def _width(dtype: str) -> int:
    return np.dtype(dtype).itemsize
