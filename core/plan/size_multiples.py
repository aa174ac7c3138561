"""Products and multiples of open sizes, each computed once (`core.plan.derived_sizes`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from core.plan.compose import Maker
from core.plan.entries import Entry
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__ = ["factors", "scaled", "total"]


def factors(low: Lowering, own: Axes, shape: Sequence[int]) -> tuple[tuple[Size, ...], int]:
    """The open and the known factors of the number of elements of an array."""
    known = math.prod(n for i, n in enumerate(shape) if i not in own)
    sizes: list[Size] = []
    for size in (own[axis] for axis in sorted(own)):
        base, times = low.derived.multiples.get(size, (size, 1))
        known *= times
        sizes += low.derived.products.get(base, (base,))
    return tuple(sizes), known


def total(low: Lowering, own: Axes, shape: Sequence[int], rest: int = 1) -> Size:
    """The number of elements of an array, in rows of `rest`."""
    sizes, known = factors(low, own, shape)
    return scaled(low, _product(low, sizes), known, rest)


def _product(low: Lowering, sizes: tuple[Size, ...]) -> Size:
    """The product of several sizes."""
    if len(sizes) == 1:
        return sizes[0]
    found = next((each for each, factors in low.derived.products.items() if factors == sizes), None)
    if found is None:
        of = Maker(low)
        length: Entry = sizes[0].length
        for each in sizes[1:]:
            length = of.mul(length, each.length)
        found = Size(math.prod(each.bound for each in sizes), low.dense(length))
        low.derived.products[found] = sizes
    return found


def scaled(low: Lowering, size: Size, row: int, rest: int) -> Size:
    """The length of `size` rows of `row` elements as rows of `rest` elements."""
    if row == rest:
        return size
    base, factor = low.derived.multiples.get(size, (size, 1))
    if (factor * row) % rest:
        raise Unsupported("a length that only the run can divide")
    times = factor * row // rest
    if times == 1:
        return base
    found = next((s for s, pair in low.derived.multiples.items() if pair == (base, times)), None)
    if found is None:
        of = Maker(low)
        length = low.dense(of.mul(base.length, of.integer(times)))
        found = Size(base.bound * times, length)
        low.derived.multiples[found] = (base, times)
    return found
