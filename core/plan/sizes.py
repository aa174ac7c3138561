"""Sizes that are known only during the run: an array has memory for the largest size, and a number for its length.

The largest size follows from the types: `nonzero` finds at most as many positions as its operand has elements. What an
array holds beyond its length is unspecified, except that integers are 0 there, a valid position. Reductions leave it
out, and no check reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.ir import HOLE, Block, Op, StackType, TensorType, Type
from core.ir.builder import output_types
from core.ir.errors import CoreError
from core.ir.registry import lookup
from core.ir.stop import poll
from core.plan.data import PRODUCT_BLOCK, View

__all__ = ["Expected", "Size", "bounded_outputs", "bounded_types", "expected_outputs", "in_blocks", "is_open"]

Expected = Mapping[str, tuple[int, ...]]
"""Variables of sizes without a largest value -> the largest shapes that a plan should have memory for."""

FEWEST, MOST = 64, 2048
"""What a plan expects of such a size at first: twice the largest operand, between these."""


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """A size that the run computes. Two axes are known to be equally long only if they share this object.

    bound: the largest size, at least 1.
    length: an int64 scalar, from 0 to `bound`.
    """

    bound: int
    length: View


def is_open(type: Type | None) -> bool:
    """Whether a size of an array is known only when it runs."""
    return isinstance(type, TensorType) and not type.is_static


def in_blocks(size: int) -> int:
    """A largest size: whole blocks of a product, if it has more than one."""
    return size if size <= PRODUCT_BLOCK else -(-size // PRODUCT_BLOCK) * PRODUCT_BLOCK


def bounded_types(block: Block, expected: Expected | None) -> dict[str, Type]:
    """The types of the variables of `block`, with the largest sizes of results whose size only the run tells, where
    these are known, or else expected.
    """
    found = dict(block.types)
    for op in block.ops:
        poll()
        if any(is_open(found[n]) for n in op.outputs):
            types = bounded_outputs(op, found) or expected_outputs(op, found, expected)
            if types is not None:
                found.update(zip(op.outputs, types, strict=True))
    return found


def bounded_outputs(op: Op, types: Mapping[str, Type]) -> tuple[TensorType, ...] | None:
    """The types of the results of `op` with their largest sizes, or None if there are none.

    types: of its operands with their largest sizes, and of its results as declared.
    """
    given: list[TensorType | None] = []
    for name in op.inputs:
        type = types[name] if name != HOLE else None
        if isinstance(type, StackType) or is_open(type):
            return None
        given.append(type)
    first = given[0] if given else None
    elements = _searched(op, given)
    if elements is not None:
        if 0 in elements:
            return None
        most = in_blocks(math.prod(elements))
        where = TensorType((most, len(elements)) if op.type == "nonzero" else (most,), "int64")
        return (where, TensorType(elements, "int64"), where) if op.type == "unique_positions" else (where,)
    if first is not None and op.type == "split_by_mask":
        part = TensorType((in_blocks(first.shape[0]), *first.shape[1:]), first.dtype)
        return (part, part) if first.shape[0] else None
    if first is not None and op.type == "dynamic_slice":
        return _part_of(first, types[op.outputs[0]])
    if first is not None and op.type == "dynamic_slice_into" and given[1] is not None:
        return (TensorType(given[1].shape, first.dtype),)
    spec = lookup(op.type)
    if spec.kind == "control":
        return None
    try:
        found = output_types(spec, tuple(given), op.attrs)
    except CoreError:
        return None
    sizes: list[TensorType] = []
    for type, name in zip(found, op.outputs, strict=True):
        declared = types[name]
        if not isinstance(type, TensorType) or not isinstance(declared, TensorType) or 0 in type.shape:
            return None
        if is_open(type) or len(declared.shape) != len(type.shape):
            return None
        if any(m not in (-1, n) for m, n in zip(declared.shape, type.shape, strict=True)):
            return None
        sizes.append(type)
    return tuple(sizes)


def expected_outputs(op: Op, types: Mapping[str, Type], expected: Expected | None) -> tuple[TensorType, ...] | None:
    """The types of the results of `op`, whose sizes have no largest value, with sizes that suffice for most runs.

    None if sizes are not expected at all (`expected` is None), and for an op on other arrays than tensors.
    """
    given = [types[n] for n in op.inputs if n != HOLE]
    declared = [types[n] for n in op.outputs]
    if expected is None or lookup(op.type).kind == "control" or any(is_open(type) for type in given):
        return None
    operands = [type for type in given if isinstance(type, TensorType)]
    largest = max((n for type in operands for n in type.shape), default=1)
    found = []
    for name, type in zip(op.outputs, declared, strict=True):
        if not isinstance(type, TensorType) or 0 in type.shape:
            return None
        own = expected.get(name, ())
        sizes = [in_blocks(min(max(FEWEST, 2 * largest if i == 0 else 0), MOST)) for i in range(type.rank)]
        wanted = own if len(own) == type.rank else (0,) * type.rank
        shape = (m if m != -1 else max(n, in_blocks(k)) for m, n, k in zip(type.shape, sizes, wanted, strict=True))
        found.append(TensorType(tuple(shape), type.dtype))
    return tuple(found)


def _part_of(whole: TensorType, declared: Type) -> tuple[TensorType, ...] | None:
    """The type of a part of an array with its largest size along each axis where only the run tells it."""
    if not isinstance(declared, TensorType) or 0 in whole.shape or 0 in declared.shape:
        return None
    sizes = zip(declared.shape, whole.shape, strict=True)
    return (TensorType(tuple(in_blocks(n) if m == -1 else m for m, n in sizes), whole.dtype),)


def _searched(op: Op, given: Sequence[TensorType | None]) -> tuple[int, ...] | None:
    """The shape of the elements among which `op` finds some; None for other ops. given: the types of its operands."""
    if op.type == "unpadded_positions" and given[1] is not None:
        return given[1].shape[:2]
    if op.type in ("active_rows", "nonzero", "unique_positions") and given[0] is not None:
        return given[0].shape
    return None
