"""Tensor arrays from tensors and back: stacked along a new axis, or concatenated along the first one."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.ir import StackType, TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import as_dtype, matches
from core.ops.control.array_common import (
    ARRAYS,
    MATRICES,
    ROWS,
    X,
    array_of,
    tensor_element,
)
from core.ops.control.array_cotangents import array_fill

__all__ = ["array_concat", "array_join", "array_split_as", "array_unstack", "present"]


@op(stacks=True)
def array_unstack(xp, x):
    """The tensor array whose elements are x[0], x[1], ... along the first axis."""
    return [x[i, ...] for i in range(x.shape[0])]


@array_unstack.infer
def array_unstack_infer(x):
    if tensor_element(x).rank == 0:
        raise ProgramError(f"array_unstack needs at least one axis, not {x}", "shape_mismatch")
    return StackType(TensorType(x.shape[1:], x.dtype))


@array_unstack.vjp
def array_unstack_vjp(ct, out, x):
    like = None if x.type.is_static else x
    return array_join(ct, like, shape=x.shape[1:], dtype=x.dtype, count=x.shape[0], partial=True)


array_unstack.example(lambda: [Example((np.stack(a),), (a,)) for a in ARRAYS])


@composite(stacks=True)
def array_stack(array):
    """The elements of a tensor array along a new first axis, ``[length, ...]``; all must have one shape."""
    element = tensor_element(array_of(array.type, "array_stack").element)
    return array_join(array, None, shape=element.shape, dtype=element.dtype)


array_stack.example(lambda: [Example((a,), (np.stack(a),)) for a in ARRAYS])


@op(stacks=True)
def array_join(
    xp, array, like=None, *, shape: tuple[OpenSize, ...], dtype: Dtype, count: OpenSize = -1, partial: bool = False
):
    """The elements of an array, each of `shape`, along a new first axis.

    like, count: a tensor like the result, or the number of elements. They give the sizes if the array is empty, and the
    length if elements are missing.
    partial: whether the array is a cotangent, which may have more elements; they are left out.
    """
    given = [each for each in array if each is not None]
    sizes = tuple(max(n, 0) for n in shape)
    if given:
        sizes = given[0].shape
    elif like is not None:
        sizes = like.shape[1:]
    if like is not None or count < 0:
        count = len(array) if like is None else like.shape[0]
    if partial:
        array = array[:count]
    if len(array) > count:
        raise ExecutionError(f"an array of {len(array)} elements does not fit into {count}", "shape_mismatch")
    out = xp.zeros((count, *sizes), dtype=as_dtype(dtype))
    for i, each in enumerate(array):
        if each is not None:
            if each.shape != sizes:
                raise ExecutionError(
                    f"cannot stack elements of shapes {list(sizes)} and {list(each.shape)}", "shape_mismatch"
                )
            out[i] = each
    return out


@array_join.infer
def array_join_infer(array, like, *, shape, dtype, count, partial):
    element = array_of(array, "array_join").element
    wanted = TensorType(shape, dtype)
    if not matches(element, wanted):
        raise ProgramError(f"the elements must be {wanted}, not {element}", "type_mismatch")
    return TensorType((count if like is None else like.shape[0], *shape), dtype)


@array_join.vjp
def array_join_vjp(ct, out, array, like, *, shape, dtype, count, partial):
    """The elements of the cotangent, with sizes that the array knows and `shape` leaves open."""
    known = (ct.shape[0], *array.type.element.shape)
    if any(m == -1 != n for m, n in zip(ct.shape, known, strict=True)):
        ct = ct.builder.emit("check_shape", ct, shape=known)
    return array_unstack(ct), None


array_join.example(lambda: [Example((a,), (np.stack(a),), {"shape": a[0].shape, "dtype": "float64"}) for a in ARRAYS])


@op(stacks=True)
def array_concat(xp, array, like=None):
    """The elements of a tensor array, concatenated along their first axis.

    like: an array with the same other sizes, needed only if the tensor array may be empty.
    """
    if not array and like is not None:
        return like[:0]
    if not array:
        raise ExecutionError("cannot concatenate an empty array without `like`", "shape_mismatch")
    return xp.concatenate(present(array))


def present(array: list[Any]) -> list[Any]:
    """The elements, all of which must be there."""
    if any(each is None for each in array):
        raise ExecutionError("an element of the array is missing: the array is a cotangent", "index_out_of_range")
    return array


@array_concat.infer
def array_concat_infer(array, like):
    element = tensor_element(array_of(array, "array_concat").element)
    if element.rank == 0:
        raise ProgramError(f"array_concat needs elements with at least one axis, not {element}", "shape_mismatch")
    if like is not None and not matches(like, TensorType((-1, *element.shape[1:]), element.dtype)):
        raise ProgramError(
            f"the elements must have the sizes of {like} after the first, not {element}", "type_mismatch"
        )
    return TensorType((-1, *element.shape[1:]), element.dtype)


array_concat.vjp(lambda ct, out, array, like: (array_split_as(ct, array), None))
array_concat.example(
    lambda: [
        *(Example((a,), (np.concatenate(a),)) for a in (ROWS, MATRICES, [X[:1, 0], X[:2, 0], X[:0, 0]])),
        Example((ROWS, X[0]), (X.reshape(-1),)),
    ]
)


@op(stacks=True)
def array_split_as(xp, x, array):
    """x split along its first axis into sections as long as the elements of `array`."""
    ends = np.cumsum([each.shape[0] for each in present(array)], dtype=np.int64)
    if x.shape[0] != (ends[-1] if len(ends) else 0):
        raise ExecutionError(
            f"x has {x.shape[0]} rows, but the elements of the array have {ends[-1] if len(ends) else 0}",
            "shape_mismatch",
        )
    return [x[end - each.shape[0] : end] for end, each in zip(ends.tolist(), array, strict=True)]


@array_split_as.infer
def array_split_as_infer(x, array):
    element = tensor_element(array_of(array, "array_split_as").element)
    if element.rank == 0 or not matches(tensor_element(x), TensorType((-1, *element.shape[1:]), element.dtype)):
        raise ProgramError(
            f"x must have the dtype and the row sizes of the elements, {element}, not {x}", "type_mismatch"
        )
    return array


array_split_as.vjp(lambda ct, out, x, array: (array_concat(array_fill(ct, array), x), None))
array_split_as.example(
    lambda: [Example((np.concatenate(a), a), (a,)) for a in (ROWS, MATRICES, [X[:1, 0], X[:2, 0], X[:0, 0]])]
)
