"""Operators that put images together, cut them to size, or decode them."""

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
