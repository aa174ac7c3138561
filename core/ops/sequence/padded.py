"""Sequences of different lengths, padded to one array [n, width, ...], and back.

Without padding a batch is one array of all rows, sequence after sequence, with `lengths` [n] (see ragged.py).
"""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.lengths import check_lengths, ends_of, row_numbers
from core.ops.common.ranges import OpenSize, Size
from core.ops.common.types import as_dtype
from core.ops.elementwise.logic import where
from core.ops.indexing.gather import gather
from core.ops.shape.creation import check_count, check_fits
from core.ops.shape.pad import pad
from core.ops.shape.reshape import merged, reshape, unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0], [3.0, 0.5], [4.0, -1.5], [0.25, 2.0], [1.5, -0.5], [2.5, 0.75]])
N = np.array([3, 1, 2])
GAPS = np.array([3, 0, 1, 2])
_INTEGER = "its result is an integer"


def _width(lengths, width: int) -> int:
    """The width of padded sequences: that of the longest one for -1. Raises ExecutionError if one is longer."""
    longest = int(lengths.max()) if lengths.size else 0
    size = longest if width == -1 else width
    if longest > size:
        raise ExecutionError(f"a sequence has {longest} rows, more than the width {size}", "shape_mismatch")
    return size


@op(no_gradient=_INTEGER)
def sequence_slots(xp, lengths, x, *, width: OpenSize = -1):
    """For each row of x its position in the padded batch, ``sequence * width + step``.

    A width of -1 stands for the length of the longest sequence.
    """
    ends = ends_of(xp, lengths, x.shape[0])
    size = _width(lengths, width)
    ids = xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist())
    return (ids * size + xp.arange(x.shape[0]) - (ends - lengths)[ids]).astype("int64")


@sequence_slots.infer
def sequence_slots_infer(lengths, x, *, width):
    return row_numbers(lengths, x)


sequence_slots.example(
    lambda: [
        Example((N, X), (np.array([0, 1, 2, 3, 6, 7]),)),
        Example((N, X), (np.array([0, 1, 2, 4, 8, 9]),), {"width": 4}),
    ]
)


@op(no_gradient=_INTEGER)
def padded_rows(xp, lengths, x, *, width: OpenSize = -1):
    """``out[i, t]`` is the position in x of row t of sequence i, or the number of rows of x if there is no such row.

    A width of -1 stands for the length of the longest sequence.
    """
    ends = ends_of(xp, lengths, x.shape[0])
    size = _width(lengths, width)
    check_count(lengths.shape[0] * size, f"{lengths.shape[0]} sequences of {size} rows")
    steps = xp.arange(size)[None, :]
    return xp.where(steps < lengths[:, None], (ends - lengths)[:, None] + steps, x.shape[0]).astype("int64")


@padded_rows.infer
def padded_rows_infer(lengths, x, *, width):
    row_numbers(lengths, x)
    return TensorType((lengths.shape[0], width), "int64")


padded_rows.example(
    lambda: [
        Example((N, X), (np.array([[0, 1, 2], [3, 6, 6], [4, 5, 6]]),)),
        Example((N, X), (np.array([[0, 1, 2, 6], [3, 6, 6, 6], [4, 5, 6, 6]]),), {"width": 4}),
    ]
)


@composite
def sequence_pad(x, lengths, value=None, *, pad_value: Extended = 0.0, padded_length: OpenSize = -1):
    """``out[i, t]`` is row t of sequence i: [n, padded_length, ...].

    Missing rows are filled with `value`, a single element, or without it with the number `pad_value`. A `padded_length`
    of -1 stands for the length of the longest sequence.
    """
    rows = padded_rows(lengths, x, width=padded_length)
    border = (0, 1, *(0,) * (2 * (x.rank - 1)))
    out = gather(pad(x, paddings=border, value=0.0 if value is not None else pad_value), rows)
    if value is None:
        return out
    real = sequence_mask(lengths, maxlen=padded_length)
    if x.rank > 1:
        real = unsqueeze(real, axes=tuple(range(2, x.rank + 1)))
    return where(real, out, _single(value))


def _single(value):
    if any(n not in (1, -1) for n in value.shape):
        raise ProgramError(f"value must be a single element, not {value.type}", "shape_mismatch")
    return reshape(value, shape=())


@op(no_gradient="it is a constant")
def padded_like(
    xp, lengths, *, shape: tuple[Size, ...], width: OpenSize = -1, value: Extended = 0.0, dtype: Dtype = "float32"
):
    """An array [n, width, *shape] full of `value`, for n lengths. A width of -1 stands for the largest length."""
    size = (int(lengths.max()) if lengths.size else 0) if width == -1 else width
    check_count(lengths.shape[0] * size * math.prod(shape), f"{lengths.shape[0]} sequences of {size} rows")
    return xp.full((lengths.shape[0], size, *shape), value, dtype=as_dtype(dtype))


@padded_like.infer
def padded_like_infer(lengths, *, shape, width, value, dtype):
    check_lengths(lengths)
    check_fits(value, dtype)
    return TensorType((lengths.shape[0], width, *shape), dtype)


padded_like.example(
    lambda: [Example((N,), (np.full((3, 3, 2), 1.5),), {"shape": (2,), "value": 1.5, "dtype": "float64"})]
)


def _padded(x, n, width, value):
    out = np.full((len(n), width, *x.shape[1:]), value)
    for row, rows in zip(out, np.split(x, np.cumsum(n)[:-1]), strict=True):
        row[: len(rows)] = rows
    return out


sequence_pad.example(
    lambda: [
        Example((X, N), (_padded(X, N, 3, 0.0),)),
        Example((X, GAPS), (_padded(X, GAPS, 4, -1.0),), {"pad_value": -1.0, "padded_length": 4}),
        Example((X[:, 0], N), (_padded(X[:, 0], N, 3, 0.0),)),
        Example((X, GAPS, np.array([0.5])), (_padded(X, GAPS, 3, 0.5),)),
        Example((X[:0], N * 0), (np.zeros((3, 2, 2)),), {"padded_length": 2}),
        Example((X[:, :0], N), (np.zeros((3, 3, 0)),)),
    ]
)


@op(no_gradient=_INTEGER)
def unpadded_positions(xp, lengths, x):
    """The positions, in [n * width], of the rows of x [n, width, ...] that are not padding: int64 [sum of lengths]."""
    ends_of(xp, lengths)
    if lengths.size and (lengths.shape[0] != x.shape[0] or int(lengths.max()) > x.shape[1]):
        raise ExecutionError(
            f"x has {x.shape[0]} sequences of {x.shape[1]} rows, which do not fit the lengths", "shape_mismatch"
        )
    real = xp.arange(x.shape[1])[None, :] < lengths[:, None]
    return xp.flatnonzero(real).astype("int64")


@unpadded_positions.infer
def unpadded_positions_infer(lengths, x):
    check_lengths(lengths)
    if x.rank < 2:
        raise ProgramError(f"x must be [n, width, ...], not {x}", "shape_mismatch")
    return TensorType((-1,), "int64")


unpadded_positions.example(lambda: [Example((N, np.zeros((3, 3))), (np.array([0, 1, 2, 3, 6, 7]),))])


@composite
def sequence_unpad(x, lengths):
    """The inverse of `sequence_pad`: the rows of x [n, width, ...] that are not padding, sequence after sequence."""
    at = unpadded_positions(lengths, x)
    return gather(merged(x, 0, 2), at)


sequence_unpad.example(
    lambda: [
        Example((_padded(X, N, 3, 7.0), N), (X,)),
        Example((_padded(X[:, 0], GAPS, 5, 7.0), GAPS), (X[:, 0],)),
        Example((np.zeros((2, 3, 2)), N[:2] * 0), (X[:0],)),
        Example((np.zeros((2, 3, 0)), N[:2]), (X[:4, :0],)),
    ]
)


@op(no_gradient="it depends on integers only")
def sequence_mask(xp, lengths, *, maxlen: OpenSize = -1, dtype: Dtype = "bool"):
    """``out[i, t] = t < lengths[i]``: [n, maxlen]; a `maxlen` of -1 stands for the largest length."""
    width = (int(lengths.max()) if lengths.size else 0) if maxlen == -1 else maxlen
    check_count(lengths.shape[0] * width, f"{lengths.shape[0]} sequences of {width} rows")
    return (xp.arange(width)[None, :] < lengths[:, None]).astype(as_dtype(dtype))


@sequence_mask.infer
def sequence_mask_infer(lengths, *, maxlen, dtype):
    check_lengths(lengths)
    return TensorType((lengths.shape[0], maxlen), dtype)


sequence_mask.example(
    lambda: [
        Example((N,), (np.arange(3) < N[:, None],)),
        Example((N,), ((np.arange(2) < N[:, None]) * 1.0,), {"maxlen": 2, "dtype": "float64"}),
    ]
)
