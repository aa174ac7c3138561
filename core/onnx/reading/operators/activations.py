"""Activation functions."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("Relu")
def relu(node: Node) -> Tensor:
    x = node[0]
    result: Tensor = node.emit("relu", x) if x.is_float else node.emit("maximum", x, node.const(0, x.dtype))
    return result


@converter("LeakyRelu")
def leaky_relu(node: Node) -> Tensor:
    result: Tensor = node.emit("leaky_relu", node[0], alpha=node.attr("alpha", 0.01))
    return result


@converter("PRelu")
def prelu(node: Node) -> Tensor:
    x, slope = node[0], node[1]
    if node.opset < 7 and x.rank > 1 and slope.rank == 1 and slope.shape[0] != 1:
        slope = node.emit("unsqueeze", slope, axes=list(range(1, x.rank - 1)))
    negative = node.emit("less_than", x, node.const(0, x.dtype))
    result: Tensor = node.emit("where", negative, node.emit("mul", slope, x), x)
    return result


@converter("ThresholdedRelu")
def thresholded_relu(node: Node) -> Tensor:
    result: Tensor = node.emit("thresholded_relu", node[0], threshold=node.attr("alpha", 1.0))
    return result


@converter("Elu")
def elu(node: Node) -> Tensor:
    result: Tensor = node.emit("elu", node[0], alpha=node.attr("alpha", 1.0))
    return result


@converter("Selu")
def selu(node: Node) -> Tensor:
    alpha, gamma = node.attr("alpha", 1.67326319217681884765625), node.attr("gamma", 1.05070102214813232421875)
    result: Tensor = node.emit("scale", node.emit("elu", node[0], alpha=alpha), scale=gamma)
    return result


@converter("Celu")
def celu(node: Node) -> Tensor:
    result: Tensor = node.emit("celu", node[0], alpha=node.attr("alpha", 1.0))
    return result


@converter("HardSigmoid")
def hard_sigmoid(node: Node) -> Tensor:
    result: Tensor = node.emit("hard_sigmoid", node[0], slope=node.attr("alpha", 0.2), offset=node.attr("beta", 0.5))
    return result


@converter("HardSwish")
def hard_swish(node: Node) -> Tensor:
    result: Tensor = node.emit("hard_swish", node[0])
    return result


@converter("Softplus")
def softplus(node: Node) -> Tensor:
    result: Tensor = node.emit("softplus", node[0])
    return result


@converter("Mish")
def mish(node: Node) -> Tensor:
    result: Tensor = node.emit("mish", node[0])
    return result


@converter("Swish")
def swish(node: Node) -> Tensor:
    result: Tensor = node.emit("swish", node[0], beta=node.attr("alpha", 1.0))
    return result


@converter("Gelu")
def gelu(node: Node) -> Tensor:
    kind = node.attr("approximate", "none")
    if kind not in ("none", "tanh"):
        raise node.refuse(f"approximate must be none or tanh, not {kind!r}")
    result: Tensor = node.emit("gelu", node[0], approximate=kind == "tanh")
    return result


@converter("Shrink")
def shrink(node: Node) -> Tensor:
    x, bias, bound = node[0], node.attr("bias", 0.0), node.attr("lambd", 0.5)
    low, high = node.const(-bound, x.dtype), node.const(bound, x.dtype)
    shift = node.const(bias, x.dtype)
    above = node.emit("where", node.emit("greater_than", x, high), node.emit("sub", x, shift), node.const(0, x.dtype))
    result: Tensor = node.emit("where", node.emit("less_than", x, low), node.emit("add", x, shift), above)
    return result


@converter("Softmax", "LogSoftmax")
def softmax(node: Node) -> Tensor:
    op = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op]
    x = node[0]
    axis, flat = _class_axes(node)
    result: Tensor = node.emit(op, flat, axis=axis)
    return result if flat is x else node.emit("reshape_as", result, x)


@converter("Hardmax")
def hardmax(node: Node) -> Tensor:
    x = node[0]
    axis, flat = _class_axes(node)
    first = node.emit("argmax", flat, axis=axis, keepdims=True)
    ones = node.emit("cast", node.emit("ones_like", flat), dtype="int64")
    place = node.emit("cumsum", ones, axis=axis, exclusive=True)
    result: Tensor = node.emit("cast", node.emit("equal", place, first), dtype=x.dtype)
    return result if flat is x else node.emit("reshape_as", result, x)


def _class_axes(node: Node) -> tuple[int, Tensor]:
    """The axis of the classes, and the input. Before opset 13 the axes from `axis` on are classes together."""
    x = node[0]
    if node.opset >= 13:
        return node.axis(-1), x
    axis = int(node.attr("axis", 1))
    if not -x.rank <= axis <= x.rank:
        raise node.refuse(f"axis {axis} is out of range for rank {x.rank}")
    axis = axis + x.rank if axis < 0 else axis
    if axis == x.rank:
        return axis, node.emit("unsqueeze", x, axes=[axis])
    if axis == x.rank - 1:
        return axis, x
    return axis, node.emit("merge_axes", x, start=axis, end=x.rank)
