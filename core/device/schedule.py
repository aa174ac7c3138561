"""The order of the segments of a step, chosen so that segments that can share a launch follow each other.

A step is a list of instructions in the order of the client's ops and of their gradients. Any other order in which each
one follows those that it depends on has the same results. Those that can share a launch (`core.device.grouping`) wait
until no other can run; then all that are ready are one batch, which becomes one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import groupby

from core.device.grouping import Level, level_of
from core.device.rules import Rules
from core.device.segments import Segment
from core.device.spread import joins_sums
from core.device.threads import Threads
from core.ir.stop import poll
from core.plan.arena import ArenaMap, arrange
from core.plan.flow import Branch, Loop
from core.plan.growing import ArrayWork
from core.plan.instructions import Instruction, Instructions, Limited
from core.plan.memory import Root
from core.plan.plan import Plan

__all__ = ["Schedule", "batched", "scheduled"]

Unit = tuple[Segment, ...]
"""Segments that stay together."""

Rank = tuple[bool, Level]
"""Whether a unit reads the results of a sort, which other launches may overlap; and with which units it may share a
launch. Units of a lower rank run first.
"""

RANKS: tuple[Rank, ...] = tuple((late, level) for late in (False, True) for level in Level)

MORE_MEMORY, LITTLE_MEMORY = 1.1, 1 << 25
"""How many times as large another order may make the arena, and bytes up to which its size does not matter: they fit
into the second level of the caches of a large GPU.
"""

WINDOWS = (16, 8)
"""By how many places a unit may run before another one that stood before it: first choice, and with less memory. Larger
ones made no fewer batches in the steps of the bench, but up to twice as large arenas.
"""

FIXED = (Loop, Branch, ArrayWork, Limited)
"""Instructions that no unit moves across: loops share the limits of a run, and only the run tells the lengths."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order in which a step runs. plan: with its instructions in that order. arena: where its arrays lie."""

    plan: Plan
    segments: tuple[Segment, ...]
    arena: ArenaMap


def scheduled(plan: Plan, segments: Sequence[Segment], processors: int, launch: Threads, rules: Rules) -> Schedule:
    """Batches of segments that can share a launch, or the order of the plan if that needs much less memory.

    segments: of the plan, in its order. processors, launch, rules: see `core.device.grouping.grouped`.
    """
    units: list[Unit] = []
    for each in segments:
        if units and len(units[-1]) == 1 and joins_sums(units[-1][0], each, launch):
            units[-1] = (*units[-1], each)
        else:
            units.append((each,))
    sorted_roots = {
        root for each in segments if each.kind == "sort" for one in each.instructions for root in one.writes()
    }
    ranks = {
        unit: (
            any(root in sorted_roots for one in _instructions(unit) for root in one.reads()),
            level_of(unit[0], processors, launch, rules) if len(unit) == 1 else Level.ALONE,
        )
        for unit in units
    }
    given: ArenaMap | None = None  # of the plan's own order
    for window in WINDOWS:
        batches = list(batched(units, ranks.__getitem__, window, plan.error.root))
        order = tuple(segment for batch in batches for unit in batch for segment in unit)
        body: list[Instruction] = []
        shared: list[range] = []
        for batch in batches:
            start = len(body)
            body += (one for unit in batch for one in _instructions(unit))
            if len(batch) > 1:
                shared.append(range(start, len(body)))
        new = replace(plan, body=Instructions(tuple(body)))
        arena = arrange(new, shared)
        if arena.size <= LITTLE_MEMORY:
            return Schedule(new, order, arena)
        given = given or arrange(plan)
        if arena.size <= MORE_MEMORY * given.size:
            return Schedule(new, order, arena)
    return Schedule(plan, tuple(segments), given or arrange(plan))


def batched(
    units: Iterable[Unit], rank: Callable[[Unit], Rank], window: int, error: Root | None = None
) -> Iterator[list[Unit]]:
    """The units in another order, as batches: of one unit, or of several of a level that do not depend on each other.

    rank: of a unit; one of several segments is alone. window: by how many places a unit may run before another one
    that stood before it. error: the error word, to which any number of units may write at a time.
    """
    for fixed, group in groupby(units, _is_fixed):
        run = list(group)
        yield from ([unit] for unit in run) if fixed else _ordered(run, rank, window, error)


def _is_fixed(unit: Unit) -> bool:
    return any(isinstance(one, FIXED) for one in _instructions(unit))


def _ordered(
    units: Sequence[Unit], rank: Callable[[Unit], Rank], window: int, error: Root | None
) -> Iterator[list[Unit]]:
    """A unit waits while units of a lower rank can run. Units that share no launch keep their order."""
    ranks = [rank(unit) for unit in units]
    waits, behind = _dependences(units, error)
    ready: dict[Rank, list[int]] = {each: [] for each in RANKS}  # heaps
    for i, count in enumerate(waits):
        if not count:
            heappush(ready[ranks[i]], i)
    first, done = 0, [False] * len(units)  # all before `first` are done, so it is ready
    while first < len(units):
        poll()
        chosen = next(ready[each] for each in RANKS if ready[each] and ready[each][0] <= first + window)
        batch = [heappop(chosen)]
        while ranks[batch[0]][1] != Level.ALONE and chosen and chosen[0] <= first + window:
            batch.append(heappop(chosen))
        yield [units[i] for i in batch]
        for i in batch:
            done[i] = True
        while first < len(units) and done[first]:
            first += 1
        for other in (other for i in batch for other in behind[i]):
            waits[other] -= 1
            if not waits[other]:
                heappush(ready[ranks[other]], other)


def _dependences(units: Sequence[Unit], error: Root | None) -> tuple[list[int], list[list[int]]]:
    """For each unit the number of units that it waits for, and the units that wait for it."""
    waits: list[int] = []
    behind: list[list[int]] = [[] for _ in units]
    writer: dict[Root, int] = {}
    readers: dict[Root, list[int]] = {}
    for i, unit in enumerate(units):
        poll()
        read = {root for one in _instructions(unit) for root in one.reads()} - {error}
        written = {root for one in _instructions(unit) for root in one.writes()} - {error}
        before = {writer[root] for root in read | written if root in writer}
        before |= {other for root in written for other in readers.get(root, ())}
        waits.append(len(before))
        for other in before:
            behind[other].append(i)
        for root in written:
            writer[root], readers[root] = i, []
        for root in read - written:
            readers.setdefault(root, []).append(i)
    return waits, behind


def _instructions(unit: Unit) -> Iterator[Instruction]:
    return (one for segment in unit for one in segment.instructions)
