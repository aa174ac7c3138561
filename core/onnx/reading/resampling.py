"""Resizing along an axis of an open size: the positions of the elements are computed in the run.

The formulas are those of the op `resize`, which needs the size before the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.onnx.reading.node import Node
from core.onnx.reading.values import Tensor

__all__ = ["can_resample", "resampled"]

COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
               "tf_half_pixel_for_nn")  # fmt: skip


def can_resample(x: Tensor, how: Mapping[str, Any], scale: float = 1.0) -> bool:
    """Whether an open axis can be resized in this way: to the nearest element, or linearly, without a crop.

    `align_corners` needs a whole scale: for others ONNX takes the product with the size as the new length, and runtimes
    the whole number below it.
    """
    if how["coordinates"] == "align_corners" and scale != int(scale):
        return False
    fits = how["mode"] == "nearest" or (how["mode"] == "linear" and x.is_float)
    return fits and not how.get("antialias") and how["coordinates"] in COORDINATES


def resampled(node: Node, x: Tensor, axis: int, how: Mapping[str, Any], scale: float | None, out: Tensor) -> Tensor:
    """`x` with `out` elements along `axis`. scale: of the positions; None for the ratio of the sizes.

    The ratio is also taken where the float32 product of size and scale, which `out` is, was rounded up.
    """
    size = node.cast(node.size(x, axis), "float64")
    length = node.cast(out, "float64")
    ratio = node.emit("div", length, size)
    if scale is not None:
        ratio = node.emit("maximum", ratio, node.const(scale, "float64"))
        length = node.emit("mul", size, ratio)
    count = node.emit("dynamic_range", node.const(0, "int64"), out, node.const(1, "int64"))
    at = _positions(node, node.cast(count, "float64"), size, length, node.cast(out, "float64"), ratio, how)
    if how["mode"] == "nearest":
        return _gathered(node, x, axis, _rounded(node, at, how["nearest_mode"]))
    below = node.emit("floor", at)
    share = node.cast(node.emit("sub", at, below), x.dtype)
    if axis < x.rank - 1:
        share = node.emit("unsqueeze", share, axes=list(range(1, x.rank - axis)))
    lower = _gathered(node, x, axis, below)
    upper = _gathered(node, x, axis, node.emit("scale", below, bias=1.0))
    step = node.emit("mul", node.emit("sub", upper, lower), share)
    result: Tensor = node.emit("add", lower, step)
    return result


def _positions(
    node: Node, i: Tensor, size: Tensor, length: Tensor, out: Tensor, ratio: Tensor, how: Mapping[str, Any]
) -> Tensor:
    """Where in the axis each output element `i` lies, in units of its elements."""

    def emit(op: str, *inputs: Tensor, **attrs: Any) -> Tensor:
        result: Tensor = node.emit(op, *inputs, **attrs)
        return result

    match how["coordinates"]:
        case "asymmetric":
            return emit("div", i, ratio)
        case "align_corners":
            steps = emit("scale", length, bias=-1.0)
            is_one = emit("equal", steps, node.const(0.0, "float64"))
            step = emit("div", emit("scale", size, bias=-1.0), emit("where", is_one, length, steps))
            return emit("mul", i, emit("where", is_one, node.const(0.0, "float64"), step))
        case "tf_half_pixel_for_nn":
            return emit("div", emit("scale", i, bias=0.5), ratio)
    centred = emit("scale", emit("div", emit("scale", i, bias=0.5), ratio), bias=-0.5)
    match how["coordinates"]:
        case "pytorch_half_pixel":
            is_one = emit("equal", length, node.const(1.0, "float64"))
            return emit("where", is_one, node.const(-0.5, "float64"), centred)
        case "half_pixel_symmetric":
            missing = emit("scale", emit("div", out, length), scale=-1.0, bias=1.0)
            return emit("add", emit("mul", emit("scale", size, scale=0.5), missing), centred)
    return centred


def _rounded(node: Node, at: Tensor, nearest_mode: str) -> Tensor:
    shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(nearest_mode, 0.0)
    result: Tensor = node.emit(
        "ceil" if nearest_mode in ("ceil", "round_prefer_floor") else "floor", node.emit("scale", at, bias=shift)
    )
    return result


def _gathered(node: Node, x: Tensor, axis: int, at: Tensor) -> Tensor:
    """The elements of `x` at whole positions along `axis`; the borders repeat."""
    last = node.emit("sub", node.size(x, axis), node.const(1, "int64"))
    index = node.emit("maximum", node.emit("minimum", node.cast(at, "int64"), last), node.const(0, "int64"))
    result: Tensor = node.emit("gather", x, index, axis=axis)
    return result
