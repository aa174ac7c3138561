"""Where everything lies: offsets for the arena's roots, from when each is first written and last read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from core.plan.data import Instruction, Root, Sequence
from core.plan.flow import Branch, Loop

__all__ = ["Arena", "arrange"]

ALIGNMENT = 64

MANY = 1000
"""Roots up to which each is compared with all others; beyond, what was freed is only taken again by the same size."""


@dataclass(frozen=True, slots=True)
class Arena:
    """offsets: of each root, in bytes. size: of the whole, in bytes: the predicted peak is exact."""

    offsets: Mapping[Root, int]
    size: int


def arrange(body: Sequence) -> Arena:
    """An offset for every arena root in `body`, such that no two that are alive together overlap."""
    offsets: dict[Root, int] = {}
    size = _place(body, 0, offsets)
    return Arena(offsets, size)


def _place(body: Sequence, base: int, offsets: dict[Root, int]) -> int:
    """Give offsets from `base` on to what `body` uses and nothing outside it has placed; the end of it all."""
    spans: dict[Root, list[int]] = {}
    for at, each in enumerate(body.instructions):
        for root in _touched(each):
            if root.place == "arena" and root not in offsets:
                spans.setdefault(root, [at, at])[1] = at
    end = _fit(spans, base, offsets)
    for each in body.instructions:
        for inner in _inside(each):
            end = max(end, _place(inner, _free_from(each, body, spans, offsets, base), offsets))
    return end


def _fit(spans: Mapping[Root, list[int]], base: int, offsets: dict[Root, int]) -> int:
    """First fit, the largest first: good packings come from placing what is hard to place early."""
    if len(spans) > MANY:
        return _fit_in_order(spans, base, offsets)
    placed: list[tuple[int, int, int, int]] = []  # first, last, start, end
    end = base
    for root in sorted(spans, key=lambda r: (-r.nbytes, spans[r])):
        first, last = spans[root]
        size = max(-(-root.nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        start = base
        for lower, upper in sorted((s, e) for begin, finish, s, e in placed if begin <= last and first <= finish):
            if start + size <= lower:
                break
            start = max(start, upper)
        offsets[root] = start
        placed.append((first, last, start, start + size))
        end = max(end, start + size)
    return end


def _fit_in_order(spans: Mapping[Root, list[int]], base: int, offsets: dict[Root, int]) -> int:
    """One after the other as they come to life: where a dead one of the same size lay, or behind all others."""
    free: dict[int, list[int]] = {}
    alive: list[tuple[int, int, int]] = []  # last use, size, start
    end = base
    for root in sorted(spans, key=lambda r: spans[r][0]):
        first, last = spans[root]
        while alive and alive[0][0] < first:
            _, size, start = heappop(alive)
            free.setdefault(size, []).append(start)
        size = max(-(-root.nbytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
        if free.get(size):
            start = free[size].pop()
        else:
            start, end = end, end + size
        offsets[root] = start
        heappush(alive, (last, size, start))
    return end


def _free_from(
    each: Instruction, body: Sequence, spans: Mapping[Root, list[int]], offsets: Mapping[Root, int], base: int
) -> int:
    """Where nothing lies any more that is alive while `each` runs."""
    at = body.instructions.index(each)
    ends = [
        offsets[root] + -(-root.nbytes // ALIGNMENT) * ALIGNMENT
        for root, (first, last) in spans.items()
        if first <= at <= last
    ]
    return max([base, *ends])


def _inside(each: Instruction) -> Iterator[Sequence]:
    if isinstance(each, Loop):
        yield each.body
    elif isinstance(each, Branch):
        yield from (each.yes, each.no)


def _touched(each: Instruction) -> Iterable[Root]:
    return (*each.reads(), *each.writes())
