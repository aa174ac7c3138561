"""Nests: the ops of block 0 with loops inside, and where they are in the optimised step."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.autodiff.adjoint import Asked
from core.ir import HOLE, Block, Op, inner_blocks
from core.ir.errors import Place
from core.ir.registry import is_loop, roles_of

__all__ = ["Nest", "alone", "loops_of", "nests_of"]

"""The client's op that a loop stands for: block and position."""


@dataclass(frozen=True, slots=True)
class Nest:
    """An op of block 0 with loops inside, and where it is in the optimised step.

    loops:     the places of its loops, outer ones first.
    at, back:  positions of the op and of its gradient in the step; `back` is None if it has none there.
    inputs:    for each input the name it has in the step, or None if it is not read there.
    structure: equal for nests that differ in names only.
    """

    op: Op
    loops: tuple[Place, ...]
    asked: Asked | None
    at: int
    back: int | None
    inputs: tuple[str | None, ...]
    structure: Hashable


def loops_of(op: Op) -> Iterator[Op]:
    """The loops in `op`, itself included, outer ones first."""
    if is_loop(op):
        yield op
    for _, inner in inner_blocks(op):
        for each in inner.ops:
            if each.attrs:
                yield from loops_of(each)


def nests_of(forward: Block, asked: Mapping[int, Asked], step: Block) -> list[Nest] | None:
    """The nests of block 0. None where `step` does not show what became of one, or where a loop has its own policy.

    forward: the block that was differentiated; step: its optimised step.
    """
    made = {name: i for i, op in enumerate(step.ops) for name in op.outputs}
    found = []
    for index, op in enumerate(forward.ops):
        loops = list(loops_of(op)) if op.attrs else []
        if not loops:
            continue
        if roles_of(op) is None:  # a call: the optimised step has its body instead
            return None
        ask = asked.get(index)
        at = next((made[name] for name in (ask.outputs if ask else op.outputs) if name in made), None)
        back = next((made[name] for name in ask.adjoint if name in made), None) if ask else None
        if at is None and back is None:
            continue
        if at is None:  # a gradient that reads nothing of its loop: the forward part is dead, alone
            return None
        places = dict.fromkeys(each.location.place for each in loops if each.location)
        if step.ops[at].type != op.type or any(e.location is None or e.attrs["memory"] != "store" for e in loops):
            return None
        structure = (
            _structure(op, forward),
            ask and (ask.seeded, ask.wanted) if back is not None else None,
            tuple(name in step.ops[at].outputs for name in op.outputs),
        )
        ask = ask if back is not None else None
        found.append(Nest(op, tuple(places), ask, at, back, _inputs(op, step.ops[at]), structure))
    return found


def _inputs(op: Op, now: Op) -> tuple[str | None, ...]:
    """The names in the step of the inputs of `op`; the passes rename inputs, and drop operands that branches ignore."""
    roles = roles_of(op)
    if roles is None or roles.repeats:
        return now.inputs
    block, left = (next(inner for _, inner in inner_blocks(each)) for each in (op, now))
    kept = dict(zip(left.params, now.inputs[len(roles.condition) :], strict=True))
    return (*now.inputs[: len(roles.condition)], *(kept.get(name) for name in block.params))


def _structure(op: Op, block: Block) -> Hashable:
    """The op without its names. Places count as names."""
    places: dict[Place | None, int] = {}

    def of(block: Block, ops: Sequence[Op]) -> Hashable:
        number = {name: i for i, name in enumerate(block.params)}
        number[HOLE] = -1
        found: list[Hashable] = [block.param_types, frozenset(number[n] for n in block.stopped if n in number)]
        for each in ops:
            place = each.location.place if each.location else None
            attrs = tuple((k, of(v, v.ops) if isinstance(v, Block) else v) for k, v in each.attrs.items())
            reads = tuple([number[n] for n in each.inputs])
            for name in each.outputs:
                number[name] = len(number)
            stopped = tuple([n in block.stopped for n in each.outputs]) if block.stopped else ()
            found.append((each.type, reads, places.setdefault(place, len(places)), attrs, stopped))
        return (*found, tuple(number[n] for n in block.results))

    return of(alone(op, block), (op,))


def alone(op: Op, block: Block) -> Block:
    """A block that holds `op` and nothing else."""
    params = tuple(dict.fromkeys(name for name in op.inputs if name != HOLE))
    named = (*params, *op.outputs)
    types = {name: block.types[name] for name in named}
    return Block(params, (op,), op.outputs, types, frozenset(n for n in named if n in block.stopped))
