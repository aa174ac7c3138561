"""The largest number of elements of the tensor arrays that scans take and make: that of the tensors they scan."""

from __future__ import annotations

from collections.abc import Mapping

from core.ir import Block, Op, StackType, TensorType, Type
from core.ops.control.loop import loop_roles

__all__ = ["Made", "most_joined"]

Made = Mapping[str, Op]
"""Variable -> the op of the same block that makes it."""

NONE: frozenset[str] = frozenset()


def most_joined(op: Op, types: Mapping[str, Type], made: Made) -> tuple[int, TensorType] | None:
    """(largest number, type) of the elements that an `array_join` without `like` joins; None if one is unknown.

    types: of the variables of the block, with their largest sizes.
    """
    if op.type != "array_join" or any(op.inputs[1:]):
        return None
    array = types[op.inputs[0]]
    element = array.element if isinstance(array, StackType) else None
    if not isinstance(element, TensorType) or not element.is_static or 0 in element.shape:
        return None
    tensors = [types[made[n].inputs[0]] for n in _as_long(op.inputs[0], types, made, {}) if n in made]
    most = min((x.shape[0] for x in tensors if isinstance(x, TensorType) and x.is_static), default=0)
    return (most, element) if most else None


def _as_long(name: str, types: Mapping[str, Type], made: Made, known: dict[str, frozenset[str]]) -> frozenset[str]:
    """The arrays made of tensors, and those made outside of the block, that have as many elements as `name` or more.

    The elements of a tensor array of tensor arrays are those of all arrays inside.
    known: what was found for other arrays, by name.
    """
    if name not in known:
        known[name] = NONE  # for an array that would be made of itself
        op = made.get(name)
        known[name] = frozenset((name,)) if op is None else _as_long_as(op, name, types, made, known)
    return known[name]


def _as_long_as(
    op: Op, name: str, types: Mapping[str, Type], made: Made, known: dict[str, frozenset[str]]
) -> frozenset[str]:
    """`_as_long` for the array `name`, which `op` makes."""
    if op.type == "array_unstack":
        return frozenset((name,))
    if op.type in ("assign", "stop_gradient", "fill_zeros_like", "array_chunks", "array_fill", "array_flatten"):
        return _as_long([n for n in op.inputs if n][-1], types, made, known)  # the last one is `like`, if there is one
    if op.type != "loop" or op.attrs["condition"] or name in op.outputs[: op.attrs["carried"]]:
        return NONE
    body: Block = op.attrs["sub_block"]
    elements = [(op.inputs[i], body.params[i]) for i in loop_roles(op).elements]
    result = body.results[op.outputs.index(name)]
    if isinstance(body.types[result], StackType):  # a trip makes an array that is no longer than one that it takes
        inside = _as_long(result, body.types, {n: each for each in body.ops for n in each.outputs}, {})
        scanned = [array for array, param in elements if param in inside]
    else:
        scanned = [array for array, param in elements if isinstance(body.types[param], TensorType)]
    return NONE.union(*(_as_long(array, types, made, known) for array in scanned))
