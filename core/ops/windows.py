"""Windows that slide over the last two axes of an image: their sizes, and a view of them."""

from __future__ import annotations

from typing import Any

from core.errors import ProgramError

__all__ = ["Pads", "pads_of", "pair", "reach", "windows"]

Pads = tuple[int, int, int, int]


def pair(values: tuple[int, ...], what: str, least: int) -> tuple[int, int]:
    """Two sizes, for height and width. Raises ProgramError (bad_attr)."""
    if len(values) == 1:
        values = (values[0], values[0])
    if len(values) != 2 or min(values) < least:
        raise ProgramError(f"{what} must be one or two sizes from {least}, not {list(values)}", "bad_attr")
    return values[0], values[1]


def pads_of(values: tuple[int, ...]) -> Pads:
    """(top, bottom, left, right)."""
    if len(values) == 4 and min(values) >= 0:
        return values[0], values[1], values[2], values[3]
    h, w = pair(values, "paddings", 0)
    return h, h, w, w


def reach(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """How many windows fit along one axis; -1 if the size is unknown."""
    if size == -1:
        return -1
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        raise ProgramError(f"a window of {dilation * (kernel - 1) + 1} does not fit into {size}", "shape_mismatch")
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:  # the last window must start inside
        count -= 1
    return count


def windows(xp: Any, x: Any, kernel, strides, pads: Pads, dilations=(1, 1), count=None, fill=0.0) -> Any:
    """A view of x [n, c, h, w] as [n, c, out_h, out_w, kernel_h, kernel_w], padded with `fill`."""
    spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    bottom, right = pads[1], pads[3]
    if count is not None:  # windows that hang over the end need more padding
        bottom = max(bottom, (count[0] - 1) * strides[0] + spans[0] - x.shape[2] - pads[0])
        right = max(right, (count[1] - 1) * strides[1] + spans[1] - x.shape[3] - pads[2])
    if any((pads[0], bottom, pads[2], right)):
        x = xp.pad(x, ((0, 0), (0, 0), (pads[0], bottom), (pads[2], right)), constant_values=x.dtype.type(fill))
    view = xp.lib.stride_tricks.sliding_window_view(x, tuple(spans), axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
