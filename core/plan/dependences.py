"""Dependences between instructions, and an order with groups of instructions that keeps them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from core.plan.flow import Branch, Loop
from core.plan.growing import ArrayWork
from core.plan.instructions import Instruction, Interpreted
from core.plan.memory import Root

__all__ = ["Edge", "dependences", "reordered"]

IN_ORDER = (Interpreted, Loop, Branch, ArrayWork)
"""Instructions that keep their order: they share stacks, or may tell the client something."""


@dataclass(frozen=True, slots=True)
class Edge:
    """The position of an instruction that must run before another one. through: the roots that both touch."""

    source: int
    through: tuple[Root, ...]


def dependences(instructions: Sequence[Instruction]) -> list[list[Edge]]:
    """For each instruction, those that must run before it."""
    found: list[list[Edge]] = []
    last: dict[Root, int] = {}
    readers: dict[Root, list[int]] = defaultdict(list)
    before = -1
    for at, each in enumerate(instructions):
        needed: dict[int, list[Root]] = defaultdict(list)
        writes = set(each.writes())
        for root in dict.fromkeys((*each.reads(), *writes)):
            if root in last:
                needed[last[root]].append(root)
            if root in writes:
                for reader in readers[root]:
                    needed[reader].append(root)
        if isinstance(each, IN_ORDER):
            if before >= 0:
                needed.setdefault(before, [])
            before = at
        for root in each.reads():
            readers[root].append(at)
        for root in writes:
            last[root], readers[root] = at, []
        found.append([Edge(source, tuple(roots)) for source, roots in needed.items() if source != at])
    return found


def reordered(
    instructions: tuple[Instruction, ...],
    edges: list[list[Edge]],
    groups: list[tuple[list[int], tuple[Instruction, ...]]],
    sources: Sequence[set[int]],
) -> tuple[Instruction, ...]:
    """All instructions with each group in place of its members, otherwise in the order they had where possible.

    The instructions stay as they are if groups depend on each other.

    edges:   of `dependences`.
    groups:  the positions of the members of each, and the instructions in their place.
    sources: for each group, the positions of further instructions that it must follow.
    """
    home = {at: members[0] for members, _ in groups for at in members}
    made = {members[0]: instead for members, instead in groups}
    before: dict[int, set[int]] = {}
    for at, needed in enumerate(edges):
        node = home.get(at, at)
        before.setdefault(node, set()).update(home.get(edge.source, edge.source) for edge in needed)
    for (members, _), more in zip(groups, sources, strict=True):
        before[members[0]].update(home.get(at, at) for at in more)
    after: dict[int, list[int]] = defaultdict(list)
    for node, needed_by in before.items():
        needed_by.discard(node)
        for source in needed_by:
            after[source].append(node)
    left = {node: len(each) for node, each in before.items()}
    ready = [node for node, count in left.items() if not count]
    heapify(ready)
    found: list[Instruction] = []
    done = 0
    while ready:
        node = heappop(ready)
        done += 1
        found += made[node] if node in made else (instructions[node],)
        for following in after[node]:
            left[following] -= 1
            if not left[following]:
                heappush(ready, following)
    return tuple(found) if done == len(left) else instructions
