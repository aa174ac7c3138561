"""Positions that grow evenly along every axis: ranges, and their sums and multiples.

A gather at such positions reads no positions: it is a view of its array, whose elements may overlap (the frames of a
signal, the windows of a series).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.plan.entries import Entry, Pattern, Uniform
from core.plan.memory import Root, View

__all__ = ["affine", "even_places", "taken_evenly"]


def even_places(entry: Entry) -> View | None:
    """A view of no memory, whose offset and strides give the int64 numbers of `entry`; None if no view gives them."""
    if isinstance(entry, Pattern):
        return None if entry.code else entry.places
    if entry.dtype != "int64":
        return None
    if isinstance(entry, Uniform):
        return View(Root(0, "none"), "int64", entry.shape, (0,) * len(entry.shape), int(entry.number))
    return _of_constant(entry) if isinstance(entry, View) and entry.root.place == "constant" else None


def _of_constant(view: View) -> View | None:
    data = np.frombuffer(view.root.data, "int64")[view.offset :]
    numbers = np.lib.stride_tricks.as_strided(data, view.shape, [8 * s for s in view.strides])
    if not numbers.size:
        return None
    first = int(numbers.flat[0])
    steps = [int(numbers[(0,) * i + (1,) + (0,) * (numbers.ndim - i - 1)]) - first if n > 1 else 0
             for i, n in enumerate(view.shape)]  # fmt: skip
    wanted = first + sum(s * i for s, i in zip(steps, np.indices(view.shape, sparse=True), strict=True))
    if not np.array_equal(numbers, np.broadcast_to(wanted, numbers.shape)):
        return None
    return View(Root(0, "none"), "int64", view.shape, tuple(steps), first)


def affine(op: str, entries: Sequence[Entry], shape: tuple[int, ...]) -> Pattern | None:
    """The sum or difference of even positions, or their product with one number, as a pattern; None for anything else.

    shape: of the result.
    """
    if op not in ("add", "sub", "mul"):
        return None
    a, b = (even_places(each) for each in entries)
    if a is None or b is None:
        return None
    if op != "mul":
        sign = 1 if op == "add" else -1
        pairs = zip(_along(a, len(shape)), _along(b, len(shape)), strict=True)
        return _pattern(shape, [s + sign * t for s, t in pairs], a.offset + sign * b.offset)
    numbers, factor = (a, b) if isinstance(entries[1], Uniform) else (b, a)
    if any(factor.strides):
        return None
    steps = [factor.offset * s for s in _along(numbers, len(shape))]
    return _pattern(shape, steps, factor.offset * numbers.offset)


def _along(places: View, rank: int) -> tuple[int, ...]:
    """The strides of broadcast places along `rank` axes."""
    own = (0 if n == 1 else s for n, s in zip(places.shape, places.strides, strict=True))
    return (*(0,) * (rank - len(places.shape)), *own)


def _pattern(shape: tuple[int, ...], strides: Sequence[int], offset: int) -> Pattern | None:
    reach = sum(abs(s) * n for s, n in zip(strides, shape, strict=True)) + abs(offset)
    return Pattern(View(Root(0, "none"), "int64", shape, tuple(strides), offset)) if reach < 2**62 else None


def taken_evenly(x: View, places: View, axis: int) -> View | None:
    """The elements of `x` at these positions along `axis`, as a view; None if a position is out of range."""
    ends = [(n - 1) * s for n, s in zip(places.shape, places.strides, strict=True)]
    least, most = (places.offset + sum(part(0, e) for e in ends) for part in (min, max))
    if 0 in places.shape or least < 0 or most >= x.shape[axis]:
        return None
    step = x.strides[axis]
    return replace(
        x,
        shape=(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]),
        strides=(*x.strides[:axis], *(s * step for s in places.strides), *x.strides[axis + 1 :]),
        offset=x.offset + places.offset * step,
    )
