"""The distinct elements or slices of an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.registry import Example, composite, op
from core.ops.common.types import axis_of
from core.ops.indexing.gather import gather
from core.ops.indexing.sort import argsort, unique_positions
from core.ops.shape.reshape import reshape

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
U = np.array([3.0, 1.0, 3.0, 2.0])
_INTEGER = "its result is an integer"


@op(no_gradient=_INTEGER, outputs=("first", "inverse", "counts"))
def unique_slices(xp, x, *, axis: int = 0):
    """As `unique_positions`, for the distinct slices of x along `axis`, in lexicographic order."""
    here = x if xp is np else np.asarray(x.tolist(), x.dtype).reshape(x.shape)
    rows = np.moveaxis(here.astype("float32") if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else here, axis, 0)
    n = len(rows)
    if rows.size == 0:  # all slices are equal
        found: tuple[Any, ...] = (np.zeros(min(n, 1)), np.zeros(n), np.full(min(n, 1), n))
    else:
        found = np.unique(rows.reshape(n, -1), True, True, True, axis=0)[1:]
    return tuple(xp.asarray(each.reshape(-1).astype("int64")) for each in found)


@unique_slices.infer
def unique_slices_infer(x, *, axis):
    at = axis_of(axis, x.rank)
    return TensorType((-1,), "int64"), TensorType((x.shape[at],), "int64"), TensorType((-1,), "int64")


_TABLE = np.array([[3.0, 1.0, 3.0], [2.0, 0.5, 2.0]])
unique_slices.example(
    lambda: [
        Example((_TABLE,), (np.array([1, 0]), np.array([1, 0, 1]), np.array([1, 2])), {"axis": 1}),
        Example((_TABLE,), (np.array([1, 0]), np.array([1, 0]), np.array([1, 1]))),
        Example((_TABLE[:, :0],), (np.array([0]), np.array([0, 0]), np.array([2]))),
    ]
)


@composite(outputs=("out", "inverse", "counts", "first"))
def unique(x, *, axis: int | None = None, sorted: bool = True):
    """The distinct elements of x in ascending order, or with `axis` its distinct slices in lexicographic order.

    `inverse` is the number of each element among the distinct ones (``out[inverse] = x``), `counts` how often each
    occurs, and `first` the position of its first occurrence, in row-major order or along `axis`.

    - `sorted`: if false, the order is that of the first occurrences.

    The gradient of a distinct element goes to its first position in x.
    """
    flat = reshape(x, shape=(-1,)) if axis is None else x
    at = 0 if axis is None else axis_of(axis, x.rank)
    first, inverse, counts = unique_positions(x) if axis is None else unique_slices(x, axis=at)
    if not sorted:
        order = argsort(first)
        first, counts = gather(first, order), gather(counts, order)
        inverse = gather(argsort(order), inverse)
    return gather(flat, first, axis=at), inverse, counts, first


unique.example(
    lambda: [
        Example((U,), (np.array([1.0, 2, 3]), np.array([2, 0, 2, 1]), np.array([1, 1, 2]), np.array([1, 3, 0])),
                smooth=False),
        Example((U,), (np.array([3.0, 1, 2]), np.array([0, 1, 0, 2]), np.array([2, 1, 1]), np.array([0, 1, 3])),
                {"sorted": False}, smooth=False),
        Example((X,), (np.sort(X.ravel()), np.argsort(np.argsort(X.ravel())).reshape(X.shape), np.ones(8, int))),
        Example((X,), (X[:, [1, 3, 0, 2]], np.array([2, 0, 3, 1]), np.ones(4, int), np.array([1, 3, 0, 2])),
                {"axis": 1}),
        Example((_TABLE,), (_TABLE[:, :2], np.array([0, 1, 0]), np.array([2, 1]), np.array([0, 1])),
                {"axis": -1, "sorted": False}, smooth=False),
        Example((CUBE[:, 0],), (np.sort(CUBE[:, 0].ravel()),)),
        Example((X[:0],), (np.zeros(0), np.zeros((0, 4), int), np.zeros(0, int), np.zeros(0, int))),
    ]
)  # fmt: skip
