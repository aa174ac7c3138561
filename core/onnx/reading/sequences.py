"""Sequences: lists of tensors whose length is known at import, and tensor arrays of the program."""

from __future__ import annotations

from functools import reduce

from core.ir import StackType, TensorType
from core.onnx.reading.node import Node
from core.onnx.reading.values import Array, List, Tensor
from core.ops.common.types import joined_type

__all__ = ["as_array"]


def as_array(node: Node, value: List) -> Array:
    """A list as a tensor array. The rank of an empty list is not known: its elements are declared by `List.rank`."""
    if not value.items and value.rank is None:
        raise node.refuse("the rank of the tensors of an empty sequence is not known")
    types = [each.type for each in value.items]
    element = (
        reduce(lambda a, b: joined_type(a, b, "type_mismatch", "the tensors of a sequence differ"), types)  # type: ignore[arg-type,return-value]
        if types
        else TensorType((-1,) * (value.rank or 0), value.dtype)
    )
    assert isinstance(element, TensorType)
    array = node.draft.array(element, "sequence")
    for i, each in enumerate(value.items):
        array = node.emit("array_write", each, node.const(i, "int64"), array)
    return Array(StackType(element), array.label)


def items_of(node: Node, x: Tensor) -> list[Tensor]:
    """The slices of `x` along its first axis, whose size is known."""
    return [node.emit("gather", x, node.const(i, "int64"), axis=0) for i in range(x.shape[0])]
