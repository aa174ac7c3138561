"""Convolutions over one, two or three spatial axes, and their transposes."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Literal

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Reach
from core.ops.common.windows import PLANE, Convolution, Window, pads_of, sizes
from core.ops.shape.creation import fill_constant_batch_size_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import transpose, unsqueeze
from core.ops.vision.correlate import (
    BIAS,
    BOX,
    BOX_F,
    LINE,
    LINE_F,
    F,
    X,
    adjoint,
    conv_by_definition,
    correlate,
    correlate_input_adjoint,
    data,
)

__all__: list[str] = []

Padding = Literal["explicit", "same", "valid"]


def _check_rank(x, n: int) -> None:
    if x.rank != n + 2:
        raise ProgramError(f"needs {n + 2} axes including batch and channels, not {x.type}", "shape_mismatch")


def _channels_first(x, last: bool):
    return transpose(x, axes=(0, x.rank - 1, *range(1, x.rank - 1))) if last else x


def _channels_last(x, last: bool):
    return transpose(x, axes=(0, *range(2, x.rank), 1)) if last else x


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The padding (before, after) with which there are ceil(size / stride) outputs. An odd total puts the extra element
    after.
    """
    if size == -1 and stride > 1:
        raise ProgramError('padding "same" with strides above 1 needs known sizes of x', "shape_mismatch")
    total = max((-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def _convolve(x, filter, bias, n, conv, padding, last):
    _check_rank(x, n)
    x = _channels_first(x, last)
    if padding == "valid":
        conv = replace(conv, paddings=(0,))
    elif padding == "same" and filter.rank == x.rank:
        steps, spread = sizes(conv.strides, n, "strides", 1), sizes(conv.dilations, n, "dilations", 1)
        each = zip(x.shape[2:], filter.shape[2:], steps, spread, strict=True)
        conv = replace(conv, paddings=tuple(p for axis in each for p in _same(*axis)))
    out = correlate(x, filter, **asdict(conv))
    return _channels_last(out if bias is None else out + _over_channels(bias, n), last)


def _over_channels(bias, n: int):
    return unsqueeze(bias, axes=tuple(range(1, n + 1)))


@composite
def conv1d(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution,
    padding: Padding = "explicit",
    data_format: Literal["NCL", "NLC"] = "NCL",
):
    """Convolution over one spatial axis: see `conv2d`.

    x is [batch, channels, length], the filter [out channels, channels / groups, kernel].
    """
    return _convolve(x, filter, bias, 1, conv, padding, data_format == "NLC")


@composite
def conv2d(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution = PLANE,
    padding: Padding = "explicit",
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
):
    """Convolution: ``out[n, o, y, x] = bias[o] + sum over c, i, j of x[n, c, y * stride + i * dilation, ...] *
    filter[o, c, i, j]``.

    x is [batch, channels, height, width]; with NHWC the channels are the last axis. The filter is always [out channels,
    channels / groups, kernel height, kernel width].

    - `paddings`: zeros around x, as one size, (height, width) or (top, bottom, left, right).
    - `padding`: `same` chooses paddings with ceil(size / stride) outputs, for strides above 1 only if the program knows
      the sizes of x; `valid` means no padding.
    - `groups`: output channels are divided into groups, and each group reads its own group of input channels.
    """
    return _convolve(x, filter, bias, 2, conv, padding, data_format == "NHWC")


@composite
def conv3d(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution,
    padding: Padding = "explicit",
    data_format: Literal["NCDHW", "NDHWC"] = "NCDHW",
):
    """Convolution over three spatial axes, x [batch, channels, depth, height, width]: see `conv2d`."""
    return _convolve(x, filter, bias, 3, conv, padding, data_format == "NDHWC")


@composite
def depthwise_conv2d(
    x,
    filter,
    bias=None,
    *,
    window: Window,
    padding: Padding = "explicit",
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
):
    """Depthwise convolution: `conv2d` with one group per channel of x.

    The filter is [channels * multiplier, 1, kernel height, kernel width].
    """
    _check_rank(x, 2)
    last = data_format == "NHWC"
    channels = x.shape[3 if last else 1]
    if channels < 1:
        raise ProgramError(f"the number of channels of {x.type} must be known", "shape_mismatch")
    return _convolve(x, filter, bias, 2, Convolution(**asdict(window), groups=channels), padding, last)


def _transposed_conv(x, filter, bias, n, conv, output_padding, padding, last):
    """The transpose of `correlate` with a filter [channels in, channels out / groups, *kernel]."""
    _check_rank(x, n)
    x = _channels_first(x, last)
    if filter.rank != x.rank or -1 in filter.shape or -1 in x.shape[2:]:
        raise ProgramError(f"the spatial sizes of {x.type} and {filter.type} must be known", "shape_mismatch")
    steps, spread = sizes(conv.strides, n, "strides", 1), sizes(conv.dilations, n, "dilations", 1)
    more = sizes(output_padding, n, "output_padding", 0)
    if any(m >= max(s, d) for m, s, d in zip(more, steps, spread, strict=True)):
        raise ProgramError(
            f"output_padding {list(more)} must be below the stride {list(steps)} or the dilation {list(spread)}",
            "bad_attr",
        )
    paddings = conv.paddings if padding == "explicit" else (0,)
    if padding == "same":  # the padding of a convolution from n * stride elements to n
        axis_sizes = zip(x.shape[2:], filter.shape[2:], steps, spread, strict=True)
        paddings = tuple(p for m, k, s, d in axis_sizes for p in _same(m * s, k, s, d))
        more = tuple(max(s - d * (k - 1) - 1, 0) for k, s, d in zip(filter.shape[2:], steps, spread, strict=True))
    pads = pads_of(paddings, n)
    axes = zip(x.shape[2:], filter.shape[2:], steps, pads, spread, more, strict=True)
    spatial = tuple((m - 1) * s - sum(p) + d * (k - 1) + 1 + extra for m, k, s, p, d, extra in axes)
    if min(spatial) < 0:
        raise ProgramError(f"the paddings {list(paddings)} leave no output for {x.type}", "shape_mismatch")
    # With output_padding >= stride, a convolution of the output has more windows than x has elements. The elements that
    # only these windows reach take the place of padding, and those that lie beyond the padding are zeros.
    unread = tuple(max(extra - s + 1, 0) for extra, s in zip(more, steps, strict=True))
    kept = tuple(min(u, after) for u, (_, after) in zip(unread, pads, strict=True))
    beyond = tuple(u - k for u, k in zip(unread, kept, strict=True))
    paddings = tuple(p for (before, after), k in zip(pads, kept, strict=True) for p in (before, after - k))
    written = tuple(m - b for m, b in zip(spatial, beyond, strict=True))
    lead = (x.shape[0], filter.shape[1] * conv.groups)
    if min(written) < 0:
        out = fill_constant_batch_size_like(x, shape=(*lead, *spatial), dtype=x.dtype)
    else:
        like = fill_constant_batch_size_like(x, shape=(*lead, *written), dtype=x.dtype)
        out = correlate_input_adjoint(x, filter, like, **asdict(Convolution(steps, paddings, spread, conv.groups)))
        if any(beyond):
            out = pad(out, paddings=(0, 0, 0, 0, *(p for b in beyond for p in (0, b))))
    return _channels_last(out if bias is None else out + _over_channels(bias, n), last)


@composite
def conv1d_transpose(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution,
    output_padding: tuple[Reach, ...] = (0,),
    padding: Padding = "explicit",
    data_format: Literal["NCL", "NLC"] = "NCL",
):
    """Transpose of `conv1d`: see `conv2d_transpose`.

    x is [batch, channels, length], the filter [channels, out channels / groups, kernel].
    """
    last = data_format == "NLC"
    return _transposed_conv(x, filter, bias, 1, conv, output_padding, padding, last)


@composite
def conv2d_transpose(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution,
    output_padding: tuple[Reach, ...] = (0,),
    padding: Padding = "explicit",
    data_format: Literal["NCHW", "NHWC"] = "NCHW",
):
    """Transpose of `conv2d`, the map that `conv2d` applies to cotangents of its output.

    x is [batch, channels, height, width], the filter [channels, out channels / groups, kernel height, kernel width].
    Along each axis the output has (n - 1) * stride - paddings + dilation * (kernel - 1) + 1 + output_padding elements.

    - `output_padding`: with a stride above 1, `conv2d` maps several input sizes to one output size; this chooses among
      them. It is below the stride or the dilation.
    - `padding`: with `same` the output has n * stride elements along each axis; `valid` means no padding.
    """
    last = data_format == "NHWC"
    return _transposed_conv(x, filter, bias, 2, conv, output_padding, padding, last)


@composite
def conv3d_transpose(
    x,
    filter,
    bias=None,
    *,
    conv: Convolution,
    output_padding: tuple[Reach, ...] = (0,),
    padding: Padding = "explicit",
    data_format: Literal["NCDHW", "NDHWC"] = "NCDHW",
):
    """Transpose of `conv3d`: see `conv2d_transpose`.

    The filter is [channels, out channels / groups, kernel depth, kernel height, kernel width].
    """
    last = data_format == "NDHWC"
    return _transposed_conv(x, filter, bias, 3, conv, output_padding, padding, last)


def _conv_examples():
    plain = conv_by_definition(X, F)
    yield Example((X, F), (plain,))
    yield Example(
        (X, F, BIAS), (conv_by_definition(X, F, 2, 1) + BIAS[:, None, None],), {"strides": (2, 2), "paddings": (1, 1)}
    )
    yield Example((X, F[:, :1]), (conv_by_definition(X, F[:, :1], groups=2),), {"groups": 2})
    yield Example((X, F), (conv_by_definition(X, F, pad=1, dilation=2),), {"dilations": (2,), "paddings": (1, 1, 1, 1)})
    yield Example((X.transpose(0, 2, 3, 1), F), (plain.transpose(0, 2, 3, 1),), {"data_format": "NHWC"})
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (0, 1)))
    yield Example((X, F), (conv_by_definition(padded, F),), {"padding": "same"})
    yield Example((X[:0], F), (plain[:0],), {"padding": "valid"})


conv2d.example(_conv_examples)
conv1d.example(
    lambda: [
        Example((LINE, LINE_F), (conv_by_definition(LINE, LINE_F),)),
        Example(
            (LINE, LINE_F, BIAS[:2]),
            (conv_by_definition(LINE, LINE_F, 2, 1) + BIAS[:2, None],),
            {"strides": (2,), "paddings": (1,)},
        ),
        Example((LINE[:0], LINE_F), (np.zeros((0, 2, 4)),)),
    ]
)
conv3d.example(
    lambda: [
        Example((BOX, BOX_F), (conv_by_definition(BOX, BOX_F),)),
        Example((BOX, BOX_F[:, :1]), (conv_by_definition(BOX, BOX_F[:, :1], 2, 1, groups=2),),
                {"strides": (2,), "paddings": (1,), "groups": 2}),
        Example((BOX[:0], BOX_F), (np.zeros((0, 2, 2, 2, 2)),)),
    ]
)  # fmt: skip
depthwise_conv2d.example(
    lambda: [
        Example((X, F[:, :1]), (conv_by_definition(X, F[:, :1], groups=2),)),
        Example(
            (X, F[:2, :1]), (conv_by_definition(X, F[:2, :1], 2, 1, groups=2),), {"strides": (2,), "paddings": (1,)}
        ),
        Example(
            (X.transpose(0, 2, 3, 1), F[:, :1]),
            (
                conv_by_definition(np.pad(X, ((0, 0), (0, 0), (1, 1), (0, 1))), F[:, :1], groups=2).transpose(
                    0, 2, 3, 1
                ),
            ),
            {"padding": "same", "data_format": "NHWC"},
        ),
        Example((X[:0], F[:, :1]), (np.zeros((0, 4, 3, 3)),)),
    ]
)


def _transposed(x, f, size, **attrs):
    """The transpose by its definition: the adjoint of the convolution from `size` to the spatial size of x."""
    return adjoint(x, np.zeros((x.shape[0], f.shape[1], *size)), f, "input", **attrs)


def _by_channel(x, f, size, **attrs):
    """The transpose, by its definition, for a filter with one group per channel of x."""
    every = range(x.shape[1])
    return np.concatenate([_transposed(x[:, [i]], f[[i]], size, **attrs) for i in every], axis=1)


_T2, _F2 = data(1, 3, 2, 3), data(3, 2, 2, 2)
conv2d_transpose.example(
    lambda: [
        Example((_T2, _F2), (_transposed(_T2, _F2, (3, 4)),)),
        Example((_T2, _F2, BIAS[:2]), (_transposed(_T2, _F2, (5, 7), stride=2) + BIAS[:2, None, None],),
                {"strides": (2,), "output_padding": (1,)}),
        Example((_T2, _F2), (_transposed(_T2, _F2, (2, 4), stride=2, pad=1),), {"strides": (2,), "paddings": (1,)}),
        Example((_T2, _F2[:, :1], BIAS[:3]),
                (_by_channel(_T2, _F2[:, :1], (4, 7), stride=2, dilation=2, pad=(1, 0, 0, 0)) + BIAS[:3, None, None],),
                {"strides": (2,), "dilations": (2,), "paddings": (1, 0, 0, 0), "groups": 3}),
        Example((_T2.transpose(0, 2, 3, 1), _F2), (_transposed(_T2, _F2, (4, 6), stride=2).transpose(0, 2, 3, 1),),
                {"strides": (2,), "padding": "same", "data_format": "NHWC"}),
        Example((_T2, _F2), (_transposed(_T2, _F2, (2, 3), pad=(0, 1, 0, 1)),), {"padding": "same"}),
        Example((_T2[:0], _F2), (np.zeros((0, 2, 3, 4)),)),
    ]
)  # fmt: skip
_T1, _F1 = data(2, 3, 3), data(3, 2, 2)
conv1d_transpose.example(
    lambda: [
        Example((_T1, _F1), (_transposed(_T1, _F1, (4,)),)),
        Example((_T1, _F1), (_transposed(_T1, _F1, (6,), stride=2),), {"strides": (2,)}),
        Example((_T1[:0], _F1), (np.zeros((0, 2, 4)),)),
        Example((_T1[:1, :, :2], _F1[:, :1]), (_transposed(_T1[:1, :, :2], _F1[:, :1], (3,)),)),
    ]
)
_T3, _F3 = data(1, 2, 2, 1, 2), data(2, 1, 2, 2, 1)
conv3d_transpose.example(
    lambda: [
        Example((_T3, _F3), (_transposed(_T3, _F3, (3, 2, 2)),)),
        Example((_T3, _F3), (_transposed(_T3, _F3, (4, 2, 3), stride=2),), {"strides": (2,)}),
        Example((_T3[:0], _F3), (np.zeros((0, 1, 3, 2, 2)),)),
        Example((_T3[:, :1], _F3[:1]), (_transposed(_T3[:, :1], _F3[:1], (3, 2, 2)),)),
    ]
)
