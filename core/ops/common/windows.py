"""Windows that slide over the spatial axes of [n, c, *spatial]: their sizes, and the elements they cover."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from core.ir.attr_groups import AttrGroup
from core.ir.errors import ProgramError
from core.ops.common.ranges import Count, Reach, Span

__all__ = [
    "PLANE",
    "Convolution",
    "Pads",
    "Window",
    "blocks",
    "few_windows",
    "meetings",
    "pads_of",
    "reach",
    "sizes",
    "wide",
]


@dataclass(frozen=True, slots=True)
class Window(AttrGroup):
    """How windows move over spatial axes: one number for all axes, or one for each. For `paddings` see `pads_of`."""

    strides: tuple[Span, ...] = (1,)
    paddings: tuple[Reach, ...] = (0,)
    dilations: tuple[Span, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Convolution(Window):
    """How a filter moves over x, and in how many groups it divides the channels."""

    groups: Count = 1


PLANE = Convolution(strides=(1, 1), paddings=(0, 0), dilations=(1, 1))
"""The defaults of a convolution over two axes."""


Pads = tuple[tuple[int, int], ...]
Place = tuple[int | slice, ...]


def sizes(values: tuple[int, ...], count: int, what: str, least: int) -> tuple[int, ...]:
    """One size for each of `count` axes, from one for all axes or one for each. Raises ProgramError (bad_attr)."""
    if len(values) == 1:
        values = values * count
    if len(values) != count or min(values) < least:
        raise ProgramError(f"{what} must be 1 or {count} sizes of at least {least}, not {list(values)}", "bad_attr")
    return values


def pads_of(values: tuple[int, ...], count: int) -> Pads:
    """(before, after) for each axis, from one size for all axes, one for each axis, or two for each axis."""
    if len(values) == 2 * count and min(values) >= 0:
        return tuple(zip(values[::2], values[1::2], strict=True))
    return tuple((n, n) for n in sizes(values, count, "paddings", 0))


def reach(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil: bool = False) -> int:
    """The number of windows along one axis; -1 if the size is unknown. Raises ProgramError (shape_mismatch) if none
    fits.
    """
    if size == -1:
        return -1
    before, after = pads
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        raise ProgramError(
            f"a window of {dilation * (kernel - 1) + 1} does not fit into an axis of {size}", "shape_mismatch"
        )
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:  # the last window must start inside
        count -= 1
    return count


def meetings(size, kernel, counts, strides, dilations, starts) -> Iterator[tuple[Place, Place, Place]]:
    """Triples (elements, windows, inside): element `elements` of window `windows` is at position `inside` of x.

    `starts` are the positions of the first window, negative in the padding. Positions outside x are left out, so
    padding takes no memory. One of `elements` and `windows` holds integers and the other slices: there is one triple
    for each element of a window, in row-major order, or, if `few_windows`, one for each window.
    """
    few = few_windows(kernel, counts)
    steps, moves, lengths = (strides, dilations, kernel) if few else (dilations, strides, counts)
    for at in np.ndindex(*(counts if few else kernel)):
        axes = zip(size, lengths, moves, starts, at, steps, strict=True)
        met = [_overlap(m, n, move, start + i * step) for m, n, move, start, i, step in axes]
        if all(met):
            these, inside = zip(*met, strict=True)  # type: ignore[arg-type]
            yield (these, at, inside) if few else (at, these, inside)


def few_windows(kernel, counts) -> bool:
    """Whether there are fewer windows than elements in one window."""
    return math.prod(counts) < math.prod(kernel)


def _overlap(size: int, count: int, step: int, start: int) -> tuple[slice, slice] | None:
    """The positions ``start + i * step``, i below `count`, that lie inside an axis: as slices of i and of the axis."""
    first = max(0, -(start // step))
    last = min(count, -((start - size) // step))
    if first >= last:
        return None
    begin = start + first * step
    return slice(first, last), slice(begin, begin + (last - first - 1) * step + 1, step)


def blocks(shape: tuple[int, ...], room: int) -> Iterator[tuple[slice, ...]]:
    """Blocks of at most `room` elements (at least one) that cover an array, with whole last axes where they fit."""
    if 0 in shape:
        return
    steps: list[int] = []
    for n in reversed(shape):
        step = max(1, min(n, room))
        room //= step
        steps.insert(0, step)
    yield from product(*([slice(i, min(i + s, n)) for i in range(0, n, s)] for n, s in zip(shape, steps, strict=True)))


def wide(x: Any) -> Any:
    """x, in float32 if it has 16-bit floats: sums of many products need the digits, and BLAS has no 16-bit kernel."""
    return x.astype("float32") if x.dtype.itemsize == 2 else x
