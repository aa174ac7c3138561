"""Sampling of images and volumes at given positions."""

from __future__ import annotations

import math
from functools import reduce
from itertools import product
from typing import Any, Literal

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.elementwise.arithmetic import add, cast, maximum, minimum, stop_gradient
from core.ops.elementwise.logic import equal, where, where_or_zero
from core.ops.elementwise.math import clip
from core.ops.elementwise.rounding import floor, mod, round_
from core.ops.indexing.gather import gather, slice_
from core.ops.linalg.matmul import matmul
from core.ops.reduction.sums import sum_
from core.ops.shape.agreeing import shaped
from core.ops.shape.broadcast import expand
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import full_like
from core.ops.shape.reshape import divided, merged, reshape, reshape_as, squeeze, transpose, unsqueeze
from core.ops.vision.resample import cubic_weights

__all__ = ["channel_rows", "interpolate_rows"]

IMAGE = np.sin(np.arange(12.0) * 4).reshape(1, 2, 2, 3)


def _coordinates(b, count: int, align_corners: bool):
    """Coordinates of `count` elements from -1 to 1."""
    end = 1.0 if align_corners else 1.0 - 1.0 / count
    return b.emit("linspace", start=-end if count > 1 else 0.0, stop=end, num=count, dtype="float64")


@composite
def affine_grid(theta, *, size: tuple[int, ...], align_corners: bool = True):
    """Sampling grid of an affine map, for `grid_sample` (Jaderberg et al. 2015): ``out[n, i, j] = theta[n] @ (x[j],
    y[i], 1)``.

    theta [n, 2, 3] and `size` (h, w) give a grid [n, h, w, 2]. theta [n, 3, 4] and (d, h, w) give [n, d, h, w, 3].

    - `align_corners`: whether the coordinates -1 and 1 are the centres of the corner elements, or the outer edges of
      the image.
    """
    k = len(size)
    fits = theta.rank == 3 and all(m in (n, -1) for m, n in zip(theta.shape[1:], (k, k + 1), strict=True))
    if k not in (2, 3) or not fits:
        raise ProgramError(
            f"affine_grid takes [n, 2, 3] with two sizes, or [n, 3, 4] with three, not {theta.type}, {list(size)}",
            "shape_mismatch",
        )
    if min(size) < 1:
        raise ProgramError(f"sizes must be at least 1, not {list(size)}", "bad_attr")
    theta = shaped(theta, (-1, k, k + 1))
    parts = []
    for axis in reversed(range(k)):  # coordinate x comes first, and belongs to the last axis of an image
        others = tuple(i for i in range(k + 1) if i != axis)
        line = unsqueeze(_coordinates(theta.builder, size[axis], align_corners), axes=others)
        parts.append(expand(line, shape=(*size, 1)))
    points = concat(*parts, full_like(parts[0], value=1.0), axis=k)
    points = cast(reshape(points, shape=(math.prod(size), k + 1)), dtype=theta.dtype)
    out = matmul(points, theta, transpose_y=True)
    return reshape(out, shape=(theta.shape[0], *size, k))


def _affine(theta, h, w, align):
    ys = np.linspace(-1, 1, h) if align else (2 * np.arange(h) + 1) / h - 1
    xs = np.linspace(-1, 1, w) if align else (2 * np.arange(w) + 1) / w - 1
    grid = np.stack([*np.meshgrid(xs, ys), np.ones((h, w))], -1)
    return np.einsum("hwk,njk->nhwj", grid, theta)


def _affine_3d(theta, d, h, w):
    out = np.zeros((theta.shape[0], d, h, w, 3))
    for n, i, j, k in np.ndindex(*out.shape[:4]):
        place = [2 * at / (count - 1) - 1 if count > 1 else 0.0 for at, count in ((k, w), (j, h), (i, d))]
        out[n, i, j, k] = theta[n] @ [*place, 1]
    return out


THETA = np.array([[[1.0, 0.2, 0.1], [-0.3, 0.9, 0.0]], [[0.5, 0.0, 0.3], [0.1, 0.7, -0.2]]])
SOLID = np.cos(np.arange(12.0) * 2).reshape(1, 3, 4)
affine_grid.example(
    lambda: [
        Example((THETA,), (_affine(THETA, 2, 3, True),), {"size": (2, 3)}),
        Example((THETA[:1],), (_affine(THETA[:1], 3, 2, False),), {"size": (3, 2), "align_corners": False}),
        Example((SOLID,), (_affine_3d(SOLID, 2, 1, 3),), {"size": (2, 1, 3)}),
        Example((THETA[:0],), (np.zeros((0, 2, 2, 2)),), {"size": (2, 2)}),
    ]
)


def _reflected(at, low: float, high: float):
    """Positions outside [low, high], reflected into it."""
    span = high - low
    if span <= 0:
        return full_like(at, value=low)
    distance = mod(at - low, full_like(at, value=2 * span))
    return minimum(distance, 2 * span - distance) + low


def channel_rows(x):
    """The elements of x [n, c, *spatial] as rows of all channels, and the index of the first row of each sample."""
    n, volume = x.shape[0], math.prod(x.shape[2:])
    rows = merged(transpose(merged(x, 2, x.rank), axes=(0, 2, 1)), 0, 2)
    if n == -1:
        return rows, x.builder.emit("roll_positions", x, shift=0, axis=0) * float(volume)
    return rows, x.builder.emit("range", start=0.0, end=float(n * volume), step=float(volume), dtype="int64")


def interpolate_rows(
    rows, first, positions, spatial, mode="bilinear", padding_mode="zeros", align_corners: bool = True, combine=add
):
    """Rows interpolated at fractional positions: [m, points, c].

    combine: of two weighted elements. Their sum is the interpolated value.

    first: [m], the index in `rows` of the first row of each image.
    positions: one array [m, points] per axis of `spatial`, in its order, with positions in units of elements.
    """
    axes, step = [], 1
    for at, size in zip(reversed(positions), reversed(spatial), strict=True):
        taps = _axis_taps(at, size, mode, padding_mode, align_corners)
        axes.append([(clamped * float(step), inside, weight) for clamped, inside, weight in taps])
        step *= size

    def read(corner):
        index = unsqueeze(first, axes=(1,))
        for clamped, _, _ in corner:
            index = index + clamped
        found = gather(rows, index, axis=0)  # [m, points, c]
        for _, inside, _ in corner:
            if inside is not None:
                found = where_or_zero(unsqueeze(inside, axes=(2,)), found)
        for _, _, weight in corner:
            if weight is not None:
                found = found * unsqueeze(weight, axes=(2,))
        return found

    parts = [read(corner) for corner in product(*axes)]
    if combine is not add:
        return reduce(combine, parts)
    return sum_(*parts) if len(parts) > 1 else parts[0]


def _axis_taps(at, size: int, mode, padding_mode, align_corners: bool):
    """The taps along one axis for the positions `at` [n, points], which are in units of elements.

    Each tap has an index, a mask of positions inside the axis (None: all are inside), and a weight (None: 1).
    """

    def reflected(v):
        return _reflected(v, 0.0, size - 1.0) if align_corners else _reflected(v, -0.5, size - 0.5)

    reflect = padding_mode == "reflection"
    if mode == "bicubic":
        if not reflect:  # clipping changes nothing: further outside, all four taps read border or zeros
            at = clip(at, min=-3.0, max=size + 2.0)
        low = floor(at)
        weights = cubic_weights(at - low)
        positions = [low + float(i) for i in (-1, 0, 1, 2)]
        positions = [reflected(each) for each in positions] if reflect else positions
    else:
        at = reflected(at) if reflect else at
        zeros = padding_mode == "zeros"
        at = clip(at, min=-1.0 if zeros else 0.0, max=float(size) if zeros else size - 1.0)
        if mode == "nearest":
            positions, weights = [round_(at)], (None,)
        else:
            low = floor(at)
            positions, weights = [low, low + 1.0], (1.0 - (at - low), at - low)
    taps = []
    for place, weight in zip(positions, weights, strict=True):
        place = stop_gradient(place)
        number = where(equal(place, place), place, full_like(place, value=-1.0))  # a NaN counts as a position outside
        index = cast(number, dtype="int64")  # integers from here on: half precision cannot represent large positions
        clamped = minimum(maximum(index, full_like(index, value=0.0)), full_like(index, value=size - 1.0))
        taps.append((clamped, equal(clamped, index) if padding_mode == "zeros" else None, weight))
    return taps


@composite
def grid_sample(
    x,
    grid,
    *,
    mode: Literal["bilinear", "nearest", "bicubic"] = "bilinear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = True,
):
    """x sampled at the positions in `grid` (Jaderberg et al. 2015): ``out[n, c, i, j]`` is x[n, c] at (x, y) = grid[n,
    i, j].

    An image is [n, c, h, w]. A volume [n, c, d, h, w] is sampled at (x, y, z) = grid[n, i, j, k].

    - `mode`: `bilinear` is trilinear for volumes; `bicubic` (a = -0.75) is for images only.
    - `align_corners`: whether the coordinates -1 and 1 are the centres of the corner elements, or the outer edges of
      the image.
    - `padding_mode`: positions outside read zeros, the nearest border element, or the reflected image.

    x gets a gradient; grid gets one unless the mode is `nearest`. Where a position falls exactly on an element, the
    gradient of the grid is one-sided. A NaN in the grid gives NaN; with `nearest` it counts as a position outside.
    """
    k = x.rank - 2
    points = grid.shape[1:-1]
    if k not in (2, 3) or grid.rank != x.rank or -1 in x.shape[2:] or points.count(-1) > 1 or grid.shape[-1] != k:
        raise ProgramError(
            f"grid_sample needs x [n, c, h, w] and grid [n, i, j, 2], or x [n, c, d, h, w] and grid [n, i, j, k, 3], "
            f"with known sizes of the image and at most one unknown size of the grid, not {x.type} and {grid.type}",
            "shape_mismatch",
        )
    if mode == "bicubic" and k == 3:
        raise ProgramError("mode bicubic is for images, not volumes", "bad_attr")
    n, _, *spatial = x.shape
    if (grid.shape[0] != n and -1 not in (n, grid.shape[0])) or 0 in spatial:
        raise ProgramError(f"cannot sample {x.type} at {grid.type}", "shape_mismatch")
    flat = merged(grid, 1, grid.rank - 1)
    rows, first = channel_rows(x)
    if n == -1 or grid.shape[0] == -1:  # the run checks that there is one grid for each image
        first = reshape_as(first, x.builder.emit("roll_positions", grid, shift=0, axis=0))
    positions: list[Any] = []
    for i, size in enumerate(reversed(spatial)):
        at = squeeze(slice_(flat, axes=(2,), starts=(i,), ends=(i + 1,)), axes=(2,))
        positions.insert(0, (at + 1.0) * ((size - 1) / 2) if align_corners else (at + 1.0) * (size / 2) - 0.5)
    out = interpolate_rows(rows, first, positions, spatial, mode, padding_mode, align_corners)
    return divided(transpose(out, axes=(0, 2, 1)), 2, points)


def _tap_weights(t, mode):
    """Offsets and weights of the elements around a position `t` after an element, by definition."""
    if mode == "bicubic":
        distances = [(i, abs(t - i)) for i in (-1, 0, 1, 2)]
        return [
            (i, (1.25 * d - 2.25) * d * d + 1 if d <= 1 else -0.75 * (d**3 - 5 * d * d + 8 * d - 4))
            for i, d in distances
        ]
    return [(0, 1 - t), (1, t)]


def _sampled(x, grid, mode="bilinear", padding="zeros", align=True):
    """The op by its definition, one position at a time."""
    n, c, *spatial = x.shape
    k = len(spatial)
    out = np.zeros((n, c, *grid.shape[1:-1]))

    def inside(at, size):
        low, high = (0, size - 1) if align else (-0.5, size - 0.5)
        while padding == "reflection" and not low <= at <= high:
            at = 2 * low - at if at < low else 2 * high - at
        return at if padding == "zeros" else min(max(at, 0), size - 1)

    for b, *point in np.ndindex(n, *grid.shape[1:-1]):
        taps = []
        for v, size in zip(grid[(b, *point)][::-1], spatial, strict=True):
            at = (v + 1) * (size - 1) / 2 if align else ((v + 1) * size - 1) / 2
            if mode != "bicubic":
                at = inside(at, size)
            if mode == "nearest":
                taps.append([(round(at), 1.0)])
                continue
            low = math.floor(at)
            taps.append([(low + i, w) for i, w in _tap_weights(at - low, mode)])
            if mode == "bicubic":
                taps[-1] = [(inside(i, size), w) for i, w in taps[-1]]
        for corner in product(*taps):
            positions = [round(i) for i, _ in corner]
            if all(0 <= i < size for i, size in zip(positions, spatial, strict=True)):
                out[(b, slice(None), *point)] += x[(b, slice(None), *positions)] * math.prod(w for _, w in corner)
    assert k == grid.shape[-1]
    return out


_GRID = np.array([[[[-0.93, 0.31], [0.47, -0.71]], [[1.43, 0.83], [-1.57, -1.21]]]])
_VOLUME, _PLACES = IMAGE[:, :, None].repeat(2, 2) * [[[[1.0]], [[-0.4]]]], np.array([[[[[0.13, -0.31, 0.57]]]]])


def _grid_examples():
    yield Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID),))
    reflect = {"padding_mode": "reflection", "align_corners": False}
    yield Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID, "bilinear", "reflection", False),), reflect)
    yield Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID, "bilinear", "border"),), {"padding_mode": "border"})
    yield Example((IMAGE, _GRID[:, :1]), (_sampled(IMAGE, _GRID[:, :1], "nearest"),), {"mode": "nearest"})
    for padding in ("zeros", "border", "reflection"):
        wanted = _sampled(IMAGE, _GRID, "bicubic", padding, False)
        yield Example((IMAGE, _GRID), (wanted,), {"mode": "bicubic", "padding_mode": padding, "align_corners": False})
    yield Example((_VOLUME, _PLACES), (_sampled(_VOLUME, _PLACES),))
    yield Example(
        (_VOLUME, 3 * _PLACES),
        (_sampled(_VOLUME, 3 * _PLACES, "bilinear", "reflection"),),
        {"padding_mode": "reflection"},
    )
    yield Example((IMAGE[:0], _GRID[:0]), (np.zeros((0, 2, 2, 2)),))
    yield Example((IMAGE, _GRID[:, :0]), (np.zeros((1, 2, 0, 2)),))


grid_sample.example(_grid_examples)
