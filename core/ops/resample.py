"""Resampling of images: resizing by fixed factors, and reading at positions that other arrays hold."""

from __future__ import annotations

import math
from itertools import product
from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import as_dtype
from core.registry import Dtype, Example, composite, lookup, op

__all__: list[str] = []

Mode = Literal["nearest", "linear", "cubic"]
CUBIC = -0.75
"""The parameter of Keys' kernel (1981) that PyTorch, OpenCV and Paddle use."""


def _cubic(t):
    """Keys' weights of the four elements around a place `t` behind the second of them; t an array or a symbol."""

    def near(d):
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1.0

    def far(d):
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)


def _source(size: int, out: int, align_corners: bool, from_first: bool) -> np.ndarray:
    """Where in the input each output element lies, in units of input elements."""
    at = np.arange(out, dtype=np.float64)
    if align_corners:
        return at * ((size - 1) / max(out - 1, 1))
    return at * (size / out) if from_first else (at + 0.5) * (size / out) - 0.5


def _taps(size: int, out: int, mode: Mode, align_corners: bool, align_mode: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each output element is the weighted sum of: (positions, weights), both [out], one pair for each tap.

    What falls beyond the border takes the border's element.
    """
    at = np.arange(out)
    if mode == "nearest":  # in whole numbers: a rounded quotient may fall on the wrong side
        span = max(out - 1, 1)
        first = (2 * at * (size - 1) + span) // (2 * span) if align_corners else at * size // out
        return [(np.minimum(first, size - 1), np.ones(out))]
    where = _source(size, out, align_corners, mode == "linear" and align_mode == 1)
    if mode == "linear":
        where = np.maximum(where, 0.0)
    first = np.floor(where).astype(int)
    t = where - first
    weights = (1 - t, t) if mode == "linear" else _cubic(t)
    begin = first if mode == "linear" else first - 1
    return [(np.clip(begin + i, 0, size - 1), weight) for i, weight in enumerate(weights)]


TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@op(no_gradient="it is a constant")
def resize_weights(
    xp, *, size: int, out: int, mode: Mode, align_corners: bool = False, align_mode: int = 0, dtype: Dtype = "float32"
):
    """The matrix [size, out] by which an axis of `size` elements is resized to `out`; see `interpolate`."""
    matrix = np.zeros((size, out))
    for at, weight in _taps(size, out, mode, align_corners, align_mode):
        np.add.at(matrix, (at, np.arange(out)), weight)
    return xp.asarray(matrix.astype(as_dtype(dtype)))


def _check_resize(size: int, out: int, align_mode: int, dtype: str) -> None:
    if size < 1 or out < 1 or align_mode not in (0, 1) or dtype not in ("float32", "float64"):
        raise ProgramError(f"cannot resize {size} elements to {out}", "bad_attr")


@resize_weights.infer
def resize_weights_infer(*, size, out, mode, align_corners, align_mode, dtype):
    _check_resize(size, out, align_mode, dtype)
    return TensorType((size, out), dtype)


resize_weights.example(
    lambda: [
        Example((), (np.eye(2),), {"size": 2, "out": 2, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([[1, 0.75, 0.25, 0], [0, 0.25, 0.75, 1]]),),
                {"size": 2, "out": 4, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1.0]]),),
                {"size": 3, "out": 5, "mode": "nearest", "dtype": "float64"}),
    ]
)  # fmt: skip


@op(no_gradient="it is a constant", outputs=("index", "weight"))
def resize_tap(
    xp,
    *,
    size: int,
    out: int,
    tap: int,
    mode: Mode,
    align_corners: bool = False,
    align_mode: int = 0,
    dtype: Dtype = "float32",
):
    """Element number `tap` of those that each of `out` elements is a weighted sum of: its position and its weight."""
    at, weight = _taps(size, out, mode, align_corners, align_mode)[tap]
    return xp.asarray(at.astype("int64")), xp.asarray(weight.astype(as_dtype(dtype)))


@resize_tap.infer
def resize_tap_infer(*, size, out, tap, mode, align_corners, align_mode, dtype):
    _check_resize(size, out, align_mode, dtype)
    if not 0 <= tap < TAPS[mode]:
        raise ProgramError(f"{mode} has no tap {tap}", "bad_attr")
    return TensorType((out,), "int64"), TensorType((out,), dtype)


resize_tap.example(
    lambda: [
        Example((), (np.array([0, 0, 0, 1]), np.array([1, 0.75, 0.25, 0.75])),
                {"size": 2, "out": 4, "tap": 0, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([1, 1, 1, 1]), np.array([0, 0.25, 0.75, 0.25])),
                {"size": 2, "out": 4, "tap": 1, "mode": "linear", "dtype": "float64"}),
    ]
)  # fmt: skip


DENSE = 2**20
"""The most elements of a matrix that resizes an axis; on long lines, unlike images, it would grow too large."""


def _resized(x, axis: int, out: int, how):
    """x with one axis resized; how: mode, align_corners, align_mode."""
    size = x.shape[axis]
    order = (*(i for i in range(x.rank) if i != axis), axis)
    if size * out <= DENSE:
        weights = lookup("cast")(
            x.builder.emit("resize_weights", size=size, out=out, dtype="float64", **how), dtype=x.dtype
        )
        turned = lookup("matmul")(lookup("transpose")(x, axes=order), weights)
        return lookup("transpose")(turned, axes=tuple(order.index(i) for i in range(x.rank)))
    parts = []
    for tap in range(TAPS[how["mode"]]):
        at, weight = x.builder.emit("resize_tap", size=size, out=out, tap=tap, dtype="float64", **how)
        weight = lookup("unsqueeze")(lookup("cast")(weight, dtype=x.dtype), axes=tuple(range(1, x.rank - axis)))
        parts.append(lookup("gather")(x, at, axis=axis) * weight)
    return x.builder.emit("sum", *parts)


@composite
def interpolate(
    x,
    *,
    size: tuple[int, ...] | None = None,
    scale_factor: tuple[float, ...] | None = None,
    mode: Mode = "nearest",
    align_corners: bool = False,
    align_mode: int = 0,
):
    """x [n, c, *spatial] resized to `size`, or by `scale_factor` (rounded down), over one to three spatial axes.

    mode: nearest, linear (on images bilinear, on volumes trilinear) or cubic (on images bicubic, a = -0.75).
    align_corners: the corners of input and output coincide; otherwise, with align_mode 0, elements are areas and their
    outer edges coincide, with align_mode 1 (linear only) the first elements do. The gradient is the transpose.
    """
    n = x.rank - 2
    if not 1 <= n <= 3 or -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"needs 1 to 3 spatial axes of known sizes above 0, not {x.type}", "shape_mismatch")
    if (size is None) == (scale_factor is None):
        raise ProgramError("give either size or scale_factor", "bad_attr")
    if scale_factor is not None:
        if not all(map(math.isfinite, scale_factor)):
            raise ProgramError(f"scale_factor must be finite, not {list(scale_factor)}", "bad_attr")
        factors = scale_factor * n if len(scale_factor) == 1 else scale_factor
        size = tuple(math.floor(m * f) for m, f in zip(x.shape[2:], factors, strict=False))
    assert size is not None
    if len(size) == 1:
        size = size * n
    if len(size) != n or min(size) < 1:
        raise ProgramError(f"the output sizes {list(size)} do not fit {x.type}", "bad_attr")
    how = {"mode": mode, "align_corners": align_corners, "align_mode": align_mode}
    for axis, out in enumerate(size, start=2):
        if out != x.shape[axis]:
            x = _resized(x, axis, out, how)
    return x


IMAGE = np.sin(np.arange(12.0) * 4).reshape(1, 2, 2, 3)
LINE = np.cos(np.arange(8.0) * 3).reshape(1, 2, 4)


def _linear(x, out, align):
    """One axis, by the definition."""
    size = x.shape[-1]
    result = np.zeros((*x.shape[:-1], out))
    for i in range(out):
        at = i * (size - 1) / (out - 1) if align else max((i + 0.5) * size / out - 0.5, 0)
        low = min(int(at), size - 1)
        high = min(low + 1, size - 1)
        result[..., i] = x[..., low] * (1 - at + low) + x[..., high] * (at - low)
    return result


def _both(x, h, w, align):
    return _linear(_linear(x, w, align).swapaxes(2, 3), h, align).swapaxes(2, 3)


def _bicubic_line(x, out):
    """Keys' kernel applied to distances, edges repeated."""
    size = x.shape[-1]
    result = np.zeros((*x.shape[:-1], out))
    for i in range(out):
        at = (i + 0.5) * size / out - 0.5
        for k in range(math.floor(at) - 1, math.floor(at) + 3):
            d = abs(at - k)
            weight = (1.25 * d - 2.25) * d * d + 1 if d <= 1 else -0.75 * (d**3 - 5 * d * d + 8 * d - 4)
            result[..., i] += weight * x[..., min(max(k, 0), size - 1)]
    return result


def _from_first(x, out):
    """Linear, the first elements coinciding."""
    result = np.zeros((*x.shape[:-1], out))
    for i in range(out):
        at = i * x.shape[-1] / out
        low, high = int(at), min(int(at) + 1, x.shape[-1] - 1)
        result[..., i] = x[..., low] * (1 - at + low) + x[..., high] * (at - low)
    return result


interpolate.example(
    lambda: [
        Example((IMAGE,), (IMAGE.repeat(2, 2).repeat(2, 3),), {"scale_factor": (2.0,)}),
        Example((IMAGE,), (_both(IMAGE, 3, 5, False),), {"size": (3, 5), "mode": "linear"}),
        Example((IMAGE,), (_both(IMAGE, 4, 2, True),), {"size": (4, 2), "mode": "linear", "align_corners": True}),
        Example((LINE,), (_bicubic_line(LINE, 7),), {"size": (7,), "mode": "cubic"}),
        Example((LINE,), (_from_first(LINE, 6),), {"size": (6,), "mode": "linear", "align_mode": 1}),
        Example((IMAGE[:, :, None],), (_both(IMAGE, 3, 5, False)[:, :, None],), {"size": (1, 3, 5), "mode": "linear"}),
        Example((IMAGE[:0],), (np.zeros((0, 2, 4, 6)),), {"scale_factor": (2.0, 2.0)}),
    ]
)  # fmt: skip


# --- reading at given positions --------------------------------------------------------------------------------


def _line(b, count: int, align_corners: bool):
    """The positions of `count` elements from -1 to 1."""
    end = 1.0 if align_corners else 1.0 - 1.0 / count
    return b.emit("linspace", start=-end if count > 1 else 0.0, stop=end, num=count, dtype="float64")


@composite
def affine_grid(theta, *, size: tuple[int, ...], align_corners: bool = True):
    """The positions at which the affine map `theta` reads an image, for `grid_sample` (Jaderberg et al. 2015).

    theta [n, 2, 3] and `size` (h, w) give ``out[n, i, j] = theta[n] @ (x[j], y[i], 1)``, [n, h, w, 2]; theta [n, 3, 4]
    and (d, h, w) give [n, d, h, w, 3] likewise. x and y go from -1 to 1 over the output: at the centres of the corner
    elements, or, without `align_corners`, at the outer edges.
    """
    k = len(size)
    fits = theta.rank == 3 and all(m in (n, -1) for m, n in zip(theta.shape[1:], (k, k + 1), strict=True))
    if k not in (2, 3) or not fits:
        raise ProgramError(
            f"affine_grid takes [n, 2, 3] and two sizes or [n, 3, 4] and three, not {theta.type}, {list(size)}",
            "shape_mismatch",
        )
    if min(size) < 1:
        raise ProgramError(f"sizes are at least 1, not {list(size)}", "bad_attr")
    parts = []
    for axis in reversed(range(k)):  # x comes first, and runs along the last axis of an image
        others = tuple(i for i in range(k + 1) if i != axis)
        line = lookup("unsqueeze")(_line(theta.builder, size[axis], align_corners), axes=others)
        parts.append(lookup("expand")(line, shape=(*size, 1)))
    points = lookup("concat")(*parts, lookup("full_like")(parts[0], value=1.0), axis=k)
    points = lookup("cast")(lookup("reshape")(points, shape=(math.prod(size), k + 1)), dtype=theta.dtype)
    out = lookup("matmul")(points, theta, transpose_y=True)
    return lookup("reshape")(out, shape=(theta.shape[0], *size, k))


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


def _folded(at, low: float, high: float):
    """Positions beyond [low, high] mirrored back into it."""
    span = high - low
    full = lookup("full_like")
    if span <= 0:
        return full(at, value=low)
    away = lookup("mod")(at - low, full(at, value=2 * span))
    return lookup("minimum")(away, 2 * span - away) + low


def _on_axis(at, size: int, mode, padding_mode, align_corners: bool):
    """What is read along one axis at the positions `at` [n, points], in units of elements.

    For each tap its index, whether there is an element (None: always), and its weight (None: 1).
    """
    full, cast = lookup("full_like"), lookup("cast")

    def folded(v):
        return _folded(v, 0.0, size - 1.0) if align_corners else _folded(v, -0.5, size - 0.5)

    mirrored = padding_mode == "reflection"
    if mode == "bicubic":
        if not mirrored:  # further out everything read is border, or nothing
            at = lookup("clip")(at, min=-3.0, max=size + 2.0)
        low = lookup("floor")(at)
        weights = _cubic(at - low)
        places = [low + float(i) for i in (-1, 0, 1, 2)]
        places = [folded(each) for each in places] if mirrored else places
    else:
        at = folded(at) if mirrored else at
        zeros = padding_mode == "zeros"
        at = lookup("clip")(at, min=-1.0 if zeros else 0.0, max=float(size) if zeros else size - 1.0)
        if mode == "nearest":
            places, weights = [lookup("round")(at)], (None,)
        else:
            low = lookup("floor")(at)
            places, weights = [low, low + 1.0], (1.0 - (at - low), at - low)
    taps = []
    for place, weight in zip(places, weights, strict=True):
        place = lookup("stop_gradient")(place)
        number = lookup("where")(lookup("equal")(place, place), place, full(place, value=-1.0))  # NaN is no index
        whole = cast(number, dtype="int64")  # from here on whole numbers: half precision does not hold large ones
        held = lookup("minimum")(lookup("maximum")(whole, full(whole, value=0.0)), full(whole, value=size - 1.0))
        taps.append((held, lookup("equal")(held, whole) if padding_mode == "zeros" else None, weight))
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
    """``out[n, c, i, j]``: image c of x [n, c, h, w] read at (x, y) = grid[n, i, j] (Jaderberg et al. 2015).

    A volume [n, c, d, h, w] is read at (x, y, z) = grid[n, i, j, k], where "bilinear" is trilinear; "bicubic"
    (a = -0.75) is for images only. Positions go from -1 to 1 between the centres of the corner elements, or, without
    `align_corners`, between the outer edges. Beyond them there are zeros, the nearest border element, or the image
    mirrored. x gets a gradient, and so does the grid except with "nearest"; where a position meets an element exactly,
    that of the grid is one-sided. NaN in the grid gives NaN, with "nearest" a place outside.
    """
    k = x.rank - 2
    if k not in (2, 3) or grid.rank != x.rank or -1 in x.shape or -1 in grid.shape or grid.shape[-1] != k:
        raise ProgramError(
            f"needs [n, c, h, w] and [n, i, j, 2], or one axis more and 3, of known sizes, not {x.type}, {grid.type}",
            "shape_mismatch",
        )
    if mode == "bicubic" and k == 3:
        raise ProgramError("bicubic reads images, not volumes", "bad_attr")
    n, c, *spatial = x.shape
    if grid.shape[0] != n or 0 in spatial:
        raise ProgramError(f"cannot read {x.type} at {grid.type}", "shape_mismatch")
    points, volume = math.prod(grid.shape[1:-1]), math.prod(spatial)
    rows = lookup("transpose")(lookup("reshape")(x, shape=(n, c, volume)), axes=(0, 2, 1))
    rows = lookup("reshape")(rows, shape=(n * volume, c))  # an element of all channels is a row
    flat = lookup("reshape")(grid, shape=(n, points, k))
    first = x.builder.emit("range", start=0.0, end=float(n * volume), step=float(volume), dtype="int64")
    axes, step = [], 1
    for i, size in enumerate(reversed(spatial)):
        at = lookup("squeeze")(lookup("slice")(flat, axes=(2,), starts=(i,), ends=(i + 1,)), axes=(2,))
        at = (at + 1.0) * ((size - 1) / 2) if align_corners else (at + 1.0) * (size / 2) - 0.5
        taps = _on_axis(at, size, mode, padding_mode, align_corners)
        axes.append([(held * float(step), inside, weight) for held, inside, weight in taps])
        step *= size

    def read(corner):
        index = lookup("unsqueeze")(first, axes=(1,))
        for held, _, _ in corner:
            index = index + held
        found = lookup("gather")(rows, index, axis=0)  # [n, points, c]
        for _, inside, _ in corner:
            if inside is not None:
                mask = lookup("unsqueeze")(inside, axes=(2,))
                found = lookup("where")(mask, found, lookup("fill_zeros_like")(found))
        for _, _, weight in corner:
            if weight is not None:
                found = found * lookup("unsqueeze")(weight, axes=(2,))
        return found

    parts = [read(corner) for corner in product(*axes)]
    out = x.builder.emit("sum", *parts) if len(parts) > 1 else parts[0]
    return lookup("reshape")(lookup("transpose")(out, axes=(0, 2, 1)), shape=(n, c, *grid.shape[1:-1]))


def _tap_weights(t, mode):
    """Offsets and weights of the elements around a place `t` behind one, by the definitions."""
    if mode == "bicubic":
        distances = [(i, abs(t - i)) for i in (-1, 0, 1, 2)]
        return [
            (i, (1.25 * d - 2.25) * d * d + 1 if d <= 1 else -0.75 * (d**3 - 5 * d * d + 8 * d - 4))
            for i, d in distances
        ]
    return [(0, 1 - t), (1, t)]


def _sampled(x, grid, mode="bilinear", padding="zeros", align=True):
    """Position by position, by the definition."""
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
            places = [round(i) for i, _ in corner]
            if all(0 <= i < size for i, size in zip(places, spatial, strict=True)):
                out[(b, slice(None), *point)] += x[(b, slice(None), *places)] * math.prod(w for _, w in corner)
    assert k == grid.shape[-1]
    return out


_GRID = np.array([[[[-0.93, 0.31], [0.47, -0.71]], [[1.43, 0.83], [-1.57, -1.21]]]])
_VOLUME, _PLACES = IMAGE[:, :, None].repeat(2, 2) * [[[[1.0]], [[-0.4]]]], np.array([[[[[0.13, -0.31, 0.57]]]]])


def _grid_examples():
    yield Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID),))
    mirrored = {"padding_mode": "reflection", "align_corners": False}
    yield Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID, "bilinear", "reflection", False),), mirrored)
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
