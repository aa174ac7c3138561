"""Ops that rearrange elements: reshapes, expansion, and axes that come and go."""

from __future__ import annotations

from typing import Literal

import numpy as np

from core.errors import ProgramError
from core.ir import TensorType
from core.ops.creation import check_fits
from core.ops.types import axes_of, axis_of, broadcast_shapes, product, same_dtype, same_size
from core.registry import Example, as_tuple, composite, lookup, op

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(8.0).reshape(2, 2, 2) - 3
EMPTY = X[:0]

MOST_PIECES = 2**16
"""An array is cut into so many at most: each piece is a variable, however small it is."""


@op
def reshape(xp, x, *, shape: tuple[int, ...]):
    """The same elements in row-major order under another shape. One size may be -1: it follows from the others."""
    return x.reshape(shape)


@reshape.infer
def reshape_infer(x, *, shape):
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise ProgramError(f"at most one size of {list(shape)} may be -1, and none below", "bad_attr")
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
    """`value` under the shape of `like`, by a constant shape where it is known."""
    if like.type.is_static:
        return lookup("reshape")(value, shape=like.shape)
    return lookup("reshape_as")(value, like)


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
    """The elements of x under the shape of `like`, which gives only its shape."""
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
def expand(xp, x, *, shape: tuple[int, ...]):
    """x broadcast to `shape`; a size of -1 stays what it is in x."""
    return xp.broadcast_to(x, _stretched(x.shape, shape))


def _stretched(sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with the size in `sizes` for each -1."""
    return tuple(sizes[i] if shape[i] == -1 else shape[i] for i in range(-len(shape), 0))


@expand.infer
def expand_infer(x, *, shape):
    if len(shape) < x.rank:
        raise ProgramError(f"cannot expand {x} to {list(shape)}: it has more axes", "shape_mismatch")
    if any(n < -1 for n in shape) or -1 in shape[: len(shape) - x.rank]:
        raise ProgramError(f"expand needs sizes, or -1 for an axis that {x} has, not {list(shape)}", "bad_attr")
    out = _stretched(x.shape, shape)
    if any(n not in (-1, 1, m) for n, m in zip(x.shape[::-1], out[::-1], strict=False)):
        raise ProgramError(f"cannot expand {x} to {list(shape)}", "shape_mismatch")
    return TensorType(out, x.dtype)


def _expand_vjp(ct, x):
    if x.type.is_static and ct.type.is_static:
        return lookup("sum_to")(ct, shape=x.shape)
    return lookup("sum_to_like")(ct, x)


expand.vjp(lambda ct, out, x, *, shape: _expand_vjp(ct, x))
expand.example(
    lambda: [
        Example((X[:1],), (np.broadcast_to(X[:1], (4, 3)),), {"shape": (4, 3)}),
        Example((X[:, :1],), (np.array([[0.0, 0], [3, 3]]) + np.zeros((2, 2, 2)),), {"shape": (2, -1, 2)}),
        Example((X[0, 1],), (np.ones(3),), {"shape": (3,)}),
        Example((X[:1],), (EMPTY,), {"shape": (0, 3)}),
        Example((EMPTY,), (np.zeros((2, 0, 3)),), {"shape": (2, -1, 3)}),
    ]
)


@op
def expand_as(xp, x, like):
    """x broadcast to the shape of `like`, which gives only its shape."""
    return xp.broadcast_to(x, like.shape)


@expand_as.infer
def expand_as_infer(x, like):
    out = broadcast_shapes(x.shape, like.shape)
    if len(out) != like.rank:
        raise ProgramError(f"cannot expand {x} to {like}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


expand_as.vjp(lambda ct, out, x, like: (_expand_vjp(ct, x), None))
expand_as.example(
    lambda: [
        Example((X[:1], np.zeros((4, 3))), (np.broadcast_to(X[:1], (4, 3)),)),
        Example((X[0, 1], np.zeros((1, 3))), (np.ones((1, 3)),)),
        Example((X[:1], EMPTY), (EMPTY,)),
    ]
)


@op
def unsqueeze(xp, x, *, axes: tuple[int, ...]):
    """x with new axes of size 1, at the places they have in the result."""
    return xp.expand_dims(x, axes)


@unsqueeze.infer
def unsqueeze_infer(x, *, axes):
    new = axes_of(axes, x.rank + len(axes))
    sizes = iter(x.shape)
    return TensorType(tuple(1 if i in new else next(sizes) for i in range(x.rank + len(axes))), x.dtype)


unsqueeze.vjp(lambda ct, out, x, *, axes: lookup("squeeze")(ct, axes=axes_of(axes, ct.rank)))
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
    """x without the given axes, which must have size 1; null drops every axis of size 1."""
    return xp.squeeze(x, axis=axes)


@squeeze.infer
def squeeze_infer(x, *, axes):
    if axes is None:
        if -1 in x.shape:
            raise ProgramError(f"squeeze must name its axes: not all sizes of {x} are known", "bad_attr")
        return TensorType(tuple(n for n in x.shape if n != 1), x.dtype)
    gone = axes_of(axes, x.rank)
    if any(x.shape[i] not in (1, -1) for i in gone):
        raise ProgramError(f"cannot squeeze axes {list(gone)} of {x}: their size is not 1", "shape_mismatch")
    return TensorType(tuple(n for i, n in enumerate(x.shape) if i not in gone), x.dtype)


@squeeze.vjp
def squeeze_vjp(ct, out, x, *, axes):
    gone = axes_of(axes, x.rank) if axes is not None else tuple(i for i, n in enumerate(x.shape) if n == 1)
    return lookup("unsqueeze")(ct, axes=gone)


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
    """The axes of x in another order: axis i of the result is ``axes[i]`` of x. Null reverses them."""
    return xp.transpose(x, axes)


def _permutation(axes: tuple[int, ...] | None, rank: int) -> tuple[int, ...]:
    if axes is None:
        return tuple(reversed(range(rank)))
    order = tuple(axis_of(a, rank) for a in axes)
    if sorted(order) != list(range(rank)):
        raise ProgramError(f"{list(axes)} does not name each of {rank} axes once", "bad_attr")
    return order


transpose.infer(lambda x, *, axes: TensorType(tuple(x.shape[i] for i in _permutation(axes, x.rank)), x.dtype))


@transpose.vjp
def transpose_vjp(ct, out, x, *, axes):
    order = _permutation(axes, x.rank)
    return lookup("transpose")(ct, axes=tuple(order.index(i) for i in range(x.rank)))


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
    """x as a matrix: the axes before `axis` become its rows, the others its columns."""
    if not 0 <= axis <= x.rank:
        raise ProgramError(f"axis {axis} is not within 0 to {x.rank}", "bad_attr")
    rows, columns = product(x.shape[:axis]), product(x.shape[axis:])
    if rows == columns == -1:
        raise ProgramError(f"cannot flatten {x.type}: sizes on both sides of axis {axis} are unknown", "shape_mismatch")
    return lookup("reshape")(x, shape=(rows, columns))


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
    """x with the axes from `start_axis` to `stop_axis`, both included, made one. A 0-d array becomes a vector."""
    if x.rank == 0:
        return lookup("reshape")(x, shape=(1,))
    first, last = axis_of(start_axis, x.rank, "start_axis"), axis_of(stop_axis, x.rank, "stop_axis")
    if first > last:
        raise ProgramError(f"start_axis {start_axis} lies behind stop_axis {stop_axis} in {x.type}", "bad_attr")
    size = product(x.shape[first : last + 1])
    shape = (*x.shape[:first], size, *x.shape[last + 1 :])
    if shape.count(-1) > 1:
        raise ProgramError(f"cannot flatten {x.type}: too few of its sizes are known", "shape_mismatch")
    return lookup("reshape")(x, shape=shape)


flatten_contiguous_range.example(
    lambda: [
        Example((CUBE,), (CUBE.reshape(2, 4),)),
        Example((CUBE,), (CUBE.reshape(4, 2),), {"start_axis": 0, "stop_axis": 1}),
        Example((X[0, 1],), (np.ones(1),), {"start_axis": 0}),
        Example((EMPTY,), (np.zeros(0),), {"start_axis": 0}),
    ]
)


@op
def concat(xp, *x, axis: int = 0):
    """The arrays one behind another along `axis`; all other sizes must be equal. Empty pieces are legal."""
    return xp.concatenate(x, axis=axis)


@concat.infer
def concat_infer(*x, axis):
    if not x:
        raise ProgramError("concat needs at least one input", "bad_slot")
    dtype, rank = same_dtype(*x), x[0].rank
    at = axis_of(axis, rank)
    shape = list(x[0].shape)
    for each in x[1:]:
        if each.rank != rank:
            raise ProgramError(f"ranks differ: {x[0]} and {each}", "shape_mismatch")
        for i, n in enumerate(each.shape):
            if i != at:
                shape[i] = same_size(shape[i], n, f"axis {i} of {x[0]} and {each} differs")
    sizes = [each.shape[at] for each in x]
    shape[at] = -1 if -1 in sizes else sum(sizes)
    return TensorType(tuple(shape), dtype)


@concat.vjp
def concat_vjp(ct, out, *x, axis):
    at = axis % ct.rank
    if all(each.shape[at] >= 0 for each in x):
        sizes = tuple(each.shape[at] for each in x)
        return as_tuple(lookup("split")(ct, sections=sizes, axis=at))
    return as_tuple(lookup("split_like")(ct, *x, axis=at))


concat.example(
    lambda: [
        Example((X, 2 * X), (np.concatenate([X, 2 * X]),)),
        Example((X, X[:, :1], X[:, :0]), (np.concatenate([X, X[:, :1]], 1),), {"axis": -1}),
        Example((X[0], X[1, :1]), (np.array([0.0, 1, 2, 3]),)),
        Example((EMPTY, EMPTY), (np.zeros((0, 6)),), {"axis": 1}),
    ]
)


@op(outputs="out")
def split(xp, x, *, num: int = 0, sections: tuple[int, ...] | None = None, axis: int = 0):
    """x cut along `axis` into `num` equal pieces, or into pieces of the sizes in `sections`."""
    sizes = sections if sections is not None else (x.shape[axis] // num,) * num
    ends = np.cumsum(sizes)[:-1].tolist()
    return tuple(xp.split(x, ends, axis=axis))


@split.infer
def split_infer(x, *, num, sections, axis):
    at = axis_of(axis, x.rank)
    size = x.shape[at]
    if (num > 0) == (sections is not None) or num < 0:
        raise ProgramError("split needs either num above 0 or sections", "bad_attr")
    check_pieces(num)
    if sections is None:
        if size >= 0 and size % num:
            raise ProgramError(f"cannot split axis {at} of {x} into {num} equal pieces", "shape_mismatch")
        sections = (size // num if size >= 0 else -1,) * num
    elif not sections or min(sections) < 0 or (size >= 0 and sum(sections) != size):
        raise ProgramError(f"sections {list(sections)} do not add up to axis {at} of {x}", "shape_mismatch")
    return tuple(TensorType((*x.shape[:at], n, *x.shape[at + 1 :]), x.dtype) for n in sections)


def check_pieces(count: int) -> None:
    """Raises ProgramError (bad_attr) where an array is cut into more than MOST_PIECES."""
    if count > MOST_PIECES:
        raise ProgramError(f"an array is not cut into {count} pieces, only into {MOST_PIECES} at most", "bad_attr")


split.vjp(lambda cts, outs, x, *, num, sections, axis: lookup("concat")(*cts, axis=axis))
split.example(
    lambda: [
        Example((X,), (X[:1], X[1:]), {"num": 2}),
        Example((X,), (X[:, :1], X[:, 1:]), {"sections": (1, 2), "axis": 1}),
        Example((CUBE,), (CUBE[..., :0], CUBE), {"sections": (0, 2), "axis": -1}),
        Example((EMPTY,), (EMPTY, EMPTY), {"num": 2}),
    ]
)


@op(outputs="out")
def split_like(xp, x, *like, axis: int = 0):
    """x cut along `axis` into pieces as long as those of `like`, which give only their sizes."""
    ends = np.cumsum([each.shape[axis] for each in like])[:-1].tolist()
    return tuple(xp.split(x, ends, axis=axis))


@split_like.infer
def split_like_infer(x, *like, axis):
    at = axis_of(axis, x.rank)
    if not like or any(each.rank != x.rank for each in like):
        raise ProgramError(f"split_like needs pieces of as many axes as {x}", "shape_mismatch")
    sizes = [each.shape[at] for each in like]
    if -1 not in (*sizes, x.shape[at]) and sum(sizes) != x.shape[at]:
        raise ProgramError(f"pieces of {sizes} do not add up to axis {at} of {x}", "shape_mismatch")
    return tuple(TensorType((*x.shape[:at], n, *x.shape[at + 1 :]), x.dtype) for n in sizes)


split_like.vjp(lambda cts, outs, x, *like, axis: (lookup("concat")(*cts, axis=axis), *(None for _ in like)))
split_like.example(
    lambda: [
        Example((X, X[:1], X[:1]), (X[:1], X[1:])),
        Example((CUBE, CUBE[..., :0], CUBE), (CUBE[..., :0], CUBE), {"axis": 2}),
        Example((EMPTY, EMPTY, EMPTY), (EMPTY, EMPTY)),
    ]
)


@composite
def stack(*x, axis: int = 0):
    """Arrays of one shape side by side along a new axis, at the place it has in the result."""
    if not x:
        raise ProgramError("stack needs at least one input", "bad_slot")
    at = axis_of(axis, x[0].rank + 1)
    return lookup("concat")(*(lookup("unsqueeze")(each, axes=(at,)) for each in x), axis=at)


stack.example(
    lambda: [
        Example((X, 2 * X), (np.stack([X, 2 * X]),)),
        Example((X, 2 * X, X), (np.stack([X, 2 * X, X], -1),), {"axis": -1}),
        Example((X[0, 1], X[1, 1]), (np.array([1.0, 4]),)),
        Example((EMPTY, EMPTY), (np.zeros((0, 2, 3)),), {"axis": 1}),
    ]
)


@op
def pad_constant(xp, x, *, paddings: tuple[int, ...], value: float = 0.0):
    """x with `value` around it. `paddings` lists, for each axis, how many elements go before and after."""
    pairs = tuple(zip(paddings[::2], paddings[1::2], strict=True))
    return xp.pad(x, pairs, constant_values=x.dtype.type(value)) if pairs else x


@pad_constant.infer
def pad_constant_infer(x, *, paddings, value):
    _check_paddings(x, paddings)
    check_fits(value, x.dtype)
    sizes = zip(x.shape, paddings[::2], paddings[1::2], strict=True)
    return TensorType(tuple(-1 if n == -1 else n + a + b for n, a, b in sizes), x.dtype)


def _check_paddings(x: TensorType, paddings: tuple[int, ...]) -> None:
    if len(paddings) != 2 * x.rank or any(n < 0 for n in paddings):
        raise ProgramError(f"paddings must be {2 * x.rank} sizes from 0 for {x}, not {list(paddings)}", "bad_attr")


@pad_constant.vjp
def pad_constant_vjp(ct, out, x, *, paddings, value):
    axes = tuple(range(x.rank))
    ends = tuple(-after if after else 2**31 for after in paddings[1::2])
    return lookup("slice")(ct, axes=axes, starts=paddings[::2], ends=ends)


pad_constant.example(
    lambda: [
        Example((X,), (np.pad(X, ((1, 0), (0, 2)), constant_values=7.0),), {"paddings": (1, 0, 0, 2), "value": 7.0}),
        Example((X[0],), (np.pad(X[0], (2, 1)),), {"paddings": (2, 1)}),
        Example((X[:0],), (np.zeros((1, X.shape[1])),), {"paddings": (1, 0, 0, 0)}),
    ]
)


@op(no_gradient="its result is an integer")
def border_positions(xp, x, *, axis: int, before: int, after: int, mode: Literal["reflect", "replicate", "circular"]):
    """Where along `axis` of x each element of the padded axis comes from; x gives only its shape."""
    n = x.shape[axis]
    _check_border(n, before, after, mode, f"axis {axis}")
    at = xp.arange(-before, n + after, dtype="int64")
    if mode == "replicate":
        return xp.clip(at, 0, n - 1)
    if mode == "circular":
        return at % n if n else at
    there_and_back = max(2 * n - 2, 1)
    return n - 1 - abs(n - 1 - at % there_and_back)


def _check_border(n: int, before: int, after: int, mode: str, what: str) -> None:
    """Raises ProgramError (shape_mismatch) where there is nothing to pad an axis of `n` elements with."""
    if max(before, after) > 0 and (n == 0 or (mode == "reflect" and n == 1)):
        raise ProgramError(f"there is nothing to pad {what} of size {n} with", "shape_mismatch")


@border_positions.infer
def border_positions_infer(x, *, axis, before, after, mode):
    n = x.shape[axis_of(axis, x.rank)]
    if min(before, after) < 0:
        raise ProgramError(f"paddings are sizes from 0, not {before} and {after}", "bad_attr")
    _check_border(n, before, after, mode, f"axis {axis} of {x}")
    return TensorType((-1 if n == -1 else n + before + after,), "int64")


border_positions.example(
    lambda: [
        Example(
            (np.zeros(3),), (np.array([2, 1, 0, 1, 2, 1]),), {"axis": 0, "before": 2, "after": 1, "mode": "reflect"}
        ),
        Example((np.zeros(3),), (np.array([0, 0, 1, 2]),), {"axis": 0, "before": 1, "after": 0, "mode": "replicate"}),
        Example((X,), (np.array([1, 0, 1, 0, 1, 0]),), {"axis": 0, "before": 3, "after": 1, "mode": "reflect"}),
        Example((X,), (np.array([1, 2, 0, 1, 2]),), {"axis": -1, "before": 2, "after": 0, "mode": "circular"}),
        Example((EMPTY,), (np.zeros(0, int),), {"axis": 0, "before": 0, "after": 0, "mode": "reflect"}),
    ]
)


@composite
def pad(
    x,
    *,
    paddings: tuple[int, ...],
    value: float = 0.0,
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
):
    """x with a border. `paddings` lists, for each axis, how many elements go before and after.

    mode: what the border holds: `value`; x mirrored at its first and last element; copies of these; or x again.
    The gradient of what is copied into the border is added to where it came from.
    """
    if mode == "constant":
        return lookup("pad_constant")(x, paddings=paddings, value=value)
    _check_paddings(x.type, paddings)
    for axis, (before, after) in enumerate(zip(paddings[::2], paddings[1::2], strict=True)):
        if before or after:
            where = lookup("border_positions")(x, axis=axis, before=before, after=after, mode=mode)
            x = lookup("gather")(x, where, axis=axis)
    return x


pad.example(
    lambda: [
        Example((X,), (np.pad(X, ((1, 0), (0, 2)), constant_values=7.0),), {"paddings": (1, 0, 0, 2), "value": 7.0}),
        Example((X,), (np.pad(X, ((1, 1), (2, 0)), mode="edge"),), {"paddings": (1, 1, 2, 0), "mode": "replicate"}),
        Example((X,), (np.pad(X, ((1, 1), (0, 2)), mode="wrap"),), {"paddings": (1, 1, 0, 2), "mode": "circular"}),
        Example((X[0],), (np.pad(X[0], (1, 1), mode="reflect"),), {"paddings": (1, 1), "mode": "reflect"}),
        Example((X,), (np.pad(X, ((3, 1), (1, 4)), mode="reflect"),), {"paddings": (3, 1, 1, 4), "mode": "reflect"}),
        Example(
            (EMPTY,), (np.pad(EMPTY, ((0, 0), (1, 1)), mode="edge"),), {"paddings": (0, 0, 1, 1), "mode": "replicate"}
        ),
    ]
)
