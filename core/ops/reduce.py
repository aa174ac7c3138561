"""Reductions over axes, and the sums that undo broadcasting.

`axes` lists the axes to reduce (negative ones count from the end; null means all); with `keepdims` they stay as 1.
"""

from __future__ import annotations

from itertools import zip_longest

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


@op(elementwise=True, stacks=True)
def sum_(xp, *x):
    """The sum of a list of arrays of one dtype, added in the order given. Shapes broadcast.

    Stacks and tensor arrays are added element by element; an element that is missing in one of them counts as zero.
    """
    if isinstance(x[0], list):
        present = ([e for e in each if e is not None] for each in zip_longest(*x))
        return [sum_.body(xp, *each) if each else None for each in present]
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


@op
def reduce_prod(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """The product over `axes`. Its gradient multiplies the other elements and never divides: zeros are no exception."""
    return xp.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype)


reduce_prod.infer(_reduced_number)


@reduce_prod.vjp
def reduce_prod_vjp(ct, out, x, *, axes, keepdims):
    return lookup("product_of_others")(x, axes=axes) * restored(ct, x, axes=axes, keepdims=keepdims)


reduce_prod.example(
    lambda: [
        Example((X,), (X.prod(),)),
        Example((X,), (X.prod(1, keepdims=True),), {"axes": (1,), "keepdims": True}),
        Example((X,), (X.prod(0),), {"axes": (0,)}),
    ]
)


@op
def product_of_others(xp, x, *, axes: tuple[int, ...] | None = None):
    """For each element the product of all *other* elements over `axes`, without a division."""
    gone = axes_of(axes, x.ndim)
    rest = tuple(i for i in range(x.ndim) if i not in gone)
    order = rest + gone
    turned = xp.transpose(x, order)
    flat = turned.reshape((*turned.shape[: len(rest)], -1)) if turned.size else turned
    if not turned.size:
        return x
    one = xp.ones((*flat.shape[:-1], 1), x.dtype)
    before = xp.cumprod(xp.concatenate([one, flat[..., :-1]], -1), axis=-1, dtype=x.dtype)
    after = xp.cumprod(xp.concatenate([one, flat[..., :0:-1]], -1), axis=-1, dtype=x.dtype)[..., ::-1]
    out = (before * after).reshape(turned.shape)
    return xp.transpose(out, tuple(order.index(i) for i in range(x.ndim)))


product_of_others.infer(lambda x, *, axes: (axes_of(axes, x.rank), x)[1])


@product_of_others.vjp
def product_of_others_vjp(ct, out, x, *, axes):
    # with the reduced axes in one: d out_i / d x_j is the product of all but i and j
    gone = axes_of(axes, x.rank)
    rest = tuple(i for i in range(x.rank) if i not in gone)
    order = rest + gone
    flat, seed = (_as_rows(v, order, len(rest)) for v in (x, ct))
    row = lookup("unsqueeze")(flat, axes=(-2,))
    ones = lookup("full_like")(lookup("unsqueeze")(flat, axes=(-1,)), value=1.0)
    square_ = row * ones  # [..., i, j] = x_j
    same = lookup("diagonal_mask_like")(square_)
    without_i = lookup("where")(same, lookup("full_like")(square_, value=1.0), square_)
    pairs = lookup("product_of_others")(without_i, axes=(-1,))
    pairs = lookup("where")(same, lookup("fill_zeros_like")(pairs), pairs)
    each = lookup("reduce_sum")(lookup("unsqueeze")(seed, axes=(-1,)) * pairs, axes=(-2,))
    turned = lookup("transpose")(x, axes=order)
    from core.ops.shape import reshape_to

    return lookup("transpose")(reshape_to(each, turned), axes=tuple(order.index(i) for i in range(x.rank)))


def _as_rows(value, order, batch):
    """`value` with its axes in `order` and all but the first `batch` of them made one."""
    turned = lookup("transpose")(value, axes=order)
    shape = turned.shape
    if -1 in shape[:batch] and (-1 in shape[batch:] or shape[:batch].count(-1) > 1):
        raise ProgramError(f"the second gradient of reduce_prod needs the sizes of {value.type}", "shape_mismatch")
    last = product(shape[batch:]) if -1 in shape[:batch] else -1
    if last == -1 and 0 in shape[:batch]:
        last = max(product(shape[batch:]), 0)
    return lookup("reshape")(turned, shape=(*shape[:batch], last))


product_of_others.example(
    lambda: [
        Example((np.array([0.0, 2.0, 3.0]),), (np.array([6.0, 0.0, 0.0]),)),
        Example((X,), (X.prod(1, keepdims=True) / X,), {"axes": (1,)}),
        Example((X,), (X.prod() / X,)),
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
