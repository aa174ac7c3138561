"""Convolution over one, two or three spatial axes, in the three forms that differentiate into each other.

It is bilinear, so its forms (forward, gradient to the input, gradient to the filter) are each other's gradients. That
is all that any order of derivative needs; a transposed convolution is the second of them.
"""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import matches, same_dtype, same_size
from core.ops.common.windows import Convolution, blocks, meetings, pads_of, reach, sizes, wide

__all__ = [
    "BIAS",
    "BOX",
    "BOX_F",
    "LINE",
    "LINE_F",
    "F",
    "X",
    "adjoint",
    "data",
    "slow_conv",
]


def _conv_shape(x: TensorType, filter: TensorType, conv: Convolution) -> TensorType:
    dtype = same_dtype(x, filter)
    n = x.rank - 2
    if not 1 <= n <= 3 or filter.rank != x.rank or not x.is_float:
        raise ProgramError(f"convolution needs 3 to 5 axes of floats: x={x}, filter={filter}", "shape_mismatch")
    if -1 in filter.shape:
        raise ProgramError(f"the sizes of the filter {filter} must be known", "shape_mismatch")
    out, per_group, *kernel = filter.shape
    if conv.groups < 1 or out % conv.groups:
        raise ProgramError(f"{out} output channels do not divide into {conv.groups} groups", "bad_attr")
    same_size(
        x.shape[1], per_group * conv.groups, f"channels of x={x} and filter={filter} in {conv.groups} groups differ"
    )
    if 0 in kernel:
        raise ProgramError(f"the filter {filter} is empty", "shape_mismatch")
    steps, spread = sizes(conv.strides, n, "strides", 1), sizes(conv.dilations, n, "dilations", 1)
    axes = zip(x.shape[2:], kernel, steps, pads_of(conv.paddings, n), spread, strict=True)
    return TensorType((x.shape[0], out, *(reach(*each) for each in axes)), dtype)


def _check_result(ct: TensorType, x: TensorType, filter: TensorType, conv: Convolution) -> None:
    """Refuses a cotangent that is not shaped like the convolution of x with `filter`."""
    wanted = _conv_shape(TensorType(x.shape, ct.dtype), TensorType(filter.shape, ct.dtype), conv)
    if not matches(ct, wanted):
        raise ProgramError(f"the convolution of {x} with {filter} is {wanted}, not {ct}", "shape_mismatch")


BLOCK, BLOCK_ON_DEVICE = 2**20, 2**26
"""Elements of columns made at once: as many as stay in the cache, or keep a GPU busy. No more memory is needed."""


class _Blocks:
    """A convolution as products of matrices, one for each block of its outputs [n, *spatial].

    The elements that the windows of a block meet are copied to columns [group, channels * kernel, outputs], so that
    the spatial axes, in which arrays are contiguous, stay last.
    """

    def __init__(self, xp, size, filter, outputs, conv: Convolution):
        k = len(size)
        self.xp, self.size, self.groups = xp, size, conv.groups
        self.out, self.channels, *self.kernel = filter
        self.strides, self.dilations = sizes(conv.strides, k, "strides", 1), sizes(conv.dilations, k, "dilations", 1)
        self.before = tuple(before for before, _ in pads_of(conv.paddings, k))
        self.padded = any(map(any, pads_of(conv.paddings, k)))
        self.depth = self.channels * math.prod(self.kernel)
        room = BLOCK if xp is np else BLOCK_ON_DEVICE
        self.places = list(blocks(outputs, room // max(1, conv.groups * self.depth)))

    def _met(self, place):
        """Pairs of places: in [c, n, *kernel, *spatial of the block], and in the spatial axes of x."""
        counts = tuple(s.stop - s.start for s in place[1:])
        starts = tuple(s.start * m - b for s, m, b in zip(place[1:], self.strides, self.before, strict=True))
        for taps, at, inside in meetings(self.size, self.kernel, counts, self.strides, self.dilations, starts):
            yield (slice(None), slice(None), *taps, *at), (slice(None), slice(None), *inside)

    def _split(self, columns, place):
        """Columns as [c, n, *kernel, *spatial]."""
        k = len(self.size)
        n, *spatial = (s.stop - s.start for s in place)
        each = columns.reshape(self.groups * self.channels, *self.kernel, n, *spatial)
        return each.transpose(0, 1 + k, *range(1, 1 + k), *range(2 + k, 2 + 2 * k))

    def columns(self, x, place):
        count = math.prod(s.stop - s.start for s in place)
        fresh = self.xp.zeros if self.padded else self.xp.empty
        columns = fresh((self.groups, self.depth, count), x.dtype)
        each, x = self._split(columns, place), x[place[0]].swapaxes(0, 1)
        for at, inside in self._met(place):
            each[at] = x[inside]
        return columns

    def add_columns(self, columns, place, x):
        """The transpose of `columns`: adds to x what they hold."""
        each, x = self._split(columns, place), x[place[0]].swapaxes(0, 1)
        for at, inside in self._met(place):
            x[inside] += each[at]

    def rows(self, y, place):
        """A block of y [n, out, *spatial] as [group, out / groups, outputs]."""
        count = math.prod(s.stop - s.start for s in place)
        return (
            y[(place[0], slice(None), *place[1:])].swapaxes(0, 1).reshape(self.groups, self.out // self.groups, count)
        )

    def put_rows(self, rows, place, y):
        n, *spatial = (s.stop - s.start for s in place)
        y[(place[0], slice(None), *place[1:])] = rows.reshape(self.out, n, *spatial).swapaxes(0, 1)


@op
def correlate(
    xp,
    x,
    filter,
    *,
    conv: Convolution,
):
    """Convolution of x [n, c, *spatial] with filter [out, c / groups, *kernel], in the sense of `conv2d`; no bias."""
    n, _, *size = x.shape
    spatial = _conv_shape(TensorType(x.shape, "float64"), TensorType(filter.shape, "float64"), conv).shape[2:]
    cut = _Blocks(xp, tuple(size), filter.shape, (n, *spatial), conv)
    source, weight = wide(x), wide(filter).reshape(cut.groups, cut.out // cut.groups, cut.depth)
    out = xp.empty((n, filter.shape[0], *spatial), x.dtype)
    for place in cut.places:
        cut.put_rows(xp.matmul(weight, cut.columns(source, place)), place, out)
    return out


correlate.infer(lambda x, filter, **attrs: _conv_shape(x, filter, Convolution(**attrs)))


@correlate.vjp
def correlate_vjp(ct, out, x, filter, **attrs):
    return (
        correlate_input_adjoint(ct, filter, x, **attrs),
        correlate_filter_adjoint(ct, x, filter, **attrs),
    )


@op
def correlate_input_adjoint(
    xp,
    ct,
    filter,
    like,
    *,
    conv: Convolution,
):
    """The cotangent of the input of `correlate` (a transposed convolution); `like` gives the input's shape."""
    cut = _Blocks(xp, like.shape[2:], filter.shape, (ct.shape[0], *ct.shape[2:]), conv)
    given, weight = wide(ct), wide(filter).reshape(cut.groups, cut.out // cut.groups, cut.depth).swapaxes(1, 2)
    out = xp.zeros(like.shape, given.dtype)
    product = xp.multiply if weight.shape[2] == 1 else xp.matmul  # of one channel there is nothing to add up
    for place in cut.places:
        cut.add_columns(product(weight, cut.rows(given, place)), place, out)
    return out.astype(ct.dtype, copy=False)


@correlate_input_adjoint.infer
def correlate_input_adjoint_infer(ct, filter, like, **attrs):
    dtype = same_dtype(ct, filter)
    _check_result(ct, like, filter, Convolution(**attrs))
    return TensorType(like.shape, dtype)


@correlate_input_adjoint.vjp
def correlate_input_adjoint_vjp(ct, out, given, filter, like, **attrs):
    return (
        correlate(ct, filter, **attrs),
        correlate_filter_adjoint(given, ct, filter, **attrs),
        None,
    )


@op
def correlate_filter_adjoint(
    xp,
    ct,
    x,
    like,
    *,
    conv: Convolution,
):
    """The cotangent of the filter of `correlate`; `like` gives the filter's shape."""
    cut = _Blocks(xp, x.shape[2:], like.shape, (x.shape[0], *ct.shape[2:]), conv)
    given, source = wide(ct), wide(x)
    out = xp.zeros((cut.groups, cut.out // cut.groups, cut.depth), given.dtype)
    for place in cut.places:
        out += xp.matmul(cut.rows(given, place), cut.columns(source, place).swapaxes(1, 2))
    return out.reshape(like.shape).astype(ct.dtype, copy=False)


@correlate_filter_adjoint.infer
def correlate_filter_adjoint_infer(ct, x, like, **attrs):
    dtype = same_dtype(ct, x)
    _check_result(ct, x, like, Convolution(**attrs))
    return TensorType(like.shape, dtype)


@correlate_filter_adjoint.vjp
def correlate_filter_adjoint_vjp(ct, out, given, x, like, **attrs):
    return (
        correlate(x, ct, **attrs),
        correlate_input_adjoint(given, ct, x, **attrs),
        None,
    )


# --- examples --------------------------------------------------------------------------------------------------


def slow_conv(x, f, stride=1, pad=0, dilation=1, groups=1):
    """By the definition, one output at a time."""
    k = x.ndim - 2
    each = [(pad, pad)] * k if isinstance(pad, int) else list(zip(pad[::2], pad[1::2], strict=True))
    x = np.pad(x, ((0, 0), (0, 0), *each))
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


def data(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


X, F, BIAS = data(2, 2, 5, 4), data(4, 2, 3, 2), data(4)
LINE, LINE_F = data(2, 2, 6), data(2, 2, 3)
BOX, BOX_F = data(1, 2, 3, 2, 3), data(2, 2, 2, 1, 2)


LONG_F = data(2, 2, 5)  # fewer windows than elements in each


def _correlate_examples():
    yield Example((X, F), (slow_conv(X, F),))
    yield Example((X, F), (slow_conv(X, F, 2, 1),), {"strides": (2,), "paddings": (1,)})
    yield Example((LINE, LINE_F), (slow_conv(LINE, LINE_F),))
    yield Example((LINE, LONG_F), (slow_conv(LINE, LONG_F, 2, 1),), {"strides": (2,), "paddings": (1,)})
    yield Example((X[:0], F), (slow_conv(X[:0], F),))


correlate.example(_correlate_examples)


def adjoint(ct, x, f, which, **attrs):
    """The adjoint of a bilinear map, from the map itself on unit vectors."""
    like = x if which == "input" else f
    out = np.zeros(like.shape)
    for at in np.ndindex(like.shape):
        unit = np.zeros(like.shape)
        unit[at] = 1.0
        moved = slow_conv(unit, f, **attrs) if which == "input" else slow_conv(x, unit, **attrs)
        out[at] = (moved * ct).sum()
    return out


def _adjoint_examples(which):
    def examples():
        for x, f, stride, pad in (
            (X, F, 1, 0),
            (X, F, 2, 1),
            (LINE, LINE_F, 1, 1),
            (LINE, LONG_F, 2, 1),
            (X[:0], F, 1, 0),
        ):
            ct = data(*slow_conv(x, f, stride, pad).shape)
            out = adjoint(ct, x, f, which, stride=stride, pad=pad)
            other, like = (f, x) if which == "input" else (x, f)
            yield Example((ct, other, like), (out,), {"strides": (stride,), "paddings": (pad,)})

    return examples


correlate_input_adjoint.example(_adjoint_examples("input"))
correlate_filter_adjoint.example(_adjoint_examples("filter"))
