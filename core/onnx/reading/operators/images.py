"""Operators that put images together, cut them into blocks or to size, or decode them."""

from __future__ import annotations

import math

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.operators.shapes import padded
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("Col2Im")
def col2im(node: Node) -> Tensor:
    """The transpose of a convolution whose filter k has a 1 at element k of the block."""
    x, image, block = node[0], node.ints(1), node.ints(2)
    n = len(image)
    volume = math.prod(block)
    if x.rank != 3 or not 1 <= n <= 3 or len(block) != n or min(image + block) < 1:
        raise node.refuse(f"the image {image} and the block {block} do not fit {x.type}: one to three sizes are needed")
    if x.shape[1] == -1 or x.shape[1] % volume:
        raise node.refuse(f"the columns of {x.type} must be a known multiple of {volume}")
    strides = [int(k) for k in node.attr("strides", [1] * n)]
    dilations = [int(k) for k in node.attr("dilations", [1] * n)]
    pads = [int(k) for k in node.attr("pads", [0] * 2 * n)]
    if len(strides) != n or len(dilations) != n or len(pads) != 2 * n:
        raise node.refuse(f"strides, dilations and pads do not fit {n} axes")
    whole = [m + a + b for m, a, b in zip(image, pads[:n], pads[n:], strict=True)]
    spans = [d * (k - 1) + 1 for k, d in zip(block, dilations, strict=True)]
    counts = [(m - r) // s + 1 for m, r, s in zip(whole, spans, strides, strict=True)]
    if min(counts) < 1 or x.shape[2] not in (-1, math.prod(counts)):
        raise node.refuse(f"an image {image} with blocks {block} has {counts} blocks, which is not {x.type}")
    channels = x.shape[1] // volume
    columns = node.reshape(x, [-1, volume, *counts])
    filter = node.const(np.eye(volume).reshape(volume, 1, *block), x.dtype)
    found = node.emit(f"conv{n}d_transpose", columns, filter, strides=strides, dilations=dilations)
    reached = [(c - 1) * s + r for c, s, r in zip(counts, strides, spans, strict=True)]
    around = [(-a, a + m - r) for a, m, r in zip(pads[:n], image, reached, strict=True)]
    found = padded(node, found, [(0, 0), (0, 0), *around], node.const(0, x.dtype))
    return node.reshape(found, [x.shape[0], channels, *image])


@converter("DepthToSpace")
def depth_to_space(node: Node) -> Tensor:
    """Channels are (row, column, depth) in mode DCR, (depth, row, column) in mode CRD."""
    x, block = _blocks(node)
    if x.shape[1] != -1 and x.shape[1] % block**2:
        raise node.refuse(f"the channels of {x.type} must be a multiple of {block**2}")
    if _depth_first(node):
        found = node.emit("unflatten", x, axis=1, sizes=[-1, block, block])
        found = node.emit("transpose", found, axes=[0, 1, 4, 2, 5, 3])
    else:
        found = node.emit("unflatten", x, axis=1, sizes=[block, block, -1])
        found = node.emit("transpose", found, axes=[0, 3, 4, 1, 5, 2])
    found = node.emit("merge_axes", found, start=4, end=6)
    result: Tensor = node.emit("merge_axes", found, start=2, end=4)
    return result


@converter("SpaceToDepth")
def space_to_depth(node: Node) -> Tensor:
    """The inverse of `depth_to_space`; below opset 28 there is only mode DCR."""
    x, block = _blocks(node)
    if any(size != -1 and size % block for size in x.shape[2:]):
        raise node.refuse(f"height and width of {x.type} must be multiples of {block}")
    found = node.emit("unflatten", x, axis=3, sizes=[-1, block])
    found = node.emit("unflatten", found, axis=2, sizes=[-1, block])
    found = node.emit("transpose", found, axes=[0, 1, 3, 5, 2, 4] if _depth_first(node) else [0, 3, 5, 1, 2, 4])
    result: Tensor = node.emit("merge_axes", found, start=1, end=4)
    return result


def _blocks(node: Node) -> tuple[Tensor, int]:
    """The images [batch, channel, height, width], and the size of a block."""
    x, block = node[0], int(node.attr("blocksize"))
    if x.rank != 4 or block < 1:
        raise node.refuse(f"images of rank 4 and a block size of at least 1 are needed, not {x.type} and {block}")
    return x, block


def _depth_first(node: Node) -> bool:
    mode = str(node.attr("mode", "DCR"))
    if mode not in ("DCR", "CRD"):
        raise node.refuse(f"the mode {mode!r} is neither DCR nor CRD")
    return mode == "CRD"


@converter("CenterCropPad")
def center_crop_pad(node: Node) -> Tensor:
    x, sizes = node[0], node.planned_sizes(1)
    axes = [int(a) for a in node.attr("axes", list(range(x.rank)))]
    if len(sizes) != len(axes) or not all(-x.rank <= a < x.rank for a in axes):
        raise node.refuse(f"{len(sizes)} sizes do not fit the axes {axes} of rank {x.rank}")
    around = [(0, 0)] * x.rank
    for axis, size in zip(axes, sizes, strict=True):
        own = x.shape[axis]
        if size is None or own == -1:
            raise node.refuse(f"axis {axis} of {x.type} and its new size must be known")
        more = size - own
        before = more // 2 if more > 0 else -(-more // 2)
        around[axis % x.rank] = (before, more - before)
    return padded(node, x, around, node.const(0, x.dtype))


@converter("ImageDecoder")
def image_decoder(node: Node) -> Tensor:
    raise node.refuse("a program has no decoder of image files: decode them before they are fed")
