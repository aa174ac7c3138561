"""Sequences of different lengths, without padding.

A batch of n sequences is one array of all their rows, one sequence after the other, and `lengths` [n], int64: the
number of rows of each, which may be 0. Lengths are ordinary arrays: an op that changes them returns the new ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.lengths import check_lengths, ends_of, over_rows, row_numbers
from core.ops.common.ranges import Count
from core.ops.common.types import matches, same_size
from core.ops.elementwise.arithmetic import cast, stop_gradient
from core.ops.elementwise.logic import equal, where
from core.ops.elementwise.math import clip, exp, rsqrt
from core.ops.indexing.gather import gather
from core.ops.linalg.matmul import matmul
from core.ops.reduction.segments import segment_max, segment_mean, segment_sum
from core.ops.reduction.sums import reduce_max
from core.ops.shape.arrange import repeat_positions
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import check_count, fill_zeros_like, full_like
from core.ops.shape.pad import pad
from core.ops.shape.reshape import merged

__all__: list[str] = []

X = np.array([[1.0, -2.0], [3.0, 0.5], [4.0, -1.5], [0.25, 2.0], [1.5, -0.5], [2.5, 0.75]])
N = np.array([3, 1, 2])
GAPS = np.array([3, 0, 1, 2])
_INTEGER = "its result is an integer"


def _sequences_of(x, lengths):
    return np.split(x, np.cumsum(lengths)[:-1]) if len(lengths) else []


# --- positions: which row goes where ---------------------------------------------------------------------------


@op(no_gradient=_INTEGER)
def sequence_ids(xp, lengths, x):
    """For each row of x the number of its sequence: int64."""
    ends_of(xp, lengths, x.shape[0])
    return xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist()).astype("int64")


sequence_ids.infer(row_numbers)
sequence_ids.example(lambda: [Example((GAPS, X), (np.array([0, 0, 0, 2, 3, 3]),))])


@op(no_gradient=_INTEGER)
def sequence_rows(xp, lengths, x, *, order: Literal["first", "last", "reverse"]):
    """The positions of the first or last row of each sequence (0 for an empty one), or of all rows, in reverse."""
    ends = ends_of(xp, lengths, x.shape[0])
    starts = ends - lengths
    if order == "reverse":
        ids = xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist())
        return (starts[ids] + ends[ids] - 1 - xp.arange(x.shape[0])).astype("int64")
    return xp.where(lengths > 0, starts if order == "first" else ends - 1, 0).astype("int64")


@sequence_rows.infer
def sequence_rows_infer(lengths, x, *, order):
    row_numbers(lengths, x)
    return TensorType((x.shape[0] if order == "reverse" else lengths.shape[0],), "int64")


sequence_rows.example(
    lambda: [
        Example((N, X), (np.array([2, 3, 5]),), {"order": "last"}),
        Example((N, X), (np.array([2, 1, 0, 3, 5, 4]),), {"order": "reverse"}),
        Example((GAPS, X), (np.array([0, 0, 3, 4]),), {"order": "first"}),
    ]
)


# --- sequences -------------------------------------------------------------------------------------------------


@composite
def sequence_pool(
    x,
    lengths,
    *,
    pool_type: Literal["sum", "mean", "sqrt", "max", "first", "last"] = "sum",
    pad_value: Extended = 0.0,
):
    """One row for each sequence: the sum, mean, ``sum / sqrt(length)``, maximum, first or last of its rows.

    The row of an empty sequence is `pad_value`; it gets no gradient. Rows that tie for the maximum share the gradient
    evenly.
    """
    if pool_type in ("first", "last"):
        # an empty sequence reads the first row of x; if x has no rows, a row of zeros after the end
        rows = sequence_rows(lengths, x, order=pool_type)
        borders = (0, 1, *(0,) * (2 * (x.rank - 1)))
        out = gather(pad(x, paddings=borders), rows)
    else:
        ids = sequence_ids(lengths, x)
        reduction = {"mean": segment_mean, "max": segment_max}.get(pool_type, segment_sum)
        out = reduction(x, ids, lengths)
        if pool_type == "sqrt":
            count = clip(cast(lengths, dtype=x.dtype), min=1.0)
            out = out * over_rows(rsqrt(count), out)
    empty = over_rows(equal(lengths, fill_zeros_like(lengths)), out)
    return where(empty, full_like(out, value=pad_value), out)


_POOLS = {
    "sum": lambda r: r.sum(0),
    "mean": lambda r: r.mean(0),
    "sqrt": lambda r: r.sum(0) / np.sqrt(len(r)),
    "max": lambda r: r.max(0),
    "first": lambda r: r[0],
    "last": lambda r: r[-1],
}
sequence_pool.example(
    lambda: [
        *(
            Example((X, n), (np.stack([f(r) if len(r) else np.full(2, 9.0) for r in _sequences_of(X, n)]),),
                    {"pool_type": kind, "pad_value": 9.0})
            for n in (N, GAPS)
            for kind, f in _POOLS.items()
        ),
        Example((X[:0], N * 0), (np.zeros((3, 2)),), {"pool_type": "last"}),
    ]
)  # fmt: skip


@composite
def sequence_softmax(x, lengths):
    """``exp(x) / sum(exp(x))`` over the rows of each sequence, column by column."""
    ids = sequence_ids(lengths, x)
    top = stop_gradient(segment_max(x, ids, lengths))
    each = exp(x - gather(top, ids))
    return each / gather(segment_sum(each, ids, lengths), ids)


sequence_softmax.example(
    lambda: [
        Example((x, n), (np.concatenate([np.exp(r) / np.exp(r).sum(0) for r in _sequences_of(x, n)]),))
        for x, n in ((X, N), (X[:, 0], GAPS), (X[:3], N[:1]))
    ]
)


@op(no_gradient=_INTEGER)
def expanded_rows(xp, times, lengths, x):
    """The positions, int64, of the rows of x, with the rows of sequence i ``times[i]`` times, for i = 0, 1, 2, ..."""
    ends = ends_of(xp, lengths, x.shape[0])
    if times.shape != lengths.shape:
        raise ExecutionError(
            f"there are {times.shape[0]} repeat counts for {lengths.shape[0]} sequences", "shape_mismatch"
        )
    if times.size and int(times.min()) < 0:
        raise ExecutionError(f"repeat counts must be at least 0, not {int(times.min())}", "index_out_of_range")
    if times.size:
        check_count(int(times.max()), "one sequence")  # checked first: the sum of large numbers may wrap around
    check_count(max(int(times.sum()), int((times * lengths).sum())), "the expanded sequences")
    ids = xp.repeat(xp.arange(times.shape[0]), times.tolist())
    each = lengths[ids]
    rows = xp.repeat((ends - lengths)[ids] - (xp.cumsum(each) - each), each.tolist())
    return (rows + xp.arange(rows.shape[0])).astype("int64")


@expanded_rows.infer
def expanded_rows_infer(times, lengths, x):
    check_lengths(times)
    row_numbers(lengths, x)
    same_size(times.shape[0], lengths.shape[0], "repeat counts and sequences differ in number")
    return TensorType((-1,), "int64")


expanded_rows.example(
    lambda: [
        Example((np.array([2, 1, 0]), N, X), (np.array([0, 1, 2, 0, 1, 2, 3]),)),
        Example((np.array([1, 3, 0, 2]), GAPS, X), (np.array([0, 1, 2, 4, 5, 4, 5]),)),
    ]
)


@composite
def sequence_expand(x, lengths, x_lengths=None):
    """Row i of x, or with `x_lengths` sequence i of x, ``lengths[i]`` times. Gradients of copies add up.

    The lengths of the result are then ``sequence_expand(x_lengths, lengths)``.
    """
    if x_lengths is not None:
        return gather(x, expanded_rows(lengths, x_lengths, x))
    return gather(x, repeat_positions(lengths, x))


sequence_expand.example(
    lambda: [
        Example((X[:3], N), (np.repeat(X[:3], N, 0),)),
        Example((X[:4, 0], GAPS), (np.repeat(X[:4, 0], GAPS),)),
        Example((X[:2], N[:2] * 0), (X[:0],)),
        Example((X[:4], np.array([2, 1]), N[:2]), (X[[0, 1, 2, 0, 1, 2, 3]],)),
    ]
)


@composite
def sequence_reverse(x, lengths):
    """The rows of each sequence in reverse order."""
    return gather(x, sequence_rows(lengths, x, order="reverse"))


sequence_reverse.example(
    lambda: [
        Example((x, n), (np.concatenate([r[::-1] for r in _sequences_of(x, n)]),))
        for x, n in ((X, N), (X[:, 0], GAPS), (X[:3], N[:1]))
    ]
)


@op(outputs=("rows", "lengths"), no_gradient=_INTEGER)
def sequence_slice_rows(xp, lengths, offsets, counts, x):
    """The positions of rows ``offsets[i]`` to ``offsets[i] + counts[i] - 1`` of each sequence, and the new lengths."""
    ends = ends_of(xp, lengths, x.shape[0])
    if not offsets.shape == counts.shape == lengths.shape:
        raise ExecutionError("offsets and counts must have one number for each sequence", "shape_mismatch")
    if bool(xp.any((offsets < 0) | (counts < 0) | (offsets > lengths) | (counts > lengths - offsets))):
        raise ExecutionError("a slice ends after its sequence, or starts before it", "index_out_of_range")
    ids = xp.repeat(xp.arange(lengths.shape[0]), counts.tolist())
    inside = xp.arange(ids.shape[0]) - (xp.cumsum(counts) - counts)[ids]
    return ((ends - lengths + offsets)[ids] + inside).astype("int64"), counts


@sequence_slice_rows.infer
def sequence_slice_rows_infer(lengths, offsets, counts, x):
    for each in (lengths, offsets, counts):
        check_lengths(each)
        if not matches(each, lengths):
            raise ProgramError(
                f"offsets and counts must have the type of lengths, {lengths}, not {each}", "shape_mismatch"
            )
    row_numbers(lengths, x)
    return TensorType((-1,), "int64"), counts


sequence_slice_rows.example(
    lambda: [Example((N, np.array([1, 0, 1]), np.array([2, 0, 1]), X), (np.array([1, 2, 5]), np.array([2, 0, 1])))]
)


@composite(outputs=("out", "lengths_out"))
def sequence_slice(x, lengths, offsets, counts):
    """``counts[i]`` rows of each sequence, starting at ``offsets[i]``, and the new lengths, which equal `counts`."""
    rows, new = sequence_slice_rows(lengths, offsets, counts, x)
    return gather(x, rows), new


sequence_slice.example(
    lambda: [
        Example((X, N, np.array([1, 0, 1]), np.array([2, 0, 1])), (X[[1, 2, 5]], np.array([2, 0, 1]))),
        Example((X[:, 0], N, np.array([0, 0, 0]), N), (X[:, 0], N)),
        Example((X, N, N * 0, N * 0), (X[:0], N * 0)),
        Example((X[:0], N[:0], N[:0], N[:0]), (X[:0], N[:0])),
    ]
)


@op(no_gradient=_INTEGER)
def interleaved_rows(xp, lengths, more, x, y):
    """The positions of the rows of ``concat(x, y)``, ordered as sequence 0 of x, sequence 0 of y, sequence 1 of x,
    ...
    """
    a, b = ends_of(xp, lengths, x.shape[0]), ends_of(xp, more, y.shape[0])
    if lengths.shape != more.shape:
        raise ExecutionError("the two batches have different numbers of sequences", "shape_mismatch")
    starts = xp.stack([a - lengths, b - more + x.shape[0]], 1).ravel()
    counts = xp.stack([lengths, more], 1).ravel()
    ids = xp.repeat(xp.arange(counts.shape[0]), counts.tolist())
    return (starts[ids] + xp.arange(ids.shape[0]) - (xp.cumsum(counts) - counts)[ids]).astype("int64")


@interleaved_rows.infer
def interleaved_rows_infer(lengths, more, x, y):
    row_numbers(lengths, x)
    row_numbers(more, y)
    same_size(lengths.shape[0], more.shape[0], "the two batches have different numbers of sequences")
    total = -1 if -1 in (x.shape[0], y.shape[0]) else x.shape[0] + y.shape[0]
    return TensorType((total,), "int64")


interleaved_rows.example(lambda: [Example((N[:2], np.array([1, 2]), X[:4], X[:3]), (np.array([0, 1, 2, 4, 3, 5, 6]),))])


@composite(outputs=("out", "lengths_out"))
def sequence_concat(x, lengths, y, more):
    """Each sequence of x followed by the same sequence of y, and the new lengths, ``lengths + more``."""
    rows = interleaved_rows(lengths, more, x, y)
    return gather(concat(x, y, axis=0), rows), lengths + more


def _joined(x, n, y, m):
    pairs = zip(_sequences_of(x, n), _sequences_of(y, m), strict=True)
    return np.concatenate([np.concatenate(pair) for pair in pairs]), n + m


sequence_concat.example(
    lambda: [
        Example((x, n, y, m), _joined(x, n, y, m))
        for x, n, y, m in (
            (X, N, X[:3], np.array([1, 0, 2])),
            (X[:, 0], GAPS, X[:, 1], GAPS[::-1]),
            (X[:1], N[1:2], X[:0], N[:1] * 0),
        )
    ]
)


@op(no_gradient=_INTEGER)
def context_rows(xp, lengths, x, *, length: Count, start: int):
    """For each row the positions of `length` rows, beginning `start` after it: [rows, length].

    A row outside the sequence has the position after the last row of x.
    """
    ends = ends_of(xp, lengths, x.shape[0])
    ids = xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist())
    at = xp.arange(x.shape[0])[:, None] + start + xp.arange(length)[None, :]
    inside = (at >= (ends - lengths)[ids][:, None]) & (at < ends[ids][:, None])
    return xp.where(inside, at, x.shape[0]).astype("int64")


@context_rows.infer
def context_rows_infer(lengths, x, *, length, start):
    return TensorType((*row_numbers(lengths, x).shape, length), "int64")


context_rows.example(
    lambda: [Example((N[1:], X[:3]), (np.array([[3, 0], [3, 1], [1, 2]]),), {"length": 2, "start": -1})]
)


@composite
def sequence_conv(x, lengths, filter, *, context_length: Count = 3, context_start: int | None = None):
    """``out[t] = concat(x[t + start], ..., x[t + start + context_length - 1]) @ filter`` within each sequence.

    x is [rows, d] and `filter` [context_length * d, out]. ``start`` is `context_start`; by default the row is in the
    middle of its context. Rows outside the sequence count as zeros.
    """
    if x.rank != 2 or filter.rank != 2:
        raise ProgramError(
            f"sequence_conv takes [rows, d] and a matrix, not {x.type} and {filter.type}", "shape_mismatch"
        )
    start = -((context_length - 1) // 2) if context_start is None else context_start
    at = context_rows(lengths, x, length=context_length, start=start)
    wide = gather(pad(x, paddings=(0, 1, 0, 0)), at)
    return matmul(merged(wide, 1, 3), filter)


def _context(x, n, filter, length, start):
    out = []
    for rows in _sequences_of(x, n):
        for t in range(len(rows)):
            row = [
                rows[t + start + k] if 0 <= t + start + k < len(rows) else np.zeros(x.shape[1]) for k in range(length)
            ]
            out.append(np.concatenate(row) @ filter)
    return np.stack(out) if out else np.zeros((0, filter.shape[1]))


_FILTER = np.sin(np.arange(18.0)).reshape(6, 3)
sequence_conv.example(
    lambda: [
        Example((X, N, _FILTER), (_context(X, N, _FILTER, 3, -1),)),
        Example((X, GAPS, _FILTER[:4]), (_context(X, GAPS, _FILTER[:4], 2, 0),), {"context_length": 2}),
        Example((X[:3], N[:1], _FILTER[:4]), (_context(X[:3], N[:1], _FILTER[:4], 2, -2),),
                {"context_length": 2, "context_start": -2}),
        Example((X[:0], N * 0, _FILTER), (np.zeros((0, 3)),)),
    ]
)  # fmt: skip


@op(outputs=("out", "lengths_out"))
def sequence_reset_lengths(xp, x, lengths):
    """``out = x`` and the new `lengths`, after a check that they add up to the rows of x.

    Lengths are ordinary arrays, so other ops can also take new lengths directly.
    """
    ends_of(xp, lengths, x.shape[0])
    return x, lengths


@sequence_reset_lengths.infer
def sequence_reset_lengths_infer(x, lengths):
    row_numbers(lengths, x)
    return x, lengths


sequence_reset_lengths.vjp(lambda cts, outs, x, lengths: (cts[0], None))
sequence_reset_lengths.example(
    lambda: [Example((x, n), (x, n)) for x, n in ((X, N), (X[:, 0], GAPS), (X[:0], N[:2] * 0))]
)


@composite(no_gradient=_INTEGER)
def max_sequence_len(lengths):
    """``max(lengths)``: the length of the longest sequence; 0 without sequences."""
    check_lengths(lengths.type)
    none = lengths.builder.constant(0, "int64", (1,))
    return reduce_max(concat(lengths, none))


max_sequence_len.example(
    lambda: [Example((N,), (np.array(3),)), Example((GAPS[1:],), (np.array(2),)), Example((N[:0],), (np.array(0),))]
)
