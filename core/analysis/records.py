"""What machine code keeps of its loops' values, in bytes, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.cost import nested_runs
from core.ir.errors import Location, Place
from core.plan.data import Sequence, Stack
from core.plan.flow import Branch, Loop, Recording
from core.plan.plan import Plan

__all__ = ["record_bytes"]


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops, one in the other, that stand for one loop of the client; a single one, but for memory policies.

    longest: the most trips that a loop makes in a row, level by level.
    total:   the trips of all its runs.
    times:   how often the whole nest runs.
    level:   of the loop that is looked at.
    """

    longest: tuple[int, ...]
    total: tuple[int, ...]
    times: int
    level: int = 0

    @property
    def inner(self) -> Nest:
        return Nest(self.longest, self.total, self.times, self.level + 1)


Nests = Mapping[Place, Nest]
"""The nests around a sequence, by the client's op."""


def record_bytes(plan: Plan, trips: int) -> int:
    """The memory of all stacks of `plan` behind a run in which every loop of the client makes `trips` trips."""
    slots = dict.fromkeys(plan.stacks, 1)  # there is room for one from the beginning
    for stack, count in _recorded(plan.body, trips, 1, MappingProxyType({}), {}):
        slots[stack] = max(slots[stack], count)
    return sum(plan.target.stack_bytes(stack.slot_bytes * count) for stack, count in slots.items())


def _recorded(
    body: Sequence, trips: int, times: int, outer: Nests, held: dict[Stack, tuple[int, int]]
) -> Iterator[tuple[Stack, int]]:
    """Each stack that is written where `body` runs so many times, and the slots it needs at most.

    held: of each stack inside a recording, the trips of the loop that makes it: in the longest run, and in all.
    """
    for each in body.instructions:
        if isinstance(each, Loop):
            place = _place(each.location)
            if each.length is not None:
                nest = Nest((each.length,), (each.length,), times)
            elif place is not None and place in outer:
                nest = outer[place].inner
            else:
                nest = Nest(*_runs(_depth(each), trips), times)
            ever = nest.total[nest.level] * nest.times
            longest = nest.longest[nest.level]
            for recording, _ in each.records:
                if not isinstance(recording, Recording):
                    continue
                if recording.stack.kept:
                    most, all = held[recording.stack]
                    yield recording.stack, -(-ever * most // all) if all else 0
                else:
                    yield recording.stack, longest
                    held.update(dict.fromkeys(recording.inside, (longest, ever)))
            yield from _recorded(each.body, trips, ever, {**outer, place: nest} if place else outer, held)
        elif isinstance(each, Branch):
            for side in (each.yes, each.no):
                yield from _recorded(side, trips, times, outer, held)


def _runs(depth: int, trips: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`longest` and `total` of a nest of so many loops. See `core.passes.chunk`: run k has k runs of one loop less."""
    runs = nested_runs(depth, trips)
    if depth == 1:
        return (runs,), (runs,)
    rest = trips - math.comb(runs + depth - 2, depth)  # of the last run, which may be cut short
    longest, total = _runs(depth - 1, max(0, rest))
    whole = [math.comb(runs + level, level + 2) for level in range(depth - 1)]
    return (
        (runs, *(max(runs - 1, n) for n in longest)),
        (runs, *(a + b for a, b in zip(whole, total, strict=True))),
    )


def _depth(loop: Loop) -> int:
    """The number of loops, this one included, that stand for one loop of the client."""
    place = _place(loop.location)
    inner = (each for each in _loops(loop.body) if _place(each.location) == place and place is not None)
    return 1 + max(map(_depth, inner), default=0)


def _loops(body: Sequence) -> Iterator[Loop]:
    """The outermost loops of `body`."""
    for each in body.instructions:
        if isinstance(each, Loop):
            yield each
        elif isinstance(each, Branch):
            yield from _loops(each.yes)
            yield from _loops(each.no)


def _place(location: Location | None) -> Place | None:
    return location.place if location else None
