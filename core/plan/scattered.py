"""A scatter that adds the rows of a gather reads them where they are: the gathered rows reach no memory."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from core.ir.stop import poll
from core.plan.data import Gather, Instruction, Root, ScatterAdd

__all__ = ["scatter_gathered"]


def scatter_gathered(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without the gathers whose result only one scatter reads; the scatter gathers itself.

    kept: roots that others read, too.
    """
    touching: dict[Root, list[int]] = {}
    if not any(isinstance(each, Gather) for each in instructions):
        return tuple(instructions)
    for at, each in enumerate(instructions):
        poll()
        for root in {*each.reads(), *each.writes()}:
            touching.setdefault(root, []).append(at)
    made = list[Instruction | None](instructions)
    for at, gather in enumerate(instructions):
        if not isinstance(gather, Gather) or gather.out.root.place != "arena" or gather.out.root in kept:
            continue
        readers = [i for i in touching[gather.out.root] if i != at]
        scatter = made[readers[0]] if len(readers) == 1 and readers[0] > at else None
        if not isinstance(scatter, ScatterAdd) or scatter.rows is not None or not _fits(gather, scatter):
            continue
        late = {root for each in instructions[at + 1 : readers[0]] for root in each.writes()}
        if late & {gather.x.root, gather.index.root} or scatter.out.root in (gather.x.root, gather.index.root):
            continue
        made[readers[0]] = replace(scatter, x=gather.x, rows=gather.index, rows_check=gather.check)
        made[at] = None
    return tuple(each for each in made if each is not None)


def _fits(gather: Gather, scatter: ScatterAdd) -> bool:
    """Whether the scatter adds the rows that are gathered, in their order."""
    same = (gather.out.root, gather.out.offset, gather.out.shape, gather.out.dtype)
    return same == (scatter.x.root, scatter.x.offset, scatter.x.shape, scatter.x.dtype)
