"""Bytes that machine code stores for the residuals of loops, computed before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from core.cost import nested_runs
from core.ir.errors import Location, Place
from core.plan.flow import Branch, Growing, Loop, Recording, Source
from core.plan.growing import ArrayOp, ArrayWork, Flatten, KeepArray, MakeRuns
from core.plan.instructions import Instructions
from core.plan.memory import Stack
from core.plan.plan import Plan

__all__ = ["record_bytes"]


@dataclass(frozen=True, slots=True)
class Nest:
    """The nested loops that implement one loop of the client. Without a memory policy it is a single loop.

    longest: the most trips of one run of the loop, level by level.
    total:   the trips of all its runs.
    times:   the number of runs of the whole nest.
    level:   level of the current loop.
    """

    longest: tuple[int, ...]
    total: tuple[int, ...]
    times: int
    level: int = 0

    @property
    def inner(self) -> Nest:
        return Nest(self.longest, self.total, self.times, min(self.level + 1, len(self.total) - 1))

    @property
    def slots(self) -> tuple[int, int]:
        """The trips of the current loop: the most of one run, and those of all runs."""
        return self.longest[self.level], self.total[self.level] * self.times


Nests = Mapping[Place, Nest]
"""The nests around a sequence, by the op of the client."""


def record_bytes(plan: Plan, trips: int) -> int:
    """Bytes of all stacks of `plan` after a run in which every loop of the client makes `trips` trips."""
    slots = dict.fromkeys(plan.stacks, 1)  # a stack has one slot from the start
    arrays: dict[Stack, int] = {}  # memory of a tensor array -> the number of times that it is kept
    longest = writes = 0
    sources: list[Source] = []
    works = list(_array_work(plan.body, trips))
    of_sizes = {sizes.stack for work, _ in works if work.target is not None for _, _, sizes in work.target.sizes}
    for work, times in works:
        if work.target is not None:
            arrays.setdefault(work.target.stack, 1)
        if isinstance(work, KeepArray):
            arrays[work.recording.stack] = times
        elif isinstance(work, ArrayOp) and work.kind == "put" and work.target.stack not in of_sizes:  # type: ignore[union-attr]
            writes += times  # a write of the size of an element adds no element
        sources += work.sources
    for source in sources:
        kept = isinstance(source, Recording) and source.stack in arrays
        if not (kept or isinstance(source, Growing)):
            longest = max(longest, _length([source], trips))
    elements = longest + writes  # any array may get all; only a write makes an array longer, by one element
    slots.update((stack, max(1, times * elements)) for stack, times in arrays.items())
    for stack, count in _recorded(plan.body, trips, 1, MappingProxyType({}), {}):
        slots[stack] = max(slots[stack], count)
    return sum(plan.target.stack_bytes(stack.slot_bytes * count) for stack, count in slots.items())


def _array_work(body: Instructions, trips: int, times: int = 1) -> Iterator[tuple[ArrayWork, int]]:
    """Each instruction on tensor arrays, and how often it runs."""
    for each in body.instructions:
        if isinstance(each, ArrayWork):
            yield each, times
        elif isinstance(each, Loop):
            yield from _array_work(each.body, trips, times * (trips if each.length is None else each.length))
        elif isinstance(each, Branch):
            for side in (each.yes, each.no):
                yield from _array_work(side, trips, times)


def _recorded(
    body: Instructions, trips: int, times: int, outer: Nests, held: dict[Stack, tuple[int, int]]
) -> Iterator[tuple[Stack, int]]:
    """Each stack that `body` writes in `times` runs, with the most slots it needs.

    held: for each stack inside a recording, the trips of the loop that makes it: in its longest run, and in all runs.
    """

    def slots(stack: Stack, longest: int, ever: int) -> int:
        """The slots of a stack that gets at most `longest` at once, and `ever` in all runs."""
        if not stack.kept:
            return longest
        most, all = held.get(stack, (longest, ever))
        return -(-ever * most // all) if all else 0

    numbers: dict[Stack, tuple[int, int]] = {}  # of an array of runs: their most, and how many there ever are
    for each in body.instructions:
        place = _place(each.location)
        if isinstance(each, MakeRuns):
            if each.like is not None and each.like.stack in numbers:
                longest, ever = numbers[each.like.stack]
            else:
                nest = _nest(each.order + 1, _length(each.sources, trips), times, place, outer)
                longest, ever = nest.slots
            numbers[each.recording.stack] = longest, ever
            yield each.recording.stack, slots(each.recording.stack, longest, ever)
        elif isinstance(each, Flatten) and each.recording is not None:
            nest = outer[place] if place is not None and place in outer else Nest(*_runs(1, trips), times)
            yield each.recording.stack, nest.total[-1] * nest.times
        elif isinstance(each, Loop):
            if each.length is not None:
                nest = Nest((each.length,), (each.length,), times)
            else:
                nest = _nest(_depth(each), _length((stack for stack, _ in each.over), trips), times, place, outer)
            longest, ever = nest.slots
            for recording, _ in each.records:
                if not isinstance(recording, Recording):
                    continue
                numbers[recording.stack] = longest, ever
                yield recording.stack, slots(recording.stack, longest, ever)
                if not recording.stack.kept:
                    held.update(dict.fromkeys(recording.inside, (longest, ever)))
            yield from _recorded(each.body, trips, ever, {**outer, place: nest} if place else outer, held)
        elif isinstance(each, Branch):
            for side in (each.yes, each.no):
                yield from _recorded(side, trips, times, outer, held)


def _length(sources: Iterable[Source], trips: int) -> int:
    """The number of elements of equally long arrays, those of all runs: `trips` if it is not known of any of them."""
    for source in sources:
        while isinstance(source, Recording) and source.source is not None:
            source = source.source
        if source.length is not None:
            return source.length
    return trips


def _nest(depth: int, trips: int, times: int, place: Place | None, outer: Nests) -> Nest:
    """The nest of a loop at `place` whose length is not known."""
    if place is not None and place in outer:
        return outer[place].inner
    return Nest(*_runs(depth, trips), times)


def _runs(depth: int, trips: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`longest` and `total` of a nest of `depth` loops. See `core.passes.chunk`: run k has k runs of a nest of depth -
    1.
    """
    runs = nested_runs(depth, trips)
    if depth == 1:
        return (runs,), (runs,)
    rest = trips - math.comb(runs + depth - 2, depth)  # trips of the last run, which may be shorter
    longest, total = _runs(depth - 1, max(0, rest))
    whole = [math.comb(runs + level, level + 2) for level in range(depth - 1)]
    return (
        (runs, *(max(runs - 1, n) for n in longest)),
        (runs, *(a + b for a, b in zip(whole, total, strict=True))),
    )


def _depth(loop: Loop) -> int:
    """The number of loops, this one included, that implement one loop of the client."""
    place = _place(loop.location)
    inner = (each for each in _loops(loop.body) if _place(each.location) == place and place is not None)
    return 1 + max(map(_depth, inner), default=0)


def _loops(body: Instructions) -> Iterator[Loop]:
    """The outermost loops of `body`."""
    for each in body.instructions:
        if isinstance(each, Loop):
            yield each
        elif isinstance(each, Branch):
            yield from _loops(each.yes)
            yield from _loops(each.no)


def _place(location: Location | None) -> Place | None:
    return location.place if location else None
