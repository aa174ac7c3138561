"""Bitwise operations on integers, element by element."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Dtype, Example, op
from core.ops.common.types import as_dtype, broadcast

__all__: list[str] = []

M = np.array([[5, -3, 7], [0, 12, -8]])
N = np.array([3, 2, 5])
FAR = np.array([0, 63, 200])

_BITS = "its inputs are integers or bools"


def _bits(x: TensorType, y: TensorType | None = None) -> TensorType:
    for each in (x, y):
        if each is not None and each.is_float:
            raise ProgramError(f"needs integers or bools, not {each}", "dtype_mismatch")
    return x if y is None else broadcast(x, y)


@op(elementwise=True, no_gradient=_BITS)
def bitwise_and(xp, x, y):
    """Bitwise and of two integers: ``out = x & y``. For bools it is the logical and."""
    return xp.bitwise_and(x, y)


bitwise_and.infer(_bits)
bitwise_and.example(lambda: [Example((M, N), (M & N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_or(xp, x, y):
    """Bitwise or of two integers: ``out = x | y``. For bools it is the logical or."""
    return xp.bitwise_or(x, y)


bitwise_or.infer(_bits)
bitwise_or.example(lambda: [Example((M, N), (M | N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_xor(xp, x, y):
    """Bitwise exclusive or of two integers: ``out = x ^ y``. For bools it is the logical exclusive or."""
    return xp.bitwise_xor(x, y)


bitwise_xor.infer(_bits)
bitwise_xor.example(lambda: [Example((M, N), (M ^ N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_not(xp, x):
    """Bitwise complement of an integer: ``out = ~x``. For bools it is the negation."""
    return xp.invert(x)


bitwise_not.infer(_bits)
bitwise_not.example(lambda: [Example((M,), (-M - 1,))])


# --- shifts ----------------------------------------------------------------------------------------------------


def _shifted(x: TensorType, y: TensorType) -> TensorType:
    for each in (x, y):
        if each.is_float or each.dtype == "bool":
            raise ProgramError(f"needs integers, not {each}", "dtype_mismatch")
    return broadcast(x, y)


def _shift_counts(xp, y, most):
    """y clamped to `most`, because a machine shift is undefined from the width of the dtype on.

    Raises ExecutionError (index_out_of_range) for a negative shift.
    """
    if y.dtype.kind == "i" and bool(xp.any(y < 0)):
        raise ExecutionError("cannot shift by a negative number of bits", "index_out_of_range")
    return xp.minimum(y, y.dtype.type(most))


@op(elementwise=True, no_gradient=_BITS)
def bitwise_left_shift(xp, x, y):
    """x shifted left by y bits: ``out = x * 2 ** y``.

    Bits beyond the width of the dtype are lost; from a shift by the whole width on, out is 0. A negative y is an error
    of the run (index_out_of_range).
    """
    most = 8 * x.dtype.itemsize - 1
    return xp.where(y > most, x.dtype.type(0), xp.left_shift(x, _shift_counts(xp, y, most)))


bitwise_left_shift.infer(_shifted)
bitwise_left_shift.example(
    lambda: [
        Example((M, N), (M * 2**N,)),
        Example((np.array([3, 3, 3]), FAR), (np.array([3, -(2**63), 0]),)),
    ]
)


@op(elementwise=True, no_gradient=_BITS)
def bitwise_right_shift(xp, x, y):
    """x shifted right by y bits: ``out = floor(x / 2 ** y)``.

    A negative x reaches -1 and stays there. A negative y is an error of the run (index_out_of_range).
    """
    most = 8 * x.dtype.itemsize - 1
    shifted = xp.right_shift(x, _shift_counts(xp, y, most))
    return shifted if x.dtype.kind == "i" else xp.where(y > most, x.dtype.type(0), shifted)


bitwise_right_shift.infer(_shifted)
bitwise_right_shift.example(
    lambda: [
        Example((M, N), (M // 2**N,)),
        Example((np.array([3, -3, -3]), FAR), (np.array([3, -1, -1]),)),
    ]
)


@op(no_gradient="it reads bits, not numbers")
def bitcast(xp, x, *, dtype: Dtype):
    """The bits of each element of x as an element of `dtype`, which has the same width.

    As bool, every byte other than 0 is true.
    """
    if dtype == "bool":
        return x.astype("bool") if x.dtype.kind in "iu" else x
    return xp.ascontiguousarray(x).reshape(x.shape).view(as_dtype(dtype))


@bitcast.infer
def bitcast_infer(x, *, dtype):
    if as_dtype(x.dtype).itemsize != as_dtype(dtype).itemsize:
        raise ProgramError(f"{dtype} has another width than the elements of {x}", "dtype_mismatch")
    return TensorType(x.shape, dtype)


bitcast.example(
    lambda: [
        Example((np.array([[0x3F800000]], "int32"),), (np.ones((1, 1), "float32"),), {"dtype": "float32"}),
        Example((np.array([True, False]),), (np.array([1, 0], "uint8"),), {"dtype": "uint8"}),
        Example((np.array([2, 0], "uint8"),), (np.array([True, False]),), {"dtype": "bool"}),
    ]
)
