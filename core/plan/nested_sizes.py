"""Largest sizes of arrays that loops and branches take, carry, record and return, and memory for such arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from core.ir import Block, Op, StackType, TensorType, Type
from core.ops.control.loop import loop_roles
from core.plan.compose import Maker
from core.plan.entries import Uniform
from core.plan.lowering import Lowering
from core.plan.memory import View
from core.plan.sizes import Expected, Known, bounded_types, element_of_all, in_blocks, is_open, nests, open_axes
from core.plan.unsupported import Unsupported

__all__ = ["Room", "body_types", "put", "room", "side_types"]

GROWTHS = 3
"""How often the largest size of a carried array may follow from the trip before it until it must not grow any more."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for an array of open sizes: `view` has the largest ones, `lengths` an int64 scalar for each of them."""

    view: View
    lengths: Mapping[int, View]


def room(low: Lowering, view: View, declared: Type) -> Room:
    """`view` with memory for the sizes that are open in its type."""
    return Room(view, {axis: low.allocate((), "int64", "length") for axis in open_axes(declared)})


def put(low: Lowering, name: str, into: Room) -> None:
    """Write a variable and its sizes to memory for at least as large ones. Integers beyond its sizes are 0 there.

    Raises Unsupported if the variable may be larger.
    """
    type, own, of = low.type(name), low.sizes.get(name, {}), Maker(low)
    target = into.view
    if own.keys() - into.lengths.keys() or any(n > m for n, m in zip(type.shape, target.shape, strict=True)):
        raise Unsupported(f"the size of {name} is known only when it runs")
    if type.shape == target.shape:
        low.write(low.entry(name), target)
    else:
        if not type.is_float:
            low.copy(Uniform(0, type.dtype, target.shape), target)
        low.copy(low.entry(name), View(target.root, target.dtype, type.shape, target.strides, target.offset))
    for axis, length in into.lengths.items():
        known = of.integer(type.shape[axis])
        low.write(own[axis].length if axis in own else known, length)


# --- types ------------------------------------------------------------------------------------------------------


@nests("loop")
def _loop(op: Op, types: Mapping[str, Type], expected: Expected | None, known: Known) -> dict[str, Type]:
    given = body_types(op, types, expected, known)
    body, count = op.attrs["sub_block"], op.attrs["carried"]
    inner = bounded_types(body, expected, given, known)
    found = dict(zip(op.outputs, (inner[name] for name in body.params[:count]), strict=False))
    found |= {name: StackType(inner[r]) for name, r in zip(op.outputs[count:], body.results[count:], strict=True)}
    return found


def body_types(op: Op, types: Mapping[str, Type], expected: Expected | None, known: Known) -> dict[str, Type]:
    """The types of the parameters of a loop's body that have open sizes, with the largest ones, where there are any.

    types: of the operands of the loop, likewise.
    """
    body, roles = op.attrs["sub_block"], loop_roles(op)
    given: dict[str, Type] = {}
    for i, (operand, param) in enumerate(zip(op.inputs, body.params, strict=True)):
        type = types[operand]
        if i in roles.elements and isinstance(type, StackType):
            type = type.element
        if is_open(element_of_all(body.types[param])) and not is_open(element_of_all(type)):
            given[param] = _in_blocks(body.types[param], type) if i in roles.carried else type
    carried = [(body.params[i], body.results[i]) for i in roles.carried if body.params[i] in given]
    for _ in range(GROWTHS if carried else 0):
        made = bounded_types(body, expected, given, known)
        larger = {p: _larger(body.types[p], given[p], made[r]) for p, r in carried}
        if all(larger[p] == given[p] for p, _ in carried):
            return given
        given |= {p: type for p, type in larger.items() if type is not None}
        if None in larger.values():
            break
    return {p: type for p, type in given.items() if p not in dict(carried)}


@nests("if_else")
def side_types(op: Op, types: Mapping[str, Type], expected: Expected | None, known: Known) -> dict[str, Type]:
    """The types of the results of a branch that have open sizes, with the largest ones, where there are any."""
    sides = []
    for block in _sides(op):
        operands = zip(op.inputs[1:], block.params, strict=True)
        given = {p: types[n] for n, p in operands if is_open(element_of_all(block.types[p]))}
        inner = bounded_types(block, expected, given, known)
        sides.append([inner[name] for name in block.results])
    found: dict[str, Type] = {}
    for name, one, other in zip(op.outputs, *sides, strict=True):
        if is_open(element_of_all(types[name])):
            larger = _larger(types[name], one, other)
            if larger is not None:
                found[name] = larger
    return found


def _sides(op: Op) -> Iterator[Block]:
    yield op.attrs["true_block"]
    yield op.attrs["false_block"]


def _larger(declared: Type, one: Type, other: Type) -> Type | None:
    """A type for arrays of both types. None if a size of one of them has no largest value, or may be none."""
    if isinstance(declared, StackType) and isinstance(one, StackType) and isinstance(other, StackType):
        element = _larger(declared.element, one.element, other.element)
        return None if element is None else StackType(element)
    if not isinstance(one, TensorType) or not isinstance(other, TensorType) or is_open(one) or is_open(other):
        return None
    shape = tuple(max(n, m) for n, m in zip(one.shape, other.shape, strict=True))
    return None if 0 in shape else _in_blocks(declared, TensorType(shape, one.dtype))


def _in_blocks(declared: Type, type: Type) -> Type:
    if isinstance(declared, StackType) and isinstance(type, StackType):
        return StackType(_in_blocks(declared.element, type.element))
    if not isinstance(type, TensorType):
        return type
    axes = open_axes(declared)
    return TensorType(tuple(in_blocks(n) if i in axes else n for i, n in enumerate(type.shape)), type.dtype)
