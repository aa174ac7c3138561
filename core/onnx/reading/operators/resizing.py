"""Resize and Upsample."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.resampling import can_resample, resampled
from core.onnx.reading.values import Tensor


@converter("Resize", since=11)
def resize(node: Node) -> Tensor:
    x = node[0]
    axes = [int(a) for a in node.attr("axes", list(range(x.rank)))]
    if len({a % x.rank for a in axes}) < len(axes) or not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"the axes {axes} do not fit rank {x.rank}")
    axes = [a % x.rank for a in axes]
    how = {
        "mode": node.attr("mode", "nearest"),
        "coordinates": node.attr("coordinate_transformation_mode", "half_pixel"),
        "nearest_mode": node.attr("nearest_mode", "round_prefer_floor"),
        "cubic_coefficient": node.attr("cubic_coeff_a", -0.75),
        "exclude_outside": bool(node.attr("exclude_outside", 0)),
        "antialias": bool(node.attr("antialias", 0)),
        "extrapolation_value": node.attr("extrapolation_value", 0.0),
    }
    if how["coordinates"] == "tf_crop_and_resize":
        roi = [float(n) for n in node.constant(1).reshape(-1)]
        if len(roi) != 2 * len(axes):
            raise node.refuse(f"roi has {len(roi)} numbers for {len(axes)} axes")
        how["roi"] = roi
    if not _is_empty(node, 2):
        return _by_scales(node, x, axes, [float(s) for s in node.constant(2).reshape(-1)], how)
    if _is_empty(node, 3):
        raise node.refuse("it needs scales or sizes")
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    return _by_sizes(node, x, axes, node.planned_sizes(3), how, policy)


def _is_empty(node: Node, place: int) -> bool:
    return not node.given(place) or node[place].shape == (0,)


@converter("Resize", since=10)
@converter("Upsample", since=9)
def resize_by_scales(node: Node) -> Tensor:
    return _simple(node, [float(s) for s in node.constant(1).reshape(-1)])


@converter("Upsample", since=7)
def upsample(node: Node) -> Tensor:
    return _simple(node, [float(s) for s in node.attr("scales")])


@converter("Upsample")
def upsample_images(node: Node) -> Tensor:
    """The last two axes are height and width."""
    more = [1.0] * (node[0].rank - 2)
    return _simple(node, [*more, float(node.attr("height_scale")), float(node.attr("width_scale"))])


def _simple(node: Node, scales: list[float]) -> Tensor:
    """Positions i / scale. The nearest element lies before the position if the axis grows, and after it otherwise."""
    x, mode = node[0], node.attr("mode", "nearest")
    if mode in ("bilinear", "trilinear"):
        mode = "linear"
    growing = [s if s > 1 else 1.0 for s in scales]
    shrinking = [s if s < 1 else 1.0 for s in scales]
    axes = list(range(x.rank))
    x = _by_scales(node, x, axes, growing, {"mode": mode, "coordinates": "asymmetric", "nearest_mode": "floor"})
    return _by_scales(node, x, axes, shrinking, {"mode": mode, "coordinates": "asymmetric", "nearest_mode": "ceil"})


def _by_scales(node: Node, x: Tensor, axes: list[int], scales: list[float], how: dict[str, Any]) -> Tensor:
    if len(scales) != len(axes):
        raise node.refuse(f"{len(scales)} scales do not fit {len(axes)} axes")
    if any(not s > 0 for s in scales):
        raise node.refuse(f"the scales {scales} must be above 0")
    for axis, scale in zip(axes, scales, strict=True):
        if x.shape[axis] == -1 and _copies(scale, how):
            x = node.emit("repeat", x, repeats=int(scale), axis=axis)
    open_ones = [a for a, s in zip(axes, scales, strict=True) if x.shape[a] == -1 and _copies(s, how)]
    rest = [(a, s) for a, s in zip(axes, scales, strict=True) if a not in open_ones]
    if any(x.shape[a] == -1 and s != 1 and not can_resample(x, how, s) for a, s in rest):
        raise node.refuse(f"an axis of an open size in {x.type} cannot be resized in this way: fix its size")
    for axis, scale in rest:
        if x.shape[axis] == -1 and scale != 1:
            product = node.emit("mul", node.cast(node.size(x, axis), "float32"), node.const(scale, "float32"))
            x = resampled(node, x, axis, how, scale, node.cast(node.emit("floor", product), "int64"))
    rest = [(a, s) for a, s in rest if x.shape[a] != -1]
    if not rest:
        return x
    how = _with_roi(how, axes, [a for a, _ in rest])
    exact = [_exact(x.shape[a], s) for a, s in rest]
    result: Tensor = node.emit("resize", x, axes=[a for a, _ in rest], scales=exact, **how)
    return result


def _exact(size: int, scale: float) -> float:
    """`scale`, a float32, or the next number that gives an axis of `size` elements the length of ONNX.

    ONNX takes the product in float32: 5 elements times 2.6 are 13, although the float32 next to 2.6 is less than 2.6.
    """
    if size >= 2**24:  # float32 does not have all sizes
        return scale
    length = math.floor(np.float32(size) * np.float32(scale))
    while math.floor(size * scale) < length:
        scale = max(length / size, math.nextafter(scale, math.inf))
    return scale


def _copies(scale: float, how: dict[str, Any]) -> bool:
    """Whether the resizing repeats each element `scale` times, whatever the size of the axis."""
    if scale != int(scale) or scale < 1 or how["mode"] != "nearest":
        return False
    rounding = how["nearest_mode"]
    if how["coordinates"] == "asymmetric":
        return bool(rounding == "floor")
    return how["coordinates"] in ("half_pixel", "pytorch_half_pixel") and str(rounding).startswith("round")


def _with_roi(how: dict[str, Any], axes: list[int], kept: list[int]) -> dict[str, Any]:
    """`how` with the part of the roi for the axes `kept`."""
    if "roi" not in how:
        return how
    places = [axes.index(a) for a in kept]
    roi = how["roi"]
    return {**how, "roi": [roi[i] for i in places] + [roi[len(axes) + i] for i in places]}


def _by_sizes(
    node: Node, x: Tensor, axes: list[int], sizes: list[int | None], how: dict[str, Any], policy: str
) -> Tensor:
    if len(sizes) != len(axes):
        raise node.refuse(f"{len(sizes)} sizes do not fit {len(axes)} axes")
    for axis, n in zip(axes, sizes, strict=True):
        if n is not None and x.shape[axis] == -1 and axis < 2 < x.rank:  # not resized: the run checks the size
            x = node.emit("check_shape", x, shape=[n if i == axis else m for i, m in enumerate(x.shape)])
    crops = "roi" in how
    kept, targets, scales = [], [], []
    for i, (axis, n) in enumerate(zip(axes, sizes, strict=True)):
        ratio = _ratio(node, x, axis, i) if n is None or x.shape[axis] == -1 else None
        if ratio is not None:
            scales.append((axis, ratio))
        elif n is None or x.shape[axis] == -1:
            if crops or policy != "stretch" or not can_resample(x, how):
                raise node.refuse(f"the size of axis {axis} of {x.type} depends on an open size: fix its size")
            out = node.emit("gather", node.cast(node[3], "int64"), node.const(i, "int64"), axis=0)
            x = resampled(node, x, axis, how, None, out)
        else:
            kept.append(axis)
            targets.append(n)
    if scales and (crops or policy != "stretch") and any(s != 1 for _, s in scales):
        raise node.refuse("sizes that are open need the policy stretch and no roi")
    if kept and (targets != [x.shape[a] for a in kept] or crops or policy != "stretch"):
        chosen = _with_roi(how, axes, kept)
        x = node.emit("resize", x, axes=kept, sizes=targets, keep_aspect_ratio=policy, **chosen)
    changed = [(a, s) for a, s in scales if s != 1]
    return _by_scales(node, x, [a for a, _ in changed], [s for _, s in changed], how) if changed else x


def _ratio(node: Node, x: Tensor, axis: int, place: int) -> float | None:
    """The scale of an open axis, if it is the same whole number for all sample sizes."""
    pairs = [
        (a.type.shape[axis], int(b.value[place]))
        for a, b in zip(x.samples, node[3].samples, strict=False)
        if a is not None and b is not None and b.value is not None
    ]
    if len(pairs) < 2 or any(m < 1 or n % m for m, n in pairs) or len({n // m for m, n in pairs}) > 1:
        return None
    return float(pairs[0][1] // pairs[0][0])
