"""The arena map: an offset for every intermediate array, from the instructions that first write and last read it.

An array may lie where another one of its size ends: if the instruction that first writes it is the last that reads the
other one, and does both element by element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from core.ir.stop import poll
from core.plan.flow import Branch, Loop
from core.plan.in_place import replaced
from core.plan.instructions import Instruction, Instructions
from core.plan.memory import Root
from core.plan.plan import Plan
from core.plan.target import Target

__all__ = ["ArenaMap", "arrange", "fit"]

MANY = 1000
"""Most roots that are compared with each other. Above that, freed memory is reused only by roots of the same size:
comparing all pairs would take quadratic time."""

LEAST_BYTES = 1 << 19
"""Fewest bytes of an arena that is worth making smaller: a smaller one stays in a core's cache."""

Lives = Mapping[Root, list[int]]
"""Root -> the positions of the first and the last instruction that touch it."""


@dataclass(frozen=True, slots=True)
class ArenaMap:
    """offsets: of each root, in bytes. size: of the arena, in bytes; this is the exact peak of intermediate arrays."""

    offsets: Mapping[Root, int]
    size: int


def arrange(plan: Plan, side_by_side: Iterable[range] = (), replaces: bool = False) -> ArenaMap:
    """The arena map of `plan`. Roots that are live at the same time never overlap, but for those that are replaced.

    side_by_side: positions in its body; roots that instructions of such a range touch are live during all of it.
    replaces:     whether generated code is right if an instruction that works element by element writes an array over
                  one that nothing reads afterwards (`core.plan.in_place`).
    """
    offsets: dict[Root, int] = {}
    size = _place(plan.body, 0, offsets, plan.target, replaces, side_by_side)
    return ArenaMap(offsets, size)


def _place(
    body: Instructions,
    base: int,
    offsets: dict[Root, int],
    target: Target,
    replaces: bool,
    side_by_side: Iterable[range] = (),
) -> int:
    """Place the roots of `body` that have no offset yet, from offset `base` on; return the end of the last one.

    Roots that only the instructions inside a loop or branch touch are placed after all roots that are live there.
    """
    lives: dict[Root, list[int]] = {}
    for at, each in enumerate(body.instructions):
        poll()
        for root in _touched(each):
            if root.place == "arena" and root not in offsets:
                lives.setdefault(root, [at, at])[1] = at
    for stretch in side_by_side:
        for each in body.instructions[stretch.start : stretch.stop]:
            for life in (lives[root] for root in _touched(each) if root in lives):
                life[:] = min(life[0], stretch.start), max(life[1], stretch.stop - 1)
    end = fit(lives, base, offsets, target)
    instead = _replaced(body, lives) if replaces and end - base >= LEAST_BYTES else {}
    if instead:
        longer = _lives_of_places(lives, instead)
        other: dict[Root, int] = {}
        least = fit(longer, base, other, target)
        if least < end:  # few long lives may leave more gaps than many short ones
            end, lives = least, {**longer, **{root: longer[place] for root, place in instead.items()}}
            offsets.update({root: other[instead.get(root, root)] for root in lives})
    inside = [(at, inner) for at, each in enumerate(body.instructions) for inner in _inside(each)]
    free = _free_from((at for at, _ in inside), lives, offsets, base, target)
    for (_, inner), start in zip(inside, free, strict=True):
        end = max(end, _place(inner, start, offsets, target, replaces))
    return end


def _replaced(body: Instructions, lives: Lives) -> dict[Root, Root]:
    """The roots that may lie where others end, each with the first root at its place."""
    ended: dict[int, list[Root]] = {}
    begun: dict[int, list[Root]] = {}
    for root, (first, last) in lives.items():
        if first < last:
            begun.setdefault(first, []).append(root)
            ended.setdefault(last, []).append(root)
    instead: dict[Root, Root] = {}
    for at, each in enumerate(body.instructions):
        for root, old in replaced(each, ended.get(at, ()), begun.get(at, ())).items():
            instead[root] = instead.get(old, old)
    return instead


def _lives_of_places(lives: Lives, instead: Mapping[Root, Root]) -> dict[Root, list[int]]:
    """The lives of the roots that do not lie at the places of others; a place lives until the last root there ends."""
    found = {root: list(life) for root, life in lives.items() if root not in instead}
    for root, place in instead.items():
        found[place][1] = max(found[place][1], lives[root][1])
    return found


def fit(lives: Lives, base: int, offsets: dict[Root, int], target: Target) -> int:
    """First fit, largest root first: large roots are the hardest to place, so they are placed early."""
    if len(lives) > MANY:
        return _fit_in_order(lives, base, offsets, target)
    placed: list[tuple[int, int, int, int]] = []  # first, last, start, end
    end = base
    for root in sorted(lives, key=lambda r: (-r.nbytes, lives[r])):
        poll()
        first, last = lives[root]
        size = target.aligned(root.nbytes)
        start = base
        meeting = [(s, e) for begin, finish, s, e in placed if begin <= last and first <= finish]
        for lower, upper in sorted(meeting):
            if start + size <= lower:
                break
            if upper > start:  # no call of `max`: this is the one part of a compilation whose work grows by squares
                start = upper
        offsets[root] = start
        placed.append((first, last, start, start + size))
        end = max(end, start + size)
    return end


def _fit_in_order(lives: Lives, base: int, offsets: dict[Root, int], target: Target) -> int:
    """In the order of first use: each root reuses the memory of a dead root of its size, or follows all others."""
    free: dict[int, list[int]] = {}
    live: list[tuple[int, int, int]] = []  # last use, size, start
    end = base
    for root in sorted(lives, key=lambda r: lives[r][0]):
        poll()
        first, last = lives[root]
        while live and live[0][0] < first:
            _, size, start = heappop(live)
            free.setdefault(size, []).append(start)
        size = target.aligned(root.nbytes)
        if free.get(size):
            start = free[size].pop()
        else:
            start, end = end, end + size
        offsets[root] = start
        heappush(live, (last, size, start))
    return end


def _free_from(
    positions: Iterable[int], lives: Lives, offsets: Mapping[Root, int], base: int, target: Target
) -> Iterator[int]:
    """For each of these instructions, in order, the first offset after all roots that are live there."""
    later = sorted(lives, key=lambda root: -lives[root][0])
    live: list[tuple[int, int]] = []  # -end, last use
    for at in positions:
        while later and lives[later[-1]][0] <= at:
            root = later.pop()
            heappush(live, (-offsets[root] - target.aligned(root.nbytes), lives[root][1]))
        while live and live[0][1] < at:
            heappop(live)
        yield max(base, -live[0][0]) if live else base


def _inside(each: Instruction) -> Iterator[Instructions]:
    if isinstance(each, Loop):
        yield each.body
    elif isinstance(each, Branch):
        yield from (each.yes, each.no)


def _touched(each: Instruction) -> Iterable[Root]:
    return (*each.reads(), *each.writes())
