"""Scatter with a reduction: elements of x combined with the values that are written to them."""

from __future__ import annotations

import operator
from typing import Any, Literal

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.types import matches
from core.ops.indexing.scatter_gather import (
    added_to,
    as_slices,
    checked_updates,
    each_slice,
    is_last,
    positions_along,
    positions_nd,
    written,
)
from core.ops.reduction.segments import segment_max, segment_min, segment_prod
from core.ops.shape.agreeing import agreed
from core.ops.shape.concat_split import concat
from core.ops.shape.reshape import merged, reshape, reshape_to

__all__: list[str] = []

X = np.arange(12.0).reshape(3, 4) / 4 - 1
CUBE = np.sin(np.arange(12.0)).reshape(2, 3, 2)
COLUMNS = np.array([[2, 0], [1, 1], [-1, 3]])
Reduce = Literal["assign", "add", "mul", "max", "min"]


@composite
def put_along_axis(x, index, values, *, axis: int = -1, reduce: Reduce = "assign"):
    """x with ``values[..., i, ...]`` written at ``x[..., index[..., i, ...], ...]``, or combined with the old one.

    - `reduce`: `assign` writes; of several values for one position the last stays, and only it gets a gradient. `add`,
      `mul`, `max` and `min` combine the element of x with all its values. Tied elements share the gradient evenly.
    """
    if not matches(values.type, TensorType(index.shape, x.dtype)):
        raise ProgramError(
            f"values must be {x.dtype} with the shape of the index, {index.type}, not {values.type}", "shape_mismatch"
        )
    values, index = agreed(values, index, *((i, i) for i in range(index.rank)))
    at = positions_along(index, x, axis=axis)
    flat = reshape(x, shape=(-1,))
    if reduce == "assign":
        return reshape_to(written(flat, at, values, is_last(at)), x)
    return reshape_to(_combined(flat, at, values, reduce), x)


def _combined(rows, at, values, reduce: Reduce):
    """`rows` whose row ``at[...]`` is combined with ``values[...]``."""
    if reduce == "add":
        return added_to(rows, at, values)
    values, at = merged(values, 0, at.rank), merged(at, 0, at.rank)
    if reduce == "mul":
        return rows * segment_prod(values, at, rows)
    own = at.builder.emit("roll_positions", rows, shift=0, axis=0)
    extreme = segment_max if reduce == "max" else segment_min
    return extreme(concat(rows, values, axis=0), concat(own, at, axis=0), rows)


COMBINE: dict[str, Any] = {
    "assign": lambda old, new: new,
    "add": operator.add,
    "mul": operator.mul,
    "max": max,
    "min": min,
}


def _put(x, index, values, axis, how="assign"):
    x = x.copy()
    for at in np.ndindex(index.shape):
        to = list(at)
        to[axis] = index[at]
        x[tuple(to)] = COMBINE[how](x[tuple(to)], values[at])
    return x


_V = np.array([[0.5, 2.0], [3.0, -1.0], [4.0, 1.5]])
_R = np.array([[1, 0], [2, 1]])
put_along_axis.example(
    lambda: [
        Example((X, COLUMNS, _V), (_put(X, COLUMNS, _V, 1),)),
        Example((X, COLUMNS, _V), (_put(X, COLUMNS, _V, 1, "add"),), {"reduce": "add"}),
        *(Example((X + 0.01, COLUMNS, _V), (_put(X + 0.01, COLUMNS, _V, 1, how),), {"reduce": how})
          for how in ("mul", "max", "min")),
        Example((X, _R, _V[:2]), (_put(X, _R, _V[:2], 0),), {"axis": 0}),
        Example((CUBE, _R[:, None], _V[:2][:, None]), (_put(CUBE, _R[:, None], _V[:2][:, None], 1),), {"axis": 1}),
        Example((X[:0], COLUMNS[:0], _V[:0]), (X[:0],)),
    ]
)  # fmt: skip


@composite
def scatter_nd_update(x, index, updates, *, reduce: Reduce = "assign"):
    """x with ``updates[...]`` written at ``x[index[..., 0], index[..., 1], ...]``, or combined with the slice there.

    - `reduce`: as in `put_along_axis`.
    """
    index, updates, x = checked_updates(index, updates, x)
    at = positions_nd(index, x)
    slices = as_slices(x, index.shape[-1])
    if reduce != "assign":
        return reshape_to(_combined(slices, at, updates, reduce), x)
    values, at = merged(updates, 0, at.rank), merged(at, 0, at.rank)
    return reshape_to(written(slices, at, values, each_slice(is_last(at), values)), x)


SLICES: dict[str, Any] = {"max": np.maximum, "min": np.minimum}


def _put_nd(x, index, updates, how="assign"):
    out = x.copy()
    for at in np.ndindex(index.shape[:-1]):
        to = tuple(index[at])
        old = out[to]
        out[to] = SLICES.get(how, COMBINE[how])(old, updates[at])
    return out


_N = np.array([[2, 1], [0, -1], [2, 1]])
_TWO = np.array([[[1], [0]], [[1], [1]]])
_ROWS = np.cos(np.arange(24.0)).reshape(2, 2, 3, 2)
scatter_nd_update.example(
    lambda: [
        Example((X, _N, _V[:, 0]), (_put_nd(X, _N, _V[:, 0]),)),
        *(Example((CUBE, _TWO, _ROWS), (_put_nd(CUBE, _TWO, _ROWS, how),), {"reduce": how})
          for how in ("add", "mul", "max", "min")),
        Example((CUBE, _TWO, _ROWS), (_put_nd(CUBE, _TWO, _ROWS),)),
        Example((X, _N[:0], np.zeros(0)), (X,), {"reduce": "mul"}),
        Example((CUBE, np.array([1, 2, 0]), np.array(7.0)), (_put_nd(CUBE, np.array([1, 2, 0]), np.array(7.0)),)),
    ]
)  # fmt: skip
