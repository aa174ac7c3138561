"""Maximum pooling over one, two or three spatial axes. The gradient follows the positions of the maxima."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Reach, Size, Span
from core.ops.common.scatter_rows import scatter_rows
from core.ops.common.types import same_size
from core.ops.common.windows import few_windows, meetings, pads_of, reach, sizes
from core.ops.indexing.gather import check_index, in_range
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.broadcast import expand
from core.ops.shape.creation import fill_constant_batch_size_like, fill_zeros_like

__all__ = [
    "BOX",
    "BOXES",
    "IMAGE",
    "IMAGES",
    "LINE",
    "LINES",
    "by_window_elements",
    "cases",
    "check_rank",
    "geometry",
    "pool_shape",
    "window_elements",
    "windows",
]


def pool_shape(x: TensorType, kernel_size, strides, paddings, dilations, ceil_mode) -> TensorType:
    """The type of a pooling of x. Raises ProgramError if a window does not fit, or contains no element of x."""
    n = x.rank - 2
    if not 1 <= n <= 3 or not x.is_float:
        raise ProgramError(f"pooling needs floats with 3 to 5 axes, not {x}", "shape_mismatch")
    kernel, stride, pads, spread = geometry(n, kernel_size, strides, paddings, dilations)
    if any(max(p) > d * (k - 1) for p, k, d in zip(pads, kernel, spread, strict=True)):
        raise ProgramError(f"paddings {list(paddings)} must be smaller than the window {list(kernel)}", "bad_attr")
    if 0 in x.shape[2:]:
        raise ProgramError(f"pooling needs nonempty spatial axes, not {x}", "shape_mismatch")
    axes = list(zip(x.shape[2:], kernel, stride, pads, spread, strict=True))
    out = TensorType((*x.shape[:2], *(reach(m, k, s, p, d, ceil_mode) for m, k, s, p, d in axes)), x.dtype)
    if any(_skips(m, s, before, d) for m, _, s, (before, _), d in axes):
        raise ProgramError(
            f"dilations {list(dilations)} and paddings {list(paddings)} give a window without an element of {x}",
            "shape_mismatch",
        )
    return out


def _skips(size: int, stride: int, before: int, dilation: int) -> bool:
    """Whether a window that starts in the padding steps over the whole axis. The others start inside the axis."""
    if not 0 <= size < dilation:
        return False
    early = range(-before, 0, stride)[: size + 1]  # the first elements inside differ until they repeat
    return any(start % dilation >= size for start in early)


def geometry(n: int, kernel_size, strides, paddings, dilations=(1,)):
    """Kernel, strides, paddings (before, after) and dilations, one of each for each of n axes."""
    kernel = sizes(kernel_size, n, "kernel_size", 1)
    spread = sizes(dilations, n, "dilations", 1)
    return kernel, sizes(strides or kernel, n, "strides", 1), pads_of(paddings, n), spread


def windows(size, counts, kernel_size, strides, paddings, dilations):
    """The overlaps of the windows with x, as `meetings` yields them, for spatial axes of `size`."""
    kernel, stride, pads, spread = geometry(len(size), kernel_size, strides, paddings, dilations)
    starts = tuple(-before for before, _ in pads)
    return meetings(size, kernel, counts, stride, spread, starts)


def _broadcastable(values):
    """One array per axis, reshaped so that they broadcast against each other."""
    return [each.reshape(-1, *(1,) * (len(values) - 1 - axis)) for axis, each in enumerate(values)]


@op(outputs=("out", "index"))
def max_pool(
    xp,
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Maximum over windows of all spatial axes of x, and its position: see `max_pool2d`."""
    shape = pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, dilations, ceil_mode).shape
    how = geometry(x.ndim - 2, kernel_size, strides, paddings, dilations)
    by = _by_window if few_windows(how[0], shape[2:]) else _by_element
    return by(xp, x, shape, how, windows(x.shape[2:], shape[2:], kernel_size, strides, paddings, dilations))


def _by_window(xp, x, shape, geometry, overlaps):
    """The maximum and its position, one window at a time."""
    out, index = xp.empty(shape, x.dtype), xp.empty(shape, "int64")
    positions = xp.arange(math.prod(x.shape[2:])).reshape(x.shape[2:])
    for _, at, inside in overlaps:
        places = positions[inside].ravel()
        block = x[(..., *inside)].reshape(*shape[:2], places.size)
        best = xp.argmax(block, axis=2)
        out[(..., *at)] = xp.take_along_axis(block, best[..., None], axis=2)[..., 0]
        index[(..., *at)] = places[best]
    return out, index


def _by_element(xp, x, shape, geometry, overlaps):
    """The maximum and its position for all windows at once, one window element at a time."""
    kernel, stride, pads, spread = geometry
    size = x.shape[2:]
    starts = [xp.arange(n) * s - before for n, s, (before, _) in zip(shape[2:], stride, pads, strict=True)]
    number = xp.arange(math.prod(kernel), dtype=np.min_scalar_type(math.prod(kernel))).reshape(kernel)
    best = xp.empty(shape, number.dtype)
    best[...] = number[
        tuple(_broadcastable([xp.maximum(-(start // d), 0) for start, d in zip(starts, spread, strict=True)]))
    ]  # the first element that is not padding
    out = xp.full(shape, -xp.inf, x.dtype)
    for element, at, inside in overlaps:
        block, largest, found = x[(..., *inside)], out[(..., *at)], best[(..., *at)]
        better = (block > largest) | (block != block)  # a NaN counts as the largest value
        xp.maximum(
            found, better * number[element], out=found
        )  # elements come in increasing order, so the maximum is the newest
        xp.maximum(largest, block, out=largest)
    steps = [math.prod(size[axis + 1 :]) for axis in range(len(size))]
    corners = sum(_broadcastable([start * step for start, step in zip(starts, steps, strict=True)]))
    moves = [xp.arange(k) * (d * step) for k, d, step in zip(kernel, spread, steps, strict=True)]
    offsets = sum(_broadcastable(moves))
    return out, xp.take(offsets.ravel(), best) + corners


@max_pool.infer
def max_pool_infer(x, **attrs):
    out = pool_shape(x, **attrs)
    return out, TensorType(out.shape, "int64")


@max_pool.vjp
def max_pool_vjp(cts, outs, x, **attrs):
    return unpool_like(cts[0], outs[1], x)


@op
def unpool_like(xp, x, index, like):
    """Zeros shaped like `like` [n, c, *spatial], with x added at the row-major positions in `index` of each image."""
    n, c, *spatial = like.shape
    size = math.prod(spatial)
    plane = xp.arange(n * c).reshape(n, c, *(1 for _ in index.shape[2:])) * size
    at = (in_range(xp, index, size) + plane).ravel()
    if x.dtype.kind in "biu":  # float64 does not hold all integers
        flat = scatter_rows(xp, n * c * size, at, x.ravel())
    else:
        flat = xp.bincount(at, weights=x.ravel().astype("float64"), minlength=n * c * size)
    return flat.astype(x.dtype).reshape(like.shape)


@unpool_like.infer
def unpool_like_infer(x, index, like):
    check_index(index)
    if x.rank < 3 or like.rank < 3 or index.rank != x.rank:
        raise ProgramError(f"cannot unpool {x} at {index} into {like}", "shape_mismatch")
    for m, n in (*zip(x.shape, index.shape, strict=True), *zip(x.shape[:2], like.shape[:2], strict=True)):
        same_size(m, n, f"sizes of {x}, {index} and {like} differ")
    return TensorType(like.shape, x.dtype)


unpool_like.vjp(lambda ct, out, x, index, like: (pick(ct, index), None, None))


@op
def pick(xp, x, index):
    """Elements of each image of x [n, c, *spatial] at the row-major positions in `index`."""
    n, c, *spatial = x.shape
    size = math.prod(spatial)
    at = in_range(xp, index, size).reshape(n, c, math.prod(index.shape[2:]))
    return xp.take_along_axis(x.reshape(n, c, size), at, axis=2).reshape(index.shape)


@pick.infer
def pick_infer(x, index):
    check_index(index)
    if x.rank < 3 or index.rank < 3:
        raise ProgramError(f"cannot pick from {x} by {index}", "shape_mismatch")
    for m, n in zip(x.shape[:2], index.shape[:2], strict=True):
        same_size(m, n, f"batch and channels of {x} and {index} differ")
    return TensorType(index.shape, x.dtype)


pick.vjp(lambda ct, out, x, index: (unpool_like(ct, index, x), None))


# --- the ops that clients use ----------------------------------------------------------------------------------


def check_rank(x, n: int) -> None:
    if x.rank != n + 2:
        raise ProgramError(f"needs {n + 2} axes including batch and channels, not {x.type}", "shape_mismatch")


@composite(outputs=("out", "index"))
def max_pool1d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Maximum over windows of one spatial axis, x [n, c, length]: see `max_pool2d`."""
    check_rank(x, 1)
    attrs = {"strides": strides, "paddings": paddings, "dilations": dilations, "ceil_mode": ceil_mode}
    return max_pool(x, kernel_size=kernel_size, **attrs)


@composite(outputs=("out", "index"))
def max_pool2d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0, 0),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Maximum over each window of x [n, c, h, w]: ``out[..., i, j] = max(x[..., i s : i s + k, j s : j s + k])``.

    s is the stride and k the size of the window. The second result is the position ``row * w + column`` in the image.
    `strides` equal the window size by default. With `ceil_mode` the last window may extend beyond the end. Padding is
    never selected. With `dilations` d the elements of a window are d apart: ``x[..., i s : i s + k d : d, ...]``.
    If several elements are equal, the first one in row-major order is selected and gets the gradient.
    """
    check_rank(x, 2)
    attrs = {"strides": strides, "paddings": paddings, "dilations": dilations, "ceil_mode": ceil_mode}
    return max_pool(x, kernel_size=kernel_size, **attrs)


@composite(outputs=("out", "index"))
def max_pool3d(
    x,
    *,
    kernel_size: tuple[Span, ...],
    strides: tuple[Span, ...] | None = None,
    paddings: tuple[Reach, ...] = (0,),
    dilations: tuple[Span, ...] = (1,),
    ceil_mode: bool = False,
):
    """Maximum over windows of three spatial axes, x [n, c, depth, h, w]: see `max_pool2d`."""
    check_rank(x, 3)
    attrs = {"strides": strides, "paddings": paddings, "dilations": dilations, "ceil_mode": ceil_mode}
    return max_pool(x, kernel_size=kernel_size, **attrs)


@composite
def max_unpool(x, index, *, output_size: tuple[Size, ...]):
    """Zeros [n, c, *output_size] with x at the positions in `index`, which come from a maximum pooling.

    Elements with the same position are added.
    """
    if len(output_size) != x.rank - 2:
        raise ProgramError(f"output_size must be {x.rank - 2} sizes, not {list(output_size)}", "bad_attr")
    if x.shape[1] == -1:
        lead = reduce_sum(fill_zeros_like(x), axes=tuple(range(2, x.rank)), keepdims=True)
        like = expand(lead, shape=(-1, -1, *output_size))
    else:
        like = fill_constant_batch_size_like(x, shape=(*x.shape[:2], *output_size), dtype=x.dtype)
    return unpool_like(x, index, like)


# --- examples --------------------------------------------------------------------------------------------------


# distinct values, so far apart that finite differences never change the maximum
IMAGE = np.random.default_rng(4).permutation(np.arange(40.0) / 10).reshape(1, 2, 5, 4)
LINE = np.random.default_rng(5).permutation(np.arange(12.0) / 3).reshape(1, 2, 6)
BOX = np.random.default_rng(6).permutation(np.arange(16.0) / 3).reshape(1, 1, 2, 2, 4)


def window_elements(x, kernel_size, strides=None, paddings=(0,), ceil_mode=False, dilations=(1,), **attrs):
    """{position in the result: [(value, position in the image), ...]}, window by window."""
    k = x.ndim - 2
    spread = dilations * (k // len(dilations))
    kernel, steps = kernel_size * (k // len(kernel_size)), strides or kernel_size
    steps = steps * (k // len(steps))
    pads = paddings if len(paddings) == 2 * k else [p for p in paddings * (k // len(paddings)) for _ in range(2)]
    starts = []
    for axis, (m, n, s, d) in enumerate(zip(x.shape[2:], kernel, steps, spread, strict=True)):
        first, end = -pads[2 * axis], m + pads[2 * axis + 1]
        every, long = range(first, end, s), d * (n - 1) + 1
        starts.append([i for i in every if i + long <= end or (ceil_mode and i < m and i - s + long < end)])
    out = {}
    for at in np.ndindex(*x.shape[:2], *map(len, starts)):
        corner = [each[i] for each, i in zip(starts, at[2:], strict=True)]
        out[at] = [
            (x[(*at[:2], *place)], int(np.ravel_multi_index(place, x.shape[2:])))
            for place in np.ndindex(*x.shape[2:])
            if all(i in range(c, c + n * d, d) for c, i, n, d in zip(corner, place, kernel, spread, strict=True))
        ]
    return out, (*x.shape[:2], *map(len, starts))


def by_window_elements(function, dtype=float):
    """A reference that applies `function` to the elements of each window, one window at a time."""

    def apply(x, **attrs):
        every, shape = window_elements(x, **attrs)
        out = np.zeros(shape, dtype)
        for at, found in every.items():
            out[at] = function(found)
        return out

    return apply


def _largest(found):
    """The largest (value, position); of equal values the one with the lowest position."""
    return max(found, key=lambda pair: (pair[0], -pair[1]))


_maxima, _positions = (
    by_window_elements(lambda found: _largest(found)[0]),
    by_window_elements(lambda found: _largest(found)[1], int),
)
LINES = (
    (LINE, {"kernel_size": (2,)}),
    (LINE, {"kernel_size": (3,), "strides": (1,), "paddings": (0, 1)}),
    (LINE, {"kernel_size": (3,), "strides": (4,), "paddings": (1,), "ceil_mode": True}),
    (LINE[:0], {"kernel_size": (2,)}),
    (LINE[:, :1, :5], {"kernel_size": (2,), "strides": (1,)}),
    (LINE, {"kernel_size": (3,), "strides": (1,), "paddings": (2, 1), "dilations": (2,)}),
)
IMAGES = (
    (IMAGE, {"kernel_size": (2, 2)}),
    (IMAGE[:, :1], {"kernel_size": (3,), "strides": (2, 1), "paddings": (1, 1)}),
    (IMAGE[:, 1:], {"kernel_size": (3, 2), "strides": (2, 3), "paddings": (0, 2, 1, 0), "ceil_mode": True}),
    (IMAGE[:, :, :3, :3], {"kernel_size": (3, 3)}),
    (IMAGE[:0], {"kernel_size": (2,)}),
    (
        IMAGE[:, :1],
        {"kernel_size": (2, 3), "strides": (2, 1), "paddings": (1, 0, 1, 1), "dilations": (3, 1), "ceil_mode": True},
    ),
)
BOXES = (
    (BOX, {"kernel_size": (2,)}),
    (BOX, {"kernel_size": (2, 1, 1), "strides": (1,)}),
    (BOX, {"kernel_size": (2, 2, 3), "strides": (2,), "paddings": (1,), "ceil_mode": True}),
    (BOX[:0], {"kernel_size": (2,)}),
    (BOX[..., :3], {"kernel_size": (1, 2, 2), "strides": (1,)}),
    (BOX, {"kernel_size": (2,), "strides": (1,), "paddings": (0, 0, 0, 0, 1, 0), "dilations": (1, 1, 3)}),
)  # fmt: skip


def cases(given, *results):
    return lambda: [Example((x,), tuple(each(x, **attrs) for each in results), attrs) for x, attrs in given]


max_pool1d.example(cases(LINES, _maxima, _positions))
max_pool2d.example(cases(IMAGES, _maxima, _positions))
max_pool3d.example(cases(BOXES, _maxima, _positions))
max_pool.example(cases((LINES[0], IMAGES[1], BOXES[2], LINES[-1], IMAGES[-1], BOXES[-1]), _maxima, _positions))
unpool_like.example(
    lambda: [
        Example((np.array([[[5.0, 7.0]]]), np.array([[[3, 0]]]), np.zeros((1, 1, 4))), (np.array([[[7.0, 0, 0, 5]]]),)),
        Example(
            (np.array([[[[1.0, 2.0]]]]), np.array([[[[3, 3]]]]), np.zeros((1, 1, 2, 2))),
            (np.array([[[[0.0, 0], [0, 3]]]]),),
        ),
        Example((np.ones((0, 1, 2)), np.zeros((0, 1, 2), int), np.zeros((0, 1, 4))), (np.zeros((0, 1, 4)),)),
    ]
)
pick.example(
    lambda: [
        Example((IMAGE[:, :, :2, :2], np.array([[[3, 0, 3]], [[1, -1, 2]]]).reshape(1, 2, 3)),
                (IMAGE[:, :, :2, :2].reshape(2, 4)[[[0], [1]], [[3, 0, 3], [1, 3, 2]]][None],)),
        Example((LINE, np.array([[[5], [0]]])), (LINE[0, [0, 1], [5, 0]].reshape(1, 2, 1),)),
        Example((LINE[:0], np.zeros((0, 2, 3), int)), (np.zeros((0, 2, 3)),)),
    ]
)  # fmt: skip
max_unpool.example(
    lambda: [
        Example(
            (np.array([[[5.0, 7.0]]]), np.array([[[3, 0]]])), (np.array([[[7.0, 0, 0, 5]]]),), {"output_size": (4,)}
        ),
        Example(
            (np.array([[[[1.0, 2.0]]]]), np.array([[[[3, 3]]]])),
            (np.array([[[[0.0, 0], [0, 3]]]]),),
            {"output_size": (2, 2)},
        ),
        Example((np.ones((0, 1, 2)), np.zeros((0, 1, 2), int)), (np.zeros((0, 1, 4)),), {"output_size": (4,)}),
        Example(
            (np.array([[[[[5.0]]]]]), np.array([[[[[2]]]]])),
            (np.array([[[[[0.0, 0]], [[5, 0]]]]]),),
            {"output_size": (2, 1, 2)},
        ),
    ]
)
