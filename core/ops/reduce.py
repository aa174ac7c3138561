"""Reductions over axes, and the sums that undo broadcasting.

`axes` lists the axes to reduce (negative ones count from the end; null means all); with `keepdims` they stay as 1.
"""

from __future__ import annotations

import numpy as np

from core.errors import ProgramError
from core.ir import StackType, TensorType, Type
from core.ops.types import axes_of, axis_of, broadcast, joined_type, product
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])


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
    """The sum over `axes`."""
    return xp.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


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
    ]
)


@op
def reduce_mean(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """The mean over `axes`; 0 where there is nothing to average."""
    count = product(x.shape[i] for i in axes_of(axes, x.ndim))
    return xp.divide(xp.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype), x.dtype.type(max(count, 1)))


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
    share = lookup("reduce_mean")(lookup("full_like")(x, value=1.0), axes=axes, keepdims=True)
    each = lookup("reduce_sum")(lookup("full_like")(x, value=1.0), axes=axes, keepdims=True)
    return expand_to(restored(ct, x, axes=axes, keepdims=keepdims) * share / each, x)


reduce_mean.example(
    lambda: [Example((X,), (X.mean(),)), Example((X,), (X.mean(0, keepdims=True),), {"axes": (0,), "keepdims": True})]
)


@composite
def mean(x):
    """The mean of all elements, a 0-d array."""
    return lookup("reduce_mean")(x)


mean.example(lambda: [Example((X,), (X.mean(),))])


def _extreme_vjp(ct, out, x, *, axes, keepdims):
    """Elements equal to the extreme share its cotangent evenly."""
    back = {"axes": axes, "keepdims": keepdims}
    hit = lookup("cast")(lookup("equal")(x, restored(out, x, **back)), dtype=x.dtype)
    count = lookup("reduce_sum")(hit, axes=axes, keepdims=True)
    return hit * (restored(ct, x, **back) / count)


@op
def reduce_max(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """The largest element over `axes`. Where several are largest, the gradient is split evenly."""
    return xp.max(x, axis=axes, keepdims=keepdims)


reduce_max.infer(_not_empty)
reduce_max.vjp(_extreme_vjp)
reduce_max.example(lambda: [Example((X,), (X.max(),)), Example((X,), (X.max(1),), {"axes": (1,)})])


@op
def reduce_min(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """The smallest element over `axes`. Where several are smallest, the gradient is split evenly."""
    return xp.min(x, axis=axes, keepdims=keepdims)


reduce_min.infer(_not_empty)
reduce_min.vjp(_extreme_vjp)
reduce_min.example(lambda: [Example((X,), (X.min(),)), Example((X,), (X.min(1),), {"axes": (1,)})])


@op
def argmax(xp, x, *, axis: int = -1, keepdims: bool = False):
    """The position of the largest element along `axis`, as int64; of several, the first."""
    return xp.argmax(x, axis=axis, keepdims=keepdims).astype("int64")


argmax.no_gradient = "its result is an integer"


@argmax.infer
def argmax_infer(x, *, axis, keepdims):
    at = axis_of(axis, x.rank)
    return TensorType(_not_empty(x, axes=(at,), keepdims=keepdims).shape, "int64")


argmax.example(lambda: [Example((X,), (X.argmax(-1),)), Example((X,), (X.argmax(0),), {"axis": 0})])


# --- sums ------------------------------------------------------------------------------------------------------


@op(elementwise=True)
def sum_(xp, *x):
    """The sum of a list of arrays of one dtype, added in the order given. Shapes broadcast.

    What loops recorded is added element by element.
    """
    if isinstance(x[0], list):
        return [sum_.body(xp, *each) for each in zip(*x, strict=True)]
    total = x[0]
    for each in x[1:]:
        total = xp.add(total, each)
    return total


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
sum_.example(lambda: [Example((X, X, X), (3 * X,)), Example((X, X[0]), (X + X[0],))])


@op
def sum_to(xp, x, *, shape: tuple[int, ...]):
    """x summed over the axes along which an array of `shape` would be broadcast to it."""
    return _sum_to(xp, x, shape)


def _sum_to(xp, x, shape):
    extra = x.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(i for i, n in enumerate(shape, start=extra) if n == 1 and x.shape[i] != 1)
    return xp.sum(x, axis=axes, dtype=x.dtype).reshape(shape) if axes else x


@sum_to.infer
def sum_to_infer(x, *, shape):
    if broadcast(TensorType(shape, x.dtype), x).rank != x.rank:
        raise ProgramError(f"{x} has fewer axes than {list(shape)}", "shape_mismatch")
    return TensorType(shape, x.dtype)


sum_to.vjp(lambda ct, out, x, *, shape: expand_to(ct, x))
sum_to.example(lambda: [Example((X,), (X.sum(1, keepdims=True),), {"shape": (2, 1)})])


@op
def sum_to_like(xp, x, like):
    """x summed over the axes along which `like` would be broadcast to it; `like` gives only its shape."""
    return _sum_to(xp, x, like.shape)


@sum_to_like.infer
def sum_to_like_infer(x, like):
    broadcast(TensorType(like.shape, x.dtype), x)
    return TensorType(like.shape, x.dtype)


sum_to_like.vjp(lambda ct, out, x, like: (expand_to(ct, x), None))
sum_to_like.example(lambda: [Example((X, X[:1]), (X.sum(0, keepdims=True),))])
