"""Sampling of images at positions, pooling of boxes, and suppression of boxes."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("GridSample")
def grid_sample(node: Node) -> Tensor:
    x, grid = node[0], node[1]
    names = {"linear": "bilinear", "cubic": "bicubic"}
    mode = node.attr("mode", "bilinear")
    result: Tensor = node.emit(
        "grid_sample",
        x,
        node.cast(grid, x.dtype),
        mode=names.get(mode, mode),
        padding_mode=node.attr("padding_mode", "zeros"),
        align_corners=bool(node.attr("align_corners", 0)),
    )
    return result


@converter("AffineGrid")
def affine_grid(node: Node) -> Tensor:
    theta, sizes = node[0], node.planned_sizes(1)
    spatial = [n for n in sizes[2:] if n is not None]
    if len(spatial) < len(sizes) - 2:
        raise node.refuse("the spatial sizes of the grid depend on open sizes: fix them")
    if sizes[0] is not None and theta.shape[0] not in (-1, sizes[0]):
        raise node.refuse(f"the batch {sizes[0]} is not that of theta {theta.type}")
    result: Tensor = node.emit("affine_grid", theta, size=spatial, align_corners=bool(node.attr("align_corners", 0)))
    return result


# --- boxes ---------------------------------------------------------------------------------------------------------


@converter("RoiAlign")
def roi_align(node: Node) -> Tensor:
    coordinates = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    result: Tensor = node.emit(
        "roi_align",
        node[0],
        node[1],
        node.cast(node[2], "int64"),
        output_size=[int(node.attr("output_height", 1)), int(node.attr("output_width", 1))],
        spatial_scale=node.attr("spatial_scale", 1.0),
        sampling_ratio=int(node.attr("sampling_ratio", 0)),
        aligned=coordinates == "half_pixel",
        mode=node.attr("mode", "avg"),
    )
    return result


@converter("MaxRoiPool")
def max_roi_pool(node: Node) -> Tensor:
    x, rois = node[0], node[1]
    image = node.emit("slice", rois, axes=[1], starts=[0], ends=[1])
    boxes = node.emit("slice", rois, axes=[1], starts=[1], ends=[5])
    result: Tensor = node.emit(
        "roi_pool",
        x,
        boxes,
        node.cast(node.emit("squeeze", image, axes=[1]), "int64"),
        output_size=[int(n) for n in node.attr("pooled_shape")],
        spatial_scale=node.attr("spatial_scale", 1.0),
    )
    return result


@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> Tensor:
    most = int(node.number(2, 0.0))
    if most <= 0:
        return node.const(np.zeros((0, 3)), "int64")
    given = {"score_threshold": node.number(4)} if node.given(4) else {}
    result: Tensor = node.emit(
        "non_max_suppression",
        node[0],
        node[1],
        max_output=min(most, 2**31 - 1),
        iou_threshold=node.number(3, 0.0),
        box_format="center" if node.attr("center_point_box", 0) else "corners",
        **given,
    )
    return result
