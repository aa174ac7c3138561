"""Scatter and gather: reads and writes of elements or slices at positions that other arrays hold.

Each op computes the position of each element in row-major order, an integer array, and then uses `gather` or its
transpose. Several values added at one position are summed. Of several values written to one position the last stays,
and only it gets a gradient.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Size
from core.ops.common.types import axis_of, broadcast_shapes, matches, same_size
from core.ops.elementwise.arithmetic import add, cast
from core.ops.elementwise.logic import equal, where
from core.ops.indexing.gather import check_index, gather, in_range, scatter_add_like, slice_
from core.ops.shape.agreeing import agreed
from core.ops.shape.broadcast import expand, expand_as, expand_to
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.reshape import divided, merged, reshape, reshape_to, unsqueeze

__all__ = ["added_to", "as_slices", "checked_updates", "each_slice", "written"]

X = np.arange(12.0).reshape(3, 4) / 4 - 1
CUBE = np.sin(np.arange(12.0)).reshape(2, 3, 2)
COLUMNS = np.array([[2, 0], [1, 1], [-1, 3]])
_V = np.array([[0.5, 2.0], [3.0, -1.0], [4.0, 1.5]])
_R = np.array([[1, 0], [2, 1]])
_INTEGER = "its result is an integer"


@op(no_gradient=_INTEGER)
def positions_along(xp, index, x, *, axis: int = -1):
    """The position in x, in row-major order, of ``x[..., index[...], ...]`` for each element of `index`: int64.

    `index` has the axes of x, and the sizes of x except along `axis`. Only the shape of x matters.
    """
    at = axis % x.ndim
    grids = np.ogrid[tuple(slice(n) for n in index.shape)]
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.ndim)]
    out = in_range(xp, xp.asarray(index), x.shape[at]).astype("int64") * strides[at]
    for i, grid in enumerate(grids):
        if i != at:
            if index.shape[i] > x.shape[i]:
                raise ExecutionError(
                    f"the index of shape {list(index.shape)} is larger than x of shape {list(x.shape)}",
                    "index_out_of_range",
                )
            out = out + xp.asarray(grid) * strides[i]
    return out


@positions_along.infer
def positions_along_infer(index, x, *, axis):
    check_index(index)
    at = axis_of(axis, x.rank)
    if index.rank != x.rank:
        raise ProgramError(f"the index must have as many axes as x, {x}, not {index}", "shape_mismatch")
    for i, (m, n) in enumerate(zip(index.shape, x.shape, strict=True)):
        if i != at and -1 not in (m, n) and m > n:
            raise ProgramError(f"axis {i} of the index is larger than that of {x}: {index}", "shape_mismatch")
    return TensorType(index.shape, "int64")


positions_along.example(
    lambda: [
        Example((COLUMNS, X), (np.array([[2, 0], [5, 5], [11, 11]]),)),
        Example((np.array([[1, -1, 0, 0]]), X), (np.array([[4, 9, 2, 3]]),), {"axis": 0}),
    ]
)


@composite
def take_along_axis(x, index, *, axis: int = -1):
    """``out[..., i, ...] = x[..., index[..., i, ...], ...]`` along `axis`: each element of `index` picks one of x."""
    at = positions_along(index, x, axis=axis)
    return gather(reshape(x, shape=(-1,)), at)


take_along_axis.example(
    lambda: [
        Example((X, COLUMNS), (np.take_along_axis(X, COLUMNS, 1),)),
        Example((X, np.array([[1, -1, 0, 0]])), (np.take_along_axis(X, np.array([[1, -1, 0, 0]]), 0),), {"axis": 0}),
        Example((CUBE, np.array([[[2, 0]], [[1, 1]]])), (np.take_along_axis(CUBE, np.array([[[2, 0]], [[1, 1]]]), 1),),
                {"axis": 1}),
        Example((X[:0], COLUMNS[:0]), (np.zeros((0, 2)),)),
    ]
)  # fmt: skip


@composite
def index_sample(x, index):
    """``out[i, j] = x[i, index[i, j]]``: elements of each row of a matrix, by the same row of `index`."""
    if x.rank != 2 or index.rank != 2:
        raise ProgramError(f"index_sample takes two matrices, not {x.type} and {index.type}", "shape_mismatch")
    x, index = agreed(x, index, (0, 0))
    return take_along_axis(x, index, axis=1)


index_sample.example(
    lambda: [
        Example((X, COLUMNS), (np.take_along_axis(X, COLUMNS, 1),)),
        Example((X, COLUMNS[:, :1]), (np.take_along_axis(X, COLUMNS[:, :1], 1),)),
        Example((X[:0], COLUMNS[:0]), (np.zeros((0, 2)),)),
    ]
)


@op(no_gradient="its result is bool")
def is_last(xp, index):
    """For each element of an integer array whether all later ones, in row-major order, differ from it."""
    flat = index.ravel()
    _, first = xp.unique(flat[::-1], return_index=True)
    out = xp.zeros(flat.shape, bool)
    out[flat.shape[0] - 1 - first] = True
    return out.reshape(index.shape)


@is_last.infer
def is_last_infer(index):
    check_index(index)
    return TensorType(index.shape, "bool")


is_last.example(lambda: [Example((np.array([[1, 2], [1, 0]]),), (np.array([[False, True], [True, True]]),))])


def written(x, index, values, wins):
    """x with `values` instead of the slices that `index` names along the first axis.

    wins: whether a value is the last one for its position; the others are dropped.
    """
    return _replaced(x, index, where(wins, values, fill_zeros_like(values)), wins)


def _replaced(x, index, values, wins):
    """x with sums of `values` instead of the slices that `index` names along the first axis."""
    # counts at most one hit a slice: a count would wrap around in a short dtype
    hit = scatter_add_like(cast(wins, dtype=x.dtype), index, x)
    kept = equal(hit, fill_zeros_like(x))
    return where(kept, x, scatter_add_like(values, index, x))


def added_to(x, index, values):
    return x + scatter_add_like(values, index, x)


# --- slices along the first axis -------------------------------------------------------------------------------


@composite
def scatter(x, index, updates, *, overwrite: bool = True):
    """x with slice ``index[i]`` along the first axis replaced by ``updates[i]``.

    Of several updates of one slice the last stays. Without `overwrite` a slice becomes the sum of its updates instead.
    """
    check_index(index.type)
    if index.rank != 1 or not matches(updates.type, TensorType((index.shape[0], *x.shape[1:]), x.dtype)):
        raise ProgramError(f"{updates.type} are not slices of {x.type} for {index.type}", "shape_mismatch")
    wins = each_slice(is_last(wrapped_index(index, x)), updates)
    return (written if overwrite else _replaced)(x, index, updates, wins)


def each_slice(wins, values):
    """One bool for each slice along the first axes of `values`, broadcast to one for each element."""
    extra = tuple(range(wins.rank, values.rank))
    return expand_to(unsqueeze(wins, axes=extra) if extra else wins, values)


@op(no_gradient=_INTEGER)
def wrapped_index(xp, index, x):
    """`index` along the first axis of x, counted from the front. Only the shape of x matters."""
    return in_range(xp, xp.asarray(index), x.shape[0]).astype("int64")


@wrapped_index.infer
def wrapped_index_infer(index, x):
    check_index(index)
    if x.rank == 0:
        raise ProgramError(f"{x} has no axis to index", "shape_mismatch")
    return TensorType(index.shape, "int64")


wrapped_index.example(lambda: [Example((np.array([-1, 0]), X), (np.array([2, 0]),))])


def _scattered(x, index, updates, overwrite):
    x = x.copy()
    if not overwrite:
        x[index] = 0
    for i, row in zip(index, updates, strict=True):
        x[i] = row + (0 if overwrite else x[i])
    return x


_I = np.array([2, 0, 2])
_U = np.cos(np.arange(12.0)).reshape(3, 4)
scatter.example(
    lambda: [
        Example((X, _I, _U), (_scattered(X, _I, _U, True),)),
        Example((X, _I, _U), (_scattered(X, _I, _U, False),), {"overwrite": False}),
        Example((X[:, 0], -_I, _U[:, 0]), (_scattered(X[:, 0], -_I, _U[:, 0], True),)),
        Example((X, _I[:0], _U[:0]), (X,)),
    ]
)


@composite
def index_add(x, index, updates, *, axis: int = 0):
    """x with ``updates`` added at the slices that the vector `index` names along `axis`."""
    check_index(index.type)
    at = axis_of(axis, x.rank)
    if index.rank != 1 or not matches(
        updates.type, TensorType((*x.shape[:at], index.shape[0], *x.shape[at + 1 :]), x.dtype)
    ):
        raise ProgramError(f"{updates.type} are not slices of {x.type} for {index.type}", "shape_mismatch")
    return x + scatter_add_like(updates, index, x, axis=at)


def _added(x, index, updates, axis=0):
    out = x.copy()
    np.add.at(np.moveaxis(out, axis, 0), index, np.moveaxis(updates, axis, 0))
    return out


index_add.example(
    lambda: [
        Example((X, _I, _U), (_added(X, _I, _U),)),
        Example((X, _I, X[:, :3]), (_added(X, _I, X[:, :3], 1),), {"axis": 1}),
        Example((X[0], _I, _U[0, :3]), (_added(X[0], _I, _U[0, :3]),)),
        Example((X, _I[:0], _U[:0]), (X,)),
    ]
)


# --- positions with several coordinates ------------------------------------------------------------------------


@op(no_gradient=_INTEGER)
def positions_nd(xp, index, x):
    """The position, in row-major order, of the slice of x that each vector along the last axis of `index` names."""
    k = index.shape[-1]
    out = xp.zeros(index.shape[:-1], "int64")
    for i in range(k):
        out = out * x.shape[i] + in_range(xp, xp.asarray(index[..., i]), x.shape[i])
    return out


@positions_nd.infer
def positions_nd_infer(index, x):
    check_index(index)
    if index.rank == 0 or not 0 <= index.shape[-1] <= x.rank:
        raise ProgramError(
            f"the last axis of the index must have a known size of at most {x.rank} for {x}, not {index}",
            "shape_mismatch",
        )
    return TensorType(index.shape[:-1], "int64")


_N = np.array([[2, 1], [0, -1], [2, 1]])
positions_nd.example(
    lambda: [Example((_N, X), (np.array([9, 3, 9]),)), Example((_N[:, :1], X), (np.array([2, 0, 2]),))]
)


def as_slices(x, count):
    """x with its first `count` axes flattened to one."""
    return merged(x, 0, count)


@composite
def gather_nd(x, index, *, batch_dims: Size = 0):
    """``out[...] = x[index[..., 0], index[..., 1], ...]``: slices of x by their coordinates along its first axes.

    - `batch_dims`: the number of first axes that x and index share; the coordinates belong to the axes after them.
    """
    if batch_dims:
        return _gather_in_batch(x, index, batch_dims)
    at = positions_nd(index, x)
    return gather(as_slices(x, index.shape[-1]), at, axis=0)


def _gather_in_batch(x, index, count: int):
    """`gather_nd` of each element of the batch: its number becomes the first coordinate."""
    if count >= index.rank or count > x.rank:
        raise ProgramError(f"{count} batch_dims are too many for {x.type} and {index.type}", "bad_attr")
    batch = tuple(
        same_size(m, n, f"the batches of {x.type} and {index.type} differ")
        for m, n in zip(x.shape[:count], index.shape[:count], strict=False)
    )
    if batch.count(-1) > 1:
        raise ProgramError(f"at most one of the batch sizes {list(batch)} may be unknown: it must be known", "bad_attr")
    flat, places = merged(x, 0, count), merged(index, 0, count)
    number = index.builder.emit("roll_positions", places, shift=0, axis=0)
    number = unsqueeze(number, axes=tuple(range(1, places.rank)))
    one = slice_(places, axes=(places.rank - 1,), starts=(0,), ends=(1,)) if index.shape[-1] else None
    number = cast(number, dtype=index.dtype)
    if one is None:
        raise ProgramError(f"with batch_dims the index needs at least one coordinate, not {index.type}", "bad_attr")
    number = expand_to(number, one)
    at = concat(number, places, axis=places.rank - 1)
    return divided(gather_nd(flat, at), 0, batch)


gather_nd.example(
    lambda: [
        Example((X, _N), (X[_N[:, 0], _N[:, 1]],)),
        Example((CUBE, np.array([[[1], [0]]])), (CUBE[np.array([[1, 0]])],)),
        Example((CUBE, np.array([1, 2, 0])), (CUBE[1, 2, 0],)),
        Example((X, _N[:0]), (np.zeros(0),)),
        Example((CUBE, np.array([[2, 1], [-1, 0]])), (CUBE[[0, 1], [2, 2], [1, 0]],), {"batch_dims": 1}),
        Example((CUBE, np.array([[[1], [0]], [[2], [2]]])), (np.stack([CUBE[0, [1, 0]], CUBE[1, [2, 2]]]),),
                {"batch_dims": 1}),
        Example((CUBE, np.array([[[1], [0], [1]], [[0], [0], [1]]])), (CUBE[np.arange(2)[:, None], np.arange(3),
                [[1, 0, 1], [0, 0, 1]]],), {"batch_dims": 2}),
    ]
)  # fmt: skip


def checked_updates(index, updates, x):
    """`index`, `updates` and x of `scatter_nd_add`, with checked sizes. Raises ProgramError (shape_mismatch)."""
    positions_nd_infer(index.type, x.type)
    rows, coordinates = index.rank - 1, index.shape[-1]
    wanted = TensorType((*index.shape[:-1], *x.shape[coordinates:]), x.dtype)
    if not matches(updates.type, wanted):
        raise ProgramError(f"updates must be {wanted}, not {updates.type}", "shape_mismatch")
    updates, index = agreed(updates, index, *((i, i) for i in range(rows)))
    updates, x = agreed(updates, x, *((rows + i, coordinates + i) for i in range(x.rank - coordinates)))
    return index, updates, x


@composite
def scatter_nd_add(x, index, updates):
    """x with ``updates[...]`` added at ``x[index[..., 0], index[..., 1], ...]``."""
    index, updates, x = checked_updates(index, updates, x)
    at = positions_nd(index, x)
    return reshape_to(added_to(as_slices(x, index.shape[-1]), at, updates), x)


def _nd(x, index, updates):
    out = x.copy()
    np.add.at(out, tuple(np.moveaxis(index, -1, 0)), updates)
    return out


scatter_nd_add.example(
    lambda: [
        Example((X, _N, X[0, :3]), (_nd(X, _N, X[0, :3]),)),
        Example((CUBE, np.array([[1], [1]]), CUBE), (_nd(CUBE, np.array([[1], [1]]), CUBE),)),
        Example((X, _N[:0], np.zeros(0)), (X,)),
    ]
)


@composite
def scatter_nd(index, updates, *, shape: tuple[Size, ...]):
    """Zeros of `shape` with ``updates[...]`` added at ``out[index[..., 0], index[..., 1], ...]``."""
    return scatter_nd_add(updates.builder.constant(0.0, updates.dtype, shape), index, updates)


scatter_nd.example(
    lambda: [
        Example((_N, X[0, :3]), (_nd(0 * X, _N, X[0, :3]),), {"shape": (3, 4)}),
        Example((np.array([[1], [1]]), CUBE), (_nd(0 * CUBE, np.array([[1], [1]]), CUBE),), {"shape": (2, 3, 2)}),
        Example((_N[:0], np.zeros(0)), (0 * X,), {"shape": (3, 4)}),
    ]
)


@composite
def index_put(x, values, *index, accumulate: bool = False):
    """x with `values` written, or with `accumulate` added, at ``x[index[0], index[1], ...]``.

    The arrays in `index` broadcast; each holds the positions along one of the first axes of x. `values` broadcasts to
    the shape of the elements that they name. Of several values for one position the last stays, and only it gets a
    gradient.
    """
    if not 0 < len(index) <= x.rank:
        raise ProgramError(f"index_put takes 1 to {x.rank} indices for {x.type}, not {len(index)}", "bad_slot")
    for each in index:
        check_index(each.type)
    if x.dtype != values.dtype:
        raise ProgramError(f"values must be {x.dtype}, not {values.type}", "dtype_mismatch")
    shape = broadcast_shapes(*(each.shape for each in index))
    wanted = (*shape, *x.shape[len(index) :])
    whole = [cast(each, dtype="int64") for each in index]
    if -1 in shape:  # only the run knows the shape to which the indices broadcast: that of their sum
        total = reduce(add, map(fill_zeros_like, whole))
        whole = [expand_as(each, total) for each in whole]
    else:
        whole = [_broadcast(each, shape) for each in whole]
    at = positions_nd(concat(*(unsqueeze(each, axes=(len(shape),)) for each in whole), axis=len(shape)), x)
    slices = as_slices(x, len(index))
    values = _broadcast(values, wanted) if -1 not in wanted else expand_as(values, gather(slices, at, axis=0))
    at = merged(at, 0, len(shape))
    values = merged(values, 0, len(shape))
    if accumulate:
        return reshape_to(added_to(slices, at, values), x)
    return reshape_to(written(slices, at, values, each_slice(is_last(at), values)), x)


def _broadcast(value, shape):
    return value if value.shape == shape else expand(value, shape=shape)


def _put_nd(x, values, *index, add=False):
    out = x.copy()
    if add:
        np.add.at(out, index, values)
    else:
        out[index] = values
    return out


_ROWS, _COLUMNS = np.array([2, 0, 2]), np.array([1, 3, 1])
index_put.example(
    lambda: [
        Example((X, _V[:, 0], _ROWS, _COLUMNS), (_put_nd(X, _V[:, 0], _ROWS, _COLUMNS),)),
        Example((X, _V[:, 0], _ROWS, _COLUMNS), (_put_nd(X, _V[:, 0], _ROWS, _COLUMNS, add=True),),
                {"accumulate": True}),
        Example((X, _U, _ROWS), (_put_nd(X, _U, _ROWS),)),
        Example((CUBE, _U[0, :2], _R - 1, np.array([-1, 0])), (_put_nd(CUBE, _U[0, :2], _R - 1, np.array([-1, 0])),)),
        Example((X, np.array(0.5), _ROWS[:0], _COLUMNS[:0]), (X,)),
        Example((X[:, :0], np.zeros(0), _ROWS), (X[:, :0],)),
    ]
)  # fmt: skip
