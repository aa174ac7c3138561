"""The order of instructions: one that takes no memory, or less than it frees, runs as soon as its operands are there.

The backward pass of a layer has two products: of the weights, and of what came into the layer. The first one takes no
memory if it updates the weights, and comes first: then the second one may replace the arrays that both read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from core.ir.stop import poll
from core.plan.arena import LEAST_BYTES
from core.plan.dependences import dependences
from core.plan.in_place import replaced
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root

__all__ = ["freed_early"]

SAVED = 32
"""Least part of the peak for which the order changes."""


def freed_early(instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """`instructions` in an order that needs less memory at its peak, or as they are."""
    touched = {each: _touched(each) for each in instructions}
    peak = _peak(instructions, touched)
    if peak < LEAST_BYTES:
        return instructions
    order = _Order(instructions, [touched[each] for each in instructions]).found()
    found = tuple(instructions[at] for at in order)
    return found if peak - _peak(found, touched) >= peak // SAVED else instructions


def _touched(each: Instruction) -> tuple[Root, ...]:
    """The memory of the arena that an instruction reads or writes."""
    poll()
    return tuple(dict.fromkeys(root for root in (*each.reads(), *each.writes()) if root.place == "arena"))


def _peak(instructions: Sequence[Instruction], touched: Mapping[Instruction, Sequence[Root]]) -> int:
    """The most bytes that are alive during one of some instructions in order. touched: what each of them touches."""
    last = {root: each for each in instructions for root in touched[each]}
    alive, live, most = set[Root](), 0, 0
    for each in instructions:
        poll()
        new = [root for root in touched[each] if root not in alive]
        ends = [root for root in touched[each] if last[root] is each]
        live += sum(root.nbytes for root in new)
        free = replaced(each, [root for root in ends if root in alive], new)
        most = max(most, live - sum(root.nbytes for root in free))
        live -= sum(root.nbytes for root in ends)
        alive.update(new)
        alive.difference_update(ends)
    return most


class _Order:
    """Instructions in an order.

    left:    for each instruction, how many of those that must run before it have not run.
    waiting: for each root, the instructions that touch it and have not run.
    """

    def __init__(self, instructions: Sequence[Instruction], touched: Sequence[Sequence[Root]]) -> None:
        self._instructions, self._touched = instructions, touched
        self._after: list[list[int]] = [[] for _ in instructions]
        self._left: list[int] = []
        for at, edges in enumerate(dependences(instructions)):
            poll()
            self._left.append(len(edges))
            for edge in edges:
                self._after[edge.source].append(at)
        self._waiting: dict[Root, set[int]] = {}
        for at, roots in enumerate(touched):
            poll()
            for root in roots:
                self._waiting.setdefault(root, set()).add(at)
        self._alive: set[Root] = set()
        self._done = [False] * len(instructions)
        self._order: list[int] = []
        self._early: list[int] = []

    def found(self) -> list[int]:
        """The positions of all instructions in their new order."""
        for at in range(len(self._instructions)):
            poll()
            if not self._done[at]:
                self._run(at)
            while self._early:
                early = heappop(self._early)
                if not self._done[early] and self._is_early(early):
                    self._run(early)
        return self._order

    def _run(self, at: int) -> None:
        self._done[at] = True
        self._order.append(at)
        changed = set()
        for following in self._after[at]:
            self._left[following] -= 1
            changed.add(following)
        for root in self._touched[at]:
            self._alive.add(root)
            waiting = self._waiting[root]
            waiting.discard(at)
            if len(waiting) == 1:
                changed |= waiting
        for each in changed:
            if self._left[each] == 0 and isinstance(self._instructions[each], Gemm | Rows):
                heappush(self._early, each)

    def _is_early(self, at: int) -> bool:
        """Whether an instruction takes no memory, or less than it frees."""
        takes = sum(root.nbytes for root in self._touched[at] if root not in self._alive)
        alive = [root for root in self._touched[at] if root in self._alive]
        return not takes or takes < sum(root.nbytes for root in alive if self._waiting[root] == {at})
