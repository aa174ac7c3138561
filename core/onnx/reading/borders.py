"""Borders whose widths come with the run."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.values import Tensor
from core.onnx.reading.windows import Windows

__all__ = ["bordered", "with_same_pads"]


def bordered(node: Node, x: Tensor, axis: int, before: Tensor | None, after: Tensor | None, fill: float) -> Tensor:
    """`x` between blocks of `fill` along `axis`. before, after: their widths, int64 [1]; None for no block.

    A negative width ends the run.
    """
    blocks = [None if width is None else _block(node, x, axis, width, fill) for width in (before, after)]
    parts = [part for part in (blocks[0], x, blocks[1]) if part is not None]
    result: Tensor = node.emit("concat", *parts, axis=axis) if len(parts) > 1 else x
    return result


def _block(node: Node, x: Tensor, axis: int, width: Tensor, fill: float) -> Tensor:
    sizes = [width if a == axis else node.reshape(node.size(x, a), [1]) for a in range(x.rank)]
    shape = [-1 if a == axis else n for a, n in enumerate(x.shape)]
    vector = node.emit("concat", *sizes, axis=0)
    result: Tensor = node.emit("dynamic_fill", vector, shape=shape, value=fill, dtype=x.dtype)
    return result


def with_same_pads(node: Node, x: Tensor, how: Windows, fill: float) -> Tensor:
    """`x` [batch, channels, *spatial] with the pads that `auto_pad` asks for along the axes `how.following`."""
    for i in how.following:
        stride, reach = how.strides[i], how.dilations[i] * (how.kernel[i] - 1) + 1
        size = node.reshape(node.size(x, i + 2), [1])
        less_one = node.emit("sub", size, node.const([1], "int64"))
        begins = node.emit("sub", less_one, node.emit("mod", less_one, node.const([stride], "int64")))
        missing = node.emit("sub", node.emit("add", begins, node.const([reach], "int64")), size)
        total = node.emit("maximum", missing, node.const([0], "int64"))
        less = node.emit("floor_div", total, node.const([2], "int64"))
        more = node.emit("sub", total, less)
        before, after = (more, less) if node.attr("auto_pad") == "SAME_LOWER" else (less, more)
        x = bordered(node, x, i + 2, before, after, fill)
    return x
