"""Convolution over one, two or three spatial axes.

It is bilinear, so its three forms (forward, gradient to the input, gradient to the filter) are each other's gradients.
That is all that any order of derivative needs; a transposed convolution is the second of them.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import same_dtype, same_size
from core.ops.windows import pads_of, reach, sizes, windows
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

Padding = Literal["explicit", "same", "valid"]


def _conv_shape(x: TensorType, filter: TensorType, strides, paddings, dilations, groups) -> TensorType:
    dtype = same_dtype(x, filter)
    n = x.rank - 2
    if not 1 <= n <= 3 or filter.rank != x.rank or not x.is_float:
        raise ProgramError(f"convolution needs 3 to 5 axes of floats: x={x}, filter={filter}", "shape_mismatch")
    if -1 in filter.shape:
        raise ProgramError(f"the sizes of the filter {filter} must be known", "shape_mismatch")
    out, per_group, *kernel = filter.shape
    if groups < 1 or out % groups:
        raise ProgramError(f"{out} output channels do not divide into {groups} groups", "bad_attr")
    same_size(x.shape[1], per_group * groups, f"channels of x={x} and filter={filter} in {groups} groups differ")
    if 0 in kernel:
        raise ProgramError(f"the filter {filter} is empty", "shape_mismatch")
    steps, spread = sizes(strides, n, "strides", 1), sizes(dilations, n, "dilations", 1)
    axes = zip(x.shape[2:], kernel, steps, pads_of(paddings, n), spread, strict=True)
    return TensorType((x.shape[0], out, *(reach(*each) for each in axes)), dtype)


def _columns(xp, x, kernel, strides, paddings, dilations, groups):
    """x as [group, n * outputs, channels * kernel], and (n, *spatial sizes of the output)."""
    k = len(kernel)
    view = windows(
        xp, x, kernel, sizes(strides, k, "strides", 1), pads_of(paddings, k), sizes(dilations, k, "dilations", 1)
    )
    n, c, *rest = view.shape
    out = rest[:k]
    view = view.reshape(n, groups, c // groups, *rest)
    spatial, inner = tuple(range(3, 3 + k)), tuple(range(3 + k, 3 + 2 * k))
    view = view.transpose(1, 0, *spatial, 2, *inner)
    return view.reshape(groups, n * math.prod(out), (c // groups) * math.prod(kernel)), (n, *out)


def _rows(xp, y, groups):
    """y [n, out, *spatial] as [group, n * positions, out / groups]."""
    n, o, *spatial = y.shape
    turned = y.reshape(n, groups, o // groups, *spatial).transpose(1, 0, *range(3, 3 + len(spatial)), 2)
    return turned.reshape(groups, n * math.prod(spatial), o // groups)


@op
def correlate(
    xp,
    x,
    filter,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """Convolution of x [n, c, *spatial] with filter [out, c / groups, *kernel], in the sense of `conv2d`; no bias."""
    out = filter.shape[0]
    columns, (n, *spatial) = _columns(xp, x, filter.shape[2:], strides, paddings, dilations, groups)
    weight = filter.reshape(groups, out // groups, -1)
    rows = xp.matmul(columns, xp.swapaxes(weight, 1, 2))
    turned = rows.reshape(groups, n, *spatial, out // groups)
    order = (1, 0, 2 + len(spatial), *range(2, 2 + len(spatial)))
    return turned.transpose(order).reshape(n, out, *spatial)


correlate.infer(lambda x, filter, **attrs: _conv_shape(x, filter, **attrs))


@correlate.vjp
def correlate_vjp(ct, out, x, filter, **attrs):
    return (
        lookup("correlate_input_adjoint")(ct, filter, x, **attrs),
        lookup("correlate_filter_adjoint")(ct, x, filter, **attrs),
    )


@op
def correlate_input_adjoint(
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
    """The cotangent of the input of `correlate` (a transposed convolution); `like` gives the input's shape."""
    n, c, *size = like.shape
    out, per_group, *kernel = filter.shape
    k = len(size)
    steps, spread = sizes(strides, k, "strides", 1), sizes(dilations, k, "dilations", 1)
    pads = pads_of(paddings, k)
    spatial = ct.shape[2:]
    each = xp.matmul(_rows(xp, ct, groups), filter.reshape(groups, out // groups, -1))
    each = each.reshape(groups, n, *spatial, per_group, *kernel)
    order = (1, 0, 2 + k, *range(3 + k, 3 + 2 * k), *range(2, 2 + k))
    each = each.transpose(order).reshape(n, c, *kernel, *spatial)
    padded = xp.zeros((n, c, *(m + before + after for m, (before, after) in zip(size, pads, strict=True))), ct.dtype)
    for at in np.ndindex(*kernel):
        place = tuple(slice(i * d, i * d + m * s, s) for i, d, m, s in zip(at, spread, spatial, steps, strict=True))
        padded[(slice(None), slice(None), *place)] += each[(slice(None), slice(None), *at)]
    inside = tuple(slice(before, before + m) for (before, _), m in zip(pads, size, strict=True))
    return padded[(slice(None), slice(None), *inside)]


@correlate_input_adjoint.infer
def correlate_input_adjoint_infer(ct, filter, like, **attrs):
    _conv_shape(TensorType(like.shape, ct.dtype), filter, **attrs)
    return TensorType(like.shape, same_dtype(ct, filter))


@correlate_input_adjoint.vjp
def correlate_input_adjoint_vjp(ct, out, given, filter, like, **attrs):
    return (
        lookup("correlate")(ct, filter, **attrs),
        lookup("correlate_filter_adjoint")(given, ct, filter, **attrs),
        None,
    )


@op
def correlate_filter_adjoint(
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
    """The cotangent of the filter of `correlate`; `like` gives the filter's shape."""
    columns, _ = _columns(xp, x, like.shape[2:], strides, paddings, dilations, groups)
    return xp.matmul(xp.swapaxes(_rows(xp, ct, groups), 1, 2), columns).reshape(like.shape)


@correlate_filter_adjoint.infer
def correlate_filter_adjoint_infer(ct, x, like, **attrs):
    _conv_shape(x, TensorType(like.shape, x.dtype), **attrs)
    return TensorType(like.shape, same_dtype(ct, x))


@correlate_filter_adjoint.vjp
def correlate_filter_adjoint_vjp(ct, out, given, x, like, **attrs):
    return (
        lookup("correlate")(x, ct, **attrs),
        lookup("correlate_input_adjoint")(given, ct, x, **attrs),
        None,
    )


# --- the ops that clients use ----------------------------------------------------------------------------------


def _check_rank(x, n: int) -> None:
    if x.rank != n + 2:
        raise ProgramError(f"needs {n + 2} axes, batch and channels among them, not {x.type}", "shape_mismatch")


def _channels_first(x, last: bool):
    return lookup("transpose")(x, axes=(0, x.rank - 1, *range(1, x.rank - 1))) if last else x


def _channels_last(x, last: bool):
    return lookup("transpose")(x, axes=(0, *range(2, x.rank), 1)) if last else x


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The padding with which there are size / stride outputs, rounded up; an odd one goes behind."""
    if size == -1:
        raise ProgramError('padding "same" needs the sizes of x known', "shape_mismatch")
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def _convolve(x, filter, bias, n, strides, paddings, dilations, groups, padding, last):
    _check_rank(x, n)
    x = _channels_first(x, last)
    if padding == "valid":
        paddings = (0,)
    elif padding == "same" and filter.rank == x.rank:
        kernel = filter.shape[2:]
        each = zip(
            x.shape[2:], kernel, sizes(strides, n, "strides", 1), sizes(dilations, n, "dilations", 1), strict=True
        )
        paddings = tuple(p for axis in each for p in _same(*axis))
    out = lookup("correlate")(x, filter, strides=strides, paddings=paddings, dilations=dilations, groups=groups)
    return _channels_last(out if bias is None else out + _over_channels(bias, n), last)


def _over_channels(bias, n: int):
    return lookup("unsqueeze")(bias, axes=tuple(range(1, n + 1)))


@composite
def conv1d(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
    padding: Padding = "explicit",
    data_format: Literal["NCL", "NLC"] = "NCL",
):
    """`conv2d` over one spatial axis: x [batch, channels, length], filter [out channels, channels / groups, kernel]."""
    return _convolve(x, filter, bias, 1, strides, paddings, dilations, groups, padding, data_format == "NLC")


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
    padding: Padding = "explicit",
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
):
    """``out[n, o, y, x] = bias[o] + sum over c, i, j of x[n, c, y * stride + i * dilation, ...] * filter[o, c, i, j]``.

    x is [batch, channels, height, width], or with NHWC the channels come last; the filter is always
    [out channels, channels / groups, kernel height, kernel width]. `paddings` are zeros around x: one size, (height,
    width) or (top, bottom, left, right); `padding` "same" and "valid" stand for those that keep the size, divided by
    the stride and rounded up, and for none. With `groups`, each group of channels sees its own share of the filters.
    """
    return _convolve(x, filter, bias, 2, strides, paddings, dilations, groups, padding, data_format == "NHWC")


@composite
def conv3d(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
    padding: Padding = "explicit",
    data_format: Literal["NCDHW", "NDHWC"] = "NCDHW",
):
    """`conv2d` over three spatial axes: x [batch, channels, depth, height, width]."""
    return _convolve(x, filter, bias, 3, strides, paddings, dilations, groups, padding, data_format == "NDHWC")


@composite
def depthwise_conv2d(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
):
    """`conv2d` in as many groups as x has channels: filter [channels * multiplier, 1, kernel height, kernel width]."""
    _check_rank(x, 2)
    if x.shape[1] < 1:
        raise ProgramError(f"the number of channels of {x.type} must be known", "shape_mismatch")
    return _convolve(x, filter, bias, 2, strides, paddings, dilations, x.shape[1], "explicit", False)


def _transposed_conv(x, filter, bias, n, strides, paddings, output_padding, dilations, groups):
    """The transpose of `correlate` with a filter [channels in, channels out / groups, *kernel]."""
    _check_rank(x, n)
    if filter.rank != x.rank or -1 in filter.shape or -1 in x.shape[2:]:
        raise ProgramError(f"the spatial sizes of {x.type} and {filter.type} must be known", "shape_mismatch")
    steps, spread = sizes(strides, n, "strides", 1), sizes(dilations, n, "dilations", 1)
    more = sizes(output_padding, n, "output_padding", 0)
    if any(m >= max(s, d) for m, s, d in zip(more, steps, spread, strict=True)):
        raise ProgramError("output_padding must be smaller than stride or dilation", "bad_attr")
    axes = zip(x.shape[2:], filter.shape[2:], steps, pads_of(paddings, n), spread, more, strict=True)
    spatial = tuple((m - 1) * s - sum(p) + d * (k - 1) + 1 + extra for m, k, s, p, d, extra in axes)
    if min(spatial) < 0:
        raise ProgramError(f"the paddings {list(paddings)} leave nothing of {x.type}", "shape_mismatch")
    shape = (x.shape[0], filter.shape[1] * groups, *spatial)
    like = lookup("fill_constant_batch_size_like")(x, shape=shape, dtype=x.dtype)
    attrs = {"strides": steps, "paddings": paddings, "dilations": spread, "groups": groups}
    out = lookup("correlate_input_adjoint")(x, filter, like, **attrs)
    return out if bias is None else out + _over_channels(bias, n)


@composite
def conv1d_transpose(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    output_padding: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The transpose of `conv1d`: x [batch, channels, length], filter [channels, out channels / groups, kernel]."""
    return _transposed_conv(x, filter, bias, 1, strides, paddings, output_padding, dilations, groups)


@composite
def conv2d_transpose(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    output_padding: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The transpose of `conv2d`: what that does to cotangents, with filter [channels, out channels / groups, kh, kw].

    The output has (n - 1) * stride - paddings + dilation * (kernel - 1) + 1 + output_padding elements an axis: several
    sizes of input give one size of output when the stride is above 1, and `output_padding` chooses among them.
    """
    return _transposed_conv(x, filter, bias, 2, strides, paddings, output_padding, dilations, groups)


@composite
def conv3d_transpose(
    x,
    filter,
    bias=None,
    *,
    strides: tuple[int, ...] = (1,),
    paddings: tuple[int, ...] = (0,),
    output_padding: tuple[int, ...] = (0,),
    dilations: tuple[int, ...] = (1,),
    groups: int = 1,
):
    """The transpose of `conv3d`: filter [channels, out channels / groups, kd, kh, kw]."""
    return _transposed_conv(x, filter, bias, 3, strides, paddings, output_padding, dilations, groups)


def _slow_conv(x, f, stride=1, pad=0, dilation=1, groups=1):
    """By the definition, one output at a time."""
    k = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *[(pad, pad)] * k))
    o, c, *kernel = f.shape
    counts = [(m - dilation * (n - 1) - 1) // stride + 1 for m, n in zip(x.shape[2:], kernel, strict=True)]
    out = np.zeros((x.shape[0], o, *counts))
    for channel, *at in np.ndindex(o, *counts):
        first = channel // (o // groups) * c
        part = [
            slice(i * stride, i * stride + dilation * (n - 1) + 1, dilation) for i, n in zip(at, kernel, strict=True)
        ]
        seen = x[(slice(None), slice(first, first + c), *part)]
        out[(slice(None), channel, *at)] = (seen * f[channel]).sum(tuple(range(1, x.ndim)))
    return out


def _data(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


X, F, BIAS = _data(2, 2, 5, 4), _data(4, 2, 3, 2), _data(4)
LINE, LINE_F = _data(2, 2, 6), _data(2, 2, 3)
BOX, BOX_F = _data(1, 2, 3, 2, 3), _data(2, 2, 2, 1, 2)


def _conv_examples():
    plain = _slow_conv(X, F)
    yield Example((X, F), (plain,))
    yield Example(
        (X, F, BIAS), (_slow_conv(X, F, 2, 1) + BIAS[:, None, None],), {"strides": (2, 2), "paddings": (1, 1)}
    )
    yield Example((X, F[:, :1]), (_slow_conv(X, F[:, :1], groups=2),), {"groups": 2})
    yield Example((X, F), (_slow_conv(X, F, pad=1, dilation=2),), {"dilations": (2,), "paddings": (1, 1, 1, 1)})
    yield Example((X.transpose(0, 2, 3, 1), F), (plain.transpose(0, 2, 3, 1),), {"data_format": "NHWC"})
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (0, 1)))
    yield Example((X, F), (_slow_conv(padded, F),), {"padding": "same"})
    yield Example((X[:0], F), (plain[:0],), {"padding": "valid"})


conv2d.example(_conv_examples)
conv1d.example(
    lambda: [
        Example((LINE, LINE_F), (_slow_conv(LINE, LINE_F),)),
        Example(
            (LINE, LINE_F, BIAS[:2]),
            (_slow_conv(LINE, LINE_F, 2, 1) + BIAS[:2, None],),
            {"strides": (2,), "paddings": (1,)},
        ),
        Example((LINE[:0], LINE_F), (np.zeros((0, 2, 4)),)),
    ]
)
conv3d.example(
    lambda: [
        Example((BOX, BOX_F), (_slow_conv(BOX, BOX_F),)),
        Example((BOX, BOX_F[:, :1]), (_slow_conv(BOX, BOX_F[:, :1], 2, 1, groups=2),),
                {"strides": (2,), "paddings": (1,), "groups": 2}),
        Example((BOX[:0], BOX_F), (np.zeros((0, 2, 2, 2, 2)),)),
    ]
)  # fmt: skip
depthwise_conv2d.example(
    lambda: [
        Example((X, F[:, :1]), (_slow_conv(X, F[:, :1], groups=2),)),
        Example((X, F[:2, :1]), (_slow_conv(X, F[:2, :1], 2, 1, groups=2),), {"strides": (2,), "paddings": (1,)}),
        Example((X[:0], F[:, :1]), (np.zeros((0, 4, 3, 3)),)),
    ]
)


def _correlate_examples():
    yield Example((X, F), (_slow_conv(X, F),))
    yield Example((X, F), (_slow_conv(X, F, 2, 1),), {"strides": (2,), "paddings": (1,)})
    yield Example((LINE, LINE_F), (_slow_conv(LINE, LINE_F),))


correlate.example(_correlate_examples)


def _adjoint(ct, x, f, which, **attrs):
    """The adjoint of a bilinear map, from the map itself on unit vectors."""
    like = x if which == "input" else f
    out = np.zeros(like.shape)
    for at in np.ndindex(like.shape):
        unit = np.zeros(like.shape)
        unit[at] = 1.0
        moved = _slow_conv(unit, f, **attrs) if which == "input" else _slow_conv(x, unit, **attrs)
        out[at] = (moved * ct).sum()
    return out


def _adjoint_examples(which):
    def examples():
        for x, f, stride, pad in ((X, F, 1, 0), (X, F, 2, 1), (LINE, LINE_F, 1, 1)):
            ct = _data(*_slow_conv(x, f, stride, pad).shape)
            out = _adjoint(ct, x, f, which, stride=stride, pad=pad)
            other, like = (f, x) if which == "input" else (x, f)
            yield Example((ct, other, like), (out,), {"strides": (stride,), "paddings": (pad,)})

    return examples


correlate_input_adjoint.example(_adjoint_examples("input"))
correlate_filter_adjoint.example(_adjoint_examples("filter"))


def _transposed(x, f, size, **attrs):
    """By the definition: the adjoint of the convolution from `size` to the size of x."""
    return _adjoint(x, np.zeros((x.shape[0], f.shape[1], *size)), f, "input", **attrs)


_T2, _F2 = _data(1, 3, 2, 3), _data(3, 2, 2, 2)
conv2d_transpose.example(
    lambda: [
        Example((_T2, _F2), (_transposed(_T2, _F2, (3, 4)),)),
        Example((_T2, _F2, BIAS[:2]), (_transposed(_T2, _F2, (5, 7), stride=2) + BIAS[:2, None, None],),
                {"strides": (2,), "output_padding": (1,)}),
        Example((_T2, _F2), (_transposed(_T2, _F2, (2, 4), stride=2, pad=1),), {"strides": (2,), "paddings": (1,)}),
        Example((_T2[:0], _F2), (np.zeros((0, 2, 3, 4)),)),
    ]
)  # fmt: skip
_T1, _F1 = _data(2, 3, 3), _data(3, 2, 2)
conv1d_transpose.example(
    lambda: [
        Example((_T1, _F1), (_transposed(_T1, _F1, (4,)),)),
        Example((_T1, _F1), (_transposed(_T1, _F1, (6,), stride=2),), {"strides": (2,)}),
        Example((_T1[:0], _F1), (np.zeros((0, 2, 4)),)),
    ]
)
_T3, _F3 = _data(1, 2, 2, 1, 2), _data(2, 1, 2, 2, 1)
conv3d_transpose.example(
    lambda: [
        Example((_T3, _F3), (_transposed(_T3, _F3, (3, 2, 2)),)),
        Example((_T3, _F3), (_transposed(_T3, _F3, (4, 2, 3), stride=2),), {"strides": (2,)}),
        Example((_T3[:0], _F3), (np.zeros((0, 1, 3, 2, 2)),)),
    ]
)
