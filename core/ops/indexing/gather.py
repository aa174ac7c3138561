"""Reads of elements by position, and their transposes, which add elements to zeros by position.

Indices are int32 or int64. Negative ones count from the end. An index outside the axis is an error of the run.
The gradients of an element that is read several times add up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, op
from core.ops.common.ranges import Size
from core.ops.common.scatter_rows import scatter_rows
from core.ops.common.types import as_dtype, axis_of, matches, same_dtype

__all__ = ["check_index", "in_range", "shifted_view"]

X = np.arange(12.0).reshape(3, 4)


def check_index(index: TensorType, what: str = "index") -> None:
    if index.dtype not in ("int32", "int64"):
        raise ProgramError(f"{what} must be int32 or int64, not {index}", "dtype_mismatch")


def in_range(xp: Any, index: Any, size: int) -> Any:
    """`index` counted from the front. Raises ExecutionError (index_out_of_range)."""
    if index.size and bool(xp.any((index < -size) | (index >= size))):
        worst = index[(index < -size) | (index >= size)].ravel()[0]
        raise ExecutionError(f"index {int(worst)} is out of range for an axis of size {size}", "index_out_of_range")
    if size > np.iinfo(index.dtype).max:
        index = index.astype("int64")
    return xp.where(index < 0, index + size, index)


# --- gather and scatter along one axis -------------------------------------------------------------------------


@op
def gather(xp, x, index, *, axis: int = 0):
    """``out[..., i, ...] = x[..., index[i], ...]``: the axes of `index` take the place of `axis` of x."""
    at = axis % x.ndim
    return xp.take(x, in_range(xp, xp.asarray(index), x.shape[at]), axis=at)


@gather.infer
def gather_infer(x, index, *, axis):
    check_index(index)
    at = axis_of(axis, x.rank)
    return TensorType((*x.shape[:at], *index.shape, *x.shape[at + 1 :]), x.dtype)


@gather.vjp
def gather_vjp(ct, out, x, index, *, axis):
    return scatter_add_like(ct, index, x, axis=axis % x.rank), None


gather.example(
    lambda: [
        Example((X, np.array([2, 0, 2])), (X[[2, 0, 2]],)),
        Example((X, np.array([[1, -1]])), (X[:, [[1, 3]]],), {"axis": 1}),
        Example((X, np.array(1)), (X[1],)),
        Example((X[0], np.array([[1, 1], [0, -1]])), (X[0][[[1, 1], [0, 3]]],)),
        Example((X[:, :0], np.array([2, 0])), (np.zeros((2, 0)),)),
        Example((X, np.array([], int)), (np.zeros((3, 0)),), {"axis": -1}),
    ]
)


@op
def scatter_add_like(xp, x, index, like, *, axis: int = 0):
    """Zeros shaped like `like`, with x added at the positions that `gather(like, index, axis)` reads.

    16-bit floats are added in float32.
    """
    at = axis % like.ndim
    index = xp.asarray(index)
    # one axis of index, in front
    flat = xp.moveaxis(x.reshape(*like.shape[:at], index.size, *like.shape[at + 1 :]), at, 0)
    return xp.moveaxis(scatter_rows(xp, like.shape[at], in_range(xp, index, like.shape[at]).ravel(), flat), 0, at)


@scatter_add_like.infer
def scatter_add_like_infer(x, index, like, *, axis):
    if not matches(x, gather_infer(TensorType(like.shape, x.dtype), index, axis=axis)):
        raise ProgramError(f"x must have the type of gather({like}, {index}), not {x}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


@scatter_add_like.vjp
def scatter_add_like_vjp(ct, out, x, index, like, *, axis):
    return gather(ct, index, axis=axis), None, None


scatter_add_like.example(
    lambda: [
        Example((np.ones((3, 4)), np.array([2, 0, 2]), X), (np.array([1.0, 0, 2])[:, None] * np.ones((3, 4)),)),
        Example((np.ones((3, 2)), np.array([1, -1]), X), (np.array([0, 1.0, 0, 1]) * np.ones((3, 4)),), {"axis": 1}),
        Example((np.array([[1.0, 2], [3, 4]]), np.array([[1, 1], [0, -1]]), X[0]), (np.array([3.0, 3, 0, 4]),)),
        Example((np.zeros((3, 0)), np.array([], int), X), (0 * X,), {"axis": 1}),
    ]
)


@op
def index_select(xp, x, index, *, axis: int = 0):
    """``out[..., i, ...] = x[..., index[i], ...]``: slices of x along `axis`, by a 1-D `index`."""
    return gather.body(xp, x, index, axis=axis)


@index_select.infer
def index_select_infer(x, index, *, axis):
    if index.rank != 1:
        raise ProgramError(f"index must have one axis, not {index}", "shape_mismatch")
    return gather_infer(x, index, axis=axis)


index_select.vjp(gather_vjp)
index_select.example(
    lambda: [
        Example((X, np.array([2, 0])), (X[[2, 0]],)),
        Example((X, np.array([3, 3, 1])), (X[:, [3, 3, 1]],), {"axis": 1}),
        Example((X[0], np.array([-1])), (np.array([3.0]),)),
        Example((X, np.array([], int)), (np.zeros((0, 4)),)),
    ]
)


@op(no_gradient="its result is a constant of its integer input")
def one_hot(xp, x, *, depth: Size, dtype: Dtype = "float32"):
    """``out[..., k] = 1`` where ``k == x[...]``, else 0. An index outside 0 to depth - 1 is an error."""
    if x.size and bool(xp.any((x < 0) | (x >= depth))):
        raise ExecutionError(f"an index is outside 0 to {depth - 1}", "index_out_of_range")
    if x.size == 0:
        return xp.zeros((*x.shape, depth), as_dtype(dtype))  # arange(depth) may not fit into memory
    return (xp.asarray(x)[..., None] == xp.arange(depth)).astype(as_dtype(dtype))


@one_hot.infer
def one_hot_infer(x, *, depth, dtype):
    check_index(x, "x")
    return TensorType((*x.shape, depth), dtype)


one_hot.example(
    lambda: [
        Example((np.array([0, 2]),), (np.eye(3)[[0, 2]],), {"depth": 3, "dtype": "float64"}),
        Example((np.array(1),), (np.array([0.0, 1.0]),), {"depth": 2, "dtype": "float64"}),
        Example((np.array([], int),), (np.zeros((0, 2)),), {"depth": 2, "dtype": "float64"}),
    ]
)


# --- slice -----------------------------------------------------------------------------------------------------


def cut(rank: int, axes: tuple[int, ...], starts, ends, steps) -> list[tuple[int, slice]]:
    """(axis, Python slice) pairs. Raises ProgramError (bad_attr)."""
    steps = steps or (1,) * len(axes)
    if not len(axes) == len(starts) == len(ends) == len(steps):
        raise ProgramError("axes, starts, ends and steps must be equally long", "bad_attr")
    if 0 in steps:
        raise ProgramError("a step must not be 0", "bad_attr")
    found = [axis_of(a, rank) for a in axes]
    if len(set(found)) < len(found):
        raise ProgramError(f"axes must differ, not {list(axes)}", "bad_attr")
    return [(a, _slice(*each)) for a, *each in zip(found, starts, ends, steps, strict=True)]


def _slice(start: int, end: int, step: int) -> slice:
    """As Python's slice, except that with a negative step an end of -2**31 or below includes the first element."""
    return slice(start, None if step < 0 and end <= -(2**31) else end, step)


def _slices(x: Any, rank: int, cuts: list[tuple[int, slice]]) -> tuple[slice, ...]:
    at = dict(cuts)
    return tuple(at.get(i, slice(None)) for i in range(rank))


@op
def slice_(
    xp,
    x,
    *,
    axes: tuple[int, ...],
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    steps: tuple[int, ...] | None = None,
):
    """``x[start:end:step]`` along each of `axes`. Negative and too large positions mean the same as in Python.

    With a negative step, an end of -2147483648 or below includes the first element.
    """
    return x[_slices(x, x.ndim, cut(x.ndim, axes, starts, ends, steps))]


@slice_.infer
def slice_infer(x, *, axes, starts, ends, steps):
    shape = list(x.shape)
    for axis, part in cut(x.rank, axes, starts, ends, steps):
        if shape[axis] != -1:
            shape[axis] = len(range(*part.indices(shape[axis])))
    return TensorType(tuple(shape), x.dtype)


def shifted_view(x, axis: int, start: int, total: int):
    """x along `axis` from `start` on, without its last ``total - start`` slices: one of ``total + 1`` equal parts."""
    size, rest = x.shape[axis], total - start
    end = size - rest if size >= 0 else (-rest if rest else 2**62)
    return slice_(x, axes=(axis,), starts=(start,), ends=(end,))


@slice_.vjp
def slice_vjp(ct, out, x, *, axes, starts, ends, steps):
    return slice_into(ct, x, axes=axes, starts=starts, ends=ends, steps=steps)


slice_.example(
    lambda: [
        Example((X,), (X[1:, ::2],), {"axes": (0, 1), "starts": (1, 0), "ends": (9, 4), "steps": (1, 2)}),
        Example((X,), (X[:, -1:-4:-2],), {"axes": (1,), "starts": (-1,), "ends": (-4,), "steps": (-2,)}),
        Example((X,), (X[-2:-1],), {"axes": (0,), "starts": (-2,), "ends": (-1,)}),
        Example((X[0],), (X[0, ::-1],), {"axes": (0,), "starts": (9,), "ends": (-(2**31),), "steps": (-1,)}),
        Example((X[None],), (X[None, :, :0],), {"axes": (2,), "starts": (3,), "ends": (1,)}),
        Example((X[:0],), (X[:0, 1:],), {"axes": (0, 1), "starts": (0, 1), "ends": (2, 4)}),
    ]
)


@op
def slice_into(
    xp,
    x,
    like,
    *,
    axes: tuple[int, ...],
    starts: tuple[int, ...],
    ends: tuple[int, ...],
    steps: tuple[int, ...] | None = None,
):
    """Zeros shaped like `like`, with x at the positions that `slice` reads: ``slice(out) = x``."""
    out = xp.zeros(like.shape, x.dtype)
    out[_slices(out, like.ndim, cut(like.ndim, axes, starts, ends, steps))] = x
    return out


@slice_into.infer
def slice_into_infer(x, like, *, axes, starts, ends, steps):
    wanted = slice_infer(TensorType(like.shape, x.dtype), axes=axes, starts=starts, ends=ends, steps=steps)
    if not matches(x, wanted):
        raise ProgramError(f"the slice of {like} is {wanted}, not {x}", "shape_mismatch")
    return TensorType(like.shape, same_dtype(x))


@slice_into.vjp
def slice_into_vjp(ct, out, x, like, *, axes, starts, ends, steps):
    return slice_(ct, axes=axes, starts=starts, ends=ends, steps=steps), None


def _ones_in_slice() -> np.ndarray:
    out = np.zeros((3, 4))
    out[1:, ::2] = 1.0
    return out


slice_into.example(
    lambda: [
        Example(
            (np.ones((2, 2)), X),
            (_ones_in_slice(),),
            {"axes": (0, 1), "starts": (1, 0), "ends": (9, 4), "steps": (1, 2)},
        ),
        Example(
            (np.array([1.0, 2]), X[0]),
            (np.array([0, 2.0, 0, 1]),),
            {"axes": (0,), "starts": (3,), "ends": (-9,), "steps": (-2,)},
        ),
        Example((X[:, :0], X), (0 * X,), {"axes": (1,), "starts": (4,), "ends": (9,)}),
    ]
)
