"""Quantiles, with and without NaN."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, composite
from core.ops.common.ranges import Probability
from core.ops.common.types import axis_of
from core.ops.elementwise.arithmetic import cast, stop_gradient
from core.ops.elementwise.logic import less_than, logical_not, where
from core.ops.elementwise.math import clip
from core.ops.elementwise.rounding import ceil, floor, isnan, round_
from core.ops.indexing.gather import slice_
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.indexing.sort import sort
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.concat_split import stack
from core.ops.shape.creation import full_like
from core.ops.shape.reshape import reshape, squeeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0]])
CUBE = np.sin(np.arange(12.0) * 7).reshape(2, 3, 2)
Between = Literal["linear", "lower", "higher", "midpoint", "nearest"]


def _quantile(x, q, axis, keepdims, interpolation, skip_nan: bool):
    """One array for each number of q, stacked along a new first axis."""
    if not x.type.is_float:
        raise ProgramError(f"needs a floating-point input, not {x.type}", "dtype_mismatch")
    if axis is None:
        x, at = reshape(x, shape=(-1,)), 0
    else:
        at = axis_of(axis, x.rank)
    if x.shape[at] == 0 or not q:
        raise ProgramError(
            f"needs at least one element along the axis and one number q, not {x.type}", "shape_mismatch"
        )
    ordered, _ = sort(x, axis=at)  # NaN comes last
    count = reduce_sum(cast(logical_not(isnan(stop_gradient(ordered))), dtype="float64"), axes=(at,), keepdims=True)
    end = clip(count - 1.0, min=0.0)
    found = [_between(ordered, end * each, at, interpolation) for each in q]
    if not skip_nan:
        n = x.shape[at]
        size = (
            full_like(count, value=float(n))
            if n > 0
            else reduce_sum(full_like(cast(ordered, dtype="float64"), value=1.0), axes=(at,), keepdims=True)
        )
        incomplete = less_than(count, size)
        last = slice_(ordered, axes=(at,), starts=(-1,), ends=(2**31,))
        found = [where(incomplete, last, each) for each in found]
    out = stack(*found, axis=0)
    return out if keepdims and axis is not None else squeeze(out, axes=(at + 1,))


def _between(ordered, position, at: int, interpolation: Between):
    """The element of `ordered` at a fractional position along the axis `at`."""

    def read(place):
        return take_along_axis(ordered, cast(place, dtype="int64"), axis=at)

    if interpolation == "nearest":
        return read(round_(position))
    low, high = floor(position), ceil(position)
    if interpolation == "lower":
        return read(low)
    if interpolation == "higher":
        return read(high)
    share = full_like(position, value=0.5) if interpolation == "midpoint" else position - low
    below = read(low)
    return below + (read(high) - below) * cast(share, dtype=ordered.dtype)


@composite
def quantile(
    x,
    *,
    q: tuple[Probability, ...] = (0.5,),
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: Between = "linear",
):
    """Quantiles along `axis` (by default of all elements): ``sort(x)[q * (n - 1)]``, one for each q, stacked along a
    new first axis.

    - `interpolation`: how a position between two elements is read: the line between them, the lower or the higher one,
      their mean, or the nearer one (the even position if both are equally near).

    It is NaN if an element is NaN. The gradient goes to the elements read, in the order of `argsort`.
    """
    return _quantile(x, q, axis, keepdims, interpolation, False)


@composite
def nanquantile(
    x,
    *,
    q: tuple[Probability, ...] = (0.5,),
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: Between = "linear",
):
    """`quantile` of the elements that are not NaN. It is NaN if all elements are NaN."""
    return _quantile(x, q, axis, keepdims, interpolation, True)


_Q = (0.0, 0.3, 1.0)
_HOLES = np.array([[1.0, np.nan, 3.0, 0.5], [0.75, 4.0, -1.5, 2.0], [np.nan] * 4])
quantile.example(
    lambda: [
        Example((X,), (np.array([np.median(X)]),)),
        Example((X,), (np.quantile(X, _Q, 1),), {"q": _Q, "axis": 1}),
        Example((CUBE,), (np.quantile(CUBE, (0.7,), 1, keepdims=True),), {"q": (0.7,), "axis": 1, "keepdims": True}),
        *(Example((X,), (np.quantile(X, _Q, 1, method=how),), {"q": _Q, "axis": 1, "interpolation": how})
          for how in ("lower", "higher", "midpoint", "nearest")),
        Example((_HOLES,), (np.quantile(_HOLES, (0.3,), 1),), {"q": (0.3,), "axis": 1}, smooth=False),
        Example((X[:0],), (np.zeros((1, 0)),), {"axis": 1}),
    ]
)  # fmt: skip
nanquantile.example(
    lambda: [
        Example((X,), (np.quantile(X, _Q, 0),), {"q": _Q, "axis": 0}),
        Example((CUBE,), (np.quantile(CUBE, (0.7,)),), {"q": (0.7,)}),
        Example((_HOLES,), (np.array([[0.7, *np.quantile(_HOLES[1:2], 0.2, 1), np.nan]]),), {"q": (0.2,), "axis": 1},
                smooth=False),
        Example((X[:0],), (np.zeros((1, 0)),), {"axis": 1}),
    ]
)  # fmt: skip
