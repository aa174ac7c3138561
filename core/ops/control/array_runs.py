"""Runs of the elements of a tensor array: an array of arrays, over which loops with a memory policy run."""

from __future__ import annotations

import math
from typing import Annotated, Any

from core.ir import StackType
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError
from core.ir.registry import Example, op
from core.ops.control.array_common import (
    ARRAYS,
    ROWS,
    X,
    array_of,
)

__all__: list[str] = []


@op(stacks=True)
def array_chunks(xp, array, *, order: Annotated[int, Bounds(ge=1, le=64)] = 1):
    """The elements in runs, as an array of arrays. Run k = 1, 2, ... has binom(k + order - 1, order) elements.

    With order 1 the runs have 1, 2, 3, ... elements, with order 2 they have 1, 3, 6, ...; the last may be shorter.
    """
    out: list[Any] = []
    start = 0
    while start < len(array):
        size = math.comb(len(out) + order, order)
        out.append(array[start : start + size])
        start += size
    return out


@array_chunks.infer
def array_chunks_infer(array, *, order):
    return StackType(array_of(array, "array_chunks"))


array_chunks.vjp(lambda ct, out, array, *, order: array_flatten(ct, order=order))
array_chunks.example(
    lambda: [
        *(Example((a,), ([a[:1], a[1:]],)) for a in ARRAYS),
        Example((ROWS,), ([[X[0]], [X[1], X[2]]],), {"order": 2}),
    ]
)


@op(stacks=True)
def array_flatten(xp, array, like=None, *, order: Annotated[int, Bounds(ge=0, le=64)] = 0):
    """The elements of an array of arrays, in order, as one array.

    like, order: for a cotangent, whose runs may lack elements at their ends. Each run gets as many elements as that of
    `like`, or as that of `array_chunks` of this order (0 for none).
    """
    runs = [each or [] for each in array]
    sizes = [len(each) for each in (runs if like is None else like)]
    if order and like is None:
        whole = [math.comb(k + order, order) for k in range(len(runs))]
        sizes = [*whole[:-1], *map(min, sizes[-1:], whole[-1:])]  # the last run may be a short one
    return [each for run, size in zip(runs, sizes, strict=False) for each in _fitted(run, size)]


def _fitted(run: list[Any], length: int) -> list[Any]:
    """`run` with as many elements, the last ones missing or left out."""
    return [*run[:length], *[None] * (length - len(run))]


@array_flatten.infer
def array_flatten_infer(array, like, *, order):
    if like is not None:
        array_of(array_of(like, "array_flatten").element, "array_flatten")
    return array_of(array_of(array, "array_flatten").element, "array_flatten")


@array_flatten.vjp
def array_flatten_vjp(ct, out, array, like, *, order):
    if order and like is None:
        return array_chunks(ct, order=order), None
    return array_regroup(ct, array if like is None else like, partial=True), None


array_flatten.example(
    lambda: [
        *(Example(([a[:1], a[1:]],), (a,)) for a in ARRAYS),
        Example(([ROWS[:1], ROWS[1:]], [ROWS[:1], ROWS[1:]]), (ROWS,)),
        Example(([ROWS[:1], ROWS[1:]],), (ROWS,), {"order": 1}),
    ]
)


@op(stacks=True)
def array_regroup(xp, array, like, *, partial: bool = False):
    """The elements of a flat array, in runs as long as those of `like`.

    partial: whether the array is a cotangent, whose last elements may be missing.
    """
    wanted = sum(len(each) for each in like)
    if partial:
        array = _fitted(array, wanted)
    if len(array) != wanted:
        raise ExecutionError(f"an array of {len(array)} elements does not fit into runs of {wanted}", "shape_mismatch")
    rest = iter(array)
    return [[next(rest) for _ in each] for each in like]


@array_regroup.infer
def array_regroup_infer(array, like, *, partial):
    array_of(array_of(like, "array_regroup").element, "array_regroup")
    return StackType(array_of(array, "array_regroup"))


array_regroup.vjp(lambda ct, out, array, like, *, partial: (array_flatten(ct, like), None))
array_regroup.example(lambda: [Example((a, [a[:1], a[1:]]), ([a[:1], a[1:]],)) for a in ARRAYS])
