"""Region pooling: boxes in images pooled to a fixed size, for detectors."""

from __future__ import annotations

import math
from functools import reduce
from typing import Annotated, Literal

import numpy as np

from core.ir import TensorType
from core.ir.bounds import Bounds
from core.ir.errors import CoreError, ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Positive, Span
from core.ops.common.types import matches
from core.ops.common.windows import sizes
from core.ops.elementwise.arithmetic import add, cast, maximum, stop_gradient
from core.ops.elementwise.logic import (
    greater_equal,
    greater_than,
    less_than,
    logical_and,
    logical_not,
    logical_or,
    where,
    where_or_zero,
)
from core.ops.elementwise.math import clip
from core.ops.indexing.gather import check_index, gather, in_range, slice_
from core.ops.reduction.statistics import reduce_any
from core.ops.reduction.sums import reduce_max, reduce_mean, reduce_sum
from core.ops.shape.agreeing import agreed
from core.ops.shape.broadcast import expand
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import divided, merged, reshape_as, transpose, unsqueeze
from core.ops.vision.grid import channel_rows, interpolate_rows

__all__: list[str] = []

MOST_BINS = 2**20
"""Most bins of one op: they are pooled one at a time, at some microseconds each."""


def _check(x, boxes, image, output_size: tuple[Span, ...], scale: float) -> tuple[int, int]:
    check_index(image, "image")
    if x.rank != 4 or -1 in x.shape[2:] or 0 in x.shape[2:] or boxes.rank != 2:
        raise ProgramError(f"needs [n, c, h, w] of known h and w, and boxes [r, 4], not {x}, {boxes}", "shape_mismatch")
    if boxes.shape[1] != 4 or boxes.dtype != x.dtype or not matches(image, TensorType(boxes.shape[:1], image.dtype)):
        raise ProgramError(f"needs {x.dtype} boxes [r, 4] and image [r], not {boxes} and {image}", "shape_mismatch")
    height, width = sizes(output_size, 2, "output_size", 1)
    return height, width


@composite
def roi_align(
    x,
    boxes,
    image,
    *,
    output_size: tuple[Span, ...],
    spatial_scale: Positive = 1.0,
    sampling_ratio: Annotated[int, Bounds(ge=0, le=64)] = 2,
    aligned: bool = True,
    mode: Literal["avg", "max"] = "avg",
):
    """Region pooling with bilinear sampling (He et al. 2017): each box is divided into bins, and each bin is a mean of
    samples.

    x is [n, c, h, w]. A row of boxes [r, 4] is (left, top, right, bottom); times `spatial_scale` it is in elements of
    x. `image` [r] is the index of the image of each box. The result is [r, c, height, width], where `output_size` is
    (height, width).
    A bin has `sampling_ratio` x `sampling_ratio` points, at ``top + (bottom - top) * (k + 0.5) / (height *
    sampling_ratio)`` for k = 0, 1, ... along the height, and likewise along the width. Up to one element outside the
    border, a point reads the border; further outside it reads 0.

    - `sampling_ratio`: 0 chooses the number of points for each box, along each axis the size of a bin, rounded up. A
      box without extent then gives 0.
    - `mode`: `avg` is the mean of the points. `max` is the largest product of an element of x with its weight at one of
      the points, as ONNX defines it.
    - `aligned`: if true, the centre of the first element is at 0.5; otherwise it is at 0, and a box is at least 1 wide
      and high.

    x and boxes get gradients. Where a point falls exactly on an element, the gradient of the box is one-sided.
    """
    height, width = _check(x.type, boxes.type, image.type, output_size, spatial_scale)
    boxes, image = agreed(boxes, image, (0, 0))
    scaled = boxes * spatial_scale - (0.5 if aligned else 0.0)

    def column(i):
        return slice_(scaled, axes=(1,), starts=(i,), ends=(i + 1,))

    starts, extents = [], []
    for axis in (0, 1):
        start = column(1 - axis)
        extent = column(3 - axis) - start
        starts.append(start)
        extents.append(extent if aligned else maximum(extent, full_like(extent, value=1.0)))
    if sampling_ratio == 0:
        return _adaptive(x, image, starts, extents, (height, width), mode)
    positions = []
    for start, extent, count in zip(starts, extents, (height, width), strict=True):
        fractions = x.builder.emit("range", start=0.5, end=float(count * sampling_ratio), dtype="float64")
        fractions = cast(fractions * (1.0 / (count * sampling_ratio)), dtype=x.dtype)
        positions.append(start + extent * fractions)  # [r, count * sampling_ratio]
    rows_down, columns_across = (v.shape[1] for v in positions)
    each = [
        merged(expand(unsqueeze(v, axes=(2 - i,)), shape=(-1, rows_down, columns_across)), 1, 3)
        for i, v in enumerate(positions)
    ]  # fmt: skip
    found = divided(_read(x, image, each, mode), 1, (height, sampling_ratio, width, sampling_ratio))
    pooled = (reduce_mean if mode == "avg" else reduce_max)(found, axes=(2, 4))
    return transpose(pooled, axes=(0, 3, 1, 2))


def _read(x, image, positions, mode):
    """x at the positions (down, right) [r, points] of each box: [r, points, c]."""
    spatial = x.shape[2:]
    rows, first = channel_rows(x)
    outside = [
        test(at, full_like(at, value=bound))
        for at, size in zip(positions, spatial, strict=True)
        for test, bound in ((less_than, -1.0), (greater_than, float(size)))  # both are false for NaN
    ]
    inside = logical_not(reduce(logical_or, outside))
    combine = add if mode == "avg" else maximum
    found = interpolate_rows(rows, gather(first, image), positions, spatial, padding_mode="border", combine=combine)
    return where_or_zero(unsqueeze(inside, axes=(2,)), found)


@op(no_gradient="it is constant between jumps", outputs=("fraction", "counted"))
def roi_fractions(xp, extent, *, count: Span):
    """For `roi_align`: the places of the points of `count` bins in an extent of 1, [r, count, points].

    A bin of box r has ``ceil(extent[r] / count)`` points. `counted` is false for the others, up to the largest number.
    """
    if extent.shape[1] != 1:
        raise ExecutionError(f"there must be one extent for each box, not {list(extent.shape)}", "shape_mismatch")
    host = np.asarray(extent.tolist(), "float64").reshape(-1)
    if not np.isfinite(host).all():
        raise ExecutionError("boxes must be finite", "not_finite")
    points = np.maximum(np.ceil(host / count), 0)
    most = max(points.max(initial=1), 1)
    if most * count * len(host) > MOST_BINS * 64:
        raise ExecutionError(f"a bin has {most:.0f} points: the boxes are too large for the image", "too_large")
    at = np.arange(int(most))
    fraction = (np.arange(count)[:, None] + (at + 0.5) / np.maximum(points, 1)[:, None, None]) / count
    counted = np.broadcast_to(at < points[:, None, None], fraction.shape)
    return xp.asarray(fraction.astype(extent.dtype)), xp.asarray(np.ascontiguousarray(counted))


@roi_fractions.infer
def roi_fractions_infer(extent, *, count):
    if extent.rank != 2 or extent.shape[1] not in (1, -1) or not extent.is_float:
        raise ProgramError(f"needs extents [r, 1], not {extent}", "shape_mismatch")
    shape = (extent.shape[0], count, -1)
    return TensorType(shape, extent.dtype), TensorType(shape, "bool")


roi_fractions.example(
    lambda: [
        Example((np.array([[1.5], [4.0]]),),
                (np.array([[[0.25, 0.75], [0.75, 1.25]], [[0.125, 0.375], [0.625, 0.875]]]),
                 np.array([[[True, False]] * 2, [[True, True]] * 2])), {"count": 2}),
        Example((np.zeros((0, 1)),), (np.zeros((0, 3, 1)), np.zeros((0, 3, 1), bool)), {"count": 3}),
    ]
)  # fmt: skip


def _adaptive(x, image, starts, extents, counts, mode):
    """`roi_align` with numbers of points that depend on the boxes."""
    positions, masks = [], []
    for k, (start, extent, count) in enumerate(zip(starts, extents, counts, strict=True)):
        fraction, counted = roi_fractions(stop_gradient(extent), count=count)
        own = (3, 4) if k == 0 else (1, 2)  # the places of the other axis in [r, height, points, width, points]
        at = unsqueeze(start, axes=(2,)) + unsqueeze(extent, axes=(2,)) * fraction
        positions.append(unsqueeze(at, axes=own))
        masks.append(unsqueeze(counted, axes=own))
    down, right = (a + fill_zeros_like(b) for a, b in (positions, positions[::-1]))
    counted = unsqueeze(logical_and(*masks), axes=(5,))
    each = [merged(v, 1, 5) for v in (down, right)]
    found = _read(x, image, each, mode)
    channels = fill_zeros_like(slice_(found, axes=(1,), starts=(0,), ends=(1,)))
    like = unsqueeze(fill_zeros_like(down), axes=(5,)) + unsqueeze(channels, axes=(1, 2, 3))
    found = reshape_as(found, like)
    if mode == "avg":
        number = reduce_sum(cast(counted, dtype=x.dtype), axes=(2, 4))
        out = reduce_sum(where_or_zero(counted, found), axes=(2, 4)) / clip(number, min=1.0)
    else:
        least = full_like(found, value=-math.inf)
        some = reduce_any(counted, axes=(2, 4))
        out = where_or_zero(some, reduce_max(where(counted, found, least), axes=(2, 4)))
    return transpose(out, axes=(0, 3, 1, 2))


@op(no_gradient="its result is an integer")
def roi_positions(xp, x, boxes, image, *, output_size: tuple[Span, ...], spatial_scale: Positive = 1.0):
    """For `roi_pool`: row-major position in x of the largest element of each bin, or -1 for an empty bin."""
    height, width = sizes(output_size, 2, "output_size", 1)
    n, c, h, w = x.shape
    _check_bins(len(boxes), (height, width), ExecutionError)
    out = xp.full((len(boxes), c, height, width), -1, "int64")
    corners = np.asarray(boxes.tolist(), "float64").reshape(-1, 4) * spatial_scale
    if not np.isfinite(corners).all():
        raise ExecutionError("boxes must be finite", "not_finite")
    edges = np.sign(corners) * np.floor(np.abs(corners) + 0.5)  # halves are rounded away from 0, as in C
    which = in_range(np, np.asarray(image.tolist(), "int64").reshape(-1), n)
    for k, (left, top, right, bottom) in enumerate(edges):
        downs, rights = _bins(top, bottom, height, h), _bins(left, right, width, w)
        for i, j in np.ndindex(height, width):
            (y0, y1), (x0, x1) = downs[i], rights[j]
            if y0 < y1 and x0 < x1:
                best = x[which[k], :, y0:y1, x0:x1].reshape(c, -1).argmax(1)
                place = (y0 + best // (x1 - x0)) * w + x0 + best % (x1 - x0)
                out[k, :, i, j] = (which[k] * c + xp.arange(c)) * h * w + place
    return out


def _check_bins(boxes: int, counts: tuple[int, int], error: type[CoreError]) -> None:
    if boxes * math.prod(counts) > MOST_BINS:
        code = "bad_attr" if error is ProgramError else "too_large"
        raise error(f"{boxes} boxes of {list(counts)} bins exceed the limit of {MOST_BINS} bins", code)


def _bins(start: float, end: float, count: int, size: int) -> list[tuple[int, int]]:
    """Start and end of each of the `count` bins of an axis. Both edges of a box belong to it."""
    extent = max(end - start + 1, 1.0) / count
    return [
        (
            int(min(max(math.floor(i * extent) + start, 0), size)),
            int(min(max(math.ceil((i + 1) * extent) + start, 0), size)),
        )
        for i in range(count)
    ]


@roi_positions.infer
def roi_positions_infer(x, boxes, image, *, output_size, spatial_scale):
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    counts = _check(x, boxes, image, output_size, spatial_scale)
    _check_bins(boxes.shape[0], counts, ProgramError)
    return TensorType((boxes.shape[0], x.shape[1], *counts), "int64")


@composite
def roi_pool(x, boxes, image, *, output_size: tuple[Span, ...], spatial_scale: Positive = 1.0):
    """Region pooling by maximum (Girshick 2015): each box is divided into bins, and each bin gives its largest
    element.

    x [n, c, h, w], boxes [r, 4], image [r] and `output_size` are as in `roi_align`, but corners are rounded to
    elements, and both corner elements belong to the box. Neighbouring bins may share elements. An empty bin gives 0.
    If several elements are equal, the first one gets the gradient. boxes get none.
    """
    at = roi_positions(stop_gradient(x), boxes, image, output_size=output_size, spatial_scale=spatial_scale)
    zero = fill_zeros_like(at)
    nonempty = greater_equal(at, zero)
    flat = merged(x, 0, 4)
    if flat.shape[0] == 0:
        return cast(zero, dtype=x.dtype)
    return where_or_zero(nonempty, gather(flat, where(nonempty, at, zero)))


def _align_points(x, boxes, image, height, width, scale=1.0, ratio=2, aligned=True, mode="avg"):
    """`roi_align` by its definition, one point at a time."""
    h, w = x.shape[2:]
    out = np.zeros((len(boxes), x.shape[1], height, width))

    def read(plane, v, u):
        if not (-1 <= v <= h and -1 <= u <= w):
            return 0.0
        v, u = min(max(v, 0), h - 1), min(max(u, 0), w - 1)
        r, s = min(int(v), max(h - 2, 0)), min(int(u), max(w - 2, 0))
        corners = [(a, b) for a in {r, min(r + 1, h - 1)} for b in {s, min(s + 1, w - 1)}]
        return (sum if mode == "avg" else max)(plane[a, b] * (1 - abs(v - a)) * (1 - abs(u - b)) for a, b in corners)

    for k, (left, top, right, bottom) in enumerate(np.asarray(boxes) * scale - (0.5 if aligned else 0)):
        rows_down, columns_across = bottom - top, right - left
        if not aligned:
            rows_down, columns_across = max(rows_down, 1), max(columns_across, 1)
        ratios = [ratio or max(math.ceil(e / n), 0) for e, n in ((rows_down, height), (columns_across, width))]
        for c, i, j in np.ndindex(x.shape[1], height, width):
            points = [
                (top + (i + (a + 0.5) / ratios[0]) * rows_down / height,
                 left + (j + (b + 0.5) / ratios[1]) * columns_across / width)
                for a, b in np.ndindex(*ratios)
            ]  # fmt: skip
            values = [read(x[image[k], c], v, u) for v, u in points]
            if values:
                out[k, c, i, j] = np.mean(values) if mode == "avg" else max(values)
    return out


def _pool_bins(x, boxes, image, height, width, scale=1.0):
    out = np.zeros((len(boxes), x.shape[1], height, width))
    for k, box in enumerate(boxes):
        left, top, right, bottom = (math.floor(v * scale + 0.5) for v in box)
        rows_down, columns_across = max(bottom - top + 1, 1) / height, max(right - left + 1, 1) / width
        for c, i, j in np.ndindex(out.shape[1:]):
            members = [
                x[image[k], c, v, u]
                for v, u in np.ndindex(x.shape[2:])
                if top + math.floor(i * rows_down) <= v < top + math.ceil((i + 1) * rows_down)
                and left + math.floor(j * columns_across) <= u < left + math.ceil((j + 1) * columns_across)
            ]
            out[k, c, i, j] = max(members, default=0.0)
    return out


_X = np.sin(np.arange(80.0) * 5 + 1).reshape(2, 2, 4, 5)
_BOXES = np.array([[0.37, 0.61, 4.13, 3.29], [1.83, 1.17, 3.91, 2.23], [3.3, 2.1, 8.7, 7.3]])
_IMAGE = np.array([1, 0, 1])
_SMALL = np.array([[0.7, 0.9, 1.13, 1.21]])
roi_align.example(
    lambda: [
        Example((_X, _BOXES, _IMAGE), (_align_points(_X, _BOXES, _IMAGE, 2, 3),), {"output_size": (2, 3)}),
        Example((_X, 2 * _BOXES[:2], _IMAGE[:2]), (_align_points(_X, 2 * _BOXES[:2], _IMAGE[:2], 1, 2, 0.5, 3, False),),
                {"output_size": (1, 2), "spatial_scale": 0.5, "sampling_ratio": 3, "aligned": False}),
        Example((_X, _SMALL, _IMAGE[:1]), (_align_points(_X, _SMALL, _IMAGE[:1], 2, 2, 1.0, 1, False),),
                {"output_size": (2,), "sampling_ratio": 1, "aligned": False}),
        Example((_X, _BOXES[:0], _IMAGE[:0]), (np.zeros((0, 2, 2, 2)),), {"output_size": (2,)}),
        Example((_X, _BOXES, _IMAGE), (_align_points(_X, _BOXES, _IMAGE, 1, 2, 1.0, 0),),
                {"output_size": (1, 2), "sampling_ratio": 0}),
        Example((_X, _BOXES[:, [2, 1, 0, 3]], _IMAGE), (np.zeros((3, 2, 1, 2)),),
                {"output_size": (1, 2), "sampling_ratio": 0}, smooth=False),
        Example((_X, _BOXES, _IMAGE), (_align_points(_X, _BOXES, _IMAGE, 2, 3, mode="max"),),
                {"output_size": (2, 3), "mode": "max"}),
        Example((_X, _BOXES[:2], _IMAGE[:2]), (_align_points(_X, _BOXES[:2], _IMAGE[:2], 1, 1, 1.0, 0, False, "max"),),
                {"output_size": (1,), "sampling_ratio": 0, "aligned": False, "mode": "max"}),
    ]
)  # fmt: skip
roi_positions.example(
    lambda: [
        Example((_X[:, :1], np.array([[1.0, 1, 2, 2], [-9, -9, -8, -8]]), np.array([0, 1])),
                (np.array([[[[int(max((_X[0, 0].flat[i], i) for i in (6, 7, 11, 12))[1])]]], [[[-1]]]]),),
                {"output_size": (1,)}),
    ]
)  # fmt: skip
roi_pool.example(
    lambda: [
        Example((_X, _BOXES, _IMAGE), (_pool_bins(_X, _BOXES, _IMAGE, 2, 3),), {"output_size": (2, 3)}),
        Example((_X, 2 * _BOXES[:2], _IMAGE[:2]), (_pool_bins(_X, 2 * _BOXES[:2], _IMAGE[:2], 3, 2, 0.5),),
                {"output_size": (3, 2), "spatial_scale": 0.5}),
        Example((_X, _BOXES[:0], _IMAGE[:0]), (np.zeros((0, 2, 2, 2)),), {"output_size": (2,)}),
    ]
)  # fmt: skip
