"""Resizing of signals, images and volumes by interpolation."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import Positive, Size, Span
from core.ops.common.types import as_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.indexing.gather import gather
from core.ops.reduction.sums import sum_
from core.ops.shape.reshape import unsqueeze
from core.ops.vision.axis_resizing import DENSE, in_float32, in_phases, phase_count, phases_of, with_matrix
from core.ops.vision.resize import resize

__all__ = ["cubic_weights"]

Mode = Literal["nearest", "linear", "cubic"]
AlignMode = Annotated[int, Bounds(ge=0, le=1)]
CUBIC = -0.75
"""Parameter of Keys' kernel (1981), the value that PyTorch, OpenCV and Paddle use."""


def cubic_weights(t):
    """Keys' weights of the four elements around a position `t` after the second element. t is an array or a symbol."""

    def inner(d):
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1.0

    def outer(d):
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return outer(t + 1.0), inner(t), inner(1.0 - t), outer(2.0 - t)


def _source(at: np.ndarray, size: int, out: int, align_corners: bool, from_first: bool) -> tuple[np.ndarray, int]:
    """Position in the input of output elements `at`, in units of input elements: numerators, and the denominator.

    Integers, because a rounded quotient could lie on the wrong side of an element.
    """
    if align_corners:
        return at * (size - 1), max(out - 1, 1)
    return (at * size, out) if from_first else ((2 * at + 1) * size - out, 2 * out)


def _taps(
    at: np.ndarray, size: int, out: int, mode: Mode, align_corners: bool, align_mode: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights [taps, elements] of output elements `at`, which are the weighted sums of their taps.

    A position outside of the axis means the element at its border.
    """
    where, unit = _source(at, size, out, align_corners, mode == "nearest" or (mode == "linear" and align_mode == 1))
    if mode == "nearest":
        return ((2 * where + unit) // (2 * unit) if align_corners else where // unit)[None], np.ones((1, len(at)))
    first = where // unit
    t = where % unit / unit
    weights = np.stack((1 - t, t) if mode == "linear" else cubic_weights(t))
    begin = first if mode == "linear" else first - 1
    return begin + np.arange(len(weights))[:, None], weights


TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@op(no_gradient="it is a constant")
def resize_weights(
    xp,
    *,
    size: Span,
    out: Span,
    mode: Mode,
    align_corners: bool = False,
    align_mode: AlignMode = 0,
    dtype: Dtype = "float32",
):
    """Matrix [size, out] that resizes an axis of `size` elements to `out` elements: see `interpolate`."""
    index, weight = _taps(np.arange(out), size, out, mode, align_corners, align_mode)
    matrix = np.zeros((size, out))
    np.add.at(matrix, (np.clip(index, 0, size - 1), np.broadcast_to(np.arange(out), index.shape)), weight)
    return xp.asarray(matrix.astype(as_dtype(dtype)))


def _check_resize(dtype: str) -> None:
    if dtype not in FLOATS:
        raise ProgramError(f"needs a float dtype, not {dtype}", "bad_attr")


@resize_weights.infer
def resize_weights_infer(*, size, out, mode, align_corners, align_mode, dtype):
    _check_resize(dtype)
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
    size: Span,
    out: Span,
    tap: Size,
    mode: Mode,
    align_corners: bool = False,
    align_mode: AlignMode = 0,
    dtype: Dtype = "float32",
):
    """Position and weight of tap number `tap` of each of `out` output elements: see `interpolate`."""
    index, weight = _taps(np.arange(out), size, out, mode, align_corners, align_mode)
    at = np.clip(index[tap], 0, size - 1)
    return xp.asarray(at.astype("int64")), xp.asarray(weight[tap].astype(as_dtype(dtype)))


@resize_tap.infer
def resize_tap_infer(*, size, out, tap, mode, align_corners, align_mode, dtype):
    _check_resize(dtype)
    if tap >= TAPS[mode]:
        raise ProgramError(f"{mode} has no tap {tap}", "bad_attr")
    return TensorType((out,), "int64"), TensorType((out,), dtype)


resize_tap.example(
    lambda: [
        Example((), (np.array([0, 0, 0, 1]), np.array([0.25, 0.75, 0.25, 0.75])),
                {"size": 2, "out": 4, "tap": 0, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([0, 1, 1, 1]), np.array([0.75, 0.25, 0.75, 0.25])),
                {"size": 2, "out": 4, "tap": 1, "mode": "linear", "dtype": "float64"}),
    ]
)  # fmt: skip


def _resized(x, axis: int, out: int, options):
    """x with one axis resized. `options` holds mode, align_corners and align_mode."""
    size = x.shape[axis]
    count = None if options["align_corners"] else phase_count(size, out, TAPS[options["mode"]])
    phases = count and phases_of(size, out, *_taps(np.arange(count), size, out, **options))
    if phases:
        return in_float32(x, lambda wide: in_phases(wide, axis, phases))
    if options["mode"] == "nearest":
        at, _ = x.builder.emit("resize_tap", size=size, out=out, tap=0, **options)
        return gather(x, at, axis=axis)
    if size <= DENSE * TAPS[options["mode"]]:
        weights = x.builder.emit("resize_weights", size=size, out=out, dtype="float64", **options)
        return in_float32(x, lambda wide: with_matrix(wide, axis, weights))
    return in_float32(x, lambda wide: _gathered(wide, axis, out, options))


def _gathered(x, axis: int, out: int, options):
    """x with one axis resized by gathering the taps of each element."""
    parts = []
    for tap in range(TAPS[options["mode"]]):
        at, weight = x.builder.emit("resize_tap", size=x.shape[axis], out=out, tap=tap, dtype="float64", **options)
        weight = unsqueeze(cast(weight, dtype=x.dtype), axes=tuple(range(1, x.rank - axis)))
        parts.append(gather(x, at, axis=axis) * weight)
    return sum_(*parts)


@composite
def interpolate(
    x,
    *,
    size: tuple[Span, ...] | None = None,
    scale_factor: tuple[Positive, ...] | None = None,
    mode: Literal["nearest", "nearest_exact", "linear", "cubic"] = "nearest",
    align_corners: bool = False,
    align_mode: AlignMode = 0,
    antialias: bool = False,
    cubic_coefficient: Annotated[float, Bounds(ge=-1e3, le=1e3)] = CUBIC,
    exact_scale: bool = False,
):
    """x [n, c, *spatial] resized to `size`, or by `scale_factor` (rounded down), over one to three spatial axes.

    - `mode`: `nearest`, `linear` (bilinear for images, trilinear for volumes) or `cubic` (bicubic for images).
      `nearest_exact` takes the element at the centre of the output element, `nearest` the one at its start.
    - `align_corners`: if true, the centres of the corner elements of input and output coincide.
    - `align_mode`: without align_corners, 0 makes the outer edges of input and output coincide; 1 (linear only) makes
      the first elements coincide.
    - `antialias`: where an axis gets smaller, stretch the kernel to cover all elements (linear and cubic).
    - `cubic_coefficient`: the parameter a of Keys' kernel. PyTorch takes -0.75, and -0.5 with `antialias`.
    - `exact_scale`: compute positions from `scale_factor` itself and not from the quotient of the sizes.

    `resize` has further ways to compute positions.

    The gradient of x is the transpose of the resizing.
    """
    n = x.rank - 2
    if not 1 <= n <= 3 or -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"needs 1 to 3 spatial axes of known sizes above 0, not {x.type}", "shape_mismatch")
    if mode in ("linear", "cubic") and not x.type.is_float:
        raise ProgramError(f"mode {mode} needs floats, not {x.type}", "dtype_mismatch")
    if (size is None) == (scale_factor is None):
        raise ProgramError("give either size or scale_factor", "bad_attr")
    factors: tuple[float, ...] = ()
    if scale_factor is not None:
        factors = scale_factor * n if len(scale_factor) == 1 else scale_factor
        size = tuple(math.floor(min(m * f, 2.0**31)) for m, f in zip(x.shape[2:], factors, strict=False))
    assert size is not None
    if len(size) == 1:
        size = size * n
    if len(size) != n or min(size) < 1 or max(size) >= 2**31:
        raise ProgramError(f"the output sizes {list(size)} do not fit {x.type}", "bad_attr")
    if mode == "nearest_exact" or antialias or cubic_coefficient != CUBIC or exact_scale:
        scales = factors if exact_scale and scale_factor is not None else None
        return _by_resize(x, size, scales, mode, align_corners, align_mode, antialias, cubic_coefficient)
    options = {"mode": mode, "align_corners": align_corners, "align_mode": align_mode}
    for axis, out in enumerate(size, start=2):
        if out != x.shape[axis]:
            x = _resized(x, axis, out, options)
    return x


def _by_resize(x, size, scales, mode, align_corners, align_mode, antialias, cubic_coefficient):
    """`interpolate` in the words of `resize`."""
    if antialias and (align_corners or align_mode or mode not in ("linear", "cubic")):
        raise ProgramError(
            "antialias is for the modes linear and cubic without align_corners and align_mode", "bad_attr"
        )
    if mode == "nearest_exact" and align_corners:
        raise ProgramError("nearest_exact has no align_corners", "bad_attr")
    first = mode == "nearest" or (mode == "linear" and align_mode == 1)
    return resize(
        x,
        axes=tuple(range(2, x.rank)),
        sizes=size if scales is None else None,
        scales=scales,
        mode="nearest" if mode == "nearest_exact" else mode,
        coordinates="align_corners" if align_corners else "asymmetric" if first else "half_pixel",
        nearest_mode="floor" if mode == "nearest" and not align_corners else "round_prefer_ceil",
        cubic_coefficient=cubic_coefficient,
        exclude_outside=antialias,
        antialias=antialias,
    )


IMAGE = np.sin(np.arange(12.0) * 4).reshape(1, 2, 2, 3)
LINE = np.cos(np.arange(8.0) * 3).reshape(1, 2, 4)


def _linear(x, out, align):
    """One axis resized linearly, by definition."""
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


def _shrunk(x, out):
    """One axis made smaller by a triangle that covers all elements, by definition."""
    size = x.shape[-1]
    result = np.zeros((*x.shape[:-1], out))
    for i in range(out):
        at = (i + 0.5) * size / out - 0.5
        weights = np.array([max(1 - abs(k - at) * out / size, 0) for k in range(size)])
        result[..., i] = x @ (weights / weights.sum())
    return result


def _by_scale(x, scale):
    """One axis resized linearly, with positions from the scale alone."""
    size = x.shape[-1]
    result = []
    for i in range(int(size * scale)):
        at = max((i + 0.5) / scale - 0.5, 0)
        low = min(int(at), size - 1)
        result.append(x[..., low] * (1 - at + low) + x[..., min(low + 1, size - 1)] * (at - low))
    return np.stack(result, -1)


def _bicubic_line(x, out):
    """Keys' kernel applied to distances, with repeated edges."""
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
    """Linear resizing in which the first elements coincide."""
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
        Example((LINE,), (LINE[..., [0, 1, 1, 2, 3, 3]],), {"size": (6,), "mode": "nearest_exact"}),
        Example((LINE,), (_shrunk(LINE, 2),), {"size": (2,), "mode": "linear", "antialias": True}),
        Example((LINE,), (_by_scale(LINE, 1.3),), {"scale_factor": (1.3,), "mode": "linear", "exact_scale": True}),
        Example((IMAGE[:, :, None],), (_both(IMAGE, 3, 5, False)[:, :, None],), {"size": (1, 3, 5), "mode": "linear"}),
        Example((IMAGE[:0],), (np.zeros((0, 2, 4, 6)),), {"scale_factor": (2.0, 2.0)}),
    ]
)  # fmt: skip
