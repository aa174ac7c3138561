"""The largest number of elements of the tensor arrays that scans take and make: that of the tensors they scan."""

from __future__ import annotations

from collections.abc import Mapping

from core.ir import Op, StackType, TensorType, Type

__all__ = ["Made", "most_joined"]

Made = Mapping[str, Op]
"""Variable -> the op of the same block that makes it."""


def most_joined(op: Op, types: Mapping[str, Type], made: Made) -> tuple[int, TensorType] | None:
    """(largest number, type) of the elements that an `array_join` without `like` joins; None if one is unknown.

    types: of the variables of the block, with their largest sizes.
    """
    if op.type != "array_join" or any(op.inputs[1:]):
        return None
    array = types[op.inputs[0]]
    element = array.element if isinstance(array, StackType) else None
    most = _most(op.inputs[0], types, made, {})
    if not isinstance(element, TensorType) or not element.is_static or 0 in element.shape or not most:
        return None
    return most, element


def _most(name: str, types: Mapping[str, Type], made: Made, known: dict[str, int | None]) -> int | None:
    """The largest number of elements of the tensor array `name`. known: the numbers of other arrays, by name."""
    if name not in known:
        known[name] = None  # of an array that would be made of itself
        known[name] = _most_of(name, types, made, known)
    return known[name]


def _most_of(name: str, types: Mapping[str, Type], made: Made, known: dict[str, int | None]) -> int | None:
    op = made.get(name)
    if op is None:
        return None
    if op.type == "array_unstack":
        x = types[op.inputs[0]]
        return x.shape[0] if isinstance(x, TensorType) and x.is_static else None
    if op.type in ("assign", "stop_gradient", "fill_zeros_like", "array_fill"):
        return _most(op.inputs[-1], types, made, known)
    if op.type != "loop" or op.attrs["condition"] or name in op.outputs[: op.attrs["carried"]]:
        return None
    scanned = op.inputs[op.attrs["carried"] + op.attrs["captured"] :]
    found = [_most(each, types, made, known) for each in scanned]
    return min((n for n in found if n is not None), default=None)
