"""Windows that slide over the spatial axes of [n, c, *spatial]: their sizes, and a view of them."""

from __future__ import annotations

from typing import Any

from core.errors import ProgramError

__all__ = ["Pads", "pads_of", "reach", "sizes", "windows"]

Pads = tuple[tuple[int, int], ...]


def sizes(values: tuple[int, ...], count: int, what: str, least: int) -> tuple[int, ...]:
    """One size for each of `count` axes, from one for all or one each. Raises ProgramError (bad_attr)."""
    if len(values) == 1:
        values = values * count
    if len(values) != count or min(values) < least:
        raise ProgramError(f"{what} must be one or {count} sizes from {least}, not {list(values)}", "bad_attr")
    return values


def pads_of(values: tuple[int, ...], count: int) -> Pads:
    """(before, after) for each axis, from one size for all, one each, or two each."""
    if len(values) == 2 * count and min(values) >= 0:
        return tuple(zip(values[::2], values[1::2], strict=True))
    return tuple((n, n) for n in sizes(values, count, "paddings", 0))


def reach(size: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil: bool = False) -> int:
    """How many windows fit along one axis; -1 if the size is unknown."""
    if size == -1:
        return -1
    before, after = pads
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        raise ProgramError(f"a window of {dilation * (kernel - 1) + 1} does not fit into {size}", "shape_mismatch")
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:  # the last window must start inside
        count -= 1
    return count


def windows(xp: Any, x: Any, kernel, strides, pads: Pads, dilations=None, count=None, fill=0.0) -> Any:
    """A view of x [n, c, *spatial] as [n, c, *count, *kernel], padded with `fill`."""
    n = len(kernel)
    dilations = dilations or (1,) * n
    spans = tuple(d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    borders = []
    for i, (before, after) in enumerate(pads):
        if count is not None:  # windows that hang over the end need more padding
            after = max(after, (count[i] - 1) * strides[i] + spans[i] - x.shape[2 + i] - before)
        borders.append((before, after))
    if any(map(any, borders)):
        x = xp.pad(x, ((0, 0), (0, 0), *borders), constant_values=x.dtype.type(fill))
    view = xp.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, 2 + n)))
    steps = tuple(slice(None, None, s) for s in (*strides, *dilations))
    return view[(slice(None), slice(None), *steps)]
