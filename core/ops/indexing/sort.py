"""Sorting, and selection by rank, by mask or by frequency.

An element is selected by its index, and its gradient goes back to that index: of equal elements, to the first in order.
"""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import Size
from core.ops.common.types import axis_of, widened
from core.ops.elementwise.logic import where
from core.ops.elementwise.rounding import isnan
from core.ops.indexing.gather import gather, slice_
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.reduction.cumulative import running_argmax
from core.ops.reduction.sums import argmax, reduce_mean
from core.ops.shape.agreeing import shaped
from core.ops.shape.broadcast import expand_to
from core.ops.shape.reshape import reshape, squeeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
_INTEGER = "its result is an integer"


@op(no_gradient=_INTEGER)
def argsort(xp, x, *, axis: int = -1, descending: bool = False):
    """The positions, int64, that put x in order along `axis`. Equal elements keep their order.

    NaN counts as larger than all numbers: it comes last, or with `descending` first.
    """
    x = widened(x)  # cupy sorts no bfloat16
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
    """``out[0] <= out[1] <= ...``: x in order along `axis`, and the position of each element in x (`argsort`).

    The gradient of an element goes to its position in x.
    """
    index = argsort(x, axis=axis, descending=descending)
    return take_along_axis(x, index, axis=axis), index


sort.example(
    lambda: [
        Example((X,), (np.sort(X), np.argsort(X))),
        Example((CUBE,), (-np.sort(-CUBE, 1), np.argsort(-CUBE, 1)), {"axis": 1, "descending": True}),
        Example((X[:0],), (X[:0], np.zeros((0, 4), int))),
    ]
)


@composite(outputs=("out", "index"))
def topk(x, *, k: Size, axis: int = -1, largest: bool = True, sorted: bool = True):
    """``out[0] >= out[1] >= ...``: the `k` largest (or smallest) elements along `axis`, and their positions in x.

    They are in order whether `sorted` is set or not. Of equal elements the first in x comes first and gets the
    gradient.
    """
    at = axis_of(axis, x.rank)
    if k < 0 or (x.shape[at] >= 0 and k > x.shape[at]):
        raise ProgramError(f"k must be from 0 to the size of axis {axis} of {x.type}, not {k}", "bad_attr")
    index = argsort(x, axis=at, descending=largest)
    index = slice_(index, axes=(at,), starts=(0,), ends=(k,))
    index = shaped(index, [k if i == at else -1 for i in range(x.rank)])
    return take_along_axis(x, index, axis=at), index


topk.example(
    lambda: [
        Example((X,), (-np.sort(-X)[:, :2], np.argsort(-X)[:, :2]), {"k": 2}),
        Example((CUBE,), (np.sort(CUBE, 1)[:, :1], np.argsort(CUBE, 1)[:, :1]), {"k": 1, "axis": 1, "largest": False}),
        Example((X[:0],), (X[:0, :3], np.zeros((0, 3), int)), {"k": 3}),
    ]
)


@composite(outputs=("out", "index"))
def kthvalue(x, *, k: Size, axis: int = -1, keepdims: bool = False):
    """``sort(x)[k - 1]``: the `k`-th smallest element along `axis`, and its position in x."""
    at = axis_of(axis, x.rank)
    if k < 1 or (x.shape[at] >= 0 and k > x.shape[at]):
        raise ProgramError(f"k must be from 1 to the size of axis {axis} of {x.type}, not {k}", "bad_attr")
    index = slice_(argsort(x, axis=at), axes=(at,), starts=(k - 1,), ends=(k,))
    index = shaped(index, [1 if i == at else -1 for i in range(x.rank)])
    out = take_along_axis(x, index, axis=at)
    if keepdims:
        return out, index
    return squeeze(out, axes=(at,)), squeeze(index, axes=(at,))


kthvalue.example(
    lambda: [
        Example((X,), (np.sort(X)[:, 1], np.argsort(X)[:, 1]), {"k": 2}),
        Example((CUBE,), (np.sort(CUBE, 1)[:, :1], np.argsort(CUBE, 1)[:, :1]), {"k": 1, "axis": 1, "keepdims": True}),
        Example((X[:0],), (np.zeros(0), np.zeros(0, int)), {"k": 3}),
    ]
)


@composite
def median(x, *, axis: int = -1, keepdims: bool = False):
    """``sort(x)[n // 2]``, the middle element along `axis`; for an even number of elements the mean of the middle two.

    It is NaN if an element is NaN. The gradient goes to the one or two middle elements in the order of `argsort`.
    """
    at = axis_of(axis, x.rank)
    n = x.shape[at]
    if n < 1:
        raise ProgramError(f"median needs a known size above 0 along axis {axis}, not {x.type}", "shape_mismatch")
    index = slice_(argsort(x, axis=at), axes=(at,), starts=((n - 1) // 2,), ends=(n // 2 + 1,))
    top = argmax(x, axis=at, keepdims=True)  # a NaN, if there is one
    index = where(isnan(take_along_axis(x, top, axis=at)), top, index)
    return reduce_mean(take_along_axis(x, index, axis=at), axes=(at,), keepdims=keepdims)


median.example(
    lambda: [
        Example((X,), (np.median(X, -1),)),
        Example((CUBE,), (np.median(CUBE, 1, keepdims=True),), {"axis": 1, "keepdims": True}),
        Example((X[:0],), (np.zeros(0),)),
        Example((np.array([1.0, np.nan, 0.0]),), (np.nan,), smooth=False),
    ]
)


@op(no_gradient=_INTEGER)
def mode_position(xp, x, *, axis: int = -1):
    """The position of the most frequent element along `axis`: int64, and `axis` becomes 1.

    Of equally frequent elements the smallest counts, and of its positions the first.
    """
    moved = xp.moveaxis(widened(x), axis, -1)
    order = xp.argsort(moved, axis=-1, kind="stable")
    ordered = xp.take_along_axis(moved, order, axis=-1)
    steps = xp.arange(x.shape[axis])
    differs = ordered != xp.concatenate([ordered[..., :1], ordered[..., :-1]], axis=-1)
    begins = running_argmax.body(xp, xp.where(differs, steps, 0), axis=-1)
    longest = xp.expand_dims(xp.argmax(steps - begins, axis=-1), -1)
    first = xp.take_along_axis(begins, longest, axis=-1)
    return xp.moveaxis(xp.take_along_axis(order, first, axis=-1), -1, axis).astype("int64")


@mode_position.infer
def mode_position_infer(x, *, axis):
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        raise ProgramError(f"mode needs at least one element along axis {axis}, not {x}", "shape_mismatch")
    return TensorType(tuple(1 if i == at else n for i, n in enumerate(x.shape)), "int64")


M = np.array([[2.0, 1.0, 2.0, 1.0], [3.0, 0.5, 4.0, 4.0]])
mode_position.example(
    lambda: [
        Example((M,), (np.array([[1], [2]]),)),
        Example((M,), (np.array([[0, 1, 0, 0]]),), {"axis": 0}),
        Example((np.array([7, 7, 1]),), (np.array([0]),)),
    ]
)


@composite(outputs=("out", "index"))
def mode(x, *, axis: int = -1, keepdims: bool = False):
    """The most frequent element along `axis`, ``count(out) >= count(x[i])``, and its first position in x.

    Of equally frequent elements it is the smallest. The gradient goes to the first position.
    """
    at = axis_of(axis, x.rank)
    index = mode_position(x, axis=at)
    out = take_along_axis(x, index, axis=at)
    if keepdims:
        return out, index
    return squeeze(out, axes=(at,)), squeeze(index, axes=(at,))


mode.example(
    lambda: [
        Example((M,), (np.array([1.0, 4.0]), np.array([1, 2])), smooth=False),
        Example((X,), (X.min(1), X.argmin(1))),
        Example((CUBE,), (CUBE.min(1, keepdims=True), CUBE.argmin(1)[:, None]), {"axis": 1, "keepdims": True}),
        Example((X[:0],), (np.zeros(0), np.zeros(0, int))),
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
    if mask.dtype != "bool":
        raise ProgramError(f"the mask must be bool, not {mask.type}", "dtype_mismatch")
    if x.shape != mask.shape or not x.type.is_static:
        x = where(mask, x, x)  # broadcasts x where sizes may be unknown
        mask = expand_to(mask, x)
    flat = reshape(x, shape=(-1,))
    chosen = nonzero(reshape(mask, shape=(-1,)))
    return gather(flat, reshape(chosen, shape=(-1,)))


masked_select.example(
    lambda: [
        Example((X, X > 0), (X[X > 0],)),
        Example((X, X[0] > 0), (X[:, X[0] > 0].ravel(),)),
        Example((X, X > 9), (np.zeros(0),)),
        Example((X[:1], X > 0), (np.broadcast_to(X[:1], X.shape)[X > 0],)),
        Example((CUBE, CUBE < 0), (CUBE[CUBE < 0],)),
    ]
)


@composite
def masked_fill(x, mask, value=None, *, fill: Extended = 0.0):
    """``out = value`` where `mask` is true, else x. `value` is a single element; without it the number `fill` is used.

    x gets no gradient where `mask` is true.
    """
    if value is None:
        value = x.builder.constant(fill, x.dtype)
    elif any(n not in (1, -1) for n in value.shape):
        raise ProgramError(f"value must be a single element, not {value.type}", "shape_mismatch")
    return where(mask, reshape(value, shape=()), x)


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
    """`first` and `counts`: the first position and the number of occurrences of each distinct element of x, ascending.

    `inverse`: for each element of x its number among the distinct ones.
    """
    _, first, inverse, counts = xp.unique(
        widened(x).ravel(), return_index=True, return_inverse=True, return_counts=True
    )
    return first.astype("int64"), inverse.reshape(x.shape).astype("int64"), counts.astype("int64")


unique_positions.infer(lambda x: (TensorType((-1,), "int64"), TensorType(x.shape, "int64"), TensorType((-1,), "int64")))
U = np.array([3.0, 1.0, 3.0, 2.0])
unique_positions.example(lambda: [Example((U,), (np.array([1, 3, 0]), np.array([2, 0, 2, 1]), np.array([1, 1, 2])))])


@op(no_gradient=_INTEGER)
def searchsorted(xp, sorted_sequence, values, *, right: bool = False):
    """For each value the position, int64, at which inserting it keeps the vector `sorted_sequence` ascending.

    The position is before equal elements; with `right` it is after them.
    """
    rows, wanted = widened(sorted_sequence), widened(values)
    return xp.searchsorted(rows, wanted, side="right" if right else "left").astype("int64")


@searchsorted.infer
def searchsorted_infer(sorted_sequence, values, *, right):
    if sorted_sequence.rank != 1 or sorted_sequence.dtype != values.dtype:
        raise ProgramError(
            f"sorted_sequence must be a vector of the dtype of values, {values}, not {sorted_sequence}", "type_mismatch"
        )
    return TensorType(values.shape, "int64")


S = np.array([1.0, 2.0, 2.0, 5.0])
searchsorted.example(
    lambda: [
        Example((S, np.array([[2.0, 0.0], [9.0, 3.0]])), (np.array([[1, 0], [4, 3]]),)),
        Example((S, np.array([2.0])), (np.array([3]),), {"right": True}),
    ]
)
