"""Convolution over one, two or three spatial axes and its two adjoints.

Convolution is bilinear, so its three forms (forward, adjoint of the input, adjoint of the filter) are the gradients of
each other, at any order. A transposed convolution is the adjoint of the input.
"""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import matches, same_dtype, same_size
from core.ops.common.windows import Convolution, blocks, meetings, pads_of, reach, sizes, wide

__all__ = ["BIAS", "BOX", "BOX_F", "LINE", "LINE_F", "F", "X", "adjoint", "conv_by_definition", "data"]


def _conv_shape(x: TensorType, filter: TensorType, conv: Convolution) -> TensorType:
    dtype = same_dtype(x, filter)
    n = x.rank - 2
    if not 1 <= n <= 3 or filter.rank != x.rank or not x.is_float:
        raise ProgramError(
            f"convolution needs floats with 3 to 5 axes, not x={x} and filter={filter}", "shape_mismatch"
        )
    if -1 in filter.shape:
        raise ProgramError(f"the sizes of the filter {filter} must be known", "shape_mismatch")
    out, per_group, *kernel = filter.shape
    if out % conv.groups:
        raise ProgramError(f"{out} output channels are not a multiple of {conv.groups} groups", "bad_attr")
    same_size(
        x.shape[1], per_group * conv.groups, f"channels of x={x} and filter={filter} in {conv.groups} groups differ"
    )
    if 0 in kernel:
        raise ProgramError(f"the filter {filter} is empty", "shape_mismatch")
    steps, spread = sizes(conv.strides, n, "strides", 1), sizes(conv.dilations, n, "dilations", 1)
    axes = zip(x.shape[2:], kernel, steps, pads_of(conv.paddings, n), spread, strict=True)
    return TensorType((x.shape[0], out, *(reach(*each) for each in axes)), dtype)


def _check_result(ct: TensorType, x: TensorType, filter: TensorType, conv: Convolution) -> None:
    """Raises ProgramError (shape_mismatch) if `ct` does not have the shape of the convolution of x with `filter`."""
    wanted = _conv_shape(TensorType(x.shape, ct.dtype), TensorType(filter.shape, ct.dtype), conv)
    if not matches(ct, wanted):
        raise ProgramError(f"the convolution of {x} with {filter} has type {wanted}, not {ct}", "shape_mismatch")


BLOCK, BLOCK_ON_DEVICE = 2**20, 2**26
"""Most elements in the columns of a block: as many as fit the cache, or keep a GPU busy. Bounds the extra memory."""


class _Blocks:
    """A convolution as matrix products, one for each block of its outputs [n, *spatial].

    The elements of x under the windows of a block are copied to columns [group, channels * kernel, outputs] (im2col).
    The spatial axes, along which arrays are contiguous, stay last.
    """

    def __init__(self, xp, size, filter, outputs, conv: Convolution):
        k = len(size)
        self.xp, self.size, self.groups = xp, size, conv.groups
        self.out, self.channels, *self.kernel = filter
        self.strides, self.dilations = sizes(conv.strides, k, "strides", 1), sizes(conv.dilations, k, "dilations", 1)
        self.before = tuple(before for before, _ in pads_of(conv.paddings, k))
        self.padded = any(map(any, pads_of(conv.paddings, k)))
        self.depth = self.channels * math.prod(self.kernel)
        limit = BLOCK if xp is np else BLOCK_ON_DEVICE
        self.blocks = list(blocks(outputs, limit // max(1, conv.groups * self.depth)))

    def _overlaps(self, block):
        """Index pairs: into [c, n, *kernel, *spatial of the block], and into the spatial axes of x."""
        counts = tuple(s.stop - s.start for s in block[1:])
        starts = tuple(s.start * m - b for s, m, b in zip(block[1:], self.strides, self.before, strict=True))
        for taps, at, inside in meetings(self.size, self.kernel, counts, self.strides, self.dilations, starts):
            yield (slice(None), slice(None), *taps, *at), (slice(None), slice(None), *inside)

    def _as_windows(self, columns, block):
        """The columns as [c, n, *kernel, *spatial]."""
        k = len(self.size)
        n, *spatial = (s.stop - s.start for s in block)
        each = columns.reshape(self.groups * self.channels, *self.kernel, n, *spatial)
        return each.transpose(0, 1 + k, *range(1, 1 + k), *range(2 + k, 2 + 2 * k))

    def columns(self, x, block):
        count = math.prod(s.stop - s.start for s in block)
        allocate = self.xp.zeros if self.padded else self.xp.empty
        columns = allocate((self.groups, self.depth, count), x.dtype)
        each, x = self._as_windows(columns, block), x[block[0]].swapaxes(0, 1)
        for at, inside in self._overlaps(block):
            each[at] = x[inside]
        return columns

    def add_columns(self, columns, block, x):
        """The transpose of `columns`: adds the columns to the elements of x that they were copied from."""
        each, x = self._as_windows(columns, block), x[block[0]].swapaxes(0, 1)
        for at, inside in self._overlaps(block):
            x[inside] += each[at]

    def rows(self, y, block):
        """A block of y [n, out, *spatial] as [group, out / groups, outputs]."""
        count = math.prod(s.stop - s.start for s in block)
        return (
            y[(block[0], slice(None), *block[1:])].swapaxes(0, 1).reshape(self.groups, self.out // self.groups, count)
        )

    def put_rows(self, rows, block, y):
        n, *spatial = (s.stop - s.start for s in block)
        y[(block[0], slice(None), *block[1:])] = rows.reshape(self.out, n, *spatial).swapaxes(0, 1)


@op
def correlate(
    xp,
    x,
    filter,
    *,
    conv: Convolution,
):
    """Convolution of x [n, c, *spatial] with a filter [out, c / groups, *kernel], as in `conv2d`, without bias."""
    n, _, *size = x.shape
    spatial = _conv_shape(TensorType(x.shape, "float64"), TensorType(filter.shape, "float64"), conv).shape[2:]
    layout = _Blocks(xp, tuple(size), filter.shape, (n, *spatial), conv)
    source, weight = wide(x), wide(filter).reshape(layout.groups, layout.out // layout.groups, layout.depth)
    out = xp.empty((n, filter.shape[0], *spatial), x.dtype)
    for block in layout.blocks:
        layout.put_rows(xp.matmul(weight, layout.columns(source, block)), block, out)
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
    """Cotangent of the input of `correlate`, a transposed convolution. `like` gives the shape of the input."""
    layout = _Blocks(xp, like.shape[2:], filter.shape, (ct.shape[0], *ct.shape[2:]), conv)
    given, weight = (
        wide(ct),
        wide(filter).reshape(layout.groups, layout.out // layout.groups, layout.depth).swapaxes(1, 2),
    )
    out = xp.zeros(like.shape, given.dtype)
    product = xp.multiply if weight.shape[2] == 1 else xp.matmul  # with one channel there is nothing to sum
    for block in layout.blocks:
        layout.add_columns(product(weight, layout.rows(given, block)), block, out)
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
    """Cotangent of the filter of `correlate`. `like` gives the shape of the filter."""
    layout = _Blocks(xp, x.shape[2:], like.shape, (x.shape[0], *ct.shape[2:]), conv)
    given, source = wide(ct), wide(x)
    out = xp.zeros((layout.groups, layout.out // layout.groups, layout.depth), given.dtype)
    for block in layout.blocks:
        out += xp.matmul(layout.rows(given, block), layout.columns(source, block).swapaxes(1, 2))
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


def conv_by_definition(x, f, stride=1, pad=0, dilation=1, groups=1):
    """The convolution by its definition, one output at a time."""
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
        window = x[(slice(None), slice(first, first + c), *part)]
        out[(slice(None), channel, *at)] = (window * f[channel]).sum(tuple(range(1, x.ndim)))
    return out


def data(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


X, F, BIAS = data(2, 2, 5, 4), data(4, 2, 3, 2), data(4)
LINE, LINE_F = data(2, 2, 6), data(2, 2, 3)
BOX, BOX_F = data(1, 2, 3, 2, 3), data(2, 2, 2, 1, 2)


LONG_F = data(2, 2, 5)  # fewer windows than elements per window


def _correlate_examples():
    yield Example((X, F), (conv_by_definition(X, F),))
    yield Example((X, F), (conv_by_definition(X, F, 2, 1),), {"strides": (2,), "paddings": (1,)})
    yield Example((LINE, LINE_F), (conv_by_definition(LINE, LINE_F),))
    yield Example((LINE, LONG_F), (conv_by_definition(LINE, LONG_F, 2, 1),), {"strides": (2,), "paddings": (1,)})
    yield Example((X[:0], F), (conv_by_definition(X[:0], F),))


correlate.example(_correlate_examples)


def adjoint(ct, x, f, which, **attrs):
    """The adjoint of a bilinear map, computed from the map on unit vectors."""
    like = x if which == "input" else f
    out = np.zeros(like.shape)
    for at in np.ndindex(like.shape):
        unit = np.zeros(like.shape)
        unit[at] = 1.0
        image = conv_by_definition(unit, f, **attrs) if which == "input" else conv_by_definition(x, unit, **attrs)
        out[at] = (image * ct).sum()
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
            ct = data(*conv_by_definition(x, f, stride, pad).shape)
            out = adjoint(ct, x, f, which, stride=stride, pad=pad)
            other, like = (f, x) if which == "input" else (x, f)
            yield Example((ct, other, like), (out,), {"strides": (stride,), "paddings": (pad,)})

    return examples


correlate_input_adjoint.example(_adjoint_examples("input"))
correlate_filter_adjoint.example(_adjoint_examples("filter"))
