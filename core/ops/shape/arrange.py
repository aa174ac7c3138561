"""Ops that repeat, flip, roll, crop and slice arrays, and coordinate grids."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.long_sums import summed
from core.ops.common.ranges import Count, OpenSize, Size
from core.ops.common.types import axis_of, matches, same_size
from core.ops.elementwise.logic import greater_equal, less_than, logical_and, where
from core.ops.indexing.gather import gather, slice_
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.agreeing import shaped
from core.ops.shape.broadcast import expand
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import check_count, fill_zeros_like, full_like
from core.ops.shape.reshape import merged, unsqueeze

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3) + 1
CUBE = np.arange(12.0).reshape(2, 3, 2) - 4
EMPTY = X[:0]
_INTEGER = "its result is an integer"


# --- repeating -------------------------------------------------------------------------------------------------


@op
def tile(xp, x, *, repeats: tuple[Size, ...]):
    """x repeated `repeats[i]` times along axis i.

    If `repeats` and the axes of x differ in number, the shorter list is padded with 1 in front.
    """
    return xp.tile(x, repeats)


@tile.infer
def tile_infer(x, *, repeats):
    rank = max(x.rank, len(repeats))
    shape, counts = _padded_in_front(x.shape, rank), _padded_in_front(repeats, rank)
    return TensorType(tuple(-1 if n == -1 else n * r for n, r in zip(shape, counts, strict=True)), x.dtype)


def _padded_in_front(sizes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """`sizes` padded with 1 in front, up to `rank` axes."""
    return (1,) * (rank - len(sizes)) + tuple(sizes)


@tile.vjp
def tile_vjp(ct, out, x, *, repeats):
    return sum_tiles_like(ct, x, repeats=repeats)


tile.example(
    lambda: [
        Example((X,), (np.tile(X, (2, 3)),), {"repeats": (2, 3)}),
        Example((X,), (np.tile(X, (2, 1, 2)),), {"repeats": (2, 1, 2)}),
        Example((CUBE,), (np.tile(CUBE, (2,)),), {"repeats": (2,)}),
        Example((X[0, 0],), (np.full(3, X[0, 0]),), {"repeats": (3,)}),
        Example((X,), (np.zeros((2, 0)),), {"repeats": (0,)}),
        Example((EMPTY,), (EMPTY,), {"repeats": (2, 1)}),
    ]
)


@op
def sum_tiles_like(xp, x, like, *, repeats: tuple[Size, ...]):
    """Sum of the tiles of x, each shaped like `like`: the transpose of `tile` with these `repeats`. `like` gives only
    its shape. 16-bit floats are accumulated in float32.
    """
    rank = max(like.ndim, len(repeats))
    split = [
        n
        for pair in zip(_padded_in_front(repeats, rank), _padded_in_front(like.shape, rank), strict=True)
        for n in pair
    ]
    total = summed(xp, x.reshape(split), tuple(range(0, 2 * rank, 2)))
    return total.astype(x.dtype, copy=False).reshape(like.shape)


@sum_tiles_like.infer
def sum_tiles_like_infer(x, like, *, repeats):
    wanted = tile_infer(TensorType(like.shape, x.dtype), repeats=repeats)
    if x.dtype == "bool" or not matches(x, wanted):
        raise ProgramError(f"{like} repeated {list(repeats)} times has type {wanted}, not {x}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


sum_tiles_like.vjp(lambda ct, out, x, like, *, repeats: (tile(ct, repeats=repeats), None))
sum_tiles_like.example(
    lambda: [
        Example((np.tile(X, (2, 2)), X), (4 * X,), {"repeats": (2, 2)}),
        Example((X.reshape(2, 1, 3), np.zeros(3)), (X[0] + X[1],), {"repeats": (2, 1, 1)}),
        Example((np.zeros((0, 3)), X), (0 * X,), {"repeats": (0, 1)}),
        Example((np.zeros((0, 6)), EMPTY), (EMPTY,), {"repeats": (2, 2)}),
    ]
)


@composite
def broadcast_to(x, *, shape: tuple[OpenSize, ...]):
    """x broadcast to `shape`. Another name for `expand`."""
    return expand(x, shape=shape)


broadcast_to.example(
    lambda: [
        Example((X[:1],), (X[:1] + np.zeros((4, 3)),), {"shape": (4, 3)}),
        Example((X[0],), (X[0] + np.zeros((2, 2, 3)),), {"shape": (2, 2, 3)}),
        Example((X[0, 0],), (np.full((2,), X[0, 0]),), {"shape": (2,)}),
        Example((EMPTY,), (np.zeros((2, 0, 3)),), {"shape": (2, 0, 3)}),
    ]
)


@op(no_gradient=_INTEGER)
def repeat_positions(xp, counts, x=None, *, axis: int = 0):
    """The integers 0, 1, 2, ..., where i occurs `counts[i]` times in a row, as int64.

    The optional x must have one slice along `axis` per count; it gives only its shape. The run refuses counts that
    would make the repeated slices too large (too_large).
    """
    n = counts.shape[0]
    each = 1 if x is None else math.prod(x.shape) // max(x.shape[axis], 1)
    if x is not None and x.shape[axis] != n:
        raise ExecutionError(f"{n} counts do not match {x.shape[axis]} slices", "shape_mismatch")
    if n and int(counts.min()) < 0:
        raise ExecutionError(f"counts must be at least 0, not {int(counts.min())}", "index_out_of_range")
    if n:
        check_count(
            int(counts.max()), "one slice"
        )  # first the largest count alone: the sum of large counts may overflow
    total = int(xp.sum(counts, dtype="int64"))
    check_count(max(total, total * each), "the repeated slices")
    return xp.searchsorted(xp.cumsum(counts), xp.arange(total), side="right").astype("int64")


@repeat_positions.infer
def repeat_positions_infer(counts, x, *, axis):
    if counts.rank != 1 or counts.dtype not in ("int32", "int64"):
        raise ProgramError(f"counts must be a vector of int32 or int64, not {counts}", "dtype_mismatch")
    if x is not None:
        same_size(counts.shape[0], x.shape[axis_of(axis, x.rank)], "counts and slices differ in number")
    return TensorType((-1,), "int64")


repeat_positions.example(
    lambda: [
        Example((np.array([2, 0, 1]),), (np.array([0, 0, 2]),)),
        Example((np.array([1, 2]), X), (np.array([0, 1, 1]),)),
        Example((np.array([0, 3, 0]), X), (np.array([1, 1, 1]),), {"axis": -1}),
    ]
)


@composite
def repeat(x, counts=None, *, repeats: Size = 1, axis: int = 0):
    """Each slice of x along `axis`, `repeats` times in a row. With `counts`, slice i occurs `counts[i]` times."""
    at = axis_of(axis, x.rank)
    if counts is not None:
        return gather(x, repeat_positions(counts, x, axis=at), axis=at)
    copies = tile(unsqueeze(x, axes=(at + 1,)), repeats=(repeats, *(1,) * (x.rank - at - 1)))
    return merged(copies, at, at + 2)


repeat.example(
    lambda: [
        Example((X,), (np.repeat(X, 2, 1),), {"repeats": 2, "axis": 1}),
        Example((CUBE,), (np.repeat(CUBE, 2, 1),), {"repeats": 2, "axis": -2}),
        Example((CUBE, np.array([2, 0, 1])), (np.repeat(CUBE, [2, 0, 1], 1),), {"axis": 1}),
        Example((X,), (EMPTY,), {"repeats": 0}),
        Example((EMPTY,), (EMPTY,), {"repeats": 3}),
        Example((EMPTY, np.array([], int)), (EMPTY,)),
    ]
)


# --- turning and moving ----------------------------------------------------------------------------------------


@composite
def flip(x, *, axes: tuple[int, ...]):
    """x in reverse order along each of `axes`: ``out[i] = x[n - 1 - i]``."""
    count = len(axes)
    return slice_(x, axes=axes, starts=(-1,) * count, ends=(-(2**62),) * count, steps=(-1,) * count)


flip.example(
    lambda: [
        Example((X,), (X[:, ::-1],), {"axes": (1,)}),
        Example((CUBE,), (CUBE[::-1, :, ::-1],), {"axes": (0, -1)}),
        Example((EMPTY,), (EMPTY,), {"axes": (0,)}),
    ]
)


@op(no_gradient=_INTEGER)
def roll_positions(xp, x, *, shift: int, axis: int = 0):
    """The position along `axis` of x from which `roll` takes each slice, as int64."""
    n = x.shape[axis]
    return (xp.arange(n, dtype="int64") - shift % max(n, 1)) % max(n, 1)


@roll_positions.infer
def roll_positions_infer(x, *, shift, axis):
    return TensorType((x.shape[axis_of(axis, x.rank)],), "int64")


roll_positions.example(
    lambda: [
        Example((X,), (np.array([2, 0, 1]),), {"shift": 1, "axis": 1}),
        Example((X,), (np.array([1, 0]),), {"shift": -7}),
        Example((EMPTY,), (np.zeros(0, int),), {"shift": 3}),
    ]
)


@composite
def roll(x, *, shifts: tuple[int, ...], axes: tuple[int, ...]):
    """x moved cyclically by `shifts[i]` along `axes[i]`: ``out[i] = x[(i - shift) mod n]``."""
    if len(shifts) != len(axes):
        raise ProgramError(f"shifts and axes differ in number: {len(shifts)} and {len(axes)}", "bad_attr")
    for shift, axis in zip(shifts, axes, strict=True):
        at = axis_of(axis, x.rank)
        n = x.shape[at]
        if n == -1:
            x = gather(x, roll_positions(x, shift=shift, axis=at), axis=at)
            continue
        by = shift % n if n else 0
        if by:
            tail = slice_(x, axes=(at,), starts=(n - by,), ends=(n,))
            x = concat(tail, slice_(x, axes=(at,), starts=(0,), ends=(n - by,)), axis=at)
    return x


roll.example(
    lambda: [
        Example((X,), (np.roll(X, 1, 1),), {"shifts": (1,), "axes": (1,)}),
        Example((CUBE,), (np.roll(CUBE, (-1, 3), (0, 1)),), {"shifts": (-1, 3), "axes": (0, 1)}),
        Example((EMPTY,), (EMPTY,), {"shifts": (1,), "axes": (0,)}),
    ]
)


@composite
def strided_slice(
    x, *, axes: tuple[int, ...], starts: tuple[int, ...], ends: tuple[int, ...], strides: tuple[int, ...]
):
    """Slice of x along each of `axes`: ``x[start:end:stride]``, with the rules of Python slices. A stride may be
    negative.
    """
    return slice_(x, axes=axes, starts=starts, ends=ends, steps=strides)


strided_slice.example(
    lambda: [
        Example((X,), (X[:, 2:0:-1],), {"axes": (1,), "starts": (2,), "ends": (0,), "strides": (-1,)}),
        Example((CUBE,), (CUBE[::2, 1:3:2],), {"axes": (0, 1), "starts": (0, 1), "ends": (9, 3), "strides": (2, 2)}),
        Example((EMPTY,), (EMPTY,), {"axes": (0,), "starts": (0,), "ends": (5,), "strides": (2,)}),
    ]
)


@composite
def crop(x, *, offsets: tuple[Size, ...], shape: tuple[OpenSize, ...]):
    """The part of x of size `shape` that begins at `offsets`. A size of -1 reaches to the end of the axis.

    A part that exceeds x, and an offset beyond the end of an axis, are errors (shape_mismatch).
    """
    if len(offsets) != x.rank or len(shape) != x.rank:
        raise ProgramError(
            f"crop needs {x.rank} offsets and {x.rank} sizes, not {list(offsets)} and {list(shape)}", "bad_attr"
        )
    for n, start, size in zip(x.shape, offsets, shape, strict=True):
        if n >= 0 and (start > n or size > n - start):
            raise ProgramError(f"a part of shape {list(shape)} at {list(offsets)} exceeds {x.type}", "shape_mismatch")
    starts = list(offsets)
    for axis, (n, start, size) in enumerate(zip(x.shape, offsets, shape, strict=True)):
        if n == size == -1 and start:
            x, starts[axis] = _rest(x, axis, start), 0
    ends = tuple(2**62 if size == -1 else start + size for start, size in zip(starts, shape, strict=True))
    return shaped(slice_(x, axes=tuple(range(x.rank)), starts=tuple(starts), ends=ends), shape)


def _rest(x, axis: int, start: int):
    """x from `start` on, along an axis of unknown size. A smaller size is an error of the run (shape_mismatch)."""
    first = slice_(x, axes=(axis,), starts=(0,), ends=(start,))
    first = shaped(first, tuple(start if i == axis else -1 for i in range(x.rank)))
    rest = slice_(x, axes=(axis,), starts=(start,), ends=(2**62,))
    return x.builder.emit("split_like", x, first, rest, axis=axis)[1]


crop.example(
    lambda: [
        Example((X,), (X[1:2, 1:3],), {"offsets": (1, 1), "shape": (1, 2)}),
        Example((CUBE,), (CUBE[0:1, 1:, :2],), {"offsets": (0, 1, 0), "shape": (1, -1, 2)}),
        Example((EMPTY,), (EMPTY[:, 1:],), {"offsets": (0, 1), "shape": (0, 2)}),
    ]
)


@op(outputs="out")
def meshgrid(xp, *x):
    """Coordinate grids of vectors of sizes n1, n2, ...: array i has shape [n1, n2, ...] and holds vector i along axis
    i.
    """
    shape = tuple(v.shape[0] for v in x)
    grids = (v.reshape(tuple(-1 if i == k else 1 for i in range(len(x)))) for k, v in enumerate(x))
    return tuple(xp.broadcast_to(g, shape) for g in grids)


@meshgrid.infer
def meshgrid_infer(*x):
    if not x or any(t.rank != 1 for t in x):
        raise ProgramError("meshgrid takes at least one vector, and only vectors", "shape_mismatch")
    return tuple(TensorType(tuple(t.shape[0] for t in x), each.dtype) for each in x)


@meshgrid.vjp
def meshgrid_vjp(ct, out, *x):
    return tuple(
        reduce_sum(c, axes=tuple(i for i in range(len(x)) if i != k)) if c is not None else None
        for k, c in enumerate(ct)
    )


meshgrid.example(
    lambda: [
        Example((X[0], X[1, :2]), tuple(np.meshgrid(X[0], X[1, :2], indexing="ij"))),
        Example((X[0],), (X[0],)),
        Example((X[0], X[0, :0]), (np.zeros((3, 0)), np.zeros((3, 0)))),
    ]
)


@composite(no_gradient=_INTEGER)
def shard_index(x, *, index_num: Count, nshards: Count, shard_id: Size, ignore_value: int = -1):
    """Indices local to shard `shard_id`. `index_num` indices are divided into `nshards` equal shards.

    An index outside the shard becomes `ignore_value`.
    """
    if shard_id >= nshards:
        raise ProgramError(f"shard_id must be below the {nshards} shards, not {shard_id}", "bad_attr")
    size = -(-index_num // nshards)
    at = x - full_like(x, value=shard_id * size)
    inside = logical_and(greater_equal(at, fill_zeros_like(x)), less_than(at, full_like(x, value=size)))
    return where(inside, at, full_like(x, value=ignore_value))


shard_index.example(
    lambda: [
        Example(
            (np.array([1, 6, 12, 19]),), (np.array([1, 6, -1, -1]),), {"index_num": 20, "nshards": 2, "shard_id": 0}
        ),
        Example((np.array([[16], [1]]),), (np.array([[6], [-1]]),), {"index_num": 20, "nshards": 2, "shard_id": 1}),
    ]
)
