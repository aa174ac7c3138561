"""Two-dimensional convolution and pooling.

A convolution is bilinear, so its three forms (forward, gradient to the input, gradient to the filter) are each
other's gradients; so are the sum over windows and its transpose. That is all that any order of derivative needs.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import same_dtype, same_size
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

Pads = tuple[int, int, int, int]


def _pair(values: tuple[int, ...], what: str, least: int) -> tuple[int, int]:
    """Two sizes, for height and width. Raises ProgramError (bad_attr)."""
    if len(values) == 1:
        values = (values[0], values[0])
    if len(values) != 2 or min(values) < least:
        raise ProgramError(f"{what} must be one or two sizes from {least}, not {list(values)}", "bad_attr")
    return values[0], values[1]


def _pads(values: tuple[int, ...]) -> Pads:
    """(top, bottom, left, right)."""
    if len(values) == 4 and min(values) >= 0:
        return values[0], values[1], values[2], values[3]
    h, w = _pair(values, "paddings", 0)
    return h, h, w, w


def _reach(size: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False) -> int:
    """How many windows fit along one axis; -1 if the size is unknown."""
    if size == -1:
        return -1
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        raise ProgramError(f"a window of {dilation * (kernel - 1) + 1} does not fit into {size}", "shape_mismatch")
    count = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (count - 1) * stride >= size + before:  # the last window must start inside
        count -= 1
    return count


def _windows(xp: Any, x: Any, kernel, strides, pads: Pads, dilations=(1, 1), count=None, fill=0.0) -> Any:
    """A view of x [n, c, h, w] as [n, c, out_h, out_w, kernel_h, kernel_w], padded with `fill`."""
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    bottom, right = pads[1], pads[3]
    if count is not None:  # windows that hang over the end need more padding
        bottom = max(bottom, (count[0] - 1) * strides[0] + reach[0] - x.shape[2] - pads[0])
        right = max(right, (count[1] - 1) * strides[1] + reach[1] - x.shape[3] - pads[2])
    if any((pads[0], bottom, pads[2], right)):
        x = xp.pad(x, ((0, 0), (0, 0), (pads[0], bottom), (pads[2], right)), constant_values=x.dtype.type(fill))
    view = xp.lib.stride_tricks.sliding_window_view(x, tuple(reach), axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


# --- convolution -----------------------------------------------------------------------------------------------


def _conv_shape(x: TensorType, filter: TensorType, strides, paddings, dilations, groups) -> TensorType:
    dtype = same_dtype(x, filter)
    if x.rank != 4 or filter.rank != 4 or not x.is_float:
        raise ProgramError(f"conv2d needs four axes of floats: x={x}, filter={filter}", "shape_mismatch")
    if -1 in filter.shape:
        raise ProgramError(f"the sizes of the filter {filter} must be known", "shape_mismatch")
    out, per_group, *kernel = filter.shape
    if groups < 1 or out % groups:
        raise ProgramError(f"{out} output channels do not divide into {groups} groups", "bad_attr")
    same_size(x.shape[1], per_group * groups, f"channels of x={x} and filter={filter} in {groups} groups differ")
    if 0 in kernel:
        raise ProgramError(f"the filter {filter} is empty", "shape_mismatch")
    (sh, sw), (dh, dw) = _pair(strides, "strides", 1), _pair(dilations, "dilations", 1)
    top, bottom, left, right = _pads(paddings)
    h = _reach(x.shape[2], kernel[0], sh, top, bottom, dh)
    w = _reach(x.shape[3], kernel[1], sw, left, right, dw)
    return TensorType((x.shape[0], out, h, w), dtype)


def _columns(xp, x, kernel, strides, paddings, dilations, groups):
    """x as [group, n * out_h * out_w, channels * kernel_h * kernel_w], and (n, out_h, out_w)."""
    view = _windows(xp, x, kernel, _pair(strides, "strides", 1), _pads(paddings), _pair(dilations, "dilations", 1))
    n, c, h, w, kh, kw = view.shape
    view = view.reshape(n, groups, c // groups, h, w, kh, kw).transpose(1, 0, 3, 4, 2, 5, 6)
    return view.reshape(groups, n * h * w, (c // groups) * kh * kw), (n, h, w)


def _rows(xp, y, groups):
    """y [n, out, h, w] as [group, n * h * w, out / groups]."""
    n, o, h, w = y.shape
    return y.reshape(n, groups, o // groups, h, w).transpose(1, 0, 3, 4, 2).reshape(groups, n * h * w, o // groups)


@op
def correlate2d(
    xp,
    x,
    filter,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The convolution of `conv2d` for x [n, c, h, w] and filter [out, c / groups, kernel_h, kernel_w]; no bias."""
    out = filter.shape[0]
    columns, (n, h, w) = _columns(xp, x, filter.shape[2:], strides, paddings, dilations, groups)
    weight = filter.reshape(groups, out // groups, -1)
    rows = xp.matmul(columns, xp.swapaxes(weight, 1, 2))
    return rows.reshape(groups, n, h, w, out // groups).transpose(1, 0, 4, 2, 3).reshape(n, out, h, w)


correlate2d.infer(lambda x, filter, **attrs: _conv_shape(x, filter, **attrs))


@correlate2d.vjp
def correlate2d_vjp(ct, out, x, filter, **attrs):
    return (
        lookup("correlate2d_input_adjoint")(ct, filter, x, **attrs),
        lookup("correlate2d_filter_adjoint")(ct, x, filter, **attrs),
    )


@op
def correlate2d_input_adjoint(
    xp,
    ct,
    filter,
    like,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The cotangent of the input of `correlate2d` (a transposed convolution); `like` gives the input's shape."""
    n, c, height, width = like.shape
    out, per_group, kh, kw = filter.shape
    (sh, sw), (dh, dw) = _pair(strides, "strides", 1), _pair(dilations, "dilations", 1)
    top, bottom, left, right = _pads(paddings)
    h, w = ct.shape[2:]
    spread = xp.matmul(_rows(xp, ct, groups), filter.reshape(groups, out // groups, -1))
    spread = spread.reshape(groups, n, h, w, per_group, kh, kw).transpose(1, 0, 4, 5, 6, 2, 3)
    spread = spread.reshape(n, c, kh, kw, h, w)
    padded = xp.zeros((n, c, height + top + bottom, width + left + right), ct.dtype)
    for i in range(kh):
        for j in range(kw):
            padded[:, :, i * dh : i * dh + h * sh : sh, j * dw : j * dw + w * sw : sw] += spread[:, :, i, j]
    return padded[:, :, top : top + height, left : left + width]


@correlate2d_input_adjoint.infer
def correlate2d_input_adjoint_infer(ct, filter, like, **attrs):
    _conv_shape(TensorType(like.shape, ct.dtype), filter, **attrs)
    return TensorType(like.shape, same_dtype(ct, filter))


@correlate2d_input_adjoint.vjp
def correlate2d_input_adjoint_vjp(ct, out, given, filter, like, **attrs):
    return (
        lookup("correlate2d")(ct, filter, **attrs),
        lookup("correlate2d_filter_adjoint")(given, ct, filter, **attrs),
        None,
    )


@op
def correlate2d_filter_adjoint(
    xp,
    ct,
    x,
    like,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The cotangent of the filter of `correlate2d`; `like` gives the filter's shape."""
    columns, _ = _columns(xp, x, like.shape[2:], strides, paddings, dilations, groups)
    return xp.matmul(xp.swapaxes(_rows(xp, ct, groups), 1, 2), columns).reshape(like.shape)


@correlate2d_filter_adjoint.infer
def correlate2d_filter_adjoint_infer(ct, x, like, **attrs):
    _conv_shape(x, TensorType(like.shape, x.dtype), **attrs)
    return TensorType(like.shape, same_dtype(ct, x))


@correlate2d_filter_adjoint.vjp
def correlate2d_filter_adjoint_vjp(ct, out, given, x, like, **attrs):
    return (
        lookup("correlate2d")(x, ct, **attrs),
        lookup("correlate2d_input_adjoint")(given, ct, x, **attrs),
        None,
    )


@composite
def conv2d(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1, 1),
    paddings: tuple[int, ...] = (0, 0),
    dilations: tuple[int, ...] = (1, 1),
    groups: int = 1,
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
):
    """``out[n, o, y, x] = bias[o] + sum over c, i, j of x[n, c, y * stride + i * dilation, ...] * filter[o, c, i, j]``.

    x is [batch, channels, height, width], or with NHWC the channels come last; the filter is always
    [out channels, channels / groups, kernel height, kernel width]. `paddings` are zeros around x: one size, (height,
    width) or (top, bottom, left, right). With `groups`, each group of channels sees its own share of the filters.
    """
    nhwc = data_format == "NHWC"
    if nhwc and x.rank == 4:
        x = lookup("transpose")(x, axes=(0, 3, 1, 2))
    out = lookup("correlate2d")(x, filter, strides=strides, paddings=paddings, dilations=dilations, groups=groups)
    if bias is not None:
        out = out + lookup("unsqueeze")(bias, axes=(1, 2))
    return lookup("transpose")(out, axes=(0, 2, 3, 1)) if nhwc else out


def _slow_conv(x, f, stride=1, pad=0, dilation=1, groups=1):
    """By the definition, one output at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    n, _, height, width = x.shape
    o, c, kh, kw = f.shape
    h = (height - dilation * (kh - 1) - 1) // stride + 1
    w = (width - dilation * (kw - 1) - 1) // stride + 1
    out = np.zeros((n, o, h, w))
    for k in range(o):
        first = k // (o // groups) * c
        for i in range(h):
            for j in range(w):
                rows = slice(i * stride, i * stride + dilation * (kh - 1) + 1, dilation)
                columns = slice(j * stride, j * stride + dilation * (kw - 1) + 1, dilation)
                out[:, k, i, j] = (x[:, first : first + c, rows, columns] * f[k]).sum((1, 2, 3))
    return out


def _conv_data():
    r = np.random.default_rng(2)
    return r.standard_normal((2, 2, 5, 4)), r.standard_normal((4, 2, 3, 2)), r.standard_normal(4)


def _conv_examples():
    x, f, b = _conv_data()
    plain = _slow_conv(x, f)
    yield Example((x, f), (plain,))
    yield Example((x, f, b), (_slow_conv(x, f, 2, 1) + b[:, None, None],), {"strides": (2, 2), "paddings": (1, 1)})
    yield Example((x, f[:, :1]), (_slow_conv(x, f[:, :1], groups=2),), {"groups": 2})
    yield Example((x, f), (_slow_conv(x, f, pad=1, dilation=2),), {"dilations": (2,), "paddings": (1, 1, 1, 1)})
    yield Example((x.transpose(0, 2, 3, 1), f), (plain.transpose(0, 2, 3, 1),), {"data_format": "NHWC"})


conv2d.example(_conv_examples)


def _correlate_examples():
    x, f, _ = _conv_data()
    yield Example((x, f), (_slow_conv(x, f),))
    yield Example((x, f), (_slow_conv(x, f, 2, 1),), {"strides": (2,), "paddings": (1,)})


correlate2d.example(_correlate_examples)


def _transposed(which):
    """The adjoint of a bilinear map, from the map itself on unit vectors."""

    def examples():
        x, f, _ = _conv_data()
        for stride, pad in ((1, 0), (2, 1)):
            ct = np.random.default_rng(3).standard_normal(_slow_conv(x, f, stride, pad).shape)
            attrs = {"strides": (stride,), "paddings": (pad,)}
            like = x if which == "input" else f
            out = np.zeros(like.shape)
            for at in np.ndindex(like.shape):
                unit = np.zeros(like.shape)
                unit[at] = 1.0
                moved = _slow_conv(unit, f, stride, pad) if which == "input" else _slow_conv(x, unit, stride, pad)
                out[at] = (moved * ct).sum()
            yield Example((ct, f if which == "input" else x, like), (out,), attrs)

    return examples


correlate2d_input_adjoint.example(_transposed("input"))
correlate2d_filter_adjoint.example(_transposed("filter"))


# --- pooling ---------------------------------------------------------------------------------------------------


def _pool_shape(x: TensorType, kernel_size, strides, paddings, ceil_mode) -> TensorType:
    if x.rank != 4 or not x.is_float:
        raise ProgramError(f"pooling needs four axes of floats, not {x}", "shape_mismatch")
    kernel = _pair(kernel_size, "kernel_size", 1)
    stride = _pair(strides or kernel, "strides", 1)
    top, bottom, left, right = _pads(paddings)
    if max(top, bottom) >= kernel[0] or max(left, right) >= kernel[1]:
        raise ProgramError(f"paddings {list(paddings)} must be smaller than the window {list(kernel)}", "bad_attr")
    h = _reach(x.shape[2], kernel[0], stride[0], top, bottom, 1, ceil_mode)
    w = _reach(x.shape[3], kernel[1], stride[1], left, right, 1, ceil_mode)
    return TensorType((*x.shape[:2], h, w), x.dtype)


def _pooled(xp, x, kernel_size, strides, paddings, ceil_mode, fill):
    """The windows of x, and (strides, pads, number of windows)."""
    kernel = _pair(kernel_size, "kernel_size", 1)
    stride, pads = _pair(strides or kernel, "strides", 1), _pads(paddings)
    shape = _pool_shape(TensorType(x.shape, "float64"), kernel_size, strides, paddings, ceil_mode).shape
    count = shape[2:]
    view = _windows(xp, x, kernel, stride, pads, count=count, fill=fill)[:, :, : count[0], : count[1]]
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
    from core.ops.index import in_range

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
    from core.ops.index import in_range

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
    kernel = _pair(kernel_size, "kernel_size", 1)
    (sh, sw), (top, _, left, _) = _pair(strides or kernel, "strides", 1), _pads(paddings)
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
    kh, kw = _pair(kernel_size, "kernel_size", 1)
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
