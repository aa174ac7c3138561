"""Tensor arrays: lists of arrays that a program writes and reads by index, and that loops record.

A tensor array is a value like any other. A write makes a new array and does not change the old one. So the gradient of
a write takes the element's cotangent out of the array's cotangent, and the gradient of a read adds to it. A missing
element of the cotangent of an array, in the middle or after the end, is zero. Elements beyond the length of the array
belong to nothing: they come from an op that pads the array with zeros.

Gradients contain no op that reads a missing element without zeros to take its place. If a program does, the reference
executor does not know the shape of the zeros and refuses; machine code knows it, because its elements have one shape,
and reads them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from core.ir import INTEGERS, StackType, TensorType, Type
from core.ir.bounds import Bounds
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import as_dtype, joined_type, matches
from core.ops.reduction.sums import sum_

__all__: list[str] = []

X = np.array([[1.0, -2.0], [0.5, 4.0], [3.0, 0.25]])
ROWS = [X[0], X[1], X[2]]
MATRICES = [X[:1], X[1:2], X[2:]]
NUMBERS = [X[0, 0], X[0, 1], X[1, 0]]
ARRAYS = (ROWS, MATRICES, NUMBERS)


def array_of(type: Type, what: str) -> StackType:
    """`type`, of a tensor array. Raises ProgramError (type_mismatch) for another type.

    what: the name of the op.
    """
    if not isinstance(type, StackType):
        raise ProgramError(f"{what} takes a tensor array, not {type}", "type_mismatch")
    return type


def check_elements(of: Type, like: Type, what: str) -> None:
    """Raise ProgramError (type_mismatch) unless both are elements of one tensor array; an unknown size fits any."""
    if not matches(of, like):
        raise ProgramError(f"the elements of the operands of {what} differ: {of} and {like}", "type_mismatch")


def _check_index(type: Type) -> None:
    if not isinstance(type, TensorType) or type.dtype not in INTEGERS or any(n not in (1, -1) for n in type.shape):
        raise ProgramError(f"the index must be one integer, not {type}", "type_mismatch")


def _element(type: Type) -> TensorType:
    if not isinstance(type, TensorType):
        raise ProgramError(f"an element of a tensor array must be an array, not {type}", "type_mismatch")
    return type


@op(no_gradient="it is a constant")
def create_array(xp, *, shape: tuple[OpenSize, ...], dtype: Dtype = "float32"):
    """An empty tensor array, for elements of that dtype and shape; a size of -1 stands for any size."""
    return []


@create_array.infer
def create_array_infer(*, shape, dtype):
    return StackType(TensorType(shape, dtype))


create_array.example(lambda: [Example((), ([],), {"shape": (2,)})])


@op(stacks=True)
def array_write(xp, x, index, array):
    """A copy of `array` with element `index` replaced by x; an index equal to the length appends x."""
    at = int(index)
    if not 0 <= at <= len(array):
        raise ExecutionError(f"cannot write element {at} of an array of {len(array)} elements", "index_out_of_range")
    return [*array[:at], x, *array[at + 1 :]]


@array_write.infer
def array_write_infer(x, index, array):
    _check_index(index)
    element = array_of(array, "array_write").element
    return StackType(joined_type(element, _element(x), "type_mismatch", "x and the elements of the array differ"))


@array_write.vjp
def array_write_vjp(ct, out, x, index, array):
    return array_take(ct, index, x), None, array_erase(ct, index)


array_write.example(
    lambda: [
        *(Example((a[2], np.array(1), a), ([a[0], a[2], a[2]],)) for a in ARRAYS),
        Example((X[0], np.array(3), ROWS), ()),
    ]
)


@op(stacks=True)
def array_read(xp, array, index):
    """Element `index` of the array. The gradient is added to that element."""
    at = int(index)
    if not 0 <= at < len(array):
        raise ExecutionError(f"cannot read element {at} of an array of {len(array)} elements", "index_out_of_range")
    if array[at] is None:
        raise ExecutionError(f"element {at} of the array is missing: the array is a cotangent", "index_out_of_range")
    return array[at]


@array_read.infer
def array_read_infer(array, index):
    _check_index(index)
    return array_of(array, "array_read").element


array_read.vjp(lambda ct, out, array, index: (array_place(ct, index), None))
array_read.example(lambda: [Example((a, np.array(1)), (a[1],)) for a in ARRAYS])


@op(stacks=True, no_gradient="its result is an integer")
def array_length(xp, array):
    """The number of elements, as int64."""
    return xp.asarray(len(array), dtype="int64")


@array_length.infer
def array_length_infer(array):
    array_of(array, "array_length")
    return TensorType((), "int64")


array_length.example(lambda: [Example((ROWS,), (np.array(3),))])


# --- cotangents of arrays, in which elements may be missing ----------------------------------------------------


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


# --- arrays and plain tensors ----------------------------------------------------------------------------------


@op(stacks=True)
def array_unstack(xp, x):
    """The tensor array whose elements are x[0], x[1], ... along the first axis."""
    return [x[i, ...] for i in range(x.shape[0])]


@array_unstack.infer
def array_unstack_infer(x):
    if _element(x).rank == 0:
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
    element = _element(array_of(array.type, "array_stack").element)
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
    element = _element(array_of(array, "array_concat").element)
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
    element = _element(array_of(array, "array_split_as").element)
    if element.rank == 0 or not matches(_element(x), TensorType((-1, *element.shape[1:]), element.dtype)):
        raise ProgramError(
            f"x must have the dtype and the row sizes of the elements, {element}, not {x}", "type_mismatch"
        )
    return array


array_split_as.vjp(lambda ct, out, x, array: (array_concat(array_fill(ct, array), x), None))
array_split_as.example(
    lambda: [Example((np.concatenate(a), a), (a,)) for a in (ROWS, MATRICES, [X[:1, 0], X[:2, 0], X[:0, 0]])]
)


# --- runs of elements ------------------------------------------------------------------------------------------


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
