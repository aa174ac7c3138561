"""Sequences of tensors and optional values."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.onnx.reading.arrays import dtype_name
from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.sequences import as_array, items_of
from core.onnx.reading.values import Array, List, Maybe, Tensor, Value

# --- making and reading --------------------------------------------------------------------------------------------


@converter("SequenceConstruct")
def construct(node: Node) -> List:
    items = node.tensors()
    return List(items, items[0].dtype)


@converter("SequenceEmpty")
def empty(node: Node) -> List:
    return List([], dtype_name(node.attr("dtype", 1)))


def _sequence(node: Node, position: int = 0) -> List | Array:
    found = node.value(position)
    if isinstance(found, Maybe) and found.held is not None:
        found = found.held
    if not isinstance(found, List | Array):
        raise node.refuse(f"input {position} must be a sequence")
    return found


@converter("SequenceLength")
def length(node: Node) -> Tensor:
    found = _sequence(node)
    if isinstance(found, List):
        return node.const(len(found.items), "int64")
    result: Tensor = node.emit("array_length", found)
    return result


@converter("SequenceAt")
def at(node: Node) -> Tensor:
    found = _sequence(node)
    if isinstance(found, List) and node[1].value is not None:
        return found.items[_place(node, 1, len(found.items), len(found.items) - 1)]
    array = as_array(node, found) if isinstance(found, List) else found
    if not isinstance(array.type.element, TensorType):
        raise node.refuse("a sequence of sequences is not supported")
    index = node.cast(node.reshape(node[1], []), "int64")
    wrapped = node.emit("add", index, node.emit("array_length", array))
    index = node.emit("where", node.emit("less_than", index, node.const(0, "int64")), wrapped, index)
    result: Tensor = node.emit("array_read", array, index)
    return result


def _place(node: Node, position: int, size: int, last: int) -> int:
    """A constant position in a sequence of `size` tensors, counted from the front."""
    place = int(node.number(position))
    if not -size <= place <= last:
        raise node.refuse(f"position {place} is outside of a sequence of {size} tensors")
    return place + size if place < 0 else place


@converter("SequenceInsert")
def insert(node: Node) -> List | Array:
    found, x = _sequence(node), node[1]
    if isinstance(found, List):
        if node.given(2) and node[2].value is None:
            raise node.refuse("the position must be a constant of the model")
        place = _place(node, 2, len(found.items), len(found.items)) if node.given(2) else len(found.items)
        return List([*found.items[:place], x, *found.items[place:]], x.dtype)
    if node.given(2):
        raise node.refuse("a sequence whose length the run determines takes new tensors at its end only")
    result: Array = node.emit("array_write", x, node.emit("array_length", found), found)
    return result


@converter("SequenceErase")
def erase(node: Node) -> List:
    found = _sequence(node)
    if not isinstance(found, List):
        raise node.refuse("a sequence whose length the run determines cannot lose a tensor")
    size = len(found.items)
    place = _place(node, 1, size, size - 1) if node.given(1) else size - 1
    return List([*found.items[:place], *found.items[place + 1 :]], found.dtype)


# --- tensors and sequences -----------------------------------------------------------------------------------------


@converter("ConcatFromSequence")
def concat(node: Node) -> Tensor:
    found, new_axis, axis = _sequence(node), bool(node.attr("new_axis", 0)), int(node.attr("axis"))
    result: Tensor
    if isinstance(found, List):
        if not found.items:
            raise node.refuse("an empty sequence cannot be joined")
        result = node.emit("stack" if new_axis else "concat", *found.items, axis=axis)
        return result
    element = found.type.element
    if not isinstance(element, TensorType):
        raise node.refuse("a sequence of sequences is not supported")
    rank = element.rank + new_axis
    if not -rank <= axis < rank:
        raise node.refuse(f"axis {axis} is out of range for rank {rank}")
    if axis % rank:
        raise node.refuse("tensors of a sequence whose length the run determines are joined along axis 0 only")
    result = (
        node.emit("array_join", found, shape=element.shape, dtype=element.dtype)
        if new_axis
        else node.emit("array_concat", found)
    )
    return result


@converter("SplitToSequence")
def split(node: Node) -> List | Array:
    x, axis = node[0], node.axis(0)
    n = x.shape[axis]
    if not node.given(1):
        if node.attr("keepdims", 1):
            if n == -1:
                raise node.refuse(f"axis {axis} of {x.type} is open")
            return List(_parts(node, x, axis, [1] * n), x.dtype)
        first = node.emit("transpose", x, axes=[axis, *(i for i in range(x.rank) if i != axis)]) if axis else x
        if n == -1:
            array: Array = node.emit("array_unstack", first)
            return array
        return List(items_of(node, first), x.dtype)
    sizes = node.constant(1)
    if sizes.ndim == 0:
        each = int(sizes)
        if n == -1 or each < 1:
            raise node.refuse(f"axis {axis} of {x.type} cannot be split into parts of {each}")
        parts = [min(each, n - i) for i in range(0, n, each)]
    else:
        parts = [int(m) for m in sizes]
    return List(_parts(node, x, axis, parts), x.dtype)


def _parts(node: Node, x: Tensor, axis: int, sizes: list[int]) -> list[Tensor]:
    found = node.emit("split", x, sections=sizes, axis=axis)
    return list(found) if isinstance(found, tuple) else [found]


@converter("SequenceMap")
def map_(node: Node) -> tuple[Value, ...]:
    body = node.graph("body")
    first = _sequence(node)
    if not isinstance(first, List):
        raise node.refuse("the length of the sequence must be known at import")
    results: list[list[Tensor]] = [[] for _ in body.output]
    for i in range(len(first.items)):
        given: list[Value] = []
        for k in range(len(node)):
            value = node.value(k)
            given.append(value.items[i] if isinstance(value, List) else value)
        for into, found in zip(results, node.subgraph(body, given), strict=True):
            if not isinstance(found, Tensor):
                raise node.refuse("the body must return tensors")
            into.append(found)
    return tuple(List(each, each[0].dtype if each else first.dtype) for each in results)


# --- optional values -----------------------------------------------------------------------------------------------


@converter("Optional")
def optional(node: Node) -> Maybe:
    return Maybe(node.value(0) if node.given(0) else None)


@converter("OptionalHasElement")
def has_element(node: Node) -> Tensor:
    found = node.value(0) if node.given(0) else None
    return node.const(np.array(not (found is None or (isinstance(found, Maybe) and found.held is None))), "bool")


@converter("OptionalGetElement")
def get_element(node: Node) -> Value:
    found = node.value(0)
    if not isinstance(found, Maybe):
        return found
    if found.held is None:
        raise node.refuse("the optional value is empty")
    held: Value = found.held
    return held
