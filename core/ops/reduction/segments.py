"""Reductions over segments. A segment is the set of rows with the same id; ids are int32 or int64, in any order."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.lengths import over_rows
from core.ops.common.on_cuda import is_cupy, scatter_max
from core.ops.common.ranges import OpenSize
from core.ops.common.scatter_rows import scatter_rows
from core.ops.common.types import matches, working_dtype
from core.ops.elementwise.arithmetic import cast
from core.ops.elementwise.logic import equal, logical_or, not_equal, where, where_or_zero
from core.ops.elementwise.math import clip
from core.ops.elementwise.rounding import isnan
from core.ops.indexing.gather import check_index, gather
from core.ops.indexing.sort import argsort
from core.ops.reduction.cumulative import linear_scan, shift
from core.ops.shape.broadcast import expand_to
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

X = np.array([[1.0, -2.0], [3.0, 0.5], [4.0, -1.5], [0.25, 2.0], [1.5, -0.5], [2.5, 0.75]])


def _segment_count(ids, like, num_segments: int) -> int:
    """Number of segments. Raises ExecutionError (index_out_of_range) if an id is negative or not below it."""
    count = num_segments if like is None else like.shape[0]
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= count):
        raise ExecutionError(f"a segment id is outside 0 to {count - 1}", "index_out_of_range")
    return count


@op
def segment_sum(xp, x, ids, like=None, *, num_segments: OpenSize = -1):
    """Sum of the rows of each segment: ``out[k]`` is the sum of the rows of x with id k.

    The number of segments is `num_segments`, or the number of rows of `like`. A segment without rows gives 0. An id
    outside the range is an error of the run (index_out_of_range).
    """
    return scatter_rows(xp, _segment_count(ids, like, num_segments), ids, x)


@segment_sum.infer
def segment_sum_infer(x, ids, like, *, num_segments):
    check_index(ids, "ids")
    if x.rank == 0 or not matches(ids, TensorType((x.shape[0],), ids.dtype)):
        raise ProgramError(f"ids must have one element per row of {x}, not {ids}", "shape_mismatch")
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    if (num_segments < 0) == (like is None) or (like is not None and like.rank == 0):
        raise ProgramError("give either num_segments or an array like with that many rows", "bad_attr")
    return TensorType((num_segments if like is None else like.shape[0], *x.shape[1:]), x.dtype)


segment_sum.vjp(lambda ct, out, x, ids, like, *, num_segments: (gather(ct, ids), None, None))
IDS = np.array([0, 2, 2, 0, 3, 2])


def _per_segment(f, count=4):
    return np.stack([f(X[k == IDS]) if k in IDS else np.zeros(2) for k in range(count)])


segment_sum.example(
    lambda: [
        Example((X, IDS), (_per_segment(lambda r: r.sum(0)),), {"num_segments": 4}),
        Example((X[:, 0], IDS, np.zeros(4)), (_per_segment(lambda r: r.sum(0))[:, 0],)),
        Example((X[:0], IDS[:0]), (np.zeros((2, 2)),), {"num_segments": 2}),
    ]
)


def _counts(x, ids, like, num_segments):
    ones = full_like(cast(ids, dtype=x.dtype), value=1.0)
    return segment_sum(ones, ids, like, num_segments=num_segments)


@composite
def segment_mean(x, ids, like=None, *, num_segments: OpenSize = -1):
    """Mean of the rows of each segment, with segments as in `segment_sum`. A segment without rows gives 0."""
    total = segment_sum(x, ids, like, num_segments=num_segments)
    return total / over_rows(clip(_counts(x, ids, like, num_segments), min=1.0), total)


@op
def segment_max(xp, x, ids, like=None, *, num_segments: OpenSize = -1):
    """Maximum of the rows of each segment, element by element, with segments as in `segment_sum`.

    A segment without rows gives 0. Tied rows share the gradient evenly.
    """
    count = _segment_count(ids, like, num_segments)
    out = xp.full((count, *x.shape[1:]), -np.inf, working_dtype(x))
    if not out.size:  # rows without elements: a mask of `count` rows would be larger than the predicted memory
        return out.astype(x.dtype, copy=False)
    if is_cupy(xp):
        keys = _ordered(xp, out)
        scatter_max(keys, ids, _ordered(xp, x.astype(out.dtype, copy=False)))
        out = _floats(xp, keys, out.dtype)
    elif len(x):
        order = xp.argsort(ids, kind="stable")
        ordered = ids[order]
        starts = xp.flatnonzero(xp.concatenate([xp.ones(1, bool), ordered[1:] != ordered[:-1]]))
        out[ordered[starts]] = xp.maximum.reduceat(x[order], starts)
    has_rows = xp.zeros(count, bool)
    has_rows[ids] = True
    has_rows = has_rows.reshape((count,) + (1,) * (x.ndim - 1))
    return xp.where(has_rows, out, out.dtype.type(0)).astype(x.dtype, copy=False)


def _ordered(xp, x):
    """Unsigned integers in the order of the floats x; that of NaN is the largest."""
    bits = xp.where(xp.isnan(x), x.dtype.type(np.nan), x).view(f"uint{8 * x.itemsize}")
    sign = _sign_bit(bits)
    return xp.where(bits & sign, ~bits, bits | sign)


def _floats(xp, keys, dtype):
    """The floats for unsigned integers of `_ordered`."""
    sign = _sign_bit(keys)
    return xp.where(keys & sign, keys ^ sign, ~keys).view(dtype)


def _sign_bit(bits):
    return bits.dtype.type(1 << (8 * bits.itemsize - 1))


@segment_max.infer
def segment_max_infer(x, ids, like, *, num_segments):
    if not x.is_float:
        raise ProgramError(f"needs floating-point rows, not {x}", "dtype_mismatch")
    return segment_sum_infer(x, ids, like, num_segments=num_segments)


@segment_max.vjp
def segment_max_vjp(ct, out, x, ids, like, *, num_segments):
    # a NaN compares unequal to out, but it is the element that was selected
    selected = logical_or(equal(x, gather(out, ids)), isnan(x))
    count = segment_sum(cast(selected, dtype=x.dtype), ids, like, num_segments=num_segments)
    return where_or_zero(selected, gather(ct, ids) / gather(count, ids)), None, None


@composite
def segment_min(x, ids, like=None, *, num_segments: OpenSize = -1):
    """Minimum of the rows of each segment, element by element, with segments as in `segment_sum`.

    A segment without rows gives 0. Tied rows share the gradient evenly.
    """
    return -segment_max(-x, ids, like, num_segments=num_segments)


@op
def segment_prod(xp, x, ids, like=None, *, num_segments: OpenSize = -1):
    """Product of the rows of each segment, element by element, with segments as in `segment_sum`.

    A segment without rows gives 1. The gradient of a row is the product of the other rows of its segment. It uses no
    division, so it is exact for zeros.
    """
    count = _segment_count(ids, like, num_segments)
    if xp is not np:  # cupy multiplies neither atomically nor by `reduceat`
        rows, numbers = (np.asarray(v.tolist(), v.dtype).reshape(v.shape) for v in (x, ids))
        return xp.asarray(segment_prod.body(np, rows, numbers, num_segments=count))
    out = np.ones((count, *x.shape[1:]), working_dtype(x))
    if len(x):
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        starts = np.flatnonzero(np.concatenate([np.ones(1, bool), ordered[1:] != ordered[:-1]]))
        out[ordered[starts]] = np.multiply.reduceat(x[order].astype(out.dtype, copy=False), starts)
    return out.astype(x.dtype, copy=False)


segment_prod.infer(segment_sum_infer)


@segment_prod.vjp
def segment_prod_vjp(ct, out, x, ids, like, *, num_segments):
    # In the order of the segments, the product of the other rows is that of those before times that of those after.
    order = argsort(ids)
    number = gather(ids, order) + 1.0  # from 1 on: a shift moves in zeros
    rows = gather(x, order)
    zero, one = fill_zeros_like(rows), full_like(rows, value=1.0)

    def product_along(step: int):
        """The product of the rows of the same segment before a row (step 1), or after it (step -1)."""
        begins = not_equal(shift(number, axis=0, steps=step), number)
        first = where(_each_row(begins, rows), one, zero)
        return linear_scan(shift(rows, axis=0, steps=step), first, begins, axis=0, reverse=step < 0)

    others = product_along(1) * product_along(-1)
    return gather(ct, ids) * gather(others, argsort(order)), None, None


def _each_row(flag, rows):
    return expand_to(unsqueeze(flag, axes=tuple(range(1, rows.rank))) if rows.rank > 1 else flag, rows)


def _with_ones(f, count=4):
    return np.stack([f(X[k == IDS]) if k in IDS else np.ones(2) for k in range(count)])


_ZEROS = X * np.array([[1, 0], [0, 1], [1, 1], [1, 1], [1, 1], [0, 1.0]])
segment_prod.example(
    lambda: [
        Example((X, IDS), (_with_ones(lambda r: r.prod(0)),), {"num_segments": 4}),
        Example((X[:, 0], IDS, np.zeros(5)), (_with_ones(lambda r: r.prod(0), 5)[:, 0],)),
        Example((_ZEROS, IDS), (np.stack([_ZEROS[k == IDS].prod(0) for k in range(4)]),), {"num_segments": 4}),
        Example((X[:0], IDS[:0]), (np.ones((2, 2)),), {"num_segments": 2}),
    ]
)
for _spec, _f in (
    (segment_mean, lambda r: r.mean(0)),
    (segment_max, lambda r: r.max(0)),
    (segment_min, lambda r: r.min(0)),
):
    _spec.example(
        lambda f=_f: [
            Example((X, IDS), (_per_segment(f),), {"num_segments": 4}),
            Example((X[:, 0], IDS, np.zeros(5)), (_per_segment(f, 5)[:, 0],)),
            Example((X[:0], IDS[:0]), (np.zeros((2, 2)),), {"num_segments": 2}),
        ]
    )
