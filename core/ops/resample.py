"""Resampling of images: resizing by fixed factors, and reading at positions that other arrays hold."""

from __future__ import annotations

import math
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


def _source(size: int, out: int, align_corners: bool, align_mode: int) -> np.ndarray:
    """Where in the input each output element lies, in units of input elements."""
    at = np.arange(out, dtype=np.float64)
    if align_corners:
        return at * ((size - 1) / max(out - 1, 1))
    return at * (size / out) if align_mode == 1 else (at + 0.5) * (size / out) - 0.5


def _weights(size: int, out: int, mode: Mode, align_corners: bool, align_mode: int) -> np.ndarray:
    """The matrix [size, out] that resizes an axis; what falls beyond the border takes the border's element."""
    matrix = np.zeros((size, out))
    columns = np.arange(out)
    if mode == "nearest":
        at = np.arange(out) * (size - 1) / max(out - 1, 1) + 0.5 if align_corners else np.arange(out) * (size / out)
        matrix[np.clip(np.floor(at).astype(int), 0, size - 1), columns] = 1.0
        return matrix
    at = _source(size, out, align_corners, align_mode)
    if mode == "linear":
        at = np.maximum(at, 0.0)
    first = np.floor(at).astype(int)
    t = at - first
    if mode == "linear":
        taps = [(0, 1 - t), (1, t)]
    else:

        def near(d):
            return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

        def far(d):
            return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

        taps = [(-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))]
    for offset, weight in taps:
        np.add.at(matrix, (np.clip(first + offset, 0, size - 1), columns), weight)
    return matrix


@op(no_gradient="it is a constant")
def resize_weights(
    xp, *, size: int, out: int, mode: Mode, align_corners: bool = False, align_mode: int = 0, dtype: Dtype = "float32"
):
    """The matrix [size, out] by which an axis of `size` elements is resized to `out`; see `interpolate`."""
    return xp.asarray(_weights(size, out, mode, align_corners, align_mode).astype(as_dtype(dtype)))


@resize_weights.infer
def resize_weights_infer(*, size, out, mode, align_corners, align_mode, dtype):
    if size < 1 or out < 1 or align_mode not in (0, 1) or dtype not in ("float32", "float64"):
        raise ProgramError(f"cannot resize {size} elements to {out}", "bad_attr")
    return TensorType((size, out), dtype)


resize_weights.example(
    lambda: [
        Example((), (np.eye(2),), {"size": 2, "out": 2, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([[1, 0.75, 0.25, 0], [0, 0.25, 0.75, 1]]),),
                {"size": 2, "out": 4, "mode": "linear", "dtype": "float64"}),
    ]
)  # fmt: skip


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
    outer edges coincide, with align_mode 1 (linear and cubic) the first elements do. The gradient is the transpose.
    """
    n = x.rank - 2
    if not 1 <= n <= 3 or -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"needs 1 to 3 spatial axes of known sizes above 0, not {x.type}", "shape_mismatch")
    if (size is None) == (scale_factor is None):
        raise ProgramError("give either size or scale_factor", "bad_attr")
    if scale_factor is not None:
        factors = scale_factor * n if len(scale_factor) == 1 else scale_factor
        size = tuple(math.floor(m * f) for m, f in zip(x.shape[2:], factors, strict=False))
    assert size is not None
    if len(size) == 1:
        size = size * n
    if len(size) != n or min(size) < 1:
        raise ProgramError(f"the output sizes {list(size)} do not fit {x.type}", "bad_attr")
    how = {"mode": mode, "align_corners": align_corners, "align_mode": align_mode}
    for axis, out in enumerate(size, start=2):
        if out == x.shape[axis]:
            continue
        weights = x.builder.emit("resize_weights", size=x.shape[axis], out=out, dtype="float64", **how)
        order = (*(i for i in range(x.rank) if i != axis), axis)
        turned = lookup("matmul")(lookup("transpose")(x, axes=order), lookup("cast")(weights, dtype=x.dtype))
        x = lookup("transpose")(turned, axes=tuple(order.index(i) for i in range(x.rank)))
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


@composite
def affine_grid(theta, *, size: tuple[int, ...], align_corners: bool = True):
    """The positions [n, h, w, 2] at which ``theta @ (x, y, 1)`` reads an image: theta [n, 2, 3], `size` = (h, w).

    x and y go from -1 to 1 over the output: at the centres of the corner elements, or, without `align_corners`, at the
    outer edges.
    """
    if (
        theta.rank != 3
        or theta.shape[1:] not in ((2, 3), (-1, -1), (2, -1), (-1, 3))
        or len(size) != 2
        or min(size) < 1
    ):
        raise ProgramError(
            f"affine_grid takes [n, 2, 3] and two sizes, not {theta.type}, {list(size)}", "shape_mismatch"
        )
    h, w = size

    def line(count):
        if align_corners:
            return [2 * i / (count - 1) - 1 if count > 1 else 0.0 for i in range(count)]
        return [(2 * i + 1) / count - 1 for i in range(count)]

    points = tuple(v for y in line(h) for x in line(w) for v in (x, y, 1.0))
    base = theta.builder.emit("assign_value", values=points, shape=(h * w, 3), dtype="float64")
    out = lookup("matmul")(lookup("cast")(base, dtype=theta.dtype), theta, transpose_y=True)
    return lookup("reshape")(out, shape=(theta.shape[0], h, w, 2))


def _affine(theta, h, w, align):
    ys = np.linspace(-1, 1, h) if align else (2 * np.arange(h) + 1) / h - 1
    xs = np.linspace(-1, 1, w) if align else (2 * np.arange(w) + 1) / w - 1
    grid = np.stack([*np.meshgrid(xs, ys), np.ones((h, w))], -1)
    return np.einsum("hwk,njk->nhwj", grid, theta)


THETA = np.array([[[1.0, 0.2, 0.1], [-0.3, 0.9, 0.0]], [[0.5, 0.0, 0.3], [0.1, 0.7, -0.2]]])
affine_grid.example(
    lambda: [
        Example((THETA,), (_affine(THETA, 2, 3, True),), {"size": (2, 3)}),
        Example((THETA[:1],), (_affine(THETA[:1], 3, 2, False),), {"size": (3, 2), "align_corners": False}),
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


@composite
def grid_sample(
    x,
    grid,
    *,
    mode: Literal["bilinear", "nearest"] = "bilinear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = True,
):
    """``out[n, c, i, j]``: image c of x [n, c, h, w] read at (x, y) = grid[n, i, j] (Jaderberg et al. 2015).

    Positions go from -1 to 1 between the centres of the corner elements, or, without `align_corners`, between the outer
    edges. Beyond them there are zeros, the nearest border element, or the image mirrored. Both x and, with "bilinear",
    the grid get gradients; where a position meets an element exactly that of the grid is one-sided.
    """
    if x.rank != 4 or grid.rank != 4 or -1 in x.shape or -1 in grid.shape or grid.shape[3] != 2:
        raise ProgramError(
            f"needs [n, c, h, w] and [n, i, j, 2] of known sizes, not {x.type}, {grid.type}", "shape_mismatch"
        )
    n, c, h, w = x.shape
    if grid.shape[0] != n or 0 in (h, w):
        raise ProgramError(f"cannot read {x.type} at {grid.type}", "shape_mismatch")
    rows, columns = grid.shape[1:3]
    flat = lookup("reshape")(x, shape=(n, c, h * w))
    places = []
    for k, size in enumerate((w, h)):
        at = lookup("slice")(grid, axes=(3,), starts=(k,), ends=(k + 1,))
        at = lookup("reshape")(at, shape=(n, rows * columns))
        at = (at + 1.0) * ((size - 1) / 2) if align_corners else (at + 1.0) * (size / 2) - 0.5
        if padding_mode == "reflection":
            at = _folded(at, 0.0, size - 1.0) if align_corners else _folded(at, -0.5, size - 0.5)
        if padding_mode != "zeros":
            at = lookup("clip")(at, min=0.0, max=size - 1.0)
        places.append(at)

    def read(ix, iy):
        """The elements at whole positions, zeros where there are none."""
        full = lookup("full_like")
        inside, index = None, None
        for at, size, step in ((ix, w, 1.0), (iy, h, float(w))):
            held = lookup("clip")(at, min=0.0, max=size - 1.0)
            index = held * step if index is None else index + held * step
            here = lookup("equal")(held, at)
            inside = here if inside is None else lookup("logical_and")(inside, here)
        index = lookup("cast")(lookup("stop_gradient")(index), dtype="int64")
        index = lookup("expand")(lookup("unsqueeze")(index, axes=(1,)), shape=(n, c, rows * columns))
        found = lookup("take_along_axis")(flat, index, axis=2)
        mask = lookup("expand")(lookup("unsqueeze")(inside, axes=(1,)), shape=(n, c, rows * columns))
        return lookup("where")(mask, found, full(found, value=0.0))

    ix, iy = places
    if mode == "nearest":
        out = read(lookup("round")(ix), lookup("round")(iy))
    else:
        low_x, low_y = lookup("floor")(ix), lookup("floor")(iy)
        tx, ty = (lookup("unsqueeze")(v, axes=(1,)) for v in (ix - low_x, iy - low_y))
        top = read(low_x, low_y) * (1.0 - tx) + read(low_x + 1.0, low_y) * tx
        bottom = read(low_x, low_y + 1.0) * (1.0 - tx) + read(low_x + 1.0, low_y + 1.0) * tx
        out = top * (1.0 - ty) + bottom * ty
    return lookup("reshape")(out, shape=(n, c, rows, columns))


def _sampled(x, grid, nearest=False, mode="zeros", align=True):
    """Position by position, by the definition."""
    n, c, h, w = x.shape
    out = np.zeros((n, c, *grid.shape[1:3]))

    def place(v, size):
        at = (v + 1) * (size - 1) / 2 if align else ((v + 1) * size - 1) / 2
        low, high = (0, size - 1) if align else (-0.5, size - 0.5)
        while mode == "reflection" and not low <= at <= high:
            at = 2 * low - at if at < low else 2 * high - at
        return at if mode == "zeros" else min(max(at, 0), size - 1)

    def element(b, row, column):
        return x[b, :, row, column] if 0 <= row < h and 0 <= column < w else np.zeros(c)

    for b, i, j in np.ndindex(n, *grid.shape[1:3]):
        px, py = place(grid[b, i, j, 0], w), place(grid[b, i, j, 1], h)
        if nearest:
            out[b, :, i, j] = element(b, round(py), round(px))
            continue
        fx, fy = math.floor(px), math.floor(py)
        for dy in (0, 1):
            for dx in (0, 1):
                weight = (1 - abs(px - fx - dx)) * (1 - abs(py - fy - dy))
                out[b, :, i, j] += weight * element(b, fy + dy, fx + dx)
    return out


_GRID = np.array([[[[-0.93, 0.31], [0.47, -0.71]], [[1.43, 0.83], [-1.57, -1.21]]]])
grid_sample.example(
    lambda: [
        Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID),)),
        Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID, mode="reflection", align=False),),
                {"padding_mode": "reflection", "align_corners": False}),
        Example((IMAGE, _GRID), (_sampled(IMAGE, _GRID, mode="border"),), {"padding_mode": "border"}),
        Example((IMAGE, _GRID[:, :1]), (_sampled(IMAGE, _GRID[:, :1], True),), {"mode": "nearest"}),
        Example((IMAGE[:0], _GRID[:0]), (np.zeros((0, 2, 2, 2)),)),
    ]
)  # fmt: skip
