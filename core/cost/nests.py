"""Nests: the ops of block 0 that contain loops, and their positions in the optimised step."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from core.autodiff.adjoint import RuleCall
from core.ir import HOLE, Block, Op, inner_blocks
from core.ir.errors import Place
from core.ir.exact import exact
from core.ir.registry import is_loop, roles_of

__all__ = ["Nest", "alone", "loops_of", "nests_of"]


@dataclass(frozen=True, slots=True)
class Nest:
    """An op of block 0 that contains loops, and its position in the optimised step.

    loops:     the places of its loops, outer ones first.
    call:      the call of its rule; None if the step has no gradient of it.
    at, back:  positions of the op and of its gradient in the step; `back` is None without a gradient.
    inputs:    for each input its name in the step, or None if the step does not read it.
    structure: equal for nests that differ only in names.
    """

    op: Op
    loops: tuple[Place, ...]
    call: RuleCall | None
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


def nests_of(forward: Block, rule_calls: Mapping[int, RuleCall], step: Block) -> list[Nest] | None:
    """The nests of block 0. None if one cannot be found in `step`, or if a loop has a policy of its own.

    forward: the differentiated block; step: its optimised step.
    """
    made = {name: i for i, op in enumerate(step.ops) for name in op.outputs}
    found = []
    for index, op in enumerate(forward.ops):
        loops = list(loops_of(op)) if op.attrs else []
        if not loops:
            continue
        if roles_of(op) is None:  # a call: the optimised step has its body instead
            return None
        call = rule_calls.get(index)
        at = next((made[name] for name in (call.outputs if call else op.outputs) if name in made), None)
        back = next((made[name] for name in call.adjoint if name in made), None) if call else None
        if at is None and back is None:
            continue
        if at is None:  # the gradient reads no output of its loop, so the forward part alone is dead
            return None
        places = dict.fromkeys(each.location.place for each in loops if each.location)
        if step.ops[at].type != op.type or any(e.location is None or e.attrs["memory"] != "store" for e in loops):
            return None
        structure = (
            _structure(op, forward),
            call and (call.seeded, call.wanted) if back is not None else None,
            tuple(name in step.ops[at].outputs for name in op.outputs),
        )
        call = call if back is not None else None
        found.append(Nest(op, tuple(places), call, at, back, _inputs(op, step.ops[at]), structure))
    return found


def _inputs(op: Op, now: Op) -> tuple[str | None, ...]:
    """The names in the step of the inputs of `op`. Passes rename inputs and drop operands that no branch reads."""
    roles = roles_of(op)
    if roles is None or roles.repeats:
        return now.inputs
    block, left = (next(inner for _, inner in inner_blocks(each)) for each in (op, now))
    kept = dict(zip(left.params, now.inputs[len(roles.condition) :], strict=True))
    return (*now.inputs[: len(roles.condition)], *(kept.get(name) for name in block.params))


def _structure(op: Op, block: Block) -> Hashable:
    """A key of `op` without names. Places count as names."""
    places: dict[Place | None, int] = {}

    def of(block: Block, ops: Sequence[Op]) -> Hashable:
        number = {name: i for i, name in enumerate(block.params)}
        number[HOLE] = -1
        found: list[Hashable] = [block.param_types, frozenset(number[n] for n in block.stopped if n in number)]
        for each in ops:
            place = each.location.place if each.location else None
            attrs = tuple((k, of(v, v.ops) if isinstance(v, Block) else exact(v)) for k, v in each.attrs.items())
            reads = tuple([number[n] for n in each.inputs])
            for name in each.outputs:
                number[name] = len(number)
            stopped = tuple([n in block.stopped for n in each.outputs]) if block.stopped else ()
            found.append((each.type, reads, places.setdefault(place, len(places)), attrs, stopped))
        return (*found, tuple(number[n] for n in block.results))

    return of(alone(op, block), (op,))


def alone(op: Op, block: Block) -> Block:
    """A block with `op` as its only op."""
    params = tuple(dict.fromkeys(name for name in op.inputs if name != HOLE))
    named = (*params, *op.outputs)
    types = {name: block.types[name] for name in named}
    return Block(params, (op,), op.outputs, types, frozenset(n for n in named if n in block.stopped))
