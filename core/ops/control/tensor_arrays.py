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

import numpy as np

from core.ir import StackType, TensorType
from core.ir.errors import ExecutionError
from core.ir.registry import Dtype, Example, op
from core.ops.common.ranges import OpenSize
from core.ops.common.types import joined_type
from core.ops.control.array_common import (
    ARRAYS,
    ROWS,
    X,
    array_of,
    check_index,
    tensor_element,
)
from core.ops.control.array_cotangents import array_erase, array_place, array_take

__all__: list[str] = []


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
    check_index(index)
    element = array_of(array, "array_write").element
    return StackType(joined_type(element, tensor_element(x), "type_mismatch", "x and the elements of the array differ"))


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
    check_index(index)
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
