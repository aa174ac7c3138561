"""Largest sizes of the elements of tensor arrays whose elements have sizes that only the run tells."""

from __future__ import annotations

from collections.abc import Mapping

from core.ir import HOLE, Op, StackType, TensorType, Type
from core.plan.sizes import element_of_all, in_blocks, is_open, of_arrays

__all__ = ["cut_type", "vacant_type"]


@of_arrays("create_array", "empty_stack")
def vacant_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    """The smallest one, which any write makes larger."""
    declared = types[op.outputs[0]]
    assert isinstance(declared, StackType)
    element = declared.element
    if not isinstance(element, TensorType):
        return None
    return StackType(TensorType(tuple(1 if n == -1 else n for n in element.shape), element.dtype))


@of_arrays("array_unstack")
def _part_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    x = types[op.inputs[0]]
    if not isinstance(x, TensorType) or is_open(x) or 0 in x.shape:
        return None
    return StackType(TensorType(x.shape[1:], x.dtype))


@of_arrays("array_write")
def _written_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    x, _, array = (types[n] for n in op.inputs)
    return _of_all([StackType(x), array])


@of_arrays("array_read")
def _read_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    array = types[op.inputs[0]]
    return array.element if isinstance(array, StackType) and not is_open(array.element) else None


@of_arrays("array_place")
def _placed_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    return _of_all([StackType(types[op.inputs[0]])])


@of_arrays("assign", "stop_gradient", "fill_zeros_like", "array_erase")
def _same_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    return _of_all([types[op.inputs[0]]])


@of_arrays("array_fill", "array_split_as", "array_paste")
def _like_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    like = types[op.inputs[1]]
    return None if is_open(element_of_all(like)) else like


@of_arrays("array_take")
def _taken_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    return None if is_open(types[op.inputs[2]]) else types[op.inputs[2]]


@of_arrays("array_chunks", "array_regroup")
def _divided_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    array = types[op.inputs[0]]
    return None if is_open(element_of_all(array)) else StackType(array)


@of_arrays("array_flatten")
def _flattened_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    runs = types[op.inputs[0]]
    return runs.element if isinstance(runs, StackType) and not is_open(element_of_all(runs)) else None


@of_arrays("sum")
def _sum_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    return _of_all([types[n] for n in op.inputs])


@of_arrays("array_cut")
def cut_type(op: Op, types: Mapping[str, Type]) -> Type | None:
    x = types[op.inputs[0]]
    if not isinstance(x, TensorType) or is_open(x) or 0 in x.shape:
        return None
    rows = x.shape[0]
    if len(op.inputs) > 2 and op.inputs[2] != HOLE:
        within = types[op.inputs[2]]
        if not isinstance(within, TensorType) or is_open(within) or 0 in within.shape:
            return None
        rows = min(rows, within.shape[0])
    return StackType(TensorType((in_blocks(rows), *x.shape[1:]), x.dtype))


def _of_all(arrays: list[Type]) -> Type | None:
    """The type of an array for the elements of all these; None unless all have largest sizes."""
    elements = [each.element for each in arrays if isinstance(each, StackType)]
    shapes = [each.shape for each in elements if isinstance(each, TensorType) and each.is_static]
    if len(shapes) < len(arrays) or any(0 in shape for shape in shapes):
        return None
    first = elements[0]
    assert isinstance(first, TensorType)
    return StackType(TensorType(tuple(map(max, zip(*shapes, strict=True))), first.dtype))
