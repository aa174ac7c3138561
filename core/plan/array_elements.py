"""The elements of tensor arrays: their type with the largest sizes, and the open sizes that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.ir import Op, StackType, TensorType, Type
from core.plan.flow import Elements, Growing, Placed, Recording, Source, Span, Vacant
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import same_size
from core.plan.sizes import Size, element_of_all
from core.plan.unsupported import Unsupported

__all__ = [
    "DIVIDING",
    "KEEPING",
    "common_sizes",
    "element_type",
    "held_type",
    "keep_common",
    "set_common",
    "shape_of",
    "sizes_of_elements",
]

KEEPING = frozenset({"assign", "stop_gradient", "fill_zeros_like", "array_fill", "array_erase", "sum"})
"""Ops on tensor arrays whose result has elements like those of all operands."""

DIVIDING = frozenset({"array_chunks", "array_flatten", "array_regroup"})
"""Ops whose result has the elements of the first operand, in other runs."""


def element_type(low: Lowering, type: Type) -> TensorType:
    """The type of the elements of a tensor array. Raises Unsupported unless generated code can hold them in slots."""
    if not low.target.grows:
        raise Unsupported("tensor arrays that grow")
    element = type.element if isinstance(type, StackType) else None
    if not isinstance(element, TensorType):
        raise Unsupported("tensor arrays of tensor arrays")
    if not element.is_static or 0 in element.shape:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    if element.dtype not in low.target.dtypes:
        raise Unsupported(f"no machine code for {element.dtype}")
    return element


def held_type(low: Lowering, name: str) -> Type:
    """The type of a variable; that of a tensor array with the largest sizes of the arrays inside, if its value tells
    them.
    """
    type = low.types[name]
    return _stack_type(type, low.entry(name)) if isinstance(type, StackType) else type


def _stack_type(type: StackType, entry: object) -> StackType:
    if isinstance(type.element, StackType):
        inside = entry.element if isinstance(entry, Recording) and isinstance(entry.element, Recording) else entry
        return StackType(_stack_type(type.element, inside))
    if isinstance(entry, Vacant):
        return StackType(entry.type)
    if isinstance(entry, Placed):
        return StackType(TensorType(entry.value.shape, entry.value.dtype))
    if not isinstance(entry, Growing | Recording) or not isinstance(type.element, TensorType):
        return type
    bounds = {axis: bound for axis, bound, _ in entry.sizes}
    shape = tuple(bounds.get(axis, n) for axis, n in enumerate(type.element.shape))
    return StackType(TensorType(shape, type.element.dtype))


def shape_of(source: Source) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of the elements; None for recordings, whose types are those of their variables."""
    if isinstance(source, Growing):
        return source.shape, source.dtype
    if isinstance(source, Elements | Span):
        return source.view.shape[1:], source.view.dtype
    if source.element is not None:
        raise Unsupported("tensor arrays of tensor arrays")
    return None


def sizes_of_elements(source: Source) -> tuple[tuple[int, int, Any], ...]:
    """(axis, largest size, array of the sizes) for each axis of the elements whose size only the run tells."""
    return source.sizes if isinstance(source, Growing | Recording) else ()


def set_common(low: Lowering, array: str, sizes: Mapping[int, Size]) -> None:
    """Set the open sizes that all elements of a tensor array have; its type has the largest ones."""
    if sizes:
        low.sizes[array] = dict(sizes)


def common_sizes(low: Lowering, array: str) -> Mapping[int, Size]:
    """The open sizes that all elements of a tensor array are known to have."""
    return low.sizes.get(array, {})


def keep_common(low: Lowering, op: Op) -> None:
    """Set the common sizes of the tensor array that `op` makes of arrays with such sizes."""
    made = low.types[op.outputs[0]]
    if not isinstance(made, StackType) or op.type not in KEEPING | DIVIDING:
        return
    first, *others = (n for n in op.inputs if isinstance(low.types.get(n), StackType))
    element, sizes = element_of_all(low.types[first]), common_sizes(low, first)
    for each in others if op.type in KEEPING else ():
        own = common_sizes(low, each)
        if element_of_all(low.types[each]) != element or own.keys() != sizes.keys():
            return
        if not all(same_size(low, sizes[axis], own[axis]) for axis in sizes):
            return
    if sizes:
        low.types[op.outputs[0]] = _of_elements(made, element)
        set_common(low, op.outputs[0], sizes)


def _of_elements(array: Type, element: Type) -> Type:
    """The type of a tensor array, or of one of tensor arrays, with other elements inside."""
    return StackType(_of_elements(array.element, element)) if isinstance(array, StackType) else element
