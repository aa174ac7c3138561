"""Quantised operators. Sums of products of integers are computed in float64, where they are exact."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.node import Node
from core.onnx.reading.operators.convolution import convolved
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

WIDE = "float64"


def _saturated(node: Node, x: Tensor, dtype: str) -> Tensor:
    """`x`, whose elements are whole numbers, in the integer type `dtype`, clipped to its bounds."""
    if dtype not in ("uint8", "int8", "int16", "int32"):
        raise node.refuse(f"cannot quantise to {dtype}")
    limits = np.iinfo(dtype)
    return node.cast(node.emit("clip", x, min=float(limits.min), max=float(limits.max)), dtype)


def _rounded(node: Node, x: Tensor, zero: Tensor | None, dtype: str) -> Tensor:
    """`round(x) + zero`, saturated. Halves are rounded to even numbers."""
    whole = node.emit("round", x)
    return _saturated(node, whole if zero is None else node.emit("add", whole, node.cast(zero, x.dtype)), dtype)


def _along(node: Node, each: Tensor, x: Tensor, what: str) -> Tensor:
    """A scale or zero point for `x`: one number, one for each element of an axis, or one for each block of an axis."""
    if each.rank == 0 or (each.rank == 1 and each.shape[0] == 1):
        return node.reshape(each, [])
    axis = int(node.attr("axis", 1))
    if not -x.rank <= axis < x.rank:
        raise node.refuse(f"axis {axis} is out of range for rank {x.rank}")
    axis %= x.rank
    if each.rank == 1:
        result: Tensor = node.emit("unsqueeze", each, axes=[i for i in range(x.rank) if i != axis])
        return result
    size = int(node.attr("block_size", 0))
    if each.rank != x.rank or size < 1:
        raise node.refuse(f"the {what} {each.type} does not fit {x.type} with blocks of {size}")
    wide: Tensor = node.emit("repeat", each, repeats=size, axis=axis)
    if x.shape[axis] != -1 and wide.shape[axis] > x.shape[axis]:
        wide = node.emit("slice", wide, axes=[axis], starts=[0], ends=[x.shape[axis]])
    return wide


@converter("QuantizeLinear")
def quantize(node: Node) -> Tensor:
    """The gradient of a quantisation is zero: it is piecewise constant."""
    x, scale, zero = node[0], node[1], node.get(2)
    chosen = int(node.attr("output_dtype", 0))
    dtype = zero.dtype if zero is not None else dtype_name(chosen) if chosen else "uint8"
    precision = int(node.attr("precision", 0))
    inner = dtype_name(precision) if precision else scale.dtype if x.dtype in ("int32",) else x.dtype
    ratio = node.emit("div", node.cast(x, inner), node.cast(_along(node, scale, x, "scale"), inner))
    shift = None if zero is None else _along(node, zero, x, "zero point")
    if inner in ("float16", "bfloat16"):
        ratio = node.cast(ratio, "float32")
    return _rounded(node, ratio, shift, dtype)


@converter("DequantizeLinear")
def dequantize(node: Node) -> Tensor:
    x, scale, zero = node[0], node[1], node.get(2)
    chosen = int(node.attr("output_dtype", 0))
    wide = "float64" if scale.dtype == "float64" else "float32"
    shifted = node.cast(x, WIDE if x.dtype == "int32" else wide)
    if zero is not None:
        shifted = node.emit("sub", shifted, node.cast(_along(node, zero, x, "zero point"), shifted.dtype))
    factor = node.cast(_along(node, scale, x, "scale"), wide)
    result = node.emit("mul", node.cast(shifted, wide), factor)
    return node.cast(result, dtype_name(chosen) if chosen else scale.dtype)


@converter("DynamicQuantizeLinear")
def dynamic_quantize(node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """The range of x, with 0 inside, becomes 0 to 255."""
    x = node[0]
    nothing = node.const(0, x.dtype)
    low = node.emit("minimum", node.emit("reduce_min", x), nothing)
    high = node.emit("maximum", node.emit("reduce_max", x), nothing)
    scale = node.emit("div", node.emit("sub", high, low), node.const(255, x.dtype))
    empty = node.emit("equal", scale, nothing)
    divisor = node.emit("where", empty, node.const(1, x.dtype), scale)
    zero = _rounded(node, node.emit("neg", node.emit("div", low, divisor)), None, "uint8")
    return _rounded(node, node.emit("div", x, divisor), zero, "uint8"), scale, zero


# --- products of integers ------------------------------------------------------------------------------------------


def _shifted(node: Node, x: Tensor, zero: Tensor | None) -> Tensor:
    """`x - zero` in float64."""
    wide = node.cast(x, WIDE)
    if zero is None:
        return wide
    result: Tensor = node.emit("sub", wide, node.cast(zero, WIDE))
    return result


def _by_row(node: Node, each: Tensor | None) -> Tensor | None:
    """A number for each row of a matrix, as a column."""
    if each is None or each.rank != 1 or each.shape[0] == 1:
        return each
    result: Tensor = node.emit("unsqueeze", each, axes=[1])
    return result


def _by_filter(node: Node, each: Tensor | None, rank: int) -> Tensor | None:
    """A number for each output channel, shaped like a filter or an output of this rank."""
    if each is None or each.rank != 1 or each.shape[0] == 1:
        return None if each is None else node.reshape(each, [])
    result: Tensor = node.emit("unsqueeze", each, axes=list(range(1, rank)))
    return result


@converter("MatMulInteger")
def matmul_integer(node: Node) -> Tensor:
    a, b = _shifted(node, node[0], _by_row(node, node.get(2))), _shifted(node, node[1], node.get(3))
    return node.cast(node.emit("matmul", a, b), "int32")


@converter("QLinearMatMul")
def qlinear_matmul(node: Node) -> Tensor:
    a = _shifted(node, node[0], _by_row(node, node[2]))
    b = _shifted(node, node[3], node[5])
    a_scale = _by_row(node, node[1])
    assert a_scale is not None
    scale = node.emit("mul", node.cast(a_scale, WIDE), node.cast(node[4], WIDE))
    ratio = node.emit("div", scale, node.cast(node[6], WIDE))
    return _rounded(node, node.emit("mul", node.emit("matmul", a, b), ratio), node[7], node[7].dtype)


@converter("ConvInteger")
def conv_integer(node: Node) -> Tensor:
    x, filter = node[0], node[1]
    zero = node.get(2)
    x = _shifted(node, x, None if zero is None else node.reshape(zero, []))
    filter = _shifted(node, filter, _by_filter(node, node.get(3), filter.rank))
    return node.cast(convolved(node, x, filter, None), "int32")


@converter("QLinearConv")
def qlinear_conv(node: Node) -> Tensor:
    x = _shifted(node, node[0], node.reshape(node[2], []))
    filter = _shifted(node, node[3], _by_filter(node, node[5], node[3].rank))
    bias = node.get(8)
    found = convolved(node, x, filter, None if bias is None else node.cast(bias, WIDE))
    filter_scale = node[4]
    if filter_scale.rank == 1 and filter_scale.shape[0] != 1:
        filter_scale = node.emit("unsqueeze", filter_scale, axes=list(range(1, x.rank - 1)))
    else:
        filter_scale = node.reshape(filter_scale, [])
    scale = node.emit("mul", node.cast(node.reshape(node[1], []), WIDE), node.cast(filter_scale, WIDE))
    ratio = node.emit("div", scale, node.cast(node.reshape(node[6], []), WIDE))
    return _rounded(node, node.emit("mul", found, ratio), node.reshape(node[7], []), node[7].dtype)
