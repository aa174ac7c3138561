"""Concatenation, stacking, splitting and unstacking."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, as_tuple, composite, op
from core.ops.common.ranges import Size
from core.ops.common.types import axis_of, same_dtype, same_size
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3)
CUBE = np.arange(12.0).reshape(2, 3, 2) - 4
EMPTY = X[:0]

MAX_SECTIONS = 2**16
"""Most sections that one op may split an array into: each is a variable and costs memory however small it is."""


@op
def concat(xp, *x, axis: int = 0):
    """Arrays concatenated along `axis`. All other sizes must be equal. An array may be empty along `axis`."""
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
            raise ProgramError(f"concat needs equal ranks, not {x[0]} and {each}", "shape_mismatch")
        for i, n in enumerate(each.shape):
            if i != at:
                shape[i] = same_size(shape[i], n, f"sizes of axis {i} of {x[0]} and {each} differ")
    sizes = [each.shape[at] for each in x]
    shape[at] = -1 if -1 in sizes else sum(sizes)
    return TensorType(tuple(shape), dtype)


@concat.vjp
def concat_vjp(ct, out, *x, axis):
    at = axis % ct.rank
    if all(each.shape[at] >= 0 for each in x):
        sizes = tuple(each.shape[at] for each in x)
        return as_tuple(split(ct, sections=sizes, axis=at))
    return as_tuple(split_like(ct, *x, axis=at))


concat.example(
    lambda: [
        Example((X, 2 * X), (np.concatenate([X, 2 * X]),)),
        Example((X, X[:, :1], X[:, :0]), (np.concatenate([X, X[:, :1]], 1),), {"axis": -1}),
        Example((X[0], X[1, :1]), (np.array([0.0, 1, 2, 3]),)),
        Example((EMPTY, EMPTY), (np.zeros((0, 6)),), {"axis": 1}),
    ]
)


@op(outputs="out")
def split(xp, x, *, num: Size = 0, sections: tuple[Size, ...] | None = None, axis: int = 0):
    """x split along `axis` into `num` equal parts, or into parts of the sizes in `sections`."""
    sizes = sections if sections is not None else (x.shape[axis] // num,) * num
    return _cut(xp, x, sizes, axis)


def _cut(xp, x, sizes, axis: int):
    """x in pieces of `sizes` along `axis`. Raises ExecutionError where they do not add up, as only a run can tell."""
    *ends, total = accumulate(sizes)
    if total != x.shape[axis]:
        raise ExecutionError(f"pieces of {list(sizes)} do not add up to {x.shape[axis]}", "shape_mismatch")
    return tuple(xp.split(x, ends, axis=axis))


@split.infer
def split_infer(x, *, num, sections, axis):
    at = axis_of(axis, x.rank)
    size = x.shape[at]
    if (num > 0) == (sections is not None):
        raise ProgramError("split needs either num above 0 or sections, not both", "bad_attr")
    check_sections(num)
    if sections is None:
        if size >= 0 and size % num:
            raise ProgramError(f"cannot split axis {at} of {x} into {num} equal parts", "shape_mismatch")
        sections = (size // num if size >= 0 else -1,) * num
    elif not sections or (size >= 0 and sum(sections) != size):
        raise ProgramError(f"sections {list(sections)} do not add up to axis {at} of {x}", "shape_mismatch")
    return tuple(TensorType((*x.shape[:at], n, *x.shape[at + 1 :]), x.dtype) for n in sections)


def check_sections(count: int) -> None:
    """Raises ProgramError (bad_attr) for more than MAX_SECTIONS sections."""
    if count > MAX_SECTIONS:
        raise ProgramError(f"an array can be split into at most {MAX_SECTIONS} sections, not {count}", "bad_attr")


split.vjp(lambda cts, outs, x, *, num, sections, axis: concat(*cts, axis=axis))
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
    """x split along `axis` into parts with the sizes of the arrays in `like`, which give only their shapes."""
    return _cut(xp, x, [each.shape[axis] for each in like], axis)


@split_like.infer
def split_like_infer(x, *like, axis):
    at = axis_of(axis, x.rank)
    if not like or any(each.rank != x.rank for each in like):
        raise ProgramError(f"split_like needs arrays of the rank of {x}", "shape_mismatch")
    sizes = [each.shape[at] for each in like]
    if -1 not in (*sizes, x.shape[at]) and sum(sizes) != x.shape[at]:
        raise ProgramError(f"sizes {sizes} do not add up to axis {at} of {x}", "shape_mismatch")
    return tuple(TensorType((*x.shape[:at], n, *x.shape[at + 1 :]), x.dtype) for n in sizes)


split_like.vjp(lambda cts, outs, x, *like, axis: (concat(*cts, axis=axis), *(None for _ in like)))
split_like.example(
    lambda: [
        Example((X, X[:1], X[:1]), (X[:1], X[1:])),
        Example((CUBE, CUBE[..., :0], CUBE), (CUBE[..., :0], CUBE), {"axis": 2}),
        Example((EMPTY, EMPTY, EMPTY), (EMPTY, EMPTY)),
    ]
)


@composite
def stack(*x, axis: int = 0):
    """Arrays of one shape stacked along a new axis. `axis` is its position in the result."""
    if not x:
        raise ProgramError("stack needs at least one input", "bad_slot")
    at = axis_of(axis, x[0].rank + 1)
    return concat(*(unsqueeze(each, axes=(at,)) for each in x), axis=at)


stack.example(
    lambda: [
        Example((X, 2 * X), (np.stack([X, 2 * X]),)),
        Example((X, 2 * X, X), (np.stack([X, 2 * X, X], -1),), {"axis": -1}),
        Example((X[0, 1], X[1, 1]), (np.array([1.0, 4]),)),
        Example((EMPTY, EMPTY), (np.zeros((0, 2, 3)),), {"axis": 1}),
    ]
)


@op(outputs="out")
def unstack(xp, x, *, axis: int = 0):
    """The slices of x along `axis`, without that axis."""
    return tuple(xp.moveaxis(x, axis, 0)[i, ...] for i in range(x.shape[axis]))


@unstack.infer
def unstack_infer(x, *, axis):
    at = axis_of(axis, x.rank)
    if x.shape[at] == -1:
        raise ProgramError(f"the size of axis {axis} must be known, not {x}", "shape_mismatch")
    check_sections(x.shape[at])
    return (TensorType((*x.shape[:at], *x.shape[at + 1 :]), x.dtype),) * x.shape[at]


unstack.vjp(lambda ct, out, x, *, axis: stack(*ct, axis=axis))
unstack.example(
    lambda: [
        Example((X,), (X[0], X[1])),
        Example((CUBE,), tuple(CUBE[:, i] for i in range(3)), {"axis": 1}),
        Example((EMPTY,), (np.zeros(0),) * 3, {"axis": -1}),
    ]
)
