"""The parts of a block that become generated code: as few regions as the order of their inputs allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from core.ir import Block, Op, StackType, TensorType, Type
from core.ir.stop import poll
from core.plan.array_rules import RULES
from core.plan.build import plan_block
from core.plan.code_size import too_large
from core.plan.open_elements import OPEN_RULES
from core.plan.plan import Plan
from core.plan.sizes import bounded_types, is_open
from core.plan.target import Target
from core.plan.unrounded import compares_floats
from core.plan.unsupported import Unsupported

__all__ = ["SHARES", "PlannedParts", "partition", "plan_parts"]

SHARES = "shares a stack with an op that has no machine code"
"""The reason for running an op with machine code in the reference executor: stacks stay inside a region."""

STACKING = frozenset({"loop", "if_else", "array_unstack", "array_join"})
"""Ops whose stacks all generated code can hold. If a target `grows`, it can hold those of `RULES` and `OPEN_RULES`
too."""


@dataclass(frozen=True, slots=True)
class PlannedParts:
    """A block in parts.

    parts:   the plans of its regions and the ops between them, in the order they run.
    refused: the ops that cannot be part of a region, by their position in the block, and the reasons.
    """

    parts: tuple[Plan | Op, ...]
    refused: Mapping[int, str]

    @property
    def regions(self) -> tuple[Plan, ...]:
        """The plans alone."""
        return tuple(part for part in self.parts if isinstance(part, Plan))


def plan_parts(block: Block, target: Target) -> PlannedParts:
    """The parts of `block`, whose composites are expanded: as few and as large regions as there can be."""
    if not target.rows.rounds and compares_floats(block):
        target = replace(target, rows=replace(target.rows, rounds=True))
    refused = too_large(block)
    bounded = bounded_types(block, {} if target.expects else None) if target.open_sizes else block.types
    refused |= {i: reason for i, op in enumerate(block.ops) if (reason := _unfit(bounded, op, target))}
    while True:
        again = False
        planned: list[Plan | Op] = []
        for part in _parts_of(block, frozenset(refused), target):
            if isinstance(part, Op):
                planned.append(part)
                continue
            crossing = {n for n in (*part.params, *part.results) if isinstance(part.types[n], StackType)}
            if crossing:  # a stack stays inside one region
                for i, op in enumerate(block.ops):
                    if crossing.intersection((*op.inputs, *op.outputs)):
                        refused[i] = SHARES
                again = True
                break
            opened = {n for n in part.params if is_open(part.types[n])}
            if opened:  # a region takes arrays of known sizes
                for i, op in enumerate(block.ops):
                    names = opened.intersection((*op.inputs, *op.outputs))
                    if names and i not in refused:
                        refused[i] = f"the size of {min(names)} is known only when it runs"
                again = True
                break
            try:
                planned.append(plan_block(part, target))
            except Unsupported as refusal:
                assert refusal.index is not None, refusal.reason
                at = next(i for i, op in enumerate(block.ops) if op is part.ops[refusal.index])
                refused[at] = refusal.why(block.ops[at])
                again = True
        if not again:
            return PlannedParts(tuple(planned), refused)


def _parts_of(block: Block, refused: frozenset[int], target: Target) -> Iterator[Block | Op]:
    """The regions of `block` and the ops between them, in the order they run. refused: positions of those ops.

    A region of all ops takes all parameters, those too that no op reads: then it is a step by itself.
    """
    for part in partition(block, refused):
        if isinstance(part, Block) and len(part.ops) == len(block.ops):  # the whole block: keep its order of parameters
            unread = set(block.params) - set(part.params)
            fits = all(_is_known(block.types[n], target) for n in unread) and _distinct(block.results)
            yield block if fits else part
        else:
            yield part


def _is_known(type: Type, target: Target) -> bool:
    """Whether a region can take an array of this type, which it does not read."""
    return isinstance(type, TensorType) and type.is_static and not is_open(type) and type.dtype in target.dtypes


def partition(block: Block, refused: frozenset[int]) -> Iterator[Block | Op]:
    """The parts of `block`, in an order in which they can run: closed regions, and single ops between them.

    refused: positions of the ops that run by themselves. Region k runs before the single ops that depend on no later
    region; these run before region k + 1.
    """
    refused = _spread(block, refused)
    after: dict[str, int] = {}  # variable -> the last region that must have run before it is available
    regions: dict[int, list[Op]] = {}
    singles: dict[int, list[Op]] = {}
    by_single: set[str] = set()
    for index, op in enumerate(block.ops):
        poll()
        if index in refused:
            at = max((after.get(n, 0) for n in op.inputs), default=0)
            singles.setdefault(at, []).append(op)
            by_single.update(op.outputs)
        else:
            at = max((after.get(n, 0) + (n in by_single) for n in op.inputs), default=0)
            regions.setdefault(at, []).append(op)
        after.update((n, at) for n in op.outputs)
    read: dict[str, set[int]] = {}  # variable -> the regions that read it; -1 stands for every other reader
    for at, ops in regions.items():
        for op in ops:
            for n in op.inputs:
                read.setdefault(n, set()).add(at)
    for ops in singles.values():
        for op in ops:
            for n in op.inputs:
                read.setdefault(n, set()).add(-1)
    for n in block.results:
        read.setdefault(n, set()).add(-1)
    for at in sorted(regions.keys() | singles.keys()):
        if at in regions:
            yield _region(block, regions[at], at, read)
        yield from singles.get(at, ())


def _unfit(types: Mapping[str, Type], op: Op, target: Target) -> str | None:
    """The reason why generated code cannot hold the arrays of `op`, or None. types: with the largest sizes."""
    poll()
    for name in (*op.inputs, *op.outputs):
        type = types[name] if name else None
        growing = target.grows and (op.type in RULES or op.type in OPEN_RULES)
        if isinstance(type, StackType) and op.type not in STACKING and not growing:
            return "tensor arrays that grow"
        if isinstance(type, TensorType):
            if not type.is_static:
                return f"the size of {name} is known only when it runs"
            if type.dtype not in target.dtypes:
                return f"no machine code for {type.dtype}"
    return None


def _distinct(names: tuple[str, ...]) -> bool:
    return len(set(names)) == len(names)


def _region(block: Block, ops: list[Op], at: int, read: dict[str, set[int]]) -> Block:
    made = {n for op in ops for n in op.outputs}
    params = dict.fromkeys(n for op in ops for n in op.inputs if n and n not in made)
    results = [n for op in ops for n in op.outputs if read.get(n, set()) - {at}]
    types = {n: block.types[n] for n in (*params, *made)}
    return Block(tuple(params), tuple(ops), tuple(results), types)


def _spread(block: Block, refused: frozenset[int]) -> frozenset[int]:
    """`refused`, and every op that shares a stack with one of them: a stack stays inside one region."""
    touching: dict[str, list[int]] = {}
    for index, op in enumerate(block.ops):
        for n in (*op.inputs, *op.outputs):
            if n and isinstance(block.types[n], StackType):
                touching.setdefault(n, []).append(index)
    found = set(refused)
    for n in (*block.params, *block.results):
        if isinstance(block.types[n], StackType):
            found.update(touching.get(n, ()))
    queue = list(found)
    while queue:
        op = block.ops[queue.pop()]
        for n in (*op.inputs, *op.outputs):
            for index in touching.get(n, ()):
                if index not in found:
                    found.add(index)
                    queue.append(index)
    return frozenset(found)
