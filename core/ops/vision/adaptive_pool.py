"""Global pooling, and adaptive pooling with a given number of windows per spatial axis."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from core.ir import FLOATS, TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import Count, Size, Span
from core.ops.common.types import as_dtype
from core.ops.common.windows import sizes
from core.ops.indexing.gather import gather, slice_
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.reduction.sums import argmax, reduce_mean
from core.ops.shape.concat_split import concat
from core.ops.shape.reshape import divided, merged, reshape, unsqueeze
from core.ops.vision.axis_resizing import in_float32, with_matrix
from core.ops.vision.max_pool import BOX, IMAGE, LINE, check_rank, pick

__all__: list[str] = []


@composite
def global_avg_pool(x):
    """Mean over all spatial axes: ``out[n, c] = mean(x[n, c])``. The spatial axes stay in the result with size 1."""
    _check_spatial(x)
    return reduce_mean(x, axes=tuple(range(2, x.rank)), keepdims=True)


@composite
def global_max_pool(x):
    """Maximum over all spatial axes: ``out[n, c] = max(x[n, c])``. The spatial axes stay in the result with size 1.

    If several elements are equal, the first one gets the gradient.
    """
    _check_spatial(x)
    for axis in reversed(range(2, x.rank)):
        x = take_along_axis(x, argmax(x, axis=axis, keepdims=True), axis=axis)
    return x


def _check_spatial(x) -> None:
    if x.rank < 3:
        raise ProgramError(f"needs at least one spatial axis after batch and channels, not {x.type}", "shape_mismatch")


# --- adaptive windows ------------------------------------------------------------------------------------------


def _window_bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each of the `count` windows of an axis: ``floor(i n / count)`` and ``ceil((i + 1) n /
    count)``.
    """
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


@op(no_gradient="it is a constant")
def adaptive_weights(xp, *, size: Size, count: Count, dtype: Dtype = "float32"):
    """Matrix [size, count] that averages an axis of `size` elements over `count` adaptive windows."""
    starts, ends = _window_bounds(size, count)
    at = np.arange(size)[:, None]
    inside = (at >= starts) & (at < ends)
    return xp.asarray((inside / np.maximum(ends - starts, 1)).astype(as_dtype(dtype)))


@adaptive_weights.infer
def adaptive_weights_infer(*, size, count, dtype):
    if dtype not in FLOATS:
        raise ProgramError(f"cannot divide {size} elements of dtype {dtype} into {count} windows", "bad_attr")
    return TensorType((size, count), dtype)


adaptive_weights.example(
    lambda: [
        Example((), (np.array([[1.0, 0], [0, 1]]),), {"size": 2, "count": 2, "dtype": "float64"}),
        Example((), (np.array([[0.5, 0], [0.5, 0.5], [0, 0.5]]),), {"size": 3, "count": 2, "dtype": "float64"}),
        Example((), (np.zeros((0, 1)),), {"size": 0, "count": 1, "dtype": "float64"}),
    ]
)


@op(no_gradient="its result is an integer")
def adaptive_positions(xp, *, sizes: tuple[Span, ...], counts: tuple[Span, ...]):
    """Row-major positions of the elements of each adaptive window, as int64 [windows, largest window].

    A window smaller than the largest repeats its last elements.
    """
    flat = np.zeros((1, 1), "int64")
    for n, count in zip(sizes, counts, strict=True):
        starts, ends = _window_bounds(n, count)
        along = np.minimum(starts[:, None] + np.arange(_largest_window(n, count)), ends[:, None] - 1)
        each = flat[:, None, :, None] * n + along[:, None, :]  # [windows so far, count, elements so far, width]
        flat = each.reshape(flat.shape[0] * count, flat.shape[1] * along.shape[1])
    return xp.asarray(flat)


def _largest_window(size: int, count: int) -> int:
    """The size of the largest adaptive window. Windows that overlap have up to two elements more than size // count."""
    rest = size % count
    if rest == 0:
        return size // count
    return size // count + (1 if count % rest == 0 else 2)


@adaptive_positions.infer
def adaptive_positions_infer(*, sizes, counts):
    if not sizes or len(sizes) != len(counts):
        raise ProgramError(f"cannot divide {list(sizes)} elements into {list(counts)} windows", "bad_attr")
    widths = [_largest_window(n, count) for n, count in zip(sizes, counts, strict=True)]
    return TensorType((math.prod(counts), math.prod(widths)), "int64")


adaptive_positions.example(
    lambda: [
        Example((), (np.array([[0, 1], [1, 2]]),), {"sizes": (3,), "counts": (2,)}),
        Example((), (np.array([[0, 1], [1, 2], [3, 4], [4, 5]]),), {"sizes": (2, 3), "counts": (2, 2)}),
        Example((), (np.array([[0], [0], [1], [1]]),), {"sizes": (2,), "counts": (4,)}),
    ]
)


def _check_adaptive(x, n: int, output_size: tuple[Span, ...]) -> tuple[int, ...]:
    check_rank(x, n)
    if -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"the spatial sizes of {x.type} must be known and above 0", "shape_mismatch")
    counts = sizes(output_size, n, "output_size", 1)
    if math.prod(counts) >= 2**62:
        raise ProgramError(f"{math.prod(counts)} windows are too many", "bad_attr")
    return counts


MOST_MEANS = 32
"""Most windows of an axis, up to repetition, that are averaged one by one."""


def _adaptive_average(x, n, output_size):
    for axis, count in enumerate(_check_adaptive(x, n, output_size), start=2):
        if count // math.gcd(x.shape[axis], count) <= MOST_MEANS:
            x = _means(x, axis, count)
        else:
            weights = x.builder.emit("adaptive_weights", size=x.shape[axis], count=count, dtype="float64")
            x = in_float32(x, partial(with_matrix, axis=axis, weights=weights))
    return x


def _means(x, axis: int, count: int):
    """x averaged over `count` windows along an axis. The windows are the same in each of gcd(size, count) parts."""
    size = x.shape[axis]
    parts = math.gcd(size, count)
    if size == count:
        return x
    x = divided(x, axis, (parts, size // parts))
    bounds = zip(*_window_bounds(size // parts, count // parts), strict=True)
    means = [
        reduce_mean(slice_(x, axes=(axis + 1,), starts=(int(a),), ends=(int(b),)), axes=(axis + 1,), keepdims=True)
        for a, b in bounds
    ]
    return merged(means[0] if len(means) == 1 else concat(*means, axis=axis + 1), axis, axis + 2)


def _adaptive_maximum(x, n, output_size):
    counts = _check_adaptive(x, n, output_size)
    at = x.builder.emit("adaptive_positions", sizes=x.shape[2:], counts=counts)
    flat = merged(x, 2, x.rank)
    best = argmax(gather(flat, at, axis=2), axis=-1)
    rows = unsqueeze(x.builder.emit("range", end=float(at.shape[0])), axes=(0, 1))
    index = gather(reshape(at, shape=(-1,)), best + rows * at.shape[1])
    index = divided(index, 2, counts)
    return pick(x, index), index


@composite
def adaptive_avg_pool1d(x, *, output_size: tuple[Span, ...]):
    """Mean over adaptive windows of one spatial axis: see `adaptive_avg_pool2d`."""
    return _adaptive_average(x, 1, output_size)


@composite
def adaptive_avg_pool2d(x, *, output_size: tuple[Span, ...]):
    """Mean over adaptive windows: ``out[i] = mean(x[floor(i n / m) : ceil((i + 1) n / m)])`` along each spatial
    axis.

    An axis of n elements is divided into m windows, where m is its size in `output_size`.
    """
    return _adaptive_average(x, 2, output_size)


@composite
def adaptive_avg_pool3d(x, *, output_size: tuple[Span, ...]):
    """Mean over adaptive windows of three spatial axes: see `adaptive_avg_pool2d`."""
    return _adaptive_average(x, 3, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool1d(x, *, output_size: tuple[Span, ...]):
    """Maximum over adaptive windows of one spatial axis: see `adaptive_max_pool2d`."""
    return _adaptive_maximum(x, 1, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool2d(x, *, output_size: tuple[Span, ...]):
    """Maximum over adaptive windows and its position: ``out[i] = max(window i)``, with windows as in
    `adaptive_avg_pool2d`.

    If several elements are equal, the first one gets the gradient.
    """
    return _adaptive_maximum(x, 2, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool3d(x, *, output_size: tuple[Span, ...]):
    """Maximum over adaptive windows of three spatial axes: see `adaptive_max_pool2d`."""
    return _adaptive_maximum(x, 3, output_size)


def _window_elements(x, output_size):
    """(values, positions) of each adaptive window, computed by its definition."""
    spatial = x.shape[2:]
    for channel in np.ndindex(*x.shape[:2]):
        for at in np.ndindex(*output_size):
            places = [
                place
                for place in np.ndindex(*spatial)
                if all(
                    i * n // o <= k < -(-(i + 1) * n // o)
                    for i, k, n, o in zip(at, place, spatial, output_size, strict=True)
                )
            ]
            yield (*channel, *at), [(x[(*channel, *p)], int(np.ravel_multi_index(p, spatial))) for p in places]


def _adapted(x, output_size):
    mean, best, index = (np.zeros((*x.shape[:2], *output_size)) for _ in range(3))
    for at, found in _window_elements(x, output_size):
        mean[at] = np.mean([v for v, _ in found])
        best[at], index[at] = max(found)
    return mean, best, index.astype(int)


def _adaptive_cases(which):
    def cases(*inputs):
        def examples():
            for x, output_size in inputs:
                mean, best, index = _adapted(x, output_size)
                yield Example((x,), (mean,) if which == "mean" else (best, index), {"output_size": output_size})

        return examples

    return cases


adaptive_avg_pool1d.example(
    _adaptive_cases("mean")((LINE, (4,)), (LINE, (3,)), (LINE[:0], (3,)), (LINE[:, :1, :5], (2,)))
)
adaptive_avg_pool2d.example(
    _adaptive_cases("mean")((IMAGE, (3, 2)), (IMAGE, (1, 4)), (IMAGE[:0], (2, 2)), (IMAGE[:, :1, :3], (2, 2)))
)
adaptive_avg_pool3d.example(
    _adaptive_cases("mean")((BOX, (1, 2, 3)), (BOX, (2, 1, 2)), (BOX[:0], (1, 1, 1)), (BOX[..., :3], (1, 1, 2)))
)
adaptive_max_pool1d.example(
    _adaptive_cases("max")((LINE, (4,)), (LINE, (3,)), (LINE[:0], (3,)), (LINE[:, :1, :5], (2,)))
)
adaptive_max_pool2d.example(
    _adaptive_cases("max")((IMAGE, (3, 2)), (IMAGE, (1, 4)), (IMAGE[:0], (2, 2)), (IMAGE[:, :1, :3], (2, 2)))
)
adaptive_max_pool3d.example(
    _adaptive_cases("max")((BOX, (1, 2, 3)), (BOX, (2, 1, 2)), (BOX[:0], (1, 1, 1)), (BOX[..., :3], (1, 1, 2)))
)

EVERYTHING = (LINE, IMAGE, BOX, LINE[:0])
global_avg_pool.example(lambda: [Example((x,), (x.mean(tuple(range(2, x.ndim)), keepdims=True),)) for x in EVERYTHING])
global_max_pool.example(lambda: [Example((x,), (x.max(tuple(range(2, x.ndim)), keepdims=True),)) for x in EVERYTHING])
