"""Columns of windows as slices, or as a transposition, where that is possible: memory is read in order.

If a window begins at every element, the elements of one place in the windows are a slice of the image, shifted by that
place. So the columns of `unfold` are slices side by side, and `fold` adds slices up, along one axis after the other.
Windows side by side divide each axis.
"""

from __future__ import annotations

import math

from core.ops.indexing.gather import slice_, slice_into
from core.ops.reduction.sums import sum_
from core.ops.shape.concat_split import stack
from core.ops.shape.creation import fill_constant_batch_size_like
from core.ops.shape.reshape import divided, merged, rearranged, squeeze

__all__ = ["columns_of", "columns_of_tiles", "counts_of", "image_of", "image_of_tiles", "tiles_of"]

MOST_SHIFTS = 16
"""Most elements of a window along an axis."""


def counts_of(
    sizes: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The number of windows along each axis; None unless they begin at every element and have few elements."""
    found = tuple(n - d * (k - 1) for n, k, d in zip(sizes, kernel, dilations, strict=True))
    return found if max(strides) == 1 and max(kernel) <= MOST_SHIFTS and min(found) > 0 else None


def columns_of(x, kernel: tuple[int, ...], dilations: tuple[int, ...], counts: tuple[int, ...]):
    """Windows of x [n, c, *sizes] as columns [n, c * elements of a window, windows]."""
    rank = len(kernel)
    axis = 1 + rank  # of the next axis, too: the new axis of places moves it there
    for i in reversed(range(rank)):
        starts = (place * dilations[i] for place in range(kernel[i]))
        parts = (slice_(x, axes=(axis,), starts=(start,), ends=(start + counts[i],)) for start in starts)
        x = stack(*parts, axis=2)
    return merged(merged(x, 2 + rank, 2 + 2 * rank), 1, 2 + rank)


def image_of(x, sizes: tuple[int, ...], kernel: tuple[int, ...], dilations: tuple[int, ...], counts: tuple[int, ...]):
    """Columns [n, c * elements of a window, windows] summed into [n, c, *sizes]: the transpose of `columns_of`."""
    rank = len(kernel)
    x = divided(x, 2, counts)
    x = divided(x, 1, (x.shape[1] // math.prod(kernel), *kernel))
    axis = 1 + rank  # of the next axis, too: each sum takes an axis of places away
    for i in range(rank):
        whole = [*x.shape[:2], *x.shape[3:]]
        whole[axis] = sizes[i]
        like = fill_constant_batch_size_like(x, shape=tuple(whole), dtype=x.dtype)
        parts = []
        for place in range(kernel[i]):
            part = squeeze(slice_(x, axes=(2,), starts=(place,), ends=(place + 1,)), axes=(2,))
            start = place * dilations[i]
            parts.append(slice_into(part, like, axes=(axis,), starts=(start,), ends=(start + counts[i],)))
        x = sum_(*parts) if len(parts) > 1 else parts[0]
    return x


def tiles_of(
    sizes: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The number of windows along each axis if they are tiles, side by side up to the ends; None if they are not."""
    if strides != kernel or max(dilations) > 1 or any(n % k or n < 1 for n, k in zip(sizes, kernel, strict=True)):
        return None
    return tuple(n // k for n, k in zip(sizes, kernel, strict=True))


def columns_of_tiles(x, kernel: tuple[int, ...], counts: tuple[int, ...]):
    """The columns of windows that are tiles: they touch, and do not overlap (see `columns_of`)."""
    rank = len(kernel)
    parts = ((x.shape[0],), (x.shape[1],), *zip(counts, kernel, strict=True))
    order = (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    return rearranged(x, parts, order, (1, 1 + rank, rank))


def image_of_tiles(x, kernel: tuple[int, ...], counts: tuple[int, ...]):
    """The image with these columns of tiles (see `image_of`)."""
    rank = len(kernel)
    parts = ((x.shape[0],), (x.shape[1] // math.prod(kernel), *kernel), counts)
    places = tuple(at for i in range(rank) for at in (2 + rank + i, 2 + i))
    return rearranged(x, parts, (0, 1, *places), (1, 1, *(2 for _ in range(rank))))
