"""Cotangents of tensor arrays, in which elements may be missing: a missing one is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir import StackType, TensorType
from core.ir.errors import ExecutionError
from core.ir.registry import Example, op
from core.ops.control.array_common import (
    ARRAYS,
    ROWS,
    X,
    array_of,
    check_elements,
)
from core.ops.reduction.sums import sum_

__all__ = ["array_erase", "array_fill", "array_place", "array_take"]


@op(stacks=True)
def array_place(xp, x, index):
    """The cotangent of an array whose elements are zero except element `index`, which is x. A negative index is no
    element.
    """
    at = int(index)
    return [*[None] * at, x] if at >= 0 else []


array_place.infer(lambda x, index: StackType(x))


array_place.vjp(lambda ct, out, x, index: (array_take(ct, index, x), None))
array_place.example(lambda: [Example((a[0], np.array(0)), ([a[0]],)) for a in ARRAYS])


@op(stacks=True)
def array_take(xp, array, index, like):
    """Element `index` of the cotangent of an array, which has the shape of `like`; zeros like that if it is missing."""
    at = int(index)
    found = array[at] if 0 <= at < len(array) else None
    if found is None:
        return _zeros(xp, like)
    if not isinstance(like, list) and found.shape != like.shape:
        raise ExecutionError(
            f"element {at} of the array has the shape {list(found.shape)}, not {list(like.shape)}", "shape_mismatch"
        )
    return found


@array_take.infer
def array_take_infer(array, index, like):
    check_elements(array_of(array, "array_take").element, like, "array_take")
    return like


@array_take.vjp
def array_take_vjp(ct, out, array, index, like):
    placed, element = array_place(ct, index), array.type.element
    if isinstance(element, TensorType) and -1 in element.shape and element != placed.type.element:
        # other elements of the array may have other sizes than `like`: join the type with that of the array
        empty = ct.builder.emit("create_array", shape=element.shape, dtype=element.dtype)
        placed = sum_(placed, empty)
    return placed, None, None


array_take.example(
    lambda: [
        Example((ROWS, np.array(7), X[0]), (np.zeros(2),)),
        *(Example((a, np.array(1), a[0]), (a[1],)) for a in ARRAYS),
    ]
)


@op(stacks=True)
def array_erase(xp, array, index):
    """The cotangent of an array with element `index` set to zero. It has no more elements than the array before it
    was written there: the last element is left out.
    """
    at = int(index)
    if at < 0:
        return array
    return [*array[:at], *([None, *array[at + 1 :]] if at + 1 < len(array) else [])]


array_erase.infer(lambda array, index: array_of(array, "array_erase"))
array_erase.vjp(lambda ct, out, array, index: (array_erase(ct, index), None))
array_erase.example(
    lambda: [
        *(Example((a, np.array(7)), (a,)) for a in ARRAYS),
        *(Example((a, np.array(2)), (a[:2],)) for a in ARRAYS),
    ]
)


@op(stacks=True)
def array_fill(xp, array, like):
    """The cotangent of an array with zeros for its missing elements: it gets the length and shapes of `like`."""
    padded = [*array, *[None] * (len(like) - len(array))]
    return [_filled(xp, e, m) for e, m in zip(padded, like, strict=False)]


def _filled(xp, x: Any, like: Any) -> Any:
    """An element of a cotangent, or zeros if it is missing. `like` may itself lack an element if it is a cotangent."""
    if isinstance(like, list):
        return array_fill.body(xp, x or [], like)
    return _zeros(xp, like) if x is None and like is not None else x


def _zeros(xp, like: Any) -> Any:
    """Zeros like an array. The cotangent of a tensor array of zeros has no elements."""
    return [] if isinstance(like, list) else xp.zeros(like.shape, like.dtype)


@array_fill.infer
def array_fill_infer(array, like):
    check_elements(array_of(array, "array_fill").element, array_of(like, "array_fill").element, "array_fill")
    return like


array_fill.vjp(lambda ct, out, array, like: (ct, None))
array_fill.example(
    lambda: [
        *(Example((a[:1], a), ([a[0], 0 * a[0], 0 * a[0]],)) for a in ARRAYS),
        Example((ROWS, ROWS[:2]), (ROWS[:2],)),
        Example(([ROWS[:1], ROWS[1:]], [ROWS[:1], ROWS[1:]]), ([ROWS[:1], ROWS[1:]],)),
    ]
)
