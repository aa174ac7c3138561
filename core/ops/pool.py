"""Pooling over one, two or three spatial axes.

Maximum pooling routes by the positions it found; the sum over windows and its transpose are each other's gradients.
"""

from __future__ import annotations

import math

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.index import in_range
from core.ops.types import same_size
from core.ops.windows import pads_of, reach, sizes, windows
from core.registry import Dtype, Example, composite, lookup, op

__all__: list[str] = []


def _pool_shape(x: TensorType, kernel_size, strides, paddings, ceil_mode) -> TensorType:
    n = x.rank - 2
    if not 1 <= n <= 3 or not x.is_float:
        raise ProgramError(f"pooling needs 3 to 5 axes of floats, not {x}", "shape_mismatch")
    kernel, stride, pads = _geometry(n, kernel_size, strides, paddings)
    if any(max(p) >= k for p, k in zip(pads, kernel, strict=True)):
        raise ProgramError(f"paddings {list(paddings)} must be smaller than the window {list(kernel)}", "bad_attr")
    axes = zip(x.shape[2:], kernel, stride, pads, strict=True)
    return TensorType((*x.shape[:2], *(reach(m, k, s, p, 1, ceil_mode) for m, k, s, p in axes)), x.dtype)


def _geometry(n: int, kernel_size, strides, paddings):
    kernel = sizes(kernel_size, n, "kernel_size", 1)
    return kernel, sizes(strides or kernel, n, "strides", 1), pads_of(paddings, n)


def _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, fill):
    """The windows of x, and (kernel, strides, pads)."""
    geometry = _geometry(x.ndim - 2, kernel_size, strides, paddings)
    shape = _pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, ceil_mode).shape
    kernel, stride, pads = geometry
    view = windows(xp, x, kernel, stride, pads, count=shape[2:], fill=fill)
    return view[(slice(None), slice(None), *(slice(n) for n in shape[2:]))], geometry


@op(outputs=("out", "index"))
def max_pool(
    xp,
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
):
    """`max_pool2d` over the axes of x behind batch and channels."""
    view, (kernel, stride, pads) = _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, -xp.inf)
    n = len(kernel)
    flat = view.reshape(*view.shape[: 2 + n], math.prod(kernel))
    best = xp.argmax(flat, axis=-1)
    out = xp.take_along_axis(flat, best[..., None], axis=-1)[..., 0]
    position, rest, step = xp.zeros(best.shape, "int64"), best, 1
    for axis in reversed(range(n)):
        count = view.shape[2 + axis]
        starts = (xp.arange(count) * stride[axis] - pads[axis][0]).reshape((count,) + (1,) * (n - 1 - axis))
        # a window of nothing but -inf may have picked padding
        at = xp.clip(rest % kernel[axis] + starts, 0, x.shape[2 + axis] - 1)
        position, rest, step = position + at * step, rest // kernel[axis], step * x.shape[2 + axis]
    return out, position.astype("int64")


@max_pool.infer
def max_pool_infer(x, *, kernel_size, strides, paddings, ceil_mode):
    out = _pool_shape(x, kernel_size, strides, paddings, ceil_mode)
    return out, TensorType(out.shape, "int64")


@max_pool.vjp
def max_pool_vjp(cts, outs, x, **attrs):
    return lookup("unpool_like")(cts[0], outs[1], x)


@op
def unpool_like(xp, x, index, like):
    """Zeros shaped like `like` [n, c, *spatial], with x added at the positions that `index` gives in each image."""
    n, c, *spatial = like.shape
    size = math.prod(spatial)
    plane = xp.arange(n * c).reshape(n, c, *(1 for _ in index.shape[2:])) * size
    at = (in_range(xp, index, size) + plane).ravel()
    flat = xp.bincount(at, weights=x.ravel().astype("float64"), minlength=n * c * size)
    return flat.astype(x.dtype).reshape(like.shape)


@unpool_like.infer
def unpool_like_infer(x, index, like):
    if x.rank < 3 or like.rank < 3 or index.rank != x.rank or index.dtype != "int64":
        raise ProgramError(f"cannot unpool {x} at {index} into {like}", "shape_mismatch")
    for m, n in (*zip(x.shape, index.shape, strict=True), *zip(x.shape[:2], like.shape[:2], strict=True)):
        same_size(m, n, f"sizes of {x}, {index} and {like} differ")
    return TensorType(like.shape, x.dtype)


unpool_like.vjp(lambda ct, out, x, index, like: (lookup("pick")(ct, index), None, None))


@op
def pick(xp, x, index):
    """The elements of each image of x [n, c, *spatial] at the positions, in row-major order, in `index`."""
    n, c, *spatial = x.shape
    size = math.prod(spatial)
    at = in_range(xp, index, size).reshape(n, c, math.prod(index.shape[2:]))
    return xp.take_along_axis(x.reshape(n, c, size), at, axis=2).reshape(index.shape)


@pick.infer
def pick_infer(x, index):
    if x.rank < 3 or index.rank < 3 or index.dtype != "int64":
        raise ProgramError(f"cannot pick from {x} by {index}", "shape_mismatch")
    for m, n in zip(x.shape[:2], index.shape[:2], strict=True):
        same_size(m, n, f"batch and channels of {x} and {index} differ")
    return TensorType(index.shape, x.dtype)


pick.vjp(lambda ct, out, x, index: (lookup("unpool_like")(ct, index, x), None))


@op
def window_sum(
    xp,
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
):
    """The sum over each window of x [n, c, *spatial]; outside it there are zeros."""
    view, _ = _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, 0.0)
    return view.sum(tuple(range(x.ndim, view.ndim)), dtype=x.dtype)


window_sum.infer(lambda x, **attrs: _pool_shape(x, **attrs))
window_sum.vjp(lambda ct, out, x, **attrs: lookup("window_sum_adjoint")(ct, x, **attrs))


@op
def window_sum_adjoint(
    xp,
    ct,
    like,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
):
    """The cotangent of the input of `window_sum`; `like` gives the input's shape."""
    kernel, stride, pads = _geometry(like.ndim - 2, kernel_size, strides, paddings)
    counts = ct.shape[2:]
    axes = zip(like.shape[2:], counts, kernel, stride, pads, strict=True)
    room = (max(m + before, (n - 1) * s + k) for m, n, k, s, (before, _) in axes)
    padded = xp.zeros((*like.shape[:2], *room), ct.dtype)
    for at in np.ndindex(*kernel):
        place = tuple(slice(i, i + n * s, s) for i, n, s in zip(at, counts, stride, strict=True))
        padded[(slice(None), slice(None), *place)] += ct
    inside = tuple(slice(before, before + m) for (before, _), m in zip(pads, like.shape[2:], strict=True))
    return padded[(slice(None), slice(None), *inside)]


@window_sum_adjoint.infer
def window_sum_adjoint_infer(ct, like, **attrs):
    _pool_shape(TensorType(like.shape, ct.dtype), **attrs)
    return TensorType(like.shape, ct.dtype)


window_sum_adjoint.vjp(lambda ct, out, given, like, **attrs: (lookup("window_sum")(ct, **attrs), None))


# --- the ops that clients use ----------------------------------------------------------------------------------


def _check_rank(x, n: int) -> None:
    if x.rank != n + 2:
        raise ProgramError(f"needs {n + 2} axes, batch and channels among them, not {x.type}", "shape_mismatch")


def _average(x, n, exclusive, **attrs):
    _check_rank(x, n)
    total = lookup("window_sum")(x, **attrs)
    if exclusive:
        return total / lookup("window_sum")(lookup("full_like")(x, value=1.0), **attrs)
    return total / math.prod(sizes(attrs["kernel_size"], n, "kernel_size", 1))


@composite(outputs=("out", "index"))
def max_pool1d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
):
    """`max_pool2d` over one spatial axis: x [n, c, length]."""
    _check_rank(x, 1)
    return lookup("max_pool")(x, kernel_size=kernel_size, strides=strides, paddings=paddings, ceil_mode=ceil_mode)


@composite(outputs=("out", "index"))
def max_pool2d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0, 0),
    ceil_mode: bool = False,
):
    """The largest element of each window of x [n, c, h, w], and its position ``row * w + column`` in the image.

    Of several largest the first, row by row, is taken, and it alone gets the gradient. Padding is never taken.
    `strides` are the window's size unless given; with `ceil_mode` a last window may hang over the end.
    """
    _check_rank(x, 2)
    return lookup("max_pool")(x, kernel_size=kernel_size, strides=strides, paddings=paddings, ceil_mode=ceil_mode)


@composite(outputs=("out", "index"))
def max_pool3d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
):
    """`max_pool2d` over three spatial axes: x [n, c, depth, h, w]."""
    _check_rank(x, 3)
    return lookup("max_pool")(x, kernel_size=kernel_size, strides=strides, paddings=paddings, ceil_mode=ceil_mode)


@composite
def avg_pool1d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """`avg_pool2d` over one spatial axis: x [n, c, length]."""
    attrs = {"kernel_size": kernel_size, "strides": strides, "paddings": paddings, "ceil_mode": ceil_mode}
    return _average(x, 1, exclusive, **attrs)


@composite
def avg_pool2d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0, 0),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """The mean of each window of x [n, c, h, w].

    With `exclusive` a window is averaged over the elements of x in it; else over its whole size, padding included.
    """
    attrs = {"kernel_size": kernel_size, "strides": strides, "paddings": paddings, "ceil_mode": ceil_mode}
    return _average(x, 2, exclusive, **attrs)


@composite
def avg_pool3d(
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0,),
    ceil_mode: bool = False,
    exclusive: bool = True,
):
    """`avg_pool2d` over three spatial axes: x [n, c, depth, h, w]."""
    attrs = {"kernel_size": kernel_size, "strides": strides, "paddings": paddings, "ceil_mode": ceil_mode}
    return _average(x, 3, exclusive, **attrs)


@composite
def max_unpool(x, index, *, output_size: tuple[int, ...]):
    """Zeros [n, c, *output_size] with x at the positions in `index`, which a maximum pooling gave.

    What falls on one position is added.
    """
    if any(n < 0 for n in output_size) or len(output_size) != x.rank - 2:
        raise ProgramError(f"output_size must be {x.rank - 2} sizes, not {list(output_size)}", "bad_attr")
    if x.shape[1] == -1:
        raise ProgramError(f"the number of channels of {x.type} must be known", "shape_mismatch")
    like = lookup("fill_constant_batch_size_like")(x, shape=(*x.shape[:2], *output_size), dtype=x.dtype)
    return lookup("unpool_like")(x, index, like)


@composite
def global_avg_pool(x):
    """The mean over all axes of x behind batch and channels, which stay as 1."""
    return lookup("reduce_mean")(x, axes=tuple(range(2, x.rank)), keepdims=True)


@composite
def global_max_pool(x):
    """The largest element over all axes behind batch and channels, which stay as 1. Ties share the gradient evenly."""
    return lookup("reduce_max")(x, axes=tuple(range(2, x.rank)), keepdims=True)


# --- adaptive windows ------------------------------------------------------------------------------------------


def _adaptive(size: int, count: int) -> list[range]:
    """The `count` windows of an axis: from ``floor(i n / count)`` to ``ceil((i + 1) n / count)``; they may overlap."""
    return [range(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@op(no_gradient="it is a constant")
def adaptive_weights(xp, *, size: int, count: int, dtype: Dtype = "float32"):
    """The matrix [size, count] that averages an axis of `size` elements over `count` adaptive windows."""
    out = np.zeros((size, count), dtype=dtype)
    for i, window in enumerate(_adaptive(size, count)):
        out[window.start : window.stop, i] = 1.0 / max(len(window), 1)
    return xp.asarray(out)


@adaptive_weights.infer
def adaptive_weights_infer(*, size, count, dtype):
    if size < 0 or count < 1 or dtype not in ("float32", "float64"):
        raise ProgramError(f"there are no {count} windows of {size} elements", "bad_attr")
    return TensorType((size, count), dtype)


adaptive_weights.example(
    lambda: [
        Example((), (np.array([[1.0, 0], [0, 1]]),), {"size": 2, "count": 2, "dtype": "float64"}),
        Example((), (np.array([[0.5, 0], [0.5, 0.5], [0, 0.5]]),), {"size": 3, "count": 2, "dtype": "float64"}),
    ]
)


@op(no_gradient="its result is an integer")
def adaptive_positions(xp, *, sizes: tuple[int, ...], counts: tuple[int, ...]):
    """For each adaptive window the positions, in row-major order, of its elements: int64 [windows, largest window].

    A smaller window repeats its first element.
    """
    boxes = [_adaptive(n, count) for n, count in zip(sizes, counts, strict=True)]
    width = math.prod(max(map(len, each)) for each in boxes)
    out = np.zeros((math.prod(counts), width), dtype="int64")
    for row, at in enumerate(np.ndindex(*counts)):
        grid = np.meshgrid(*(np.array(each[i]) for each, i in zip(boxes, at, strict=True)), indexing="ij")
        flat = np.ravel_multi_index(tuple(grid), sizes).ravel()
        out[row] = flat[0]
        out[row, : flat.size] = flat
    return xp.asarray(out)


@adaptive_positions.infer
def adaptive_positions_infer(*, sizes, counts):
    if not sizes or len(sizes) != len(counts) or min(*sizes, *counts) < 1:
        raise ProgramError(f"there are no windows {list(counts)} of {list(sizes)}", "bad_attr")
    boxes = [_adaptive(n, count) for n, count in zip(sizes, counts, strict=True)]
    return TensorType((math.prod(counts), math.prod(max(map(len, each)) for each in boxes)), "int64")


adaptive_positions.example(lambda: [Example((), (np.array([[0, 1], [1, 2]]),), {"sizes": (3,), "counts": (2,)})])


def _check_adaptive(x, n: int, output_size: tuple[int, ...]) -> tuple[int, ...]:
    _check_rank(x, n)
    if -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"the spatial sizes of {x.type} must be known and above 0", "shape_mismatch")
    return sizes(output_size, n, "output_size", 1)


def _adaptive_average(x, n, output_size):
    for axis, count in enumerate(_check_adaptive(x, n, output_size), start=2):
        weights = x.builder.emit("adaptive_weights", size=x.shape[axis], count=count, dtype="float64")
        weights = lookup("cast")(weights, dtype=x.dtype)
        order = (*(i for i in range(x.rank) if i != axis), axis)
        turned = lookup("matmul")(lookup("transpose")(x, axes=order), weights)
        x = lookup("transpose")(turned, axes=tuple(order.index(i) for i in range(x.rank)))
    return x


def _adaptive_maximum(x, n, output_size):
    counts = _check_adaptive(x, n, output_size)
    if x.shape[1] == -1:
        raise ProgramError(f"the number of channels of {x.type} must be known", "shape_mismatch")
    at = x.builder.emit("adaptive_positions", sizes=x.shape[2:], counts=counts)
    flat = lookup("reshape")(x, shape=(*x.shape[:2], math.prod(x.shape[2:])))
    best = lookup("argmax")(lookup("gather")(flat, at, axis=2), axis=-1)
    rows = lookup("unsqueeze")(x.builder.emit("range", end=float(at.shape[0])), axes=(0, 1))
    index = lookup("gather")(lookup("reshape")(at, shape=(-1,)), best + rows * at.shape[1])
    index = lookup("reshape")(index, shape=(*x.shape[:2], *counts))
    return lookup("pick")(x, index), index


@composite
def adaptive_avg_pool1d(x, *, output_size: tuple[int, ...]):
    """`adaptive_avg_pool2d` over one spatial axis."""
    return _adaptive_average(x, 1, output_size)


@composite
def adaptive_avg_pool2d(x, *, output_size: tuple[int, ...]):
    """The mean over windows chosen so that `output_size` of them cover each axis; they overlap where it must be."""
    return _adaptive_average(x, 2, output_size)


@composite
def adaptive_avg_pool3d(x, *, output_size: tuple[int, ...]):
    """`adaptive_avg_pool2d` over three spatial axes."""
    return _adaptive_average(x, 3, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool1d(x, *, output_size: tuple[int, ...]):
    """`adaptive_max_pool2d` over one spatial axis."""
    return _adaptive_maximum(x, 1, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool2d(x, *, output_size: tuple[int, ...]):
    """The largest element of windows as in `adaptive_avg_pool2d`, and its position; of several largest the first."""
    return _adaptive_maximum(x, 2, output_size)


@composite(outputs=("out", "index"))
def adaptive_max_pool3d(x, *, output_size: tuple[int, ...]):
    """`adaptive_max_pool2d` over three spatial axes."""
    return _adaptive_maximum(x, 3, output_size)


IMAGE = np.random.default_rng(4).permutation(40.0 * np.arange(40.0) / 400).reshape(1, 2, 5, 4)


def _blocks(image, reduce):
    """2 x 2 windows that do not overlap; the odd last row is left out."""
    n, c, h, w = image.shape
    return reduce(image[:, :, : h // 2 * 2, : w // 2 * 2].reshape(n, c, h // 2, 2, w // 2, 2), (3, 5))


def _max_examples():
    where = np.arange(20.0).reshape(1, 1, 5, 4)
    yield Example(
        (where,), (np.array([[[[5.0, 7], [13, 15]]]]), np.array([[[[5, 7], [13, 15]]]])), {"kernel_size": (2, 2)}
    )
    index = np.stack(
        [
            [[max((IMAGE[0, c, y, x], y * 4 + x) for y in (2 * i, 2 * i + 1) for x in (2 * j, 2 * j + 1))[1]
              for j in range(2)] for i in range(2)]
            for c in range(2)
        ]
    )[None]  # fmt: skip
    yield Example((IMAGE,), (_blocks(IMAGE, np.max), index), {"kernel_size": (2,)})
    tall = np.array([[[[1.0, 3.0, 2.0]]]])
    yield Example(
        (tall,),
        (np.array([[[[3.0, 2.0]]]]), np.array([[[[1, 2]]]])),
        {"kernel_size": (1, 2), "ceil_mode": True},
    )


max_pool2d.example(_max_examples)
max_pool.example(_max_examples)
unpool_like.example(
    lambda: [
        Example(
            (np.ones((1, 1, 1, 2)), np.array([[[[3, 3]]]]), np.zeros((1, 1, 2, 2))), (np.array([[[[0.0, 0], [0, 2]]]]),)
        )
    ]
)
pick.example(
    lambda: [Example((np.arange(4.0).reshape(1, 1, 2, 2), np.array([[[[3, 0]]]])), (np.array([[[[3.0, 0.0]]]]),))]
)
window_sum.example(
    lambda: [
        Example((IMAGE,), (_blocks(IMAGE, np.sum),), {"kernel_size": (2, 2)}),
        Example((np.ones((1, 1, 3, 3)),), (np.array([[[[4.0, 4], [4, 4]]]]),),
                {"kernel_size": (3, 3), "strides": (2, 2), "paddings": (1, 1)}),
    ]
)  # fmt: skip
window_sum_adjoint.example(
    lambda: [
        Example((np.ones((1, 1, 2, 2)), np.zeros((1, 1, 3, 3))), (np.array([[[[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]]]),),
                {"kernel_size": (2, 2), "strides": (1, 1)}),
    ]
)  # fmt: skip
avg_pool2d.example(
    lambda: [
        Example((IMAGE,), (_blocks(IMAGE, np.mean),), {"kernel_size": (2, 2)}),
        Example((np.ones((1, 1, 3, 3)),), (np.array([[[[1.0, 1], [1, 1]]]]),),
                {"kernel_size": (3, 3), "strides": (2, 2), "paddings": (1, 1)}),
        Example((np.ones((1, 1, 3, 3)),), (np.array([[[[4.0, 4], [4, 4]]]]) / 9,),
                {"kernel_size": (3, 3), "strides": (2, 2), "paddings": (1, 1), "exclusive": False}),
        Example((np.arange(3.0).reshape(1, 1, 1, 3),), (np.array([[[[0.5, 2.0]]]]),),
                {"kernel_size": (1, 2), "ceil_mode": True}),
    ]
)  # fmt: skip

LINE = np.random.default_rng(5).permutation(np.arange(12.0) / 3).reshape(1, 2, 6)
BOX = np.random.default_rng(6).permutation(np.arange(16.0) / 3).reshape(1, 1, 2, 2, 4)


def _each(x, output_size):
    """(values, positions) of each adaptive window, by the definition."""
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
    for at, found in _each(x, output_size):
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


adaptive_avg_pool1d.example(_adaptive_cases("mean")((LINE, (4,)), (LINE, (3,)), (LINE[:0], (3,))))
adaptive_avg_pool2d.example(_adaptive_cases("mean")((IMAGE, (3, 2)), (IMAGE, (1, 4)), (IMAGE[:0], (2, 2))))
adaptive_avg_pool3d.example(_adaptive_cases("mean")((BOX, (1, 2, 3)), (BOX, (2, 1, 2)), (BOX[:0], (1, 1, 1))))
adaptive_max_pool1d.example(_adaptive_cases("max")((LINE, (4,)), (LINE, (3,)), (LINE[:0], (3,))))
adaptive_max_pool2d.example(_adaptive_cases("max")((IMAGE, (3, 2)), (IMAGE, (1, 4)), (IMAGE[:0], (2, 2))))
adaptive_max_pool3d.example(_adaptive_cases("max")((BOX, (1, 2, 3)), (BOX, (2, 1, 2)), (BOX[:0], (1, 1, 1))))
max_pool1d.example(
    lambda: [
        Example((LINE,), (LINE.reshape(1, 2, 3, 2).max(3),), {"kernel_size": (2,)}),
        Example((LINE,), (np.maximum(LINE[:, :, :-1], LINE[:, :, 1:]),), {"kernel_size": (2,), "strides": (1,)}),
        Example((LINE[:0],), (np.zeros((0, 2, 3)), np.zeros((0, 2, 3), int)), {"kernel_size": (2,)}),
    ]
)
max_pool3d.example(
    lambda: [
        Example((BOX,), (BOX.reshape(1, 1, 2, 2, 2, 2).max((2, 3, 5)).reshape(1, 1, 1, 1, 2),), {"kernel_size": (2,)}),
        Example((BOX,), (BOX.max(2, keepdims=True),), {"kernel_size": (2, 1, 1)}),
        Example((BOX[:0],), (np.zeros((0, 1, 1, 1, 2)),), {"kernel_size": (2,)}),
    ]
)
avg_pool1d.example(
    lambda: [
        Example((LINE,), (LINE.reshape(1, 2, 3, 2).mean(3),), {"kernel_size": (2,)}),
        Example((np.ones((1, 1, 3)),), (np.array([[[2.0, 2.0]]]) / 3,),
                {"kernel_size": (3,), "strides": (2,), "paddings": (1,), "exclusive": False}),
        Example((LINE[:0],), (np.zeros((0, 2, 3)),), {"kernel_size": (2,)}),
    ]
)  # fmt: skip
avg_pool3d.example(
    lambda: [
        Example((BOX,), (BOX.reshape(1, 1, 2, 2, 2, 2).mean((2, 3, 5)).reshape(1, 1, 1, 1, 2),), {"kernel_size": (2,)}),
        Example((BOX,), (BOX.mean(2, keepdims=True),), {"kernel_size": (2, 1, 1)}),
        Example((BOX[:0],), (np.zeros((0, 1, 1, 1, 2)),), {"kernel_size": (2,)}),
    ]
)
max_unpool.example(
    lambda: [
        Example(
            (np.array([[[5.0, 7.0]]]), np.array([[[3, 0]]])), (np.array([[[7.0, 0, 0, 5]]]),), {"output_size": (4,)}
        ),
        Example(
            (np.ones((1, 1, 1, 2)), np.array([[[[3, 3]]]])),
            (np.array([[[[0.0, 0], [0, 2]]]]),),
            {"output_size": (2, 2)},
        ),
        Example((np.zeros((0, 1, 2)), np.zeros((0, 1, 2), int)), (np.zeros((0, 1, 4)),), {"output_size": (4,)}),
    ]
)
global_avg_pool.example(
    lambda: [Example((x,), (x.mean(tuple(range(2, x.ndim)), keepdims=True),)) for x in (LINE, IMAGE, BOX)]
)
global_max_pool.example(
    lambda: [Example((x,), (x.max(tuple(range(2, x.ndim)), keepdims=True),)) for x in (LINE, IMAGE, BOX)]
)
