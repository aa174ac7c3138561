"""Reductions over axes, and the sums that undo broadcasting.

`axes` lists the axes to reduce (negative ones count from the end; null means all); with `keepdims` they stay as 1.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import Literal

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import StackType, TensorType, Type
from core.ops.logic import kept_where
from core.ops.types import axes_of, axis_of, broadcast, joined_type, product, working_dtype
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
CUBE = np.sin(np.arange(12.0) * 7 + 1).reshape(2, 3, 2)


def _reduced(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    gone = axes_of(axes, x.rank)
    if keepdims:
        return TensorType(tuple(1 if i in gone else n for i, n in enumerate(x.shape)), x.dtype)
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in gone), x.dtype)


def _reduced_number(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    if x.dtype == "bool":
        raise ProgramError(f"needs numbers, not {x}", "dtype_mismatch")
    return _reduced(x, axes=axes, keepdims=keepdims)


def _not_empty(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool) -> TensorType:
    if any(x.shape[i] == 0 for i in axes_of(axes, x.rank)):
        raise ProgramError(f"cannot reduce {x} over an axis of size 0", "shape_mismatch")
    return _reduced_number(x, axes=axes, keepdims=keepdims)


def restored(value, x, *, axes, keepdims):
    """A symbol for a reduced value with the reduced axes back as 1, so that it broadcasts against x."""
    if keepdims or value.rank == x.rank:
        return value
    return lookup("unsqueeze")(value, axes=axes_of(axes, x.rank))


@op
def reduce_sum(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """``x[0] + x[1] + ...``, the sum over `axes`. 16-bit floats are added in float32."""
    return xp.sum(x, axis=axes, keepdims=keepdims, dtype=working_dtype(x)).astype(x.dtype, copy=False)


reduce_sum.infer(_reduced_number)


@reduce_sum.vjp
def reduce_sum_vjp(ct, out, x, *, axes, keepdims):
    return expand_to(restored(ct, x, axes=axes, keepdims=keepdims), x)


def expand_to(value, like):
    """`value` broadcast to the shape of `like`, by a constant shape where it is known."""
    if like.type.is_static:
        return lookup("expand")(value, shape=like.shape)
    return lookup("expand_as")(value, like)


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
    """``sum(x) / n``, the mean over `axes`; 0 where there is nothing to average. 16-bit floats are added in float32."""
    count = product(x.shape[i] for i in axes_of(axes, x.ndim))
    total = xp.sum(x, axis=axes, keepdims=keepdims, dtype=working_dtype(x))
    return xp.divide(total, total.dtype.type(max(count, 1))).astype(x.dtype, copy=False)


@reduce_mean.infer
def reduce_mean_infer(x, *, axes, keepdims):
    if not x.is_float:
        raise ProgramError(f"needs a floating-point input, not {x}", "dtype_mismatch")
    return _reduced(x, axes=axes, keepdims=keepdims)


@reduce_mean.vjp
def reduce_mean_vjp(ct, out, x, *, axes, keepdims):
    count = product(x.shape[i] for i in axes_of(axes, x.rank))
    if count >= 0:
        return expand_to(restored(ct, x, axes=axes, keepdims=keepdims) / max(count, 1), x)
    return expand_to(restored(ct, x, axes=axes, keepdims=keepdims) * lookup("inverse_count")(x, axes=axes), x)


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
    """``1 / (n - ddof)``, a 0-d array, for the n elements of x over `axes`; inf where n is no more than `ddof`."""
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
    """``sum(x) / n``, the mean of all elements, a 0-d array."""
    return lookup("reduce_mean")(x)


mean.example(lambda: [Example((X,), (X.mean(),)), Example((CUBE,), (CUBE.mean(),)), Example((X[:0],), (0.0,))])


Tie = Literal["even", "first", "all"]


def _extreme(x: TensorType, *, axes: tuple[int, ...] | None, keepdims: bool, tie: str) -> TensorType:
    return _not_empty(x, axes=axes, keepdims=keepdims)


def _extreme_vjp(ct, out, x, *, axes, keepdims, tie):
    back = {"axes": axes, "keepdims": keepdims}
    # NaN is equal to nothing, but it is what came out
    hit = lookup("logical_or")(lookup("equal")(x, restored(out, x, **back)), lookup("isnan")(x))
    ct = restored(ct, x, **back)
    if tie == "first":
        hit = lookup("first_true")(hit, axes=axes)
    if tie == "even":
        ct = ct / lookup("reduce_sum")(lookup("cast")(hit, dtype=x.dtype), axes=axes, keepdims=True)
    return kept_where(hit, ct)


@op
def reduce_max(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False, tie: Tie = "even"):
    """``max(x[0], x[1], ...)``, the largest element over `axes`.

    tie: where several are largest, they share the gradient evenly, or the first of them in row-major order gets it, or
    each gets all of it (which then adds up to more than there is).
    """
    return xp.max(x, axis=axes, keepdims=keepdims)


reduce_max.infer(_extreme)
reduce_max.vjp(_extreme_vjp)


@op
def reduce_min(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False, tie: Tie = "even"):
    """``min(x[0], x[1], ...)``, the smallest element over `axes`. `tie` as with `reduce_max`."""
    return xp.min(x, axis=axes, keepdims=keepdims)


reduce_min.infer(_extreme)
reduce_min.vjp(_extreme_vjp)


def _extreme_examples(f):
    return [
        Example((X,), (f(X),)),
        Example((X,), (f(X, 1),), {"axes": (1,), "tie": "first"}),
        Example((CUBE,), (f(CUBE, (0, 2), keepdims=True),), {"axes": (0, -1), "keepdims": True, "tie": "first"}),
        Example((CUBE,), (f(CUBE, 1),), {"axes": (1,), "tie": "all"}),
        Example((CUBE[:0],), (CUBE[:0, 0],), {"axes": (1,)}),
    ]


reduce_max.example(lambda: _extreme_examples(np.max))
reduce_min.example(lambda: _extreme_examples(np.min))


@op(no_gradient="its result is bool")
def first_true(xp, x, *, axes: tuple[int, ...] | None = None):
    """True for the first true element of x over `axes`, in row-major order, and false for all others."""
    gone = axes_of(axes, x.ndim)
    order = (*(i for i in range(x.ndim) if i not in gone), *gone)
    turned = xp.transpose(x, order)
    flat = turned.reshape(*(turned.shape[i] for i in range(x.ndim - len(gone))), math.prod(x.shape[i] for i in gone))
    if not flat.size:
        return x
    out = (xp.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]) & flat
    return xp.transpose(out.reshape(turned.shape), tuple(order.index(i) for i in range(x.ndim)))


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
    """``x[out] = max(x)``: the position of the largest element along `axis`, as int64; of several, the first."""
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
    """``x[0] + x[1] + ...``: a list of arrays of one dtype, added in the order given. Shapes broadcast. 16-bit floats
    are added in float32.

    Stacks and tensor arrays are added element by element; an element that is missing in one of them counts as zero.
    """
    if isinstance(x[0], list):
        present = ([e for e in each if e is not None] for each in zip_longest(*x))
        return [sum_.body(xp, *each) if each else None for each in present]
    if len(x) <= 2:  # rounded once as it is
        return x[0] if len(x) == 1 else xp.add(*x)
    total = x[0].astype(working_dtype(x[0]), copy=False)
    for each in x[1:]:
        total = xp.add(total, each.astype(total.dtype, copy=False))
    return total.astype(x[0].dtype, copy=False)


@sum_.infer
def sum_infer(*x):
    if not x:
        raise ProgramError("sum needs at least one input", "bad_slot")
    if isinstance(x[0], StackType):
        out: Type = x[0]
        for each in x[1:]:
            out = joined_type(out, each, "type_mismatch", "sum adds stacks of one kind")
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


@op
def sum_to(xp, x, *, shape: tuple[int, ...]):
    """x summed over the axes along which an array of `shape` would be broadcast to it."""
    return _sum_to(xp, x, shape)


def _sum_to(xp, x, shape):
    extra = x.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(i for i, n in enumerate(shape, start=extra) if n == 1 and x.shape[i] != 1)
    if axes:
        x = xp.sum(x, axis=axes, keepdims=True, dtype=working_dtype(x)).astype(x.dtype, copy=False)
    if x.shape[extra:] != tuple(shape):
        raise ExecutionError(f"an array of {list(shape)} is not broadcast to {list(x.shape)}", "shape_mismatch")
    return x.reshape(shape) if extra else x


@sum_to.infer
def sum_to_infer(x, *, shape):
    if broadcast(TensorType(shape, x.dtype), x).rank != x.rank:
        raise ProgramError(f"{x} has fewer axes than {list(shape)}", "shape_mismatch")
    return TensorType(shape, x.dtype)


sum_to.vjp(lambda ct, out, x, *, shape: expand_to(ct, x))
sum_to.example(
    lambda: [
        Example((X,), (X.sum(1, keepdims=True),), {"shape": (2, 1)}),
        Example((CUBE,), (CUBE.sum((0, 2))[:, None],), {"shape": (3, 1)}),
        Example((X[:0],), (np.zeros(3),), {"shape": (3,)}),
    ]
)


@op
def sum_to_like(xp, x, like):
    """x summed over the axes along which `like` would be broadcast to it, the transpose of `expand_as`; `like` gives
    only its shape.
    """
    return _sum_to(xp, x, like.shape)


@sum_to_like.infer
def sum_to_like_infer(x, like):
    broadcast(TensorType(like.shape, x.dtype), x)
    return TensorType(like.shape, x.dtype)


sum_to_like.vjp(lambda ct, out, x, like: (expand_to(ct, x), None))
sum_to_like.example(
    lambda: [
        Example((X, X[:1]), (X.sum(0, keepdims=True),)),
        Example((CUBE, CUBE[0, :, :1]), (CUBE.sum((0, 2))[:, None],)),
        Example((X[:0], X[0]), (np.zeros(3),)),
    ]
)


@op
def reduce_prod(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """``x[0] * x[1] * ...``, the product over `axes`. Its gradient multiplies the other elements and never divides:
    zeros are no exception.
    """
    return xp.prod(x, axis=axes, keepdims=keepdims, dtype=working_dtype(x)).astype(x.dtype, copy=False)


reduce_prod.infer(_reduced_number)


@reduce_prod.vjp
def reduce_prod_vjp(ct, out, x, *, axes, keepdims):
    return lookup("product_of_others")(x, axes=axes) * restored(ct, x, axes=axes, keepdims=keepdims)


reduce_prod.example(
    lambda: [
        Example((X,), (X.prod(),)),
        Example((X,), (X.prod(1, keepdims=True),), {"axes": (1,), "keepdims": True}),
        Example((X,), (X.prod(0),), {"axes": (0,)}),
        Example((CUBE,), (CUBE.prod((0, 2)),), {"axes": (0, 2)}),
        Example((np.array([[0.0, 2.0], [3.0, 0.0]]),), (np.zeros(2),), {"axes": (1,)}),
        Example((X[:0],), (np.ones(3),), {"axes": (0,)}),
    ]
)


@composite
def product_of_others(x, *, axes: tuple[int, ...] | None = None):
    """For each element over `axes` the product of all others, ``prod(x) / x[i]`` without a division."""
    # along an axis: what stands before, times what stands behind; from one axis to the next: products of whole lines
    gone = axes_of(axes, x.rank)
    out, lines = None, x
    for axis in gone:
        before = lookup("cumprod")(lines, axis=axis, exclusive=True)
        after = lookup("cumprod")(lines, axis=axis, exclusive=True, reverse=True)
        out = before * after if out is None else out * (before * after)
        if axis != gone[-1]:
            lines = lookup("reduce_prod")(lines, axes=(axis,), keepdims=True)
    return lookup("full_like")(x, value=1.0) if out is None else out


product_of_others.example(
    lambda: [
        Example((np.array([0.0, 2.0, 3.0]),), (np.array([6.0, 0.0, 0.0]),)),
        Example((X,), (X.prod(1, keepdims=True) / X,), {"axes": (1,)}),
        Example((X,), (X.prod() / X,)),
        Example((CUBE,), (CUBE.prod((0, 2), keepdims=True) / CUBE,), {"axes": (0, 2)}),
        Example((X[:0],), (X[:0],), {"axes": (0,)}),
        Example((X,), (np.ones((2, 3)),), {"axes": ()}),
    ]
)


@op(no_gradient="its result is bool")
def diagonal_mask_like(xp, x):
    """True on the diagonal of the last two axes; x gives only its shape."""
    mask = xp.eye(x.shape[-2], x.shape[-1], dtype=bool)
    return xp.broadcast_to(mask, x.shape)


@diagonal_mask_like.infer
def diagonal_mask_like_infer(x):
    if x.rank < 2:
        raise ProgramError(f"a diagonal needs two axes, not {x}", "shape_mismatch")
    return TensorType(x.shape, "bool")


diagonal_mask_like.example(lambda: [Example((np.zeros((2, 3)),), (np.eye(2, 3, dtype=bool),))])
