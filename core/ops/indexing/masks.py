"""Selection and assignment by masks, and sequences reversed by their lengths."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.types import axis_of, matches
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import less_than, where
from core.ops.indexing.gather import check_index, gather
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.indexing.sort import nonzero
from core.ops.reduction.cumulative import cumsum
from core.ops.shape.agreeing import agreed
from core.ops.shape.broadcast import expand_to
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.pad import pad_constant
from core.ops.shape.reshape import reshape, reshape_to, transpose, unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)


@composite
def masked_scatter(x, mask, source):
    """x with its elements where `mask` is true replaced by the elements of `source`, both in row-major order.

    `mask` broadcasts to the shape of x. A `source` with fewer elements than the mask has true ones is an error of the
    run (index_out_of_range).
    """
    if mask.dtype != "bool" or source.dtype != x.dtype:
        raise ProgramError(
            f"needs a bool mask and a source of dtype {x.dtype}, not {mask.type} and {source.type}", "dtype_mismatch"
        )
    mask = expand_to(mask, x)
    number = cumsum(reshape(cast(mask, dtype="int64"), shape=(-1,)))  # of the next element of the source, from 1 on
    number = where(reshape(mask, shape=(-1,)), number, fill_zeros_like(number))
    padded = pad_constant(reshape(source, shape=(-1,)), paddings=(1, 0))
    return where(mask, reshape_to(gather(padded, number), x), x)


def _assigned(x, mask, source):
    out = x.copy()
    mask = np.broadcast_to(mask, x.shape)
    out[mask] = source.ravel()[: mask.sum()]
    return out


masked_scatter.example(
    lambda: [
        Example((X, X > 0, CUBE), (_assigned(X, X > 0, CUBE),)),
        Example((X, X[0] > 0, CUBE[0]), (_assigned(X, X[0] > 0, CUBE[0]),)),
        Example((CUBE, CUBE < 0, X), (_assigned(CUBE, CUBE < 0, X),)),
        Example((X, X > 9, CUBE[0, 0, :0]), (X,)),
    ]
)


@composite
def compress(x, condition, *, axis: int | None = None):
    """The slices of x along `axis` at which the vector `condition` (bool) is true.

    Without `axis`, the elements of x in row-major order. Slices beyond the end of `condition` are left out.
    """
    if condition.dtype != "bool" or condition.rank != 1:
        raise ProgramError(f"condition must be a vector of bools, not {condition.type}", "type_mismatch")
    chosen = reshape(nonzero(condition), shape=(-1,))
    if axis is None:
        return gather(reshape(x, shape=(-1,)), chosen)
    return gather(x, chosen, axis=axis_of(axis, x.rank))


_PICK = np.array([True, False, True])
compress.example(
    lambda: [
        Example((X, _PICK), (X[:, [0, 2]],), {"axis": 1}),
        Example((X, _PICK), (X.ravel()[[0, 2]],)),
        Example((CUBE, _PICK), (CUBE[:, [0, 2]],), {"axis": -2}),
        Example((X, ~_PICK[:1]), (X[:0],), {"axis": 0}),
    ]
)


@composite
def reverse_sequence(x, lengths, *, time_axis: int = 1, batch_axis: int = 0):
    """The first ``lengths[b]`` elements along `time_axis` of each element b of the batch reversed; the others stay.

    `lengths` is a vector of integers. A length above the size of the axis is an error of the run (index_out_of_range).
    """
    time, batch = axis_of(time_axis, x.rank, "time_axis"), axis_of(batch_axis, x.rank, "batch_axis")
    check_index(lengths.type, "lengths")
    if time == batch or not matches(lengths.type, TensorType((x.shape[batch],), lengths.dtype)):
        raise ProgramError(
            f"needs two axes and one length for each of {x.shape[batch]} elements, not {lengths.type}", "shape_mismatch"
        )
    x, lengths = agreed(x, lengths, (batch, 0))
    order = (batch, time, *(i for i in range(x.rank) if i not in (batch, time)))
    moved = transpose(x, axes=order)
    step = unsqueeze(x.builder.emit("roll_positions", x, shift=0, axis=time), axes=(0,))
    length = unsqueeze(cast(lengths, dtype="int64"), axes=(1,))
    index = where(less_than(step, length), length - step - 1.0, step)
    index = expand_to(unsqueeze(index, axes=tuple(range(2, x.rank))) if x.rank > 2 else index, moved)
    return transpose(take_along_axis(moved, index, axis=1), axes=tuple(order.index(i) for i in range(x.rank)))


def _reversed(x, lengths):
    out = x.copy()
    for b, n in enumerate(lengths):
        out[b, :n] = x[b, :n][::-1]
    return out


_LENGTHS = np.array([3, 2])
reverse_sequence.example(
    lambda: [
        Example((X, _LENGTHS), (_reversed(X, _LENGTHS),)),
        Example((CUBE, _LENGTHS), (_reversed(CUBE, _LENGTHS),)),
        Example((CUBE.transpose(1, 2, 0), _LENGTHS), (_reversed(CUBE, _LENGTHS).transpose(1, 2, 0),),
                {"time_axis": 0, "batch_axis": 2}),
        Example((X[:0], _LENGTHS[:0]), (X[:0],)),
    ]
)  # fmt: skip
