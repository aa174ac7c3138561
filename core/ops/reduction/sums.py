"""Sums, means, extremes and related reductions over axes.

`axes` lists the axes to reduce. A negative axis counts from the end, and null means all axes. With `keepdims` the
reduced axes stay in the result with size 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import compress, count, repeat
from operator import is_not
from typing import Any, Literal

import numpy as np

from core.ir import StackType, TensorType, Type
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.long_sums import summed
from core.ops.common.types import axes_of, axis_of, broadcast, joined_type, product, working_dtype
from core.ops.elementwise.arithmetic import cast, maximum, minimum
from core.ops.elementwise.logic import equal, logical_or, where_or_zero
from core.ops.elementwise.rounding import isnan
from core.ops.shape.broadcast import expand_to
from core.ops.shape.reshape import unsqueeze

__all__ = ["identity_of_extreme"]

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
CUBE = np.sin(np.arange(12.0) * 7 + 1).reshape(2, 3, 2)


def _reduced_type(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    reduced = axes_of(axes, x.rank)
    if keepdims:
        return TensorType(tuple(1 if i in reduced else n for i, n in enumerate(x.shape)), x.dtype)
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in reduced), x.dtype)


def reduced_number(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return _reduced_type(x, axes=axes, keepdims=keepdims)


def _not_empty(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    if any(x.shape[i] == 0 for i in axes_of(axes, x.rank)):
        raise ProgramError(f"cannot reduce {x} over an axis of size 0", "shape_mismatch")
    return reduced_number(x, axes=axes, keepdims=keepdims)


def restored(value, x, *, axes, keepdims):
    """Symbol of a reduced value with the reduced axes inserted again with size 1, so that it broadcasts against x."""
    if keepdims or value.rank == x.rank:
        return value
    return unsqueeze(value, axes=axes_of(axes, x.rank))


@op
def reduce_sum(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Sum over `axes`: ``x[0] + x[1] + ...``. 16-bit floats are accumulated in float32."""
    return summed(xp, x, axes, keepdims).astype(x.dtype, copy=False)


reduce_sum.infer(reduced_number)


@reduce_sum.vjp
def reduce_sum_vjp(ct, out, x, *, axes, keepdims):
    return expand_to(restored(ct, x, axes=axes, keepdims=keepdims), x)


reduce_sum.example(
    lambda: [
        Example((X,), (X.sum(),)),
        Example((X,), (X.sum(1),), {"axes": (-1,)}),
        Example((X,), (X.sum(0, keepdims=True),), {"axes": (0,), "keepdims": True}),
        Example((CUBE[:, :0],), (np.zeros((2, 2)),), {"axes": (1,)}),
        Example((CUBE,), (CUBE.sum((0, 2)),), {"axes": (2, 0)}),
        Example((X[0, 0],), (X[0, 0],)),
    ]
)


@op
def reduce_mean(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Mean over `axes`: ``sum(x) / n``. An empty set gives 0. 16-bit floats are accumulated in float32."""
    count = product(x.shape[i] for i in axes_of(axes, x.ndim))
    total = summed(xp, x, axes, keepdims)
    return xp.divide(total, total.dtype.type(max(count, 1))).astype(x.dtype, copy=False)


@reduce_mean.infer
def reduce_mean_infer(x, *, axes, keepdims):
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return _reduced_type(x, axes=axes, keepdims=keepdims)


@reduce_mean.vjp
def reduce_mean_vjp(ct, out, x, *, axes, keepdims):
    count = product(x.shape[i] for i in axes_of(axes, x.rank))
    if count >= 0:
        return expand_to(restored(ct, x, axes=axes, keepdims=keepdims) / max(count, 1), x)
    share = minimum(inverse_count(x, axes=axes), ct.builder.constant(1.0, x.dtype))  # of no elements 1: inf * 0 is NaN
    return expand_to(restored(ct, x, axes=axes, keepdims=keepdims) * share, x)


reduce_mean.example(
    lambda: [
        Example((X,), (X.mean(),)),
        Example((X,), (X.mean(0, keepdims=True),), {"axes": (0,), "keepdims": True}),
        Example((CUBE,), (CUBE.mean((0, 2)),), {"axes": (-1, 0)}),
        Example((CUBE[:, :0],), (np.zeros((2, 2)),), {"axes": (1,)}),
    ]
)


@op(no_gradient="its result depends on sizes only")
def inverse_count(xp, x, *, axes: tuple[int, ...] | None = None, ddof: int = 0):
    """``1 / (n - ddof)`` as a 0-d array, where n is the number of elements of x over `axes`.

    The result is inf where n is at most `ddof`. x gives only its shape and dtype.
    """
    count = product(x.shape[i] for i in axes_of(axes, x.ndim)) - ddof
    return xp.asarray(1 / count if count > 0 else np.inf, dtype=x.dtype)


@inverse_count.infer
def inverse_count_infer(x, *, axes, ddof):
    axes_of(axes, x.rank)
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return TensorType((), x.dtype)


inverse_count.example(
    lambda: [
        Example((X,), (np.array(1 / 6),)),
        Example((X,), (np.array(0.5),), {"axes": (1,), "ddof": 1}),
        Example((X,), (np.array(np.inf),), {"axes": (0,), "ddof": 2}),
    ]
)


@composite
def mean(x):
    """Mean of all elements: ``sum(x) / n``, a 0-d array; 0 if there are none."""
    return reduce_mean(x)


mean.example(lambda: [Example((X,), (X.mean(),)), Example((CUBE,), (CUBE.mean(),)), Example((X[:0],), (0.0,))])


Tie = Literal["even", "first", "all"]
Empty = Literal["error", "identity"]


def _extreme(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool, tie: str, empty: str) -> TensorType:
    return (_not_empty if empty == "error" else reduced_number)(x, axes=axes, keepdims=keepdims)


def identity_of_extreme(dtype, sign):
    """The number that changes no maximum (sign -1) or no minimum (sign 1) of numbers of `dtype`."""
    if dtype.kind == "b":
        return sign > 0
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min
    return sign * np.inf


def _extreme_of(xp, reduce, x, axes, keepdims, empty, sign):
    """`reduce` of x; sign: of the infinity that is its identity."""
    over = axes_of(axes, x.ndim)
    if empty == "error" or all(x.shape[i] for i in over):
        return reduce(x, axis=axes, keepdims=keepdims)
    shape = [1 if i in over else n for i, n in enumerate(x.shape) if keepdims or i not in over]
    return xp.full(shape, identity_of_extreme(x.dtype, sign), dtype=x.dtype)


def _extreme_vjp(ct, out, x, *, axes, keepdims, tie, empty):
    back = {"axes": axes, "keepdims": keepdims}
    # a NaN compares unequal to out, but it is the element that was selected
    selected = logical_or(equal(x, restored(out, x, **back)), isnan(x))
    ct = restored(ct, x, **back)
    if tie == "first":
        selected = first_true(selected, axes=axes)
    if tie == "even":
        count = reduce_sum(cast(selected, dtype=x.dtype), axes=axes, keepdims=True)
        if empty == "identity":  # of no elements, where 0 / 0 would be the gradient of ct
            count = maximum(count, count.builder.constant(1.0, count.dtype))
        ct = ct / count
    return where_or_zero(selected, ct)


@op
def reduce_max(
    xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False, tie: Tie = "even", empty: Empty = "error"
):
    """Maximum over `axes`: ``max(x[0], x[1], ...)``.

    - `tie`: gradient of tied elements. `even`: they share it evenly. `first`: the first in row-major order gets it.
      `all`: each gets all of it.
    - `empty`: the maximum of no elements. `error`: there is none. `identity`: the least number of the dtype, which is
      -inf for a float.
    """
    return _extreme_of(xp, xp.max, x, axes, keepdims, empty, -1)


reduce_max.infer(_extreme)
reduce_max.vjp(_extreme_vjp)


@op
def reduce_min(
    xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False, tie: Tie = "even", empty: Empty = "error"
):
    """Minimum over `axes`: ``min(x[0], x[1], ...)``. `tie` works as in `reduce_max`.

    - `empty`: the minimum of no elements. `error`: there is none. `identity`: the largest number of the dtype, which is
      inf for a float.
    """
    return _extreme_of(xp, xp.min, x, axes, keepdims, empty, 1)


reduce_min.infer(_extreme)
reduce_min.vjp(_extreme_vjp)


def _extreme_examples(f, identity):
    return [
        Example((X,), (f(X),)),
        Example((X,), (f(X, 1),), {"axes": (1,), "tie": "first"}),
        Example((CUBE,), (f(CUBE, (0, 2), keepdims=True),), {"axes": (0, -1), "keepdims": True, "tie": "first"}),
        Example((CUBE,), (f(CUBE, 1),), {"axes": (1,), "tie": "all"}),
        Example((CUBE[:0],), (CUBE[:0, 0],), {"axes": (1,)}),
        Example((CUBE[:0],), (np.full((1, *CUBE.shape[1:]), identity),),
                {"axes": (0,), "keepdims": True, "empty": "identity"}),
    ]  # fmt: skip


reduce_max.example(lambda: _extreme_examples(np.max, -np.inf))
reduce_min.example(lambda: _extreme_examples(np.min, np.inf))


@op(no_gradient="its result is bool")
def first_true(xp, x, *, axes: tuple[int, ...] | None = None):
    """True at the first true element of x over `axes` in row-major order, and false elsewhere."""
    reduced = axes_of(axes, x.ndim)
    order = (*(i for i in range(x.ndim) if i not in reduced), *reduced)
    permuted = xp.transpose(x, order)
    kept = permuted.shape[: x.ndim - len(reduced)]
    flat = permuted.reshape(*kept, math.prod(x.shape[i] for i in reduced))
    if not flat.size:
        return x
    out = (xp.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]) & flat
    return xp.transpose(out.reshape(permuted.shape), tuple(order.index(i) for i in range(x.ndim)))


@first_true.infer
def first_true_infer(x, *, axes):
    axes_of(axes, x.rank)
    if x.dtype != "bool":
        raise ProgramError(f"needs bools, not {x}", "dtype_mismatch")
    return x


_BITS = np.array([[False, True, True], [True, False, False]])
first_true.example(
    lambda: [
        Example((_BITS,), (np.array([[False, True, False], [False, False, False]]),)),
        Example((_BITS,), (np.array([[False, True, False], [True, False, False]]),), {"axes": (1,)}),
        Example((_BITS[:1],), (_BITS[:1],), {"axes": (0,)}),
    ]
)


@op
def argmax(xp, x, *, axis: int = -1, keepdims: bool = False):
    """Position of the largest element along `axis`, as int64: ``x[out] = max(x)``. Ties give the first position."""
    return xp.argmax(x, axis=axis, keepdims=keepdims).astype("int64")


argmax.no_gradient = "its result is an integer"


@argmax.infer
def argmax_infer(x, *, axis, keepdims):
    at = axis_of(axis, x.rank)
    return TensorType(_not_empty(x, axes=(at,), keepdims=keepdims).shape, "int64")


argmax.example(lambda: [Example((X,), (X.argmax(-1),)), Example((X,), (X.argmax(0),), {"axis": 0})])


# --- sums ------------------------------------------------------------------------------------------------------


@op(elementwise=True, stacks=True)
def sum_(xp, *x):
    """Sum of a list of arrays of one dtype, in the order given: ``x[0] + x[1] + ...``. Shapes broadcast.

    16-bit floats are accumulated in float32. Stacks and tensor arrays are added element by element; a missing element
    counts as zero.
    """
    if isinstance(x[0], list):
        return _sum_of_lists(xp, x)
    if len(x) <= 2:  # two operands are rounded only once
        return x[0] if len(x) == 1 else xp.add(*x)
    total = x[0].astype(working_dtype(x[0]), copy=False)
    for each in x[1:]:
        total = xp.add(total, each.astype(total.dtype, copy=False))
    return total.astype(x[0].dtype, copy=False)


def _sum_of_lists(xp, lists):
    # A loop may add an array of one element to a long one in each trip. So elements that only one of the lists has are
    # passed on without a step of the interpreter for each.
    total = [*lists[0], *[None] * (max(map(len, lists)) - len(lists[0]))]
    shared = defaultdict[int, list[Any]](list)
    for each in lists[1:]:
        for i in compress(count(), map(is_not, each, repeat(None))):
            if total[i] is None:
                total[i] = each[i]
            else:
                shared[i].append(each[i])
    for i, elements in shared.items():
        total[i] = sum_.body(xp, total[i], *elements)
    return total


@sum_.infer
def sum_infer(*x):
    if not x:
        raise ProgramError("sum needs at least one input", "bad_slot")
    if isinstance(x[0], StackType):
        out: Type = x[0]
        for each in x[1:]:
            out = joined_type(out, each, "type_mismatch", "sum needs stacks of one type")
        return out
    if any(isinstance(each, StackType) for each in x):
        raise ProgramError("sum cannot add arrays to stacks", "type_mismatch")
    if x[0].dtype == "bool":
        raise ProgramError("sum needs numbers, not bool", "dtype_mismatch")
    return broadcast(*dict.fromkeys(x))


sum_.vjp(lambda ct, out, *x: (ct,) * len(x))
sum_.example(
    lambda: [
        Example((X, X, X), (3 * X,)),
        Example((X, X[0]), (X + X[0],)),
        Example((X[:0], X[:1], X[0, 0]), (X[:0],)),
    ]
)


@op(no_gradient="its result is bool")
def diagonal_mask_like(xp, x):
    """True on the diagonal of the last two axes, false elsewhere. x gives only its shape."""
    mask = xp.eye(x.shape[-2], x.shape[-1], dtype=bool)
    return xp.broadcast_to(mask, x.shape)


@diagonal_mask_like.infer
def diagonal_mask_like_infer(x):
    if x.rank < 2:
        raise ProgramError(f"diagonal_mask_like needs at least two axes, not {x}", "shape_mismatch")
    return TensorType(x.shape, "bool")


diagonal_mask_like.example(lambda: [Example((np.zeros((2, 3)),), (np.eye(2, 3, dtype=bool),))])
