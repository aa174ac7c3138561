"""Writes into the caches of keys and values of attention."""

from __future__ import annotations

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor


@converter("TensorScatter")
def tensor_scatter(node: Node) -> Tensor:
    """The update of each sample replaces the cache from the sample's write index on."""
    cache, update, start = node[0], node[1], node.get(2)
    axis, mode = node.axis(-2), node.attr("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        raise node.refuse(f"mode must be linear or circular, not {mode!r}, and the axis not that of the batch")
    place = node.counted(update, axis)
    if start is not None:
        by_sample = node.emit("unsqueeze", node.cast(start, "int64"), axes=list(range(1, cache.rank)))
        place = node.emit("add", place, by_sample)
    if mode == "circular":
        place = node.emit("mod", place, node.size(cache, axis))
    result: Tensor = node.emit("put_along_axis", cache, place, update, axis=axis)
    return result
