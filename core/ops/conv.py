"""Two-dimensional convolution.

It is bilinear, so its three forms (forward, gradient to the input, gradient to the filter) are each other's gradients.
That is all that any order of derivative needs.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import same_dtype, same_size
from core.ops.windows import pads_of, pair, reach, windows
from core.registry import Example, composite, lookup, op

__all__: list[str] = []


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
    (sh, sw), (dh, dw) = pair(strides, "strides", 1), pair(dilations, "dilations", 1)
    top, bottom, left, right = pads_of(paddings)
    h = reach(x.shape[2], kernel[0], sh, top, bottom, dh)
    w = reach(x.shape[3], kernel[1], sw, left, right, dw)
    return TensorType((x.shape[0], out, h, w), dtype)


def _columns(xp, x, kernel, strides, paddings, dilations, groups):
    """x as [group, n * out_h * out_w, channels * kernel_h * kernel_w], and (n, out_h, out_w)."""
    view = windows(xp, x, kernel, pair(strides, "strides", 1), pads_of(paddings), pair(dilations, "dilations", 1))
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
    (sh, sw), (dh, dw) = pair(strides, "strides", 1), pair(dilations, "dilations", 1)
    top, bottom, left, right = pads_of(paddings)
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
