"""Resizing of any axes by ONNX's rules: all coordinate transformations, rounding modes, antialiasing and cropping."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.attr_groups import AttrGroup
from core.ir.bounds import Bounds
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import Span
from core.ops.common.types import as_dtype, axis_of
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import logical_and, where
from core.ops.indexing.gather import gather
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.reshape import squeeze, unsqueeze
from core.ops.vision.axis_resizing import CLOSE, DENSE, in_float32, in_phases, phase_count, phases_of, with_matrix

__all__ = ["resize"]

Coordinates = Literal[
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
]  # fmt: skip
Ratio = Annotated[float, Bounds(ge=1e-9, le=1e9)]
Share = Annotated[float, Bounds(ge=-1e6, le=1e6)]

MOST_TAPS = 2**26
"""Most taps of an axis: the number of output elements times the taps of each."""


@dataclass(frozen=True, slots=True)
class Sampling(AttrGroup):
    """How an output element is computed from an axis. See `resize`."""

    mode: Literal["nearest", "linear", "cubic"] = "nearest"
    coordinates: Coordinates = "half_pixel"
    nearest_mode: Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"] = "round_prefer_floor"
    cubic_coefficient: Annotated[float, Bounds(ge=-1e3, le=1e3)] = -0.75
    exclude_outside: bool = False
    antialias: bool = False


def _source(
    at: np.ndarray, size: int, out: int, scale: float, start: float, end: float, coordinates: Coordinates
) -> np.ndarray:
    """Position in the axis of output elements `at`, floats, in units of its elements."""
    length = scale * size
    if coordinates == "align_corners":
        return at * 0.0 if length == 1 else at * ((size - 1) / (length - 1))
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "tf_crop_and_resize":
        if length == 1:
            return at * 0.0 + (end - start) * (size - 1) / 2 + start * (size - 1)
        return at * (end - start) * (size - 1) / (length - 1) + start * (size - 1)
    if coordinates == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    centred = (at + 0.5) / scale - 0.5
    if coordinates == "pytorch_half_pixel" and length == 1:
        return at * 0.0 - 0.5
    if coordinates == "half_pixel_symmetric":
        return size / 2 * (1 - out / length) + centred
    return centred


def _reach(scale: float, how: Sampling) -> int:
    """The number of taps on each side of a position."""
    if how.mode == "nearest":
        return 0
    wide = 1 if how.mode == "linear" else 2
    return math.ceil(min(wide / min(scale, 1.0), 2.0**40)) if how.antialias else wide


def _taps(
    at: np.ndarray, size: int, out: int, scale: float, start: float, end: float, how: Sampling
) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights [taps, elements] of output elements `at`, which are the weighted sums of their taps.

    A position outside of the axis means the element at its border.
    """
    where_ = np.clip(_source(at, size, out, scale, start, end, how.coordinates), -(2.0**52), 2.0**52)
    if how.mode == "nearest":
        return _rounded(where_, how.nearest_mode).astype(int)[None], np.ones((1, len(at)))
    where_ = np.where(np.abs(where_ - np.rint(where_)) < CLOSE, np.rint(where_), where_)
    n = _reach(scale, how)
    tap = np.floor(where_)[None] + np.arange(1 - n, n + 1)[:, None]
    distance = np.abs(tap - where_) * (min(scale, 1.0) if how.antialias else 1.0)
    weights = _linear(distance) if how.mode == "linear" else _keys(distance, how.cubic_coefficient)
    if how.exclude_outside:
        weights = np.where((tap < 0) | (tap >= size), 0.0, weights)
    if how.exclude_outside or how.antialias:
        total = weights.sum(0)
        weights = weights / np.where(total == 0, 1.0, total)
    return tap.astype(int), weights


def _all_taps(
    size: int, out: int, scale: float, start: float, end: float, how: Sampling
) -> tuple[np.ndarray, np.ndarray]:
    """The taps of all output elements, inside of the axis."""
    index, weight = _taps(np.arange(out, dtype=np.float64), size, out, scale, start, end, how)
    return np.clip(index, 0, size - 1), weight


def _rounded(at: np.ndarray, nearest_mode: str) -> np.ndarray:
    match nearest_mode:
        case "floor":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
    return np.floor(at + 0.5)


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1.0 - distance, 0.0)


def _keys(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel (1981) with the parameter a."""
    d = np.minimum(distance, 2.0)
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    return np.where(d <= 1, inner, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a)


def _inside(size: int, out: int, scale: float, start: float, end: float, how: Sampling) -> np.ndarray:
    source = _source(np.arange(out, dtype=np.float64), size, out, scale, start, end, how.coordinates)
    return (source >= 0) & (source <= size - 1)


@op(no_gradient="it is a constant", outputs=("index", "weight", "inside"))
def resample_taps(
    xp,
    *,
    size: Span,
    out: Span,
    scale: Ratio,
    start: Share = 0.0,
    end: Share = 1.0,
    how: Sampling,
    dtype: Dtype = "float32",
):
    """Positions and weights [taps, out] of the elements that `resize` reads along one axis of `size` elements.

    `inside` [out] is false where the position lies outside of the axis.
    """
    index, weight = _all_taps(size, out, scale, start, end, how)
    inside = _inside(size, out, scale, start, end, how)
    return xp.asarray(index.astype("int64")), xp.asarray(weight.astype(as_dtype(dtype))), xp.asarray(inside)


def _tap_count(out: int, scale: float, dtype: str, how: Sampling) -> int:
    if dtype not in FLOATS:
        raise ProgramError(f"needs a float dtype, not {dtype}", "bad_attr")
    taps = max(2 * _reach(scale, how), 1)
    if taps * out > MOST_TAPS:
        raise ProgramError(f"{out} elements of {taps} taps exceed the limit of {MOST_TAPS} taps", "limit_exceeded")
    return taps


@resample_taps.infer
def resample_taps_infer(*, size, out, scale, start, end, dtype, **how):
    taps = _tap_count(out, scale, dtype, Sampling(**how))
    return TensorType((taps, out), "int64"), TensorType((taps, out), dtype), TensorType((out,), "bool")


@op(no_gradient="it is a constant", outputs=("weight", "inside"))
def resample_weights(
    xp,
    *,
    size: Span,
    out: Span,
    scale: Ratio,
    start: Share = 0.0,
    end: Share = 1.0,
    how: Sampling,
    dtype: Dtype = "float32",
):
    """Matrix [size, out] that resizes an axis of `size` elements to `out` elements, and `inside` as in
    `resample_taps`.
    """
    index, weight = _all_taps(size, out, scale, start, end, how)
    matrix = np.zeros((size, out))
    np.add.at(matrix, (index, np.broadcast_to(np.arange(out), index.shape)), weight)
    return xp.asarray(matrix.astype(as_dtype(dtype))), xp.asarray(_inside(size, out, scale, start, end, how))


@resample_weights.infer
def resample_weights_infer(*, size, out, scale, start, end, dtype, **how):
    _tap_count(out, scale, dtype, Sampling(**how))
    return TensorType((size, out), dtype), TensorType((out,), "bool")


@composite
def resize(
    x,
    *,
    sizes: tuple[Span, ...] | None = None,
    scales: tuple[Ratio, ...] | None = None,
    axes: tuple[int, ...] | None = None,
    how: Sampling,
    roi: tuple[Share, ...] | None = None,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio: Literal["stretch", "not_larger", "not_smaller"] = "stretch",
):
    """x with `axes` (by default all) resized to `sizes`, or by `scales`: ONNX's Resize.

    An axis of m elements gets ``floor(m * scale)`` elements. The positions of output element i depend on the scale s
    and the length l = m s:

    - `coordinates`: `half_pixel` (i + 1/2) / s - 1/2; `half_pixel_symmetric` the same around the centre of the axis;
      `pytorch_half_pixel` the same, but -1/2 for one element; `align_corners` i (m - 1) / (l - 1); `asymmetric` i / s;
      `tf_half_pixel_for_nn` (i + 1/2) / s; `tf_crop_and_resize` start (m - 1) + i (end - start) (m - 1) / (l - 1).
    - `mode`: the nearest element, linear interpolation, or Keys' cubic kernel with `cubic_coefficient`.
    - `nearest_mode`: how `nearest` rounds a position.
    - `exclude_outside`: elements outside of the axis get weight 0, and the other weights are scaled to a sum of 1.
      Otherwise the border elements are repeated.
    - `antialias`: where an axis gets smaller, the kernel is stretched to cover all elements (linear and cubic).
    - `roi`: start and end of each axis for `tf_crop_and_resize`, all starts first, in shares of the axis; positions
      outside of the axis give `extrapolation_value`.
    - `keep_aspect_ratio`: scale all axes by the smallest (`not_larger`) or the largest (`not_smaller`) of the scales
      that `sizes` give.

    The gradient of x is the transpose of the resizing.
    """
    chosen = tuple(range(x.rank)) if axes is None else tuple(axis_of(a, x.rank) for a in axes)
    if len(set(chosen)) < len(chosen):
        raise ProgramError(f"axes must differ, not {list(chosen)}", "bad_attr")
    known = [x.shape[a] for a in chosen]
    lengths = _lengths(known, sizes, scales, keep_aspect_ratio)
    if roi is not None and len(roi) != 2 * len(chosen):
        raise ProgramError(f"roi must have a start and an end for each of {len(chosen)} axes", "bad_attr")
    if how.mode != "nearest" and not x.type.is_float:
        raise ProgramError(f"mode {how.mode} needs floats, not {x.type}", "dtype_mismatch")
    crops = how.coordinates == "tf_crop_and_resize"
    inside = None
    for k, (axis, (out, scale)) in enumerate(zip(chosen, lengths, strict=True)):
        start, end = (roi[k], roi[len(chosen) + k]) if crops and roi is not None else (0.0, 1.0)
        unchanged = scale == 1.0 and out == x.shape[axis] and (start, end) == (0.0, 1.0)
        if unchanged and how.coordinates != "tf_half_pixel_for_nn":
            continue
        if x.shape[axis] < 1:
            raise ProgramError(f"axis {axis} of {x.type} must have a known size above 0", "shape_mismatch")
        x, within = _resized(x, axis, out, scale, start, end, how)
        if within is not None:
            within = _over(within, x.rank - axis - 1)
            inside = within if inside is None else logical_and(inside, within)
    if inside is None:
        return x
    return where(inside, x, x.builder.constant(extrapolation_value, x.dtype))


def _lengths(known, sizes, scales, policy: str) -> list[tuple[int, float]]:
    """Size and scale of each resized axis. Raises ProgramError."""
    if (sizes is None) == (scales is None):
        raise ProgramError("give either sizes or scales", "bad_attr")
    given = sizes if scales is None else scales
    assert given is not None
    if len(given) != len(known):
        raise ProgramError(f"give one number for each of {len(known)} axes, not {len(given)}", "bad_attr")
    if any(m < 1 and (scales is None or s != 1.0) for m, s in zip(known, given, strict=True)):
        raise ProgramError("resized axes must have known sizes above 0", "shape_mismatch")
    if scales is not None:
        out = [(m if s == 1.0 else math.floor(min(m * s, 2.0**31)), s) for m, s in zip(known, scales, strict=True)]
    else:
        each = [n / m for m, n in zip(known, given, strict=True)]
        if policy == "stretch" or not each:
            out = list(zip(given, each, strict=True))
        else:
            scale = min(each) if policy == "not_larger" else max(each)
            out = [(int(min(scale * m + 0.5, 2.0**31)), scale) for m in known]
    for m, (n, scale) in zip(known, out, strict=True):
        if scale != 1.0 and not 1 <= n < 2**31:
            raise ProgramError(f"cannot resize an axis of {m} elements by {scale} to {n}", "shape_mismatch")
    return out


def _resized(x, axis: int, out: int, scale: float, start: float, end: float, how: Sampling):
    """x with one axis resized, and a mask [out] of the positions inside of the axis; None for the mask of other
    coordinates than those of `tf_crop_and_resize`.
    """
    size = x.shape[axis]
    where_ = {"size": size, "out": out, "scale": scale, "start": start, "end": end}
    inside = None
    if how.coordinates == "tf_crop_and_resize":
        *_, inside = x.builder.emit("resample_taps", **where_, **asdict(how))
    taps = _tap_count(out, scale, "float64", how)
    count = phase_count(size, out, taps) if _has_phases(size, out, scale, how) else None
    phases = count and phases_of(size, out, *_taps(np.arange(count, dtype=np.float64), **where_, how=how))
    if phases:
        return in_float32(x, lambda wide: in_phases(wide, axis, phases)), inside
    if how.mode == "nearest":
        index, _, _ = x.builder.emit("resample_taps", **where_, **asdict(how))
        return gather(x, squeeze(index, axes=(0,)), axis=axis), inside
    if size <= DENSE * taps:
        weight, _ = x.builder.emit("resample_weights", **where_, **asdict(how), dtype="float64")
        return in_float32(x, lambda wide: with_matrix(wide, axis, weight)), inside
    index, weight, _ = x.builder.emit("resample_taps", **where_, **asdict(how), dtype="float64")

    def gathered(wide):
        by = _over(cast(weight, dtype=wide.dtype), x.rank - axis - 1)
        return reduce_sum(gather(wide, index, axis=axis) * by, axes=(axis,))

    return in_float32(x, gathered), inside


def _has_phases(size: int, out: int, scale: float, how: Sampling) -> bool:
    """Whether positions go on by ``size / out`` from one output element to the next, with weights that do not depend on
    the ends of the axis.
    """
    steady = how.coordinates not in ("align_corners", "tf_crop_and_resize")
    return steady and not (how.exclude_outside or how.antialias) and abs(scale * size - out) < CLOSE


def _over(value, count: int):
    """`value` with `count` further axes of size 1."""
    return unsqueeze(value, axes=tuple(range(value.rank, value.rank + count))) if count else value


IMAGE = np.sin(np.arange(12.0) * 4).reshape(1, 2, 2, 3)
LINE = np.cos(np.arange(5.0) * 3)


def _position(i, m, s, coordinates, start, end):
    """The position by the formulas of the ONNX specification, for one output element."""
    n = m * s
    match coordinates:
        case "align_corners":
            return 0.0 if n == 1 else i * (m - 1) / (n - 1)
        case "asymmetric":
            return i / s
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / s
        case "tf_crop_and_resize":
            return start * (m - 1) + (i * (end - start) * (m - 1) / (n - 1) if n > 1 else (end - start) * (m - 1) / 2)
        case "pytorch_half_pixel":
            return (i + 0.5) / s - 0.5 if n > 1 else -0.5
        case "half_pixel_symmetric":
            return m / 2 * (1 - int(n) / n) + (i + 0.5) / s - 0.5
    return (i + 0.5) / s - 0.5


def _kernel(d, mode, a):
    if mode == "linear":
        return max(1 - d, 0)
    if d >= 2:
        return 0
    return (a + 2) * d**3 - (a + 3) * d**2 + 1 if d <= 1 else a * (d**3 - 5 * d**2 + 8 * d - 4)


def _line(x, out, s, mode="nearest", coordinates="half_pixel", rule="round_prefer_floor", a=-0.75, exclude=False,
          antialias=False, start=0.0, end=1.0, outside=0.0):  # fmt: skip
    """The last axis resized by definition: a sum over all elements of the axis with its borders repeated."""
    m, result = x.shape[-1], []
    for i in range(out):
        at = _position(i, m, s, coordinates, start, end)
        if coordinates == "tf_crop_and_resize" and not 0 <= at <= m - 1:
            result.append(x[..., 0] * 0 + outside)
            continue
        if mode == "nearest":
            low = math.floor(at)
            up = {"floor": 0, "ceil": at > low, "round_prefer_floor": at - low > 0.5,
                  "round_prefer_ceil": at - low >= 0.5}[rule]  # fmt: skip
            result.append(x[..., min(max(low + int(up), 0), m - 1)])
            continue
        shrink = min(s, 1) if antialias else 1
        every = {k: _kernel(abs(k - at) * shrink, mode, a) for k in range(-30, m + 30)}
        every = {k: w for k, w in every.items() if not exclude or 0 <= k < m}
        total = sum(every.values())
        result.append(sum(w / total * x[..., min(max(k, 0), m - 1)] for k, w in every.items()))
    return np.stack(result, -1)


_CROP = {"mode": "linear", "coordinates": "tf_crop_and_resize", "roi": (0.4, 1.3), "extrapolation_value": 10.0}


def _resize_examples():
    def plane(h, w, **how):
        return _line(_line(IMAGE, w, w / 3, **how).swapaxes(2, 3), h, h / 2, **how).swapaxes(2, 3)

    yield Example((IMAGE,), (IMAGE.repeat(2, 2).repeat(3, 3),), {"sizes": (1, 2, 4, 9)})
    for rule in ("round_prefer_ceil", "floor", "ceil"):
        wanted = _line(LINE, 8, 1.6, coordinates="asymmetric", rule=rule)
        yield Example((LINE,), (wanted,), {"scales": (1.6,), "nearest_mode": rule, "coordinates": "asymmetric"})
    yield Example((IMAGE,), (plane(3, 5, mode="linear"),), {"sizes": (3, 5), "axes": (2, 3), "mode": "linear"})
    wanted = plane(1, 7, mode="cubic", coordinates="pytorch_half_pixel", a=-0.5, exclude=True)
    cubic = {"mode": "cubic", "coordinates": "pytorch_half_pixel", "cubic_coefficient": -0.5, "exclude_outside": True}
    yield Example((IMAGE,), (wanted,), {"sizes": (7, 1), "axes": (-1, 2), **cubic})
    for mode in ("linear", "cubic"):
        wanted = _line(LINE, 3, 0.6, mode=mode, antialias=True)
        yield Example((LINE,), (wanted,), {"scales": (0.6,), "mode": mode, "antialias": True})
    for coordinates in ("half_pixel_symmetric", "align_corners", "tf_half_pixel_for_nn"):
        wanted = _line(LINE, 6, 1.3, mode="linear", coordinates=coordinates)
        yield Example((LINE,), (wanted,), {"scales": (1.3,), "mode": "linear", "coordinates": coordinates})
    wanted = _line(LINE, 4, 0.8, "linear", "tf_crop_and_resize", start=0.4, end=1.3, outside=10.0)
    yield Example((LINE,), (wanted,), {"sizes": (4,), **_CROP})
    wanted = _line(_line(IMAGE, 5, 1.5, mode="linear").swapaxes(2, 3), 3, 1.5, mode="linear").swapaxes(2, 3)
    keep = {"axes": (2, 3), "mode": "linear", "keep_aspect_ratio": "not_larger"}
    yield Example((IMAGE,), (wanted,), {"sizes": (3, 9), **keep})
    yield Example((IMAGE[:0],), (np.zeros((0, 2, 4, 3)),), {"scales": (2.0,), "axes": (2,), "mode": "linear"})


resize.example(_resize_examples)
resample_taps.example(
    lambda: [
        Example((), (np.array([[0, 0, 0], [1, 1, 1]]), np.array([[0.75, 0.5, 0.25], [0.25, 0.5, 0.75]]),
                     np.array([True, True, True])),
                {"size": 2, "out": 3, "scale": 2.0, "start": 0.25, "mode": "linear", "dtype": "float64",
                 "coordinates": "tf_crop_and_resize"}),
        Example((), (np.array([[0, 0, 1, 1]]), np.ones((1, 4)), np.array([False, True, True, False])),
                {"size": 2, "out": 4, "scale": 2.0, "dtype": "float64"}),
    ]
)  # fmt: skip
resample_weights.example(
    lambda: [
        Example((), (np.array([[1, 0.75, 0.25, 0], [0, 0.25, 0.75, 1]]), np.array([False, True, True, False])),
                {"size": 2, "out": 4, "scale": 2.0, "mode": "linear", "dtype": "float64"}),
        Example((), (np.array([[1, 0, 0, 0, 0], [0, 1, 1, 1, 1.0]]), np.array([False, True, True, True, False])),
                {"size": 2, "out": 5, "scale": 2.5, "dtype": "float64", "nearest_mode": "ceil"}),
    ]
)  # fmt: skip
