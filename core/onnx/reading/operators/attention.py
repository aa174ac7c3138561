"""Attention as one op, where that says the same as the function body of the standard."""

from __future__ import annotations

from collections.abc import Sequence

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor, Value

SAID = ("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap")
"""Attributes whose meaning is known here. A node with others, such as a window, is read by its function body."""


@converter("Attention", since=23)
def attention(node: Node) -> Tensor | Sequence[Value | None]:
    """Caches, outputs of scores, caps and heads that share keys are left to the function body."""
    heads = _heads(node)
    if heads is None:
        return node.standard_function()
    q, k, v, mask = node[0], node[1], node[2], node.get(3)
    is_flat = q.rank == 3
    if is_flat:  # [batch, length, heads * size] as [batch, heads, length, size]
        q, k, v = (
            node.emit("transpose", node.emit("unflatten", each, axis=2, sizes=[heads, -1]), axes=[0, 2, 1, 3])
            for each in (q, k, v)
        )
    scale = {"scale": float(node.attr("scale"))} if node.has("scale") else {}
    causal = bool(node.attr("is_causal", 0))
    found: Tensor = node.emit("scaled_dot_product_attention", q, k, v, mask, causal=causal, **scale)
    if is_flat:
        found = node.emit("merge_axes", node.emit("transpose", found, axes=[0, 2, 1, 3]), start=2, end=4)
    return found


def _heads(node: Node) -> int | None:
    """The number of heads of queries, keys and values; None if the op cannot say this node."""
    if any(map(node.given, range(4, len(node)))) or any(node.proto.output[1:]):
        return None
    if node.attr("softcap", 0.0) or any(each.name not in SAID for each in node.proto.attribute):
        return None
    tensors = [node[i] for i in range(3)]
    q, k = tensors[:2]
    if len({each.dtype for each in tensors}) > 1 or len({each.rank for each in tensors}) > 1:
        return None
    if q.rank == 4:
        heads = [each.shape[1] for each in tensors]
    elif q.rank == 3 and node.has("q_num_heads") and node.has("kv_num_heads"):
        heads = [int(node.attr("q_num_heads")), int(node.attr("kv_num_heads"))]
        if any(heads[0] < 1 or n == -1 or n % heads[0] for n in (each.shape[2] for each in tensors)):
            return None
    else:
        return None
    if len({*heads}) > 1 or heads[0] < 1 or not _fits(node, node.get(3), k):
        return None
    return heads[0]


def _fits(node: Node, mask: Tensor | None, k: Tensor) -> bool:
    """Whether the mask can be added and has an element for each key: the function body casts others, and fills up a
    shorter one."""
    if mask is None:
        return True
    if mask.dtype not in ("bool", k.dtype) or mask.rank == 0 or mask.shape[-1] != k.shape[-2]:
        return False
    size = node.draft.size_name(k, -2)
    return k.shape[-2] != -1 or (size is not None and size == node.draft.size_name(mask, -1))
