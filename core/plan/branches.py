"""Branches: the lowering of `if_else`, an instruction that holds the instructions of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op, StackType, TensorType
from core.plan.array_elements import held_type
from core.plan.array_memory import begun, carry
from core.plan.entries import Pattern, Uniform
from core.plan.flow import Branch, Growing, Source, Vacant, filled_roots, outer_roots
from core.plan.instructions import Instructions
from core.plan.lowering import Lowering, lowers
from core.plan.memory import Root, Stack, View
from core.plan.nested_sizes import put, room, side_types
from core.plan.sized import adopt
from core.plan.sizes import Size, element_of_all, is_open
from core.plan.stacks import captured
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops

__all__: list[str] = []


@lowers("if_else")
def lower_if_else(low: Lowering, op: Op) -> None:
    condition = low.stored(low.entry(op.inputs[0]))
    operands = [_operand(low, op, n) for n in op.inputs[1:]]
    changed = {each.stack: each for each in operands if isinstance(each, Growing) and each.owned}
    opened = {n: low.types[n] for n in op.outputs if is_open(low.types[n])}
    given = low.types | {n: held_type(low, n) for n in op.inputs[1:]}
    some = any(is_open(element_of_all(low.types[n])) for n in op.outputs)
    largest = side_types(op, given, low.shared.expected, low.shared.known) if some else {}
    low.types |= {n: type for n, type in largest.items() if n in opened}
    targets = {n: low.destination(n) for n in op.outputs if not isinstance(low.types[n], StackType)}
    rooms = {n: room(low, targets[n], declared) for n, declared in opened.items()}
    sides = []
    for block in (op.attrs["true_block"], op.attrs["false_block"]):
        inner = Lowering(block, low.shared)
        for name, outer, operand in zip(block.params, op.inputs[1:], operands, strict=True):
            inner.define(name, _entered(low, inner, outer, name, operand))
        for name, out in zip(block.results, op.outputs, strict=True):
            if out in targets and out not in rooms:
                inner.destinations.want(name, targets[out])
        lower_ops(inner)
        for name, out in zip(block.results, op.outputs, strict=True):
            if out in rooms:
                put(inner, name, rooms[out])
        sides.append(inner)
    arrays: dict[str, Growing] = {}
    for i, name in enumerate(op.outputs):
        if name not in targets:
            stack = _shared([inner.entry(inner.block.results[i]) for inner in sides])
            taken = stack in changed and all(array.stack is not stack for array in arrays.values())
            type = low.types[name]
            memory = changed[stack] if stack is not None and taken else None
            arrays[name] = memory or begun(low, largest.get(name, type), type)
    own: set[Root] = set()
    bodies = []
    for inner in sides:
        returned = dict(zip(op.outputs, inner.block.results, strict=True))
        carry(inner, [(returned[name], array) for name, array in arrays.items()])
        bodies.append(Instructions(inner.finish()))
        own |= inner.own
    filled = (root for body in bodies for root in filled_roots(body, own))
    lengths = (n.root for each in rooms.values() for n in each.lengths.values())
    made = (*(t.root for t in targets.values()), *lengths, *(array.count.root for array in arrays.values()))
    results = tuple(dict.fromkeys((*made, *filled)))
    reached = dict.fromkeys(root for body in bodies for root in outer_roots(body, own))
    yes, no = bodies
    low.add(Branch(condition, yes, no, results, tuple(reached), location=op.location))
    for name, target in (*targets.items(), *arrays.items()):
        low.define(name, target)
    for name, each in rooms.items():
        low.sizes[name] = {axis: Size(each.view.shape[axis], n) for axis, n in each.lengths.items()}


Operand = Uniform | Pattern | View | Source | Vacant


def _entered(low: Lowering, inner: Lowering, outer: str, param: str, operand: Operand) -> Operand:
    """The operand inside of a side. Where only the run tells its size outside, a side may know its own."""
    declared, own = inner.types[param], low.sizes.get(outer, {})
    known = {
        axis: declared.shape[axis] for axis in own if isinstance(declared, TensorType) and declared.shape[axis] >= 0
    }
    if not known:
        adopt(low, inner, outer, param)
        return operand
    whole = low.type(outer)
    if not isinstance(operand, View | Uniform) or any(n > whole.shape[axis] for axis, n in known.items()):
        raise Unsupported(f"the size of {outer} is known only when it runs")
    shape = tuple(known.get(axis, n) for axis, n in enumerate(whole.shape))
    inner.types[param] = TensorType(shape, whole.dtype)
    if rest := {axis: size for axis, size in own.items() if axis not in known}:
        inner.sizes[param] = rest
    return replace(operand, shape=shape)


def _operand(low: Lowering, op: Op, name: str) -> Operand:
    """An operand inside the branch. Either side may change an array that no later op reads, since only one runs."""
    entry = low.entry(name)
    changes = isinstance(entry, Growing) and entry.owned and low.uses.read_last(name, op)
    return entry if changes else captured(low, name)


def _shared(entries: Sequence[object]) -> Stack | None:
    """The stack that all of these arrays are in, or None."""
    stacks = [each.stack if isinstance(each, Growing) else None for each in entries]
    return stacks[0] if all(stack is stacks[0] for stack in stacks) else None
