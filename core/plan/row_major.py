"""The numbers of elements in row-major order, of arrays with sizes that only the run tells (`core.plan.sizes`)."""

from __future__ import annotations

from collections.abc import Iterable

from core.plan.compose import Maker
from core.plan.entries import Entry
from core.plan.lowering import Lowering

__all__ = ["row_major"]


def row_major(low: Lowering, axes: Iterable[tuple[Entry, Entry]]) -> tuple[Entry, Entry]:
    """The number of each element in row-major order, and the number of all elements.

    axes: for each axis, the last one first, the positions along it and its size, an int64 scalar.
    """
    of = Maker(low)
    number: Entry = of.integer(0)
    count: Entry = of.integer(1)
    for along, size in axes:
        number = of.add(number, of.mul(along, count))
        count = of.mul(count, size)
    return number, count
