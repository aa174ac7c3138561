"""Pooling over windows, over all spatial axes, and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from core.onnx.reading.borders import with_same_pads
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor
from core.onnx.reading.windows import Windows, windows


def _how(node: Node, x: Tensor, follows: bool = False) -> tuple[dict[str, Any], Windows]:
    """The attributes of a pooling op. follows: as of `windows`."""
    how = windows(node, x, [int(k) for k in node.attr("kernel_shape")], follows=follows)
    attrs = {
        "kernel_size": how.kernel,
        "strides": how.strides,
        "paddings": how.paddings,
        "dilations": how.dilations,
        "ceil_mode": bool(node.attr("ceil_mode", 0)) and not how.automatic,
    }
    return attrs, how


@converter("AveragePool")
def average_pool(node: Node) -> Tensor:
    x = node[0]
    exclusive = not node.attr("count_include_pad", 0)
    attrs, how = _how(node, x, follows=True)
    op = f"avg_pool{x.rank - 2}d"
    if not how.following or not exclusive:
        result: Tensor = node.emit(op, with_same_pads(node, x, how, 0.0), exclusive=exclusive, **attrs)
        return result
    sums, counts = (
        node.emit(op, with_same_pads(node, each, how, 0.0), exclusive=False, **attrs)
        for each in (x, node.emit("ones_like", x))
    )
    mean: Tensor = node.emit("div", sums, counts)
    return mean


@converter("LpPool")
def lp_pool(node: Node) -> Tensor:
    result: Tensor = node.emit("lp_pool", node[0], p=float(node.attr("p", 2)), **_how(node, node[0])[0])
    return result


@converter("MaxPool")
def max_pool(node: Node) -> tuple[Tensor, Tensor | None]:
    x = node[0]
    values = x if x.is_float else node.cast(x, "float32")
    names = node.proto.output
    wanted = len(names) > 1 and names[1]
    attrs, how = _how(node, x, follows=not wanted)
    found, index = node.emit(f"max_pool{x.rank - 2}d", with_same_pads(node, values, how, -np.inf), **attrs)
    return node.cast(found, x.dtype), _flat_positions(node, x, index) if wanted else None


def _flat_positions(node: Node, x: Tensor, index: Tensor) -> Tensor:
    """Positions in the whole of x, from positions inside each image.

    With storage_order 1 the position inside an image counts its columns first.
    """
    sizes = [node.size(x, axis) for axis in range(x.rank)]
    if node.attr("storage_order", 0):
        rest, places = index, []
        for size in reversed(sizes[2:]):
            places.append(node.emit("mod", rest, size))
            rest = node.emit("floor_div", rest, size)
        index = places[0]
        for place, size in zip(places[1:], reversed(sizes[2:-1]), strict=True):
            index = node.emit("add", node.emit("mul", index, size), place)
    volume = sizes[2]
    for size in sizes[3:]:
        volume = node.emit("mul", volume, size)
    image = node.emit("add", node.emit("mul", node.counted(index, 0), sizes[1]), node.counted(index, 1))
    result: Tensor = node.emit("add", index, node.emit("mul", image, volume))
    return result


@converter("MaxUnpool")
def max_unpool(node: Node) -> Tensor:
    """Zeros with x written at positions in the whole result."""
    x, index = node[0], node[1]
    if x.rank < 3 or -1 in x.shape[1:]:
        raise node.refuse(f"it needs known sizes but the batch, and a spatial axis, not {x.type}")
    how = windows(node, x, [int(k) for k in node.attr("kernel_shape")])
    axes = zip(x.shape[2:], how.kernel, how.strides, how.pads, strict=True)
    own = [(n - 1) * s + k - sum(p) for n, k, s, p in axes]
    if min(own) < 1:
        raise node.refuse(f"the pads {how.pads} leave no output for {x.type}")
    if node.given(2) and node.ints(2)[2:] != own:
        raise node.refuse(
            f"output_shape {node.ints(2)} is not the size {own} that the attributes give: whether the positions count "
            "in the one or the other differs between ONNX and its runtimes"
        )
    volume = x.shape[1] * math.prod(own)
    zeros = node.emit("fill_constant_batch_size_like", x, shape=[-1, volume], dtype=x.dtype, value=0.0)
    flat = [node.reshape(each, [-1]) for each in (zeros, node.cast(index, "int64"), x)]
    result = node.emit("put_along_axis", *flat, axis=0)
    return node.reshape(result, [x.shape[0], x.shape[1], *own])


# --- all spatial axes ----------------------------------------------------------------------------------------------


def _spatial(node: Node) -> list[int]:
    x = node[0]
    if x.rank < 3:
        raise node.refuse(f"it needs a spatial axis, not {x.type}")
    return list(range(2, x.rank))


@converter("GlobalAveragePool")
def global_average_pool(node: Node) -> Tensor:
    result: Tensor = node.emit("reduce_mean", node[0], axes=_spatial(node), keepdims=True)
    return result


@converter("GlobalMaxPool")
def global_max_pool(node: Node) -> Tensor:
    result: Tensor = node.emit("reduce_max", node[0], axes=_spatial(node), keepdims=True)
    return result


@converter("GlobalLpPool")
def global_lp_pool(node: Node) -> Tensor:
    result: Tensor = node.emit("norm", node[0], p=float(node.attr("p", 2)), axes=_spatial(node), keepdims=True)
    return result


@converter("LpNormalization")
def lp_normalization(node: Node) -> Tensor:
    """`x / norm`; a slice of zeros stays zeros."""
    x, p = node[0], float(node.attr("p", 2))
    if p not in (1.0, 2.0):
        raise node.refuse(f"p must be 1 or 2, not {p}")
    norm = node.emit("norm", x, p=p, axes=[node.axis(-1)], keepdims=True)
    empty = node.emit("equal", norm, node.const(0, x.dtype))
    divisor = node.emit("where", empty, node.const(np.ones(()), x.dtype), norm)
    result: Tensor = node.emit("div", x, divisor)
    return result
