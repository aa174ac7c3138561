"""Two-dimensional pooling.

Maximum pooling routes by the positions it found; the sum over windows and its transpose are each other's gradients.
"""

from __future__ import annotations

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.index import in_range
from core.ops.types import same_size
from core.ops.windows import pads_of, pair, reach, windows
from core.registry import Example, composite, lookup, op

__all__: list[str] = []


def _pool_shape(x: TensorType, kernel_size, strides, paddings, ceil_mode) -> TensorType:
    if x.rank != 4 or not x.is_float:
        raise ProgramError(f"pooling needs four axes of floats, not {x}", "shape_mismatch")
    kernel = pair(kernel_size, "kernel_size", 1)
    stride = pair(strides or kernel, "strides", 1)
    top, bottom, left, right = pads_of(paddings)
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise ProgramError(f"paddings {list(paddings)} must be smaller than the window {list(kernel)}", "bad_attr")
    h = reach(x.shape[2], kernel[0], stride[0], top, bottom, 1, ceil_mode)
    w = reach(x.shape[3], kernel[1], stride[1], left, right, 1, ceil_mode)
    return TensorType((*x.shape[:2], h, w), x.dtype)


def _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, fill):
    """The windows of x, and (strides, pads, number of windows)."""
    kernel = pair(kernel_size, "kernel_size", 1)
    stride, pads = pair(strides or kernel, "strides", 1), pads_of(paddings)
    shape = _pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, ceil_mode).shape
    count = shape[2:]
    view = windows(xp, x, kernel, stride, pads, count=count, fill=fill)[:, :, : count[0], : count[1]]
    return view, stride, pads, count


@op(outputs=("out", "index"))
def max_pool2d(
    xp,
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
    view, stride, pads, count = _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, -xp.inf)
    kh, kw = view.shape[4:]
    flat = view.reshape(*view.shape[:4], kh * kw)
    best = xp.argmax(flat, axis=-1)
    out = xp.take_along_axis(flat, best[..., None], axis=-1)[..., 0]
    row = best // kw + (xp.arange(count[0]) * stride[0] - pads[0])[:, None]
    column = best % kw + (xp.arange(count[1]) * stride[1] - pads[2])[None, :]
    # a window of nothing but -inf may have picked padding
    row, column = xp.clip(row, 0, x.shape[2] - 1), xp.clip(column, 0, x.shape[3] - 1)
    return out, (row * x.shape[3] + column).astype("int64")


@max_pool2d.infer
def max_pool2d_infer(x, *, kernel_size, strides, paddings, ceil_mode):
    out = _pool_shape(x, kernel_size, strides, paddings, ceil_mode)
    return out, TensorType(out.shape, "int64")


@max_pool2d.vjp
def max_pool2d_vjp(cts, outs, x, **attrs):
    return lookup("unpool2d_like")(cts[0], outs[1], x)


@op
def unpool2d_like(xp, x, index, like):
    """Zeros shaped like `like` [n, c, h, w], with x added at the positions that `index` gives in each image."""
    n, c, h, w = like.shape
    plane = xp.arange(n * c).reshape(n, c, 1, 1) * (h * w)
    flat = xp.bincount(
        (in_range(xp, index, h * w) + plane).ravel(), weights=x.ravel().astype("float64"), minlength=n * c * h * w
    )
    return flat.astype(x.dtype).reshape(like.shape)


@unpool2d_like.infer
def unpool2d_like_infer(x, index, like):
    if x.rank != 4 or like.rank != 4 or index.shape != x.shape or index.dtype != "int64":
        raise ProgramError(f"cannot unpool {x} at {index} into {like}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


unpool2d_like.vjp(lambda ct, out, x, index, like: (lookup("pick2d")(ct, index), None, None))


@op
def pick2d(xp, x, index):
    """The elements of each image of x [n, c, h, w] at the positions ``row * w + column`` in `index`."""
    n, c, h, w = x.shape
    at = in_range(xp, index, h * w).reshape(n, c, -1)
    return xp.take_along_axis(x.reshape(n, c, h * w), at, axis=2).reshape(index.shape)


@pick2d.infer
def pick2d_infer(x, index):
    if x.rank != 4 or index.rank != 4 or index.dtype != "int64":
        raise ProgramError(f"cannot pick from {x} by {index}", "shape_mismatch")
    for m, n in zip(x.shape[:2], index.shape[:2], strict=True):
        same_size(m, n, f"batch and channels of {x} and {index} differ")
    return TensorType(index.shape, x.dtype)


pick2d.vjp(lambda ct, out, x, index: (lookup("unpool2d_like")(ct, index, x), None))


@op
def window_sum2d(
    xp,
    x,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0, 0),
    ceil_mode: bool = False,
):
    """The sum over each window of x [n, c, h, w]; outside it there are zeros."""
    return _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, 0.0)[0].sum((4, 5), dtype=x.dtype)


window_sum2d.infer(lambda x, **attrs: _pool_shape(x, **attrs))
window_sum2d.vjp(lambda ct, out, x, **attrs: lookup("window_sum2d_adjoint")(ct, x, **attrs))


@op
def window_sum2d_adjoint(
    xp,
    ct,
    like,
    *,
    kernel_size: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    paddings: tuple[int, ...] = (0, 0),
    ceil_mode: bool = False,
):
    """The cotangent of the input of `window_sum2d`; `like` gives the input's shape."""
    kernel = pair(kernel_size, "kernel_size", 1)
    (sh, sw), (top, _, left, _) = pair(strides or kernel, "strides", 1), pads_of(paddings)
    n, c, height, width = like.shape
    h, w = ct.shape[2:]
    rows = max(height + top, (h - 1) * sh + kernel[0])
    columns = max(width + left, (w - 1) * sw + kernel[1])
    padded = xp.zeros((n, c, rows, columns), ct.dtype)
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            padded[:, :, i : i + h * sh : sh, j : j + w * sw : sw] += ct
    return padded[:, :, top : top + height, left : left + width]


@window_sum2d_adjoint.infer
def window_sum2d_adjoint_infer(ct, like, **attrs):
    _pool_shape(TensorType(like.shape, ct.dtype), **attrs)
    return TensorType(like.shape, ct.dtype)


window_sum2d_adjoint.vjp(lambda ct, out, given, like, **attrs: (lookup("window_sum2d")(ct, **attrs), None))


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
    total = lookup("window_sum2d")(x, **attrs)
    if exclusive:
        return total / lookup("window_sum2d")(lookup("full_like")(x, value=1.0), **attrs)
    kh, kw = pair(kernel_size, "kernel_size", 1)
    return total / (kh * kw)


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
unpool2d_like.example(
    lambda: [
        Example(
            (np.ones((1, 1, 1, 2)), np.array([[[[3, 3]]]]), np.zeros((1, 1, 2, 2))), (np.array([[[[0.0, 0], [0, 2]]]]),)
        )
    ]
)
pick2d.example(
    lambda: [Example((np.arange(4.0).reshape(1, 1, 2, 2), np.array([[[[3, 0]]]])), (np.array([[[[3.0, 0.0]]]]),))]
)
window_sum2d.example(
    lambda: [
        Example((IMAGE,), (_blocks(IMAGE, np.sum),), {"kernel_size": (2, 2)}),
        Example((np.ones((1, 1, 3, 3)),), (np.array([[[[4.0, 4], [4, 4]]]]),),
                {"kernel_size": (3, 3), "strides": (2, 2), "paddings": (1, 1)}),
    ]
)  # fmt: skip
window_sum2d_adjoint.example(
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
