"""Constants, and ops that read only the shape of their input."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir.registry import as_tuple, lookup
from core.onnx.writing.arrays import Stack, zeros
from core.onnx.writing.blocks import OpSite
from core.onnx.writing.registry import Refused, writes

SMALL = 4096
"""Elements above which an array with one value is written as a node, not as an initialiser."""


def computed(w: OpSite, inputs, attrs: dict[str, Any]):
    """The results of the op as constants. Only the shapes and dtypes of its inputs matter, and they are known."""
    arrays = [None if x is None else np.broadcast_to(np.zeros((), _kind(x.dtype)), x.shape) for x in inputs]
    found = as_tuple(lookup(w.op.type).body(np, *arrays, **attrs))
    return tuple(w.const(v, t.dtype) for v, t in zip(found, w.types, strict=True))


def _kind(dtype: str) -> np.dtype:
    from core.onnx.writing.dtypes import numpy_dtype

    return numpy_dtype(dtype)


def constant(w, **attrs):
    return computed(w, (), attrs)


writes(
    "assign_value",
    "eye",
    "range",
    "linspace",
    "adaptive_weights",
    "adaptive_positions",
    "resample_taps",
    "resample_weights",
    "resize_weights",
    "resize_tap",
    "hann_window",
    "hamming_window",
    "blackman_window",
    "mel_weight_matrix",
    "window_positions",
)(constant)


@writes("fill_constant")
def fill_constant(w, *, shape, value, dtype):
    if not shape or int(np.prod(shape, dtype=object)) == 1:
        return w.const(np.full(shape, value, _kind(dtype)), dtype)
    return w.full(list(shape), value, dtype)


@writes("fill_zeros_like")
def fill_zeros_like(w, x):
    return zeros(w, x) if isinstance(x, Stack) else w.zeros_like(x)


@writes("full_like")
def full_like(w, x, *, value):
    return w.full_like(x, value, x.dtype)


@writes("fill_constant_batch_size_like")
def fill_constant_batch_size_like(w, x, *, shape, value, dtype, input_dim, output_dim):
    sizes = list(shape)
    sizes[output_dim] = w.size(x, input_dim)
    return w.full(sizes, value, dtype)


@writes("shape")
def shape(w, x):
    return w.shape_of(x)


@writes("size")
def size(w, x):
    return w.scalar(w.product(w.sizes(x)))


@writes("rank")
def rank(w, x):
    return w.const(x.rank, "int64")


@writes("inverse_count")
def inverse_count(w, x, *, axes, ddof):
    """``1 / (n - ddof)``, and infinity where n is at most `ddof`."""
    if x.is_static:
        return computed(w, (x,), {"axes": axes, "ddof": ddof})
    which = range(x.rank) if axes is None else axes
    count = w.arith("Sub", w.product([w.size(x, i) for i in which]), ddof)
    known = w.cast(w.scalar(w.arith("Max", count, 0)), "float64" if x.dtype == "float64" else "float32")
    return w.cast(w.node("Reciprocal", known), x.dtype)


def _grid(w, x):
    """Row and column numbers of the last two axes, as [rows, 1] and [columns]."""
    rows, columns = w.size(x, -2), w.size(x, -1)
    return w.unsqueeze(w.arange(rows), [1]), w.arange(columns)


@writes("diagonal_mask_like")
def diagonal_mask_like(w, x):
    return w.expand_like(w.node("Equal", *_grid(w, x)), x)


@writes("triangle_mask_like")
def triangle_mask_like(w, x, *, diagonal):
    rows, columns = _grid(w, x)
    shifted = w.add(rows, w.const(max(min(diagonal, 2**40), -(2**40)), "int64"))
    return w.expand_like(w.node("LessOrEqual", columns, shifted), x)


@writes("eye_like")
def eye_like(w, x, *, offset, dtype):
    rows, columns = _grid(w, x)
    shifted = w.add(rows, w.const(max(min(offset, 2**40), -(2**40)), "int64"))
    return w.expand_like(w.cast(w.node("Equal", columns, shifted), dtype or x.dtype), x)


@writes("window_sizes")
def window_sizes(w, x, **how):
    if -1 in x.shape[2:]:
        raise Refused("the sizes of the image are open")
    fixed = type(x)(x.name, x.dtype, (1, 1, *x.shape[2:]))
    return computed(w, (fixed,), how)


@writes("border_positions")
def border_positions(w, x, *, axis, before, after, mode):
    """Positions by arithmetic on those of the padded axis."""
    n = w.size(x, axis)
    if isinstance(n, int):
        fixed = type(x)(x.name, x.dtype, tuple(n if i == axis % x.rank else 1 for i in range(x.rank)))
        return computed(w, (fixed,), {"axis": axis, "before": before, "after": after, "mode": mode})
    at = w.sub(w.arange(w.arith("Add", n, before + after)), w.ints([before]))
    last = w.sub(n, w.ints([1]))
    if mode == "replicate":
        return w.node("Max", w.node("Min", at, last), w.ints([0]))
    if mode == "circular":
        return w.node("Mod", at, n)
    most = w.node("GreaterOrEqual", last, w.ints([max(before, after)]))
    period = w.node("Max", w.mul(last, w.ints([2])), w.ints([1]))
    return w.guarded(w.sub(last, w.node("Abs", w.sub(last, w.node("Mod", at, period)))), most)


@writes("roll_positions")
def roll_positions(w, x, *, shift, axis):
    n = w.size(x, axis)
    if isinstance(n, int):
        return w.ints((i - shift) % max(n, 1) for i in range(n))
    return w.node("Mod", w.sub(w.arange(n), w.ints([shift])), w.node("Max", n, w.ints([1])))
