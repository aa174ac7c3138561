"""Order: sorting, selecting by rank or by mask, running sums, products and maxima.

What is selected comes out by its index, and its gradient goes back to that index: of equal elements the first in order.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.types import axis_of, broadcast_shapes
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
_INTEGER = "its result is an integer"


@op(no_gradient=_INTEGER)
def argsort(xp, x, *, axis: int = -1, descending: bool = False):
    """The positions, int64, that put x in order along `axis`. Equal elements keep their order; NaN comes last."""
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable").astype("int64")
    turned = xp.flip(x, axis=axis)
    return (x.shape[axis] - 1 - xp.flip(xp.argsort(turned, axis=axis, kind="stable"), axis=axis)).astype("int64")


@argsort.infer
def argsort_infer(x, *, axis, descending):
    axis_of(axis, x.rank)
    return TensorType(x.shape, "int64")


argsort.example(
    lambda: [
        Example((X,), (np.argsort(X, kind="stable"),)),
        Example((X,), (np.argsort(-X, 0, kind="stable"),), {"axis": 0, "descending": True}),
        Example((np.array([1, 0, 1, 0]),), (np.array([0, 2, 1, 3]),), {"descending": True}),
    ]
)


@composite(outputs=("out", "index"))
def sort(x, *, axis: int = -1, descending: bool = False):
    """x in order along `axis`, and where each element was (`argsort`). The gradient goes back to where it was."""
    index = lookup("argsort")(x, axis=axis, descending=descending)
    return lookup("take_along_axis")(x, index, axis=axis), index


sort.example(
    lambda: [
        Example((X,), (np.sort(X), np.argsort(X))),
        Example((CUBE,), (-np.sort(-CUBE, 1), np.argsort(-CUBE, 1)), {"axis": 1, "descending": True}),
        Example((X[:0],), (X[:0], np.zeros((0, 4), int))),
    ]
)


@composite(outputs=("out", "index"))
def topk(x, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True):
    """The `k` largest (or smallest) elements along `axis` in order, and where they were.

    They come in order whether `sorted` is set or not.
    """
    at = axis_of(axis, x.rank)
    if k < 0 or (x.shape[at] >= 0 and k > x.shape[at]):
        raise ProgramError(f"there are no {k} elements along axis {axis} of {x.type}", "bad_attr")
    index = lookup("argsort")(x, axis=at, descending=largest)
    index = lookup("slice")(index, axes=(at,), starts=(0,), ends=(k,))
    return lookup("take_along_axis")(x, index, axis=at), index


topk.example(
    lambda: [
        Example((X,), (-np.sort(-X)[:, :2], np.argsort(-X)[:, :2]), {"k": 2}),
        Example((CUBE,), (np.sort(CUBE, 1)[:, :1], np.argsort(CUBE, 1)[:, :1]), {"k": 1, "axis": 1, "largest": False}),
        Example((X[:0],), (X[:0, :3], np.zeros((0, 3), int)), {"k": 3}),
    ]
)


@composite(outputs=("out", "index"))
def kthvalue(x, *, k: int, axis: int = -1, keepdims: bool = False):
    """The element that is number `k` (from 1) in ascending order along `axis`, and where it was."""
    at = axis_of(axis, x.rank)
    if k < 1 or (x.shape[at] >= 0 and k > x.shape[at]):
        raise ProgramError(f"there is no element number {k} along axis {axis} of {x.type}", "bad_attr")
    index = lookup("slice")(lookup("argsort")(x, axis=at), axes=(at,), starts=(k - 1,), ends=(k,))
    out = lookup("take_along_axis")(x, index, axis=at)
    if keepdims:
        return out, index
    return lookup("squeeze")(out, axes=(at,)), lookup("squeeze")(index, axes=(at,))


kthvalue.example(
    lambda: [
        Example((X,), (np.sort(X)[:, 1], np.argsort(X)[:, 1]), {"k": 2}),
        Example((CUBE,), (np.sort(CUBE, 1)[:, :1], np.argsort(CUBE, 1)[:, :1]), {"k": 1, "axis": 1, "keepdims": True}),
        Example((X[:0],), (np.zeros(0), np.zeros(0, int)), {"k": 3}),
    ]
)


@composite
def median(x, *, axis: int = -1, keepdims: bool = False):
    """The middle element along `axis`; of an even number the mean of the middle two."""
    at = axis_of(axis, x.rank)
    n = x.shape[at]
    if n < 1:
        raise ProgramError(
            f"the median needs the size of axis {axis} known and above 0, not {x.type}", "shape_mismatch"
        )
    ordered, _ = lookup("sort")(x, axis=at)
    middle = lookup("slice")(ordered, axes=(at,), starts=((n - 1) // 2,), ends=(n // 2 + 1,))
    return lookup("reduce_mean")(middle, axes=(at,), keepdims=keepdims)


median.example(
    lambda: [
        Example((X,), (np.median(X, -1),)),
        Example((CUBE,), (np.median(CUBE, 1, keepdims=True),), {"axis": 1, "keepdims": True}),
        Example((X[:0],), (np.zeros(0),)),
    ]
)


# --- selecting by mask or value --------------------------------------------------------------------------------


@op(no_gradient=_INTEGER)
def nonzero(xp, x):
    """The positions of all elements that are not 0 or false, in row-major order: int64 [count, rank]."""
    return xp.stack(xp.nonzero(xp.atleast_1d(x)), axis=1).astype("int64")[:, : max(x.ndim, 0)]


nonzero.infer(lambda x: TensorType((-1, x.rank), "int64"))
nonzero.example(
    lambda: [Example((X > 0,), (np.argwhere(X > 0),)), Example((np.array([0, 3, 0, 1]),), (np.array([[1], [3]]),))]
)


@composite
def masked_select(x, mask):
    """The elements of x where `mask` is true, as a vector in row-major order; shapes broadcast."""
    shape = broadcast_shapes(x.shape, mask.shape)
    if mask.dtype != "bool":
        raise ProgramError(f"the mask must be bool, not {mask.type}", "dtype_mismatch")
    if x.shape != shape or mask.shape != shape:
        if -1 in shape:
            raise ProgramError(
                f"masked_select broadcasts known sizes only, not {x.type} and {mask.type}", "shape_mismatch"
            )
        x, mask = lookup("expand")(x, shape=shape), lookup("expand")(mask, shape=shape)
    flat = lookup("reshape")(x, shape=(-1,))
    where = lookup("nonzero")(lookup("reshape")(mask, shape=(-1,)))
    return lookup("gather")(flat, lookup("reshape")(where, shape=(-1,)))


masked_select.example(
    lambda: [
        Example((X, X > 0), (X[X > 0],)),
        Example((X, X[0] > 0), (X[:, X[0] > 0].ravel(),)),
        Example((X, X > 9), (np.zeros(0),)),
        Example((CUBE, CUBE < 0), (CUBE[CUBE < 0],)),
    ]
)


@composite
def masked_fill(x, mask, value=None, *, fill: float = 0.0):
    """x with `value`, a single element, or else the number `fill`, where `mask` is true. There x gets no gradient."""
    if value is None:
        value = x.builder.constant(fill, x.dtype)
    elif any(n not in (1, -1) for n in value.shape):
        raise ProgramError(f"value must be a single element, not {value.type}", "shape_mismatch")
    return lookup("where")(mask, lookup("reshape")(value, shape=()), x)


masked_fill.example(
    lambda: [
        Example((X, X > 0), (np.where(X > 0, 0, X),)),
        Example((X, X > 0, np.array([7.0])), (np.where(X > 0, 7, X),)),
        Example((X, X[0] > 0), (np.where(X[0] > 0, -1, X),), {"fill": -1.0}),
        Example((X[:0], X[:0] > 0), (X[:0],)),
    ]
)


@op(no_gradient=_INTEGER, outputs=("first", "inverse", "counts"))
def unique_positions(xp, x):
    """Of the different elements of x in ascending order: where each stands first, which each element is, how often."""
    _, first, inverse, counts = xp.unique(x.ravel(), return_index=True, return_inverse=True, return_counts=True)
    return first.astype("int64"), inverse.reshape(x.shape).astype("int64"), counts.astype("int64")


unique_positions.infer(lambda x: (TensorType((-1,), "int64"), TensorType(x.shape, "int64"), TensorType((-1,), "int64")))
U = np.array([3.0, 1.0, 3.0, 2.0])
unique_positions.example(lambda: [Example((U,), (np.array([1, 3, 0]), np.array([2, 0, 2, 1]), np.array([1, 1, 2])))])


@composite(outputs=("out", "inverse", "counts"))
def unique(x):
    """The different elements of x in ascending order, which of them each element is, and how often each occurs.

    The gradient of an element goes to where it stands first in x.
    """
    first, inverse, counts = lookup("unique_positions")(x)
    return lookup("gather")(lookup("reshape")(x, shape=(-1,)), first), inverse, counts


unique.example(
    lambda: [
        Example((U,), (np.array([1.0, 2.0, 3.0]), np.array([2, 0, 2, 1]), np.array([1, 1, 2])), smooth=False),
        Example((X,), (np.sort(X.ravel()), np.argsort(np.argsort(X.ravel())).reshape(X.shape), np.ones(8, int))),
        Example((CUBE[:, 0],), (np.sort(CUBE[:, 0].ravel()),)),
        Example((X[:0],), (np.zeros(0), np.zeros((0, 4), int), np.zeros(0, int))),
    ]
)


@op(no_gradient=_INTEGER)
def searchsorted(xp, sorted_sequence, values, *, right: bool = False):
    """For each value the position, int64, at which it would stand in the ascending vector `sorted_sequence`.

    With `right` behind elements that equal it, else in front of them.
    """
    return xp.searchsorted(sorted_sequence, values, side="right" if right else "left").astype("int64")


@searchsorted.infer
def searchsorted_infer(sorted_sequence, values, *, right):
    if sorted_sequence.rank != 1 or sorted_sequence.dtype != values.dtype:
        raise ProgramError(f"searches {values} in a vector of that dtype, not {sorted_sequence}", "type_mismatch")
    return TensorType(values.shape, "int64")


S = np.array([1.0, 2.0, 2.0, 5.0])
searchsorted.example(
    lambda: [
        Example((S, np.array([[2.0, 0.0], [9.0, 3.0]])), (np.array([[1, 0], [4, 3]]),)),
        Example((S, np.array([2.0])), (np.array([3]),), {"right": True}),
    ]
)


# --- running along an axis -------------------------------------------------------------------------------------


@op
def cumsum(xp, x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """The running sum along `axis`; `exclusive` leaves out the element itself, `reverse` runs from the end."""
    turned = xp.flip(x, axis=axis) if reverse else x
    out = xp.cumsum(turned, axis=axis, dtype=x.dtype)
    if exclusive and x.shape[axis]:
        moved = xp.moveaxis(out, axis, 0)
        out = xp.moveaxis(xp.concatenate([xp.zeros_like(moved[:1]), moved[:-1]]), 0, axis)
    return xp.flip(out, axis=axis) if reverse else out


@cumsum.infer
def cumsum_infer(x, *, axis, exclusive, reverse):
    axis_of(axis, x.rank)
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return x


cumsum.vjp(
    lambda ct, out, x, *, axis, exclusive, reverse: lookup("cumsum")(
        ct, axis=axis, exclusive=exclusive, reverse=not reverse
    )
)
cumsum.example(
    lambda: [
        Example((X,), (X.cumsum(-1),)),
        Example((X,), (X[:, ::-1].cumsum(1)[:, ::-1],), {"axis": 1, "reverse": True}),
        Example((CUBE,), (CUBE.cumsum(1) - CUBE,), {"axis": 1, "exclusive": True}),
        Example((X[:0],), (X[:0],), {"axis": 0}),
    ]
)


def _doubling(x, axis, join, start):
    """The running `join` of n elements in log2(n) rounds: in round k each takes in what stands 2 ** k before it."""
    at = axis_of(axis, x.rank)
    n = x.shape[at]
    if n == -1:
        raise ProgramError(f"the size of axis {axis} must be known, not {x.type}", "shape_mismatch")
    step = 1
    while step < n:
        head = lookup("slice")(x, axes=(at,), starts=(0,), ends=(n - step,))
        first = lookup("slice")(x, axes=(at,), starts=(0,), ends=(step,))
        front = lookup("full_like")(first, value=start)
        x = join(x, lookup("concat")(front, head, axis=at))
        step *= 2
    return x


@composite
def cumprod(x, *, axis: int = -1, exclusive: bool = False, reverse: bool = False):
    """The running product along `axis`, `exclusive` and `reverse` as with `cumsum`.

    Nothing is divided, forwards or backwards: zeros are no exception. It is computed in log2(n) rounds.
    """
    turned = lookup("flip")(x, axes=(axis,)) if reverse else x
    out = _doubling(turned, axis, lambda a, b: a * b, 1.0)
    at = axis_of(axis, x.rank)
    if exclusive and x.shape[at]:
        first = lookup("slice")(out, axes=(at,), starts=(0,), ends=(1,))
        rest = lookup("slice")(out, axes=(at,), starts=(0,), ends=(x.shape[at] - 1,))
        out = lookup("concat")(lookup("full_like")(first, value=1.0), rest, axis=at)
    return lookup("flip")(out, axes=(axis,)) if reverse else out


Z = np.array([2.0, 0.0, 3.0, 0.5, 0.0])
cumprod.example(
    lambda: [
        Example((X,), (X.cumprod(-1),)),
        Example((Z,), (Z.cumprod(),)),
        Example((CUBE,), (CUBE[:, ::-1].cumprod(1)[:, ::-1],), {"axis": 1, "reverse": True}),
        Example((X,), (np.concatenate([np.ones((2, 1)), X.cumprod(1)[:, :-1]], 1),), {"exclusive": True}),
        Example((X[:0],), (X[:0],), {"axis": 0}),
    ]
)


@op(no_gradient=_INTEGER)
def running_argmax(xp, x, *, axis: int = -1, sign: Literal["max", "min"] = "max"):
    """The position, int64, of the largest (or smallest) element so far along `axis`; of equal ones the first."""
    moved = xp.moveaxis(x, axis, 0)
    best = xp.maximum.accumulate(moved) if sign == "max" else xp.minimum.accumulate(moved)
    n = moved.shape[0]
    shape = (n, *(1 for _ in moved.shape[1:]))
    new = xp.ones(moved.shape, bool)
    new[1:] = best[1:] != best[:-1]
    found = xp.maximum.accumulate(xp.where(new, xp.arange(n).reshape(shape), 0))
    return xp.moveaxis(found, 0, axis).astype("int64")


@running_argmax.infer
def running_argmax_infer(x, *, axis, sign):
    axis_of(axis, x.rank)
    return TensorType(x.shape, "int64")


running_argmax.example(
    lambda: [
        Example((np.array([1.0, 1.0, 3.0, 2.0, 3.0]),), (np.array([0, 0, 2, 2, 2]),)),
        Example((X,), (np.array([[0, 1, 1, 1], [0, 0, 2, 2]]),), {"sign": "min"}),
    ]
)


@composite(outputs=("out", "index"))
def cummax(x, *, axis: int = -1):
    """The largest element so far along `axis`, and where it stands; of equal ones the first."""
    index = lookup("running_argmax")(x, axis=axis)
    return lookup("take_along_axis")(x, index, axis=axis), index


@composite(outputs=("out", "index"))
def cummin(x, *, axis: int = -1):
    """The smallest element so far along `axis`, and where it stands; of equal ones the first."""
    index = lookup("running_argmax")(x, axis=axis, sign="min")
    return lookup("take_along_axis")(x, index, axis=axis), index


cummax.example(
    lambda: [
        Example((X,), (np.maximum.accumulate(X, 1),)),
        Example((CUBE,), (np.maximum.accumulate(CUBE, 1),), {"axis": 1}),
        Example((X[:0],), (X[:0],)),
    ]
)
cummin.example(
    lambda: [
        Example((X,), (np.minimum.accumulate(X, 1),)),
        Example((CUBE,), (np.minimum.accumulate(CUBE, 1),), {"axis": 1}),
        Example((X[:0],), (X[:0],)),
    ]
)
