"""Ops that change the shape of an array and keep its elements."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import axes_of, axis_of, product

__all__ = ["divided", "merged", "rearranged"]

X = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(8.0).reshape(2, 2, 2) - 3
EMPTY = X[:0]


@op
def reshape(xp, x, *, shape: tuple[OpenSize, ...]):
    """x with another shape; the elements keep their row-major order. One size may be -1 and is computed from the
    others.
    """
    return x.reshape(shape)


@reshape.infer
def reshape_infer(x, *, shape):
    if shape.count(-1) > 1:
        raise ProgramError(f"at most one size of {list(shape)} may be -1", "bad_attr")
    total, rest = product(x.shape), product(n for n in shape if n != -1)
    if total == -1:
        return TensorType(shape, x.dtype)
    if -1 in shape:
        if rest == 0 or total % rest:
            raise ProgramError(f"cannot reshape {x} to {list(shape)}", "shape_mismatch")
        return TensorType(tuple(total // rest if n == -1 else n for n in shape), x.dtype)
    if rest != total:
        raise ProgramError(f"cannot reshape {x} to {list(shape)}: {total} elements, not {rest}", "shape_mismatch")
    return TensorType(shape, x.dtype)


def reshape_to(value, like):
    """`value` reshaped to the shape of `like`, through a constant shape if the shape is static."""
    if like.type.is_static:
        return reshape(value, shape=like.shape)
    return reshape_as(value, like)


reshape.vjp(lambda ct, out, x, *, shape: reshape_to(ct, x))
reshape.example(
    lambda: [
        Example((X,), (X.reshape(3, 2),), {"shape": (3, 2)}),
        Example((X,), (X.reshape(-1),), {"shape": (-1,)}),
        Example((X[0, 0],), (np.array([[0.0]]),), {"shape": (1, 1)}),
        Example((EMPTY,), (np.zeros((4, 0)),), {"shape": (4, 0)}),
    ]
)


@op
def reshape_as(xp, x, like):
    """x reshaped to the shape of `like`, which gives only its shape."""
    return x.reshape(like.shape)


@reshape_as.infer
def reshape_as_infer(x, like):
    m, n = product(x.shape), product(like.shape)
    if m != n and -1 not in (m, n):
        raise ProgramError(f"cannot reshape {x} to {list(like.shape)}: {m} elements, not {n}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


reshape_as.vjp(lambda ct, out, x, like: (reshape_to(ct, x), None))
reshape_as.example(
    lambda: [
        Example((X, np.zeros((3, 2))), (X.reshape(3, 2),)),
        Example((X[0, 0], np.zeros((1, 1))), (np.array([[0.0]]),)),
        Example((EMPTY, np.zeros((4, 0))), (np.zeros((4, 0)),)),
    ]
)


@op
def merge_axes(xp, x, *, start: int, end: int):
    """x with its axes from `start` to ``end - 1`` merged into one, in row-major order. Any sizes may be open."""
    return x.reshape((*x.shape[:start], math.prod(x.shape[start:end]), *x.shape[end:]))


@merge_axes.infer
def merge_axes_infer(x, *, start, end):
    if not 0 <= start < end <= x.rank:
        raise ProgramError(f"{x} has no axes from {start} to {end} - 1", "bad_attr")
    return TensorType((*x.shape[:start], product(x.shape[start:end]), *x.shape[end:]), x.dtype)


merge_axes.vjp(lambda ct, out, x, **axes: reshape_to(ct, x))
merge_axes.example(
    lambda: [
        Example((CUBE,), (CUBE.reshape(4, 2),), {"start": 0, "end": 2}),
        Example((X,), (X,), {"start": 1, "end": 2}),
        Example((EMPTY,), (np.zeros(0),), {"start": 0, "end": 2}),
    ]
)


@op
def unflatten(xp, x, *, axis: int, sizes: tuple[OpenSize, ...]):
    """x with `axis` divided into axes of these `sizes`, in row-major order. One size may be -1 and is computed."""
    at = axis % x.ndim
    known = math.prod(n for n in sizes if n != -1)
    if known and -1 in sizes and x.shape[at] % known == 0:
        sizes = tuple(x.shape[at] // known if n == -1 else n for n in sizes)
    if -1 in sizes or math.prod(sizes) != x.shape[at]:
        raise ExecutionError(f"cannot divide an axis of {x.shape[at]} into {list(sizes)}", "shape_mismatch")
    return x.reshape((*x.shape[:at], *sizes, *x.shape[at + 1 :]))


@unflatten.infer
def unflatten_infer(x, *, axis, sizes):
    at = axis_of(axis, x.rank)
    known = math.prod(n for n in sizes if n != -1)
    if not sizes or sizes.count(-1) > 1 or (-1 in sizes and known == 0):
        raise ProgramError(f"one of the sizes {list(sizes)} may be -1, if the others are above 0", "bad_attr")
    n = x.shape[at]
    if n != -1 and (n % known if -1 in sizes else n != known):
        raise ProgramError(f"cannot divide axis {at} of {x} into {list(sizes)}", "shape_mismatch")
    divided = tuple((-1 if n == -1 else n // known) if m == -1 else m for m in sizes)
    return TensorType((*x.shape[:at], *divided, *x.shape[at + 1 :]), x.dtype)


unflatten.vjp(lambda ct, out, x, **attrs: reshape_to(ct, x))
unflatten.example(
    lambda: [
        Example((X,), (X.reshape(2, 3, 1),), {"axis": 1, "sizes": (3, -1)}),
        Example((CUBE.reshape(4, 2),), (CUBE,), {"axis": 0, "sizes": (-1, 2)}),
        Example((CUBE.reshape(2, 4),), (CUBE,), {"axis": -1, "sizes": (2, 2)}),
        Example((EMPTY,), (np.zeros((0, 2, 3)),), {"axis": 0, "sizes": (-1, 2)}),
    ]
)


def merged(x, start: int, end: int):
    """`merge_axes` as a `reshape` where a constant shape says the same. No axes to merge give a new axis of size 1."""
    if start == end:
        return unsqueeze(x, axes=(start,))
    shape = (*x.shape[:start], product(x.shape[start:end]), *x.shape[end:])
    if shape.count(-1) > 1 or (-1 in shape and 0 in shape):
        return merge_axes(x, start=start, end=end)
    return reshape(x, shape=shape)


def divided(x, axis: int, sizes: tuple[int, ...]):
    """`unflatten` as a `reshape` where a constant shape says the same."""
    shape = unflatten_infer(x.type, axis=axis, sizes=sizes).shape
    if shape.count(-1) > 1 or (-1 in shape and 0 in shape):
        return x.builder.emit("unflatten", x, axis=axis, sizes=sizes)
    return reshape(x, shape=shape)


def rearranged(x, parts: tuple[tuple[int, ...], ...], order: tuple[int, ...], groups: tuple[int, ...]):
    """x with axis i divided into the sizes ``parts[i]``, then its axes in `order`, then merged in `groups` of so many.

    One size of each axis may be -1.
    """
    if x.type.is_static:
        sizes: list[int] = []
        for axis, each in enumerate(parts):
            sizes += unflatten_infer(TensorType(x.shape[axis : axis + 1], x.dtype), axis=0, sizes=each).shape
        ordered = [sizes[i] for i in order]
        ends = list(accumulate(groups))
        shape = tuple(math.prod(ordered[end - count : end]) for end, count in zip(ends, groups, strict=True))
        return reshape(transpose(reshape(x, shape=tuple(sizes)), axes=order), shape=shape)
    for axis in reversed(range(x.rank)):
        if len(parts[axis]) > 1:
            x = divided(x, axis, parts[axis])
    x = transpose(x, axes=order)
    for axis, count in enumerate(groups):
        if count > 1:
            x = merged(x, axis, axis + count)
    return x


@op
def unsqueeze(xp, x, *, axes: tuple[int, ...]):
    """x with new axes of size 1. `axes` are their positions in the result."""
    return xp.expand_dims(x, axes)


@unsqueeze.infer
def unsqueeze_infer(x, *, axes):
    new = axes_of(axes, x.rank + len(axes))
    sizes = iter(x.shape)
    return TensorType(tuple(1 if i in new else next(sizes) for i in range(x.rank + len(axes))), x.dtype)


unsqueeze.vjp(lambda ct, out, x, *, axes: squeeze(ct, axes=axes_of(axes, ct.rank)))
unsqueeze.example(
    lambda: [
        Example((X,), (X[:, None],), {"axes": (1,)}),
        Example((X,), (X[None, :, :, None],), {"axes": (0, -1)}),
        Example((X[0, 1],), (np.ones(1),), {"axes": (0,)}),
        Example((EMPTY,), (np.zeros((0, 1, 3)),), {"axes": (1,)}),
    ]
)


@op
def squeeze(xp, x, *, axes: tuple[int, ...] | None = None):
    """x without the given axes, which must have size 1. With null, all axes of size 1 are removed."""
    return xp.squeeze(x, axis=axes)


@squeeze.infer
def squeeze_infer(x, *, axes):
    if axes is None:
        if -1 in x.shape:
            raise ProgramError(f"squeeze needs axes, because {x} has unknown sizes", "bad_attr")
        return TensorType(tuple(n for n in x.shape if n != 1), x.dtype)
    squeezed = axes_of(axes, x.rank)
    if any(x.shape[i] not in (1, -1) for i in squeezed):
        raise ProgramError(f"cannot squeeze axes {list(squeezed)} of {x}: not all have size 1", "shape_mismatch")
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in squeezed), x.dtype)


@squeeze.vjp
def squeeze_vjp(ct, out, x, *, axes):
    squeezed = axes_of(axes, x.rank) if axes is not None else tuple(i for i, n in enumerate(x.shape) if n == 1)
    return unsqueeze(ct, axes=squeezed)


squeeze.example(
    lambda: [
        Example((X[:, None],), (X,), {"axes": (1,)}),
        Example((X[None, :, None],), (X,)),
        Example((X[:1, None],), (X[:1],), {"axes": (-2,)}),
        Example((EMPTY[None],), (EMPTY,), {"axes": (0,)}),
    ]
)


@op
def transpose(xp, x, *, axes: tuple[int, ...] | None = None):
    """x with its axes permuted: axis i of the result is axis ``axes[i]`` of x. With null, the axes are reversed."""
    return xp.transpose(x, axes)


def _permutation(axes: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(reversed(range(rank)))
    order = tuple(axis_of(a, rank) for a in axes)
    if sorted(order) != list(range(rank)):
        raise ProgramError(f"axes {list(axes)} must name each of the {rank} axes once", "bad_attr")
    return order


transpose.infer(lambda x, *, axes: TensorType(tuple(x.shape[i] for i in _permutation(axes, x.rank)), x.dtype))


@transpose.vjp
def transpose_vjp(ct, out, x, *, axes):
    order = _permutation(axes, x.rank)
    return transpose(ct, axes=tuple(order.index(i) for i in range(x.rank)))


transpose.example(
    lambda: [
        Example((X,), (X.T,)),
        Example((X[None],), (X[None].transpose(2, 0, 1),), {"axes": (-1, 0, 1)}),
        Example((X[0, 1],), (X[0, 1],)),
        Example((EMPTY,), (np.zeros((3, 0)),)),
    ]
)


@composite
def flatten(x, *, axis: int = 1):
    """x as a matrix: the axes before `axis` become the rows, the other axes the columns."""
    if not 0 <= axis <= x.rank:
        raise ProgramError(f"axis {axis} is not within 0 to {x.rank}", "bad_attr")
    rows, columns = product(x.shape[:axis]), product(x.shape[axis:])
    if -1 not in (rows, columns):
        return reshape(x, shape=(rows, columns))
    return merged(merged(x, axis, x.rank), 0, axis)


flatten.example(
    lambda: [
        Example((X[None],), (X.reshape(1, 6),)),
        Example((X[None],), (X.reshape(2, 3),), {"axis": 2}),
        Example((X,), (X.reshape(1, 6),), {"axis": 0}),
        Example((EMPTY,), (EMPTY,)),
    ]
)


@composite
def flatten_contiguous_range(x, *, start_axis: int = 1, stop_axis: int = -1):
    """x with the axes from `start_axis` to `stop_axis`, both included, merged into one.

    A 0-d array becomes a vector.
    """
    if x.rank == 0:
        return reshape(x, shape=(1,))
    first, last = axis_of(start_axis, x.rank, "start_axis"), axis_of(stop_axis, x.rank, "stop_axis")
    if first > last:
        raise ProgramError(f"start_axis {start_axis} is after stop_axis {stop_axis} in {x.type}", "bad_attr")
    return merged(x, first, last + 1)


flatten_contiguous_range.example(
    lambda: [
        Example((CUBE,), (CUBE.reshape(2, 4),)),
        Example((CUBE,), (CUBE.reshape(4, 2),), {"start_axis": 0, "stop_axis": 1}),
        Example((X[0, 1],), (np.ones(1),), {"start_axis": 0}),
        Example((EMPTY,), (np.zeros(0),), {"start_axis": 0}),
    ]
)
