"""Instructions whose result one other instruction reads: that one does their work, and the result reaches no memory."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence, Set

from core.ir.stop import poll
from core.plan.instructions import Instruction
from core.plan.memory import Root, View

__all__ = ["into_readers"]

Offer = tuple[Sequence[View], View]
"""The arrays that an instruction reads, and the one that it writes."""


def into_readers(
    instructions: Sequence[Instruction],
    kept: Set[Root],
    offered: Callable[[Instruction], Offer | None],
    joined: Callable[[Instruction, Instruction], Instruction | None],
) -> tuple[Instruction, ...]:
    """`instructions` without those that their only reader replaces.

    kept:    roots that instructions around these touch.
    offered: the arrays of an instruction that a reader could replace; None for any other instruction.
    joined:  the reader with the work of such an instruction, (instruction, reader); None if it cannot do that work.
    """
    offers = {at: offer for at, each in enumerate(instructions) if (offer := offered(each)) is not None}
    if not offers:
        return tuple(instructions)
    touching: dict[Root, list[int]] = {}
    writing: dict[Root, list[int]] = {}
    for at, each in enumerate(instructions):
        poll()
        for root in {*each.reads(), *each.writes()}:
            touching.setdefault(root, []).append(at)
        for root in set(each.writes()):
            writing.setdefault(root, []).append(at)
    made = list[Instruction | None](instructions)
    for at, (given, result) in offers.items():
        readers = [i for i in touching[result.root] if i != at]
        reader = made[readers[0]] if len(readers) == 1 and readers[0] > at else None
        if reader is None or result.root.place != "arena" or result.root in kept:
            continue
        written = [writing.get(view.root, ()) for view in given]
        if any(bisect(places, at) < bisect(places, readers[0]) for places in written):
            continue
        found = joined(instructions[at], reader)
        if found is not None:
            made[readers[0]], made[at] = found, None
    return tuple(each for each in made if each is not None)
