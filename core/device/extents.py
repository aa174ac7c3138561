"""Sets of stretches of memory, and whether two of them overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["ANYWHERE", "Extent", "Extents", "overlap"]

Extent = tuple[str, int, int]
"""(space, start, end). Extents of different spaces have no memory in common."""

ANYWHERE: Extent = ("any", 0, 0)
"""An extent of which nothing is known: it overlaps every other one."""


class Extents:
    """A set of extents that grows. A question takes the logarithm of their number.

    It holds the extents of a space as intervals in order, which do not overlap.
    """

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._starts: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}
        self._has_any = False
        self.update(extents)

    def __bool__(self) -> bool:
        return self._has_any or bool(self._starts)

    def __iter__(self) -> Iterator[Extent]:
        if self._has_any:
            yield ANYWHERE
        for space, starts in self._starts.items():
            yield from ((space, start, end) for start, end in zip(starts, self._ends[space], strict=True))

    def update(self, extents: Iterable[Extent]) -> None:
        """Add extents."""
        for extent in extents:
            self.add(extent)

    def add(self, extent: Extent) -> None:
        space, start, end = extent
        if extent == ANYWHERE:
            self._has_any = True
            return
        starts, ends = self._starts.setdefault(space, []), self._ends.setdefault(space, [])
        first, last = bisect_right(ends, start), bisect_left(starts, end)  # those between overlap the extent
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last], ends[first:last] = [start], [end]

    def meets(self, extents: Iterable[Extent]) -> bool:
        """Whether one of the extents overlaps one of the set."""
        return any(self._meets(extent) for extent in extents)

    def _meets(self, extent: Extent) -> bool:
        space, start, end = extent
        if self._has_any or extent == ANYWHERE:
            return bool(self)
        starts = self._starts.get(space, [])
        at = bisect_right(self._ends.get(space, []), start)
        return at < len(starts) and starts[at] < end


def overlap(some: Iterable[Extent], others: Iterable[Extent]) -> bool:
    """Whether an extent of one and an extent of the other have memory in common."""
    return Extents(some).meets(others)
