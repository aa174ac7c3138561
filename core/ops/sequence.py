"""Sequences of different lengths in one batch.

A batch of n sequences is one array of all their rows, one sequence after the other, and `lengths` [n], int64: how many
rows each has, 0 included. Nothing is hidden in a type: what changes the lengths returns the new ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import TensorType
from core.ops.lengths import check_lengths, ends_of, over_rows, row_numbers
from core.ops.shape import reshape_to
from core.ops.types import as_dtype, matches
from core.registry import Dtype, Example, composite, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0], [3.0, 0.5], [4.0, -1.5], [0.25, 2.0], [1.5, -0.5], [2.5, 0.75]])
N = np.array([3, 1, 2])
GAPS = np.array([3, 0, 1, 2])
_INTEGER = "its result is an integer"


def _pieces(x, lengths):
    return np.split(x, np.cumsum(lengths)[:-1]) if len(lengths) else []


# --- positions: which row goes where ---------------------------------------------------------------------------


@op(no_gradient=_INTEGER)
def sequence_ids(xp, lengths, x):
    """For each row of x the number, int64, of its sequence."""
    ends_of(xp, lengths, x.shape[0])
    return xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist()).astype("int64")


sequence_ids.infer(row_numbers)
sequence_ids.example(lambda: [Example((GAPS, X), (np.array([0, 0, 0, 2, 3, 3]),))])


@op(no_gradient=_INTEGER)
def sequence_rows(xp, lengths, x, *, order: Literal["first", "last", "reverse"]):
    """The first or the last row of each sequence (0 for an empty one), or all rows, each sequence reversed."""
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


@op(no_gradient=_INTEGER)
def sequence_slots(xp, lengths, x, *, width: int = -1):
    """For each row of x its place, ``sequence * width + step``, in the padded batch; width -1: the longest."""
    ends = ends_of(xp, lengths, x.shape[0])
    longest = int(lengths.max()) if lengths.size else 0
    size = longest if width == -1 else width
    if longest > size:
        raise ExecutionError(f"a sequence has {longest} rows, more than {size}", "shape_mismatch")
    ids = xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist())
    return (ids * size + xp.arange(x.shape[0]) - (ends - lengths)[ids]).astype("int64")


@sequence_slots.infer
def sequence_slots_infer(lengths, x, *, width):
    if width < -1:
        raise ProgramError(f"width must be at least 0, or -1, not {width}", "bad_attr")
    return row_numbers(lengths, x)


sequence_slots.example(
    lambda: [
        Example((N, X), (np.array([0, 1, 2, 3, 6, 7]),)),
        Example((N, X), (np.array([0, 1, 2, 4, 8, 9]),), {"width": 4}),
    ]
)


# --- sequences -------------------------------------------------------------------------------------------------


@composite
def sequence_pool(
    x,
    lengths,
    *,
    pool_type: Literal["sum", "mean", "sqrt", "max", "first", "last"] = "sum",
    pad_value: float = 0.0,
):
    """One row for each sequence: its sum, mean, sum by the square root of its length, largest, first or last row.

    An empty sequence gives `pad_value`, and no gradient.
    """
    if pool_type in ("first", "last"):
        # an empty sequence reads the first row there is; where there is none at all, a row of zeros behind the end
        rows = lookup("sequence_rows")(lengths, x, order=pool_type)
        borders = (0, 1, *(0,) * (2 * (x.rank - 1)))
        out = lookup("gather")(lookup("pad")(x, paddings=borders), rows)
    else:
        ids = lookup("sequence_ids")(lengths, x)
        name = {"mean": "segment_mean", "max": "segment_max"}.get(pool_type, "segment_sum")
        out = lookup(name)(x, ids, lengths)
        if pool_type == "sqrt":
            count = lookup("clip")(lookup("cast")(lengths, dtype=x.dtype), min=1.0)
            out = out * over_rows(lookup("rsqrt")(count), out)
    empty = over_rows(lookup("equal")(lengths, lookup("fill_zeros_like")(lengths)), out)
    return lookup("where")(empty, lookup("full_like")(out, value=pad_value), out)


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
            Example((X, n), (np.stack([f(r) if len(r) else np.full(2, 9.0) for r in _pieces(X, n)]),),
                    {"pool_type": kind, "pad_value": 9.0})
            for n in (N, GAPS)
            for kind, f in _POOLS.items()
        ),
        Example((X[:0], N * 0), (np.zeros((3, 2)),), {"pool_type": "last"}),
    ]
)  # fmt: skip


@composite
def sequence_softmax(x, lengths):
    """The softmax over the rows of each sequence, column by column."""
    ids = lookup("sequence_ids")(lengths, x)
    top = lookup("stop_gradient")(lookup("segment_max")(x, ids, lengths))
    each = lookup("exp")(x - lookup("gather")(top, ids))
    return each / lookup("gather")(lookup("segment_sum")(each, ids, lengths), ids)


sequence_softmax.example(
    lambda: [
        Example((x, n), (np.concatenate([np.exp(r) / np.exp(r).sum(0) for r in _pieces(x, n)]),))
        for x, n in ((X, N), (X[:, 0], GAPS), (X[:3], N[:1]))
    ]
)


@composite
def sequence_expand(x, lengths):
    """Row i of x ``lengths[i]`` times."""
    return lookup("gather")(x, lookup("repeat_positions")(lengths))


sequence_expand.example(
    lambda: [
        Example((X[:3], N), (np.repeat(X[:3], N, 0),)),
        Example((X[:4, 0], GAPS), (np.repeat(X[:4, 0], GAPS),)),
        Example((X[:2], N[:2] * 0), (X[:0],)),
    ]
)


@composite
def sequence_pad(x, lengths, value=None, *, pad_value: float = 0.0, padded_length: int = -1):
    """The sequences as [n, padded_length, ...], filled up with `pad_value`; -1 is the length of the longest."""
    if -1 in x.shape[1:]:
        raise ProgramError(f"the sizes of the rows of {x.type} must be known", "shape_mismatch")
    slots = lookup("sequence_slots")(lengths, x, width=padded_length)
    like = lookup("padded_like")(lengths, shape=x.shape[1:], width=padded_length, value=pad_value, dtype=x.dtype)
    flat = lookup("reshape")(like, shape=(-1, *x.shape[1:])) if 0 not in x.shape[1:] else like
    out = lookup("scatter")(flat, slots, x)
    return reshape_to(out, like)


@op(no_gradient="it is a constant")
def padded_like(xp, lengths, *, shape: tuple[int, ...], width: int = -1, value: float = 0.0, dtype: Dtype = "float32"):
    """An array [n, width, *shape] holding `value`, for n lengths; width -1 is the largest of them."""
    size = (int(lengths.max()) if lengths.size else 0) if width == -1 else width
    if lengths.shape[0] * size >= 2**31:
        raise ExecutionError(f"{lengths.shape[0]} sequences of {size} rows are too many", "too_large")
    return xp.full((lengths.shape[0], size, *shape), value, dtype=as_dtype(dtype))


@padded_like.infer
def padded_like_infer(lengths, *, shape, width, value, dtype):
    check_lengths(lengths)
    if any(n < 0 for n in shape) or width < -1:
        raise ProgramError(f"sizes are at least 0, not {list(shape)}", "bad_attr")
    return TensorType((lengths.shape[0], width, *shape), dtype)


padded_like.example(
    lambda: [Example((N,), (np.full((3, 3, 2), 1.5),), {"shape": (2,), "value": 1.5, "dtype": "float64"})]
)


def _padded(x, n, width, value):
    out = np.full((len(n), width, *x.shape[1:]), value)
    for row, piece in zip(out, _pieces(x, n), strict=True):
        row[: len(piece)] = piece
    return out


sequence_pad.example(
    lambda: [
        Example((X, N), (_padded(X, N, 3, 0.0),)),
        Example((X, GAPS), (_padded(X, GAPS, 4, -1.0),), {"pad_value": -1.0, "padded_length": 4}),
        Example((X[:, 0], N), (_padded(X[:, 0], N, 3, 0.0),)),
    ]
)


@op(no_gradient=_INTEGER)
def unpadded_positions(xp, lengths, x):
    """Where, in [n * width], the rows that are no padding stand in x [n, width, ...]: int64 [sum of lengths]."""
    ends_of(xp, lengths)
    if lengths.size and (lengths.shape[0] != x.shape[0] or int(lengths.max()) > x.shape[1]):
        raise ExecutionError(f"the lengths do not fit [{x.shape[0]}, {x.shape[1]}]", "shape_mismatch")
    real = xp.arange(x.shape[1])[None, :] < lengths[:, None]
    return xp.flatnonzero(real).astype("int64")


@unpadded_positions.infer
def unpadded_positions_infer(lengths, x):
    check_lengths(lengths)
    if x.rank < 2:
        raise ProgramError(f"needs [n, width, ...], not {x}", "shape_mismatch")
    return TensorType((-1,), "int64")


unpadded_positions.example(lambda: [Example((N, np.zeros((3, 3))), (np.array([0, 1, 2, 3, 6, 7]),))])


@composite
def sequence_unpad(x, lengths):
    """The rows of x [n, width, ...] that are no padding, one sequence after the other."""
    if x.rank < 2 or -1 in x.shape[2:] or 0 in x.shape[2:]:
        raise ProgramError(f"needs [n, width, ...] with rows of known sizes, not {x.type}", "shape_mismatch")
    at = lookup("unpadded_positions")(lengths, x)
    return lookup("gather")(lookup("reshape")(x, shape=(-1, *x.shape[2:])), at)


sequence_unpad.example(
    lambda: [
        Example((_padded(X, N, 3, 7.0), N), (X,)),
        Example((_padded(X[:, 0], GAPS, 5, 7.0), GAPS), (X[:, 0],)),
        Example((np.zeros((2, 3, 2)), N[:2] * 0), (X[:0],)),
    ]
)


@op(no_gradient="it depends on integers only")
def sequence_mask(xp, lengths, *, maxlen: int = -1, dtype: Dtype = "bool"):
    """``out[i, t]`` is 1 or true where ``t < lengths[i]``: [n, maxlen], the longest if `maxlen` is -1."""
    width = (int(lengths.max()) if lengths.size else 0) if maxlen == -1 else maxlen
    if lengths.shape[0] * width >= 2**31:
        raise ExecutionError(f"{lengths.shape[0]} sequences of {width} rows are too many", "too_large")
    return (xp.arange(width)[None, :] < lengths[:, None]).astype(as_dtype(dtype))


@sequence_mask.infer
def sequence_mask_infer(lengths, *, maxlen, dtype):
    check_lengths(lengths)
    if maxlen < -1:
        raise ProgramError(f"maxlen must be at least 0, or -1, not {maxlen}", "bad_attr")
    return TensorType((lengths.shape[0], maxlen), dtype)


sequence_mask.example(
    lambda: [
        Example((N,), (np.arange(3) < N[:, None],)),
        Example((N,), ((np.arange(2) < N[:, None]) * 1.0,), {"maxlen": 2, "dtype": "float64"}),
    ]
)


@composite
def sequence_reverse(x, lengths):
    """The rows of each sequence in reverse order."""
    return lookup("gather")(x, lookup("sequence_rows")(lengths, x, order="reverse"))


sequence_reverse.example(
    lambda: [
        Example((x, n), (np.concatenate([r[::-1] for r in _pieces(x, n)]),))
        for x, n in ((X, N), (X[:, 0], GAPS), (X[:3], N[:1]))
    ]
)


@op(outputs=("rows", "lengths"), no_gradient=_INTEGER)
def sequence_slice_rows(xp, lengths, offsets, counts, x):
    """The rows ``offsets[i]`` to ``offsets[i] + counts[i] - 1`` of each sequence, and the new lengths."""
    ends = ends_of(xp, lengths, x.shape[0])
    if bool(xp.any((offsets < 0) | (counts < 0) | (offsets + counts > lengths))):
        raise ExecutionError("a slice reaches out of its sequence", "index_out_of_range")
    ids = xp.repeat(xp.arange(lengths.shape[0]), counts.tolist())
    inside = xp.arange(ids.shape[0]) - (xp.cumsum(counts) - counts)[ids]
    return ((ends - lengths + offsets)[ids] + inside).astype("int64"), counts


@sequence_slice_rows.infer
def sequence_slice_rows_infer(lengths, offsets, counts, x):
    for each in (lengths, offsets, counts):
        check_lengths(each)
        if not matches(each, lengths):
            raise ProgramError(f"offsets and counts must be like the lengths {lengths}, not {each}", "shape_mismatch")
    row_numbers(lengths, x)
    return TensorType((-1,), "int64"), counts


sequence_slice_rows.example(
    lambda: [Example((N, np.array([1, 0, 1]), np.array([2, 0, 1]), X), (np.array([1, 2, 5]), np.array([2, 0, 1])))]
)


@composite(outputs=("out", "lengths_out"))
def sequence_slice(x, lengths, offsets, counts):
    """``counts[i]`` rows of each sequence from ``offsets[i]`` on, and the new lengths, which are the counts."""
    rows, new = lookup("sequence_slice_rows")(lengths, offsets, counts, x)
    return lookup("gather")(x, rows), new


sequence_slice.example(
    lambda: [
        Example((X, N, np.array([1, 0, 1]), np.array([2, 0, 1])), (X[[1, 2, 5]], np.array([2, 0, 1]))),
        Example((X[:, 0], N, np.array([0, 0, 0]), N), (X[:, 0], N)),
        Example((X, N, N * 0, N * 0), (X[:0], N * 0)),
    ]
)


@op(no_gradient=_INTEGER)
def interleaved_rows(xp, lengths, more, x, y):
    """Rows of x and then y, stacked, in the order: sequence 0 of x, sequence 0 of y, sequence 1 of x, ..."""
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
    total = -1 if -1 in (x.shape[0], y.shape[0]) else x.shape[0] + y.shape[0]
    return TensorType((total,), "int64")


interleaved_rows.example(lambda: [Example((N[:2], np.array([1, 2]), X[:4], X[:3]), (np.array([0, 1, 2, 4, 3, 5, 6]),))])


@composite(outputs=("out", "lengths_out"))
def sequence_concat(x, lengths, y, more):
    """Each sequence of x followed by the sequence of y with the same number, and the new lengths."""
    rows = lookup("interleaved_rows")(lengths, more, x, y)
    return lookup("gather")(lookup("concat")(x, y, axis=0), rows), lengths + more


def _joined(x, n, y, m):
    pairs = zip(_pieces(x, n), _pieces(y, m), strict=True)
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
def context_rows(xp, lengths, x, *, length: int, start: int):
    """For each row those of its own sequence from `start` after it on: [rows, length]; one too many beyond."""
    ends = ends_of(xp, lengths, x.shape[0])
    ids = xp.repeat(xp.arange(lengths.shape[0]), lengths.tolist())
    at = xp.arange(x.shape[0])[:, None] + start + xp.arange(length)[None, :]
    inside = (at >= (ends - lengths)[ids][:, None]) & (at < ends[ids][:, None])
    return xp.where(inside, at, x.shape[0]).astype("int64")


@context_rows.infer
def context_rows_infer(lengths, x, *, length, start):
    if length < 1:
        raise ProgramError(f"a context has at least one row, not {length}", "bad_attr")
    return TensorType((*row_numbers(lengths, x).shape, length), "int64")


context_rows.example(
    lambda: [Example((N[1:], X[:3]), (np.array([[3, 0], [3, 1], [1, 2]]),), {"length": 2, "start": -1})]
)


@composite
def sequence_conv(x, lengths, filter, *, context_length: int = 3, context_start: int | None = None):
    """Each row with its neighbours in its own sequence, side by side, times `filter` [context_length * d, out].

    The context begins `context_start` after the row, by default so that the row is in its middle; beyond the ends of a
    sequence there are zeros.
    """
    if x.rank != 2 or filter.rank != 2 or x.shape[1] == -1:
        raise ProgramError(
            f"sequence_conv takes [rows, known d] and a matrix, not {x.type}, {filter.type}", "shape_mismatch"
        )
    start = -((context_length - 1) // 2) if context_start is None else context_start
    at = lookup("context_rows")(lengths, x, length=context_length, start=start)
    wide = lookup("gather")(lookup("pad")(x, paddings=(0, 1, 0, 0)), at)
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise ProgramError(f"sequence_conv needs rows, not {x.type}", "shape_mismatch")
    return lookup("matmul")(lookup("reshape")(wide, shape=(-1, context_length * x.shape[1])), filter)


def _context(x, n, filter, length, start):
    out = []
    for piece in _pieces(x, n):
        for t in range(len(piece)):
            row = [
                piece[t + start + k] if 0 <= t + start + k < len(piece) else np.zeros(x.shape[1]) for k in range(length)
            ]
            out.append(np.concatenate(row) @ filter)
    return np.stack(out)


_FILTER = np.sin(np.arange(18.0)).reshape(6, 3)
sequence_conv.example(
    lambda: [
        Example((X, N, _FILTER), (_context(X, N, _FILTER, 3, -1),)),
        Example((X, GAPS, _FILTER[:4]), (_context(X, GAPS, _FILTER[:4], 2, 0),), {"context_length": 2}),
        Example((X[:3], N[:1], _FILTER[:4]), (_context(X[:3], N[:1], _FILTER[:4], 2, -2),),
                {"context_length": 2, "context_start": -2}),
    ]
)  # fmt: skip


@composite(no_gradient=_INTEGER)
def max_sequence_len(lengths):
    """The length of the longest sequence."""
    return lookup("reduce_max")(lengths)


max_sequence_len.example(lambda: [Example((N,), (np.array(3),)), Example((GAPS[1:],), (np.array(2),))])
