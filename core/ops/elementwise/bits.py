"""Integers as rows of bits, element by element."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast

__all__: list[str] = []

M = np.array([[5, -3, 7], [0, 12, -8]])
N = np.array([3, 2, 5])
FAR = np.array([0, 63, 200])

_BITS = "its inputs are no floating-point numbers"


def _bits(x: TensorType, y: TensorType | None = None) -> TensorType:
    for each in (x, y):
        if each is not None and each.is_float:
            raise ProgramError(f"needs integers or bools, not {each}", "dtype_mismatch")
    return x if y is None else broadcast(x, y)


@op(elementwise=True, no_gradient=_BITS)
def bitwise_and(xp, x, y):
    """``out = x & y``, the bits set in both integers; for bools the logical and."""
    return xp.bitwise_and(x, y)


bitwise_and.infer(_bits)
bitwise_and.example(lambda: [Example((M, N), (M & N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_or(xp, x, y):
    """``out = x | y``, the bits set in either integer; for bools the logical or."""
    return xp.bitwise_or(x, y)


bitwise_or.infer(_bits)
bitwise_or.example(lambda: [Example((M, N), (M | N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_xor(xp, x, y):
    """``out = x ^ y``, the bits set in just one of the integers; for bools the exclusive or."""
    return xp.bitwise_xor(x, y)


bitwise_xor.infer(_bits)
bitwise_xor.example(lambda: [Example((M, N), (M ^ N,))])


@op(elementwise=True, no_gradient=_BITS)
def bitwise_not(xp, x):
    """``out = ~x``, every bit turned; for bools the negation."""
    return xp.invert(x)


bitwise_not.infer(_bits)
bitwise_not.example(lambda: [Example((M,), (-M - 1,))])


# --- shifts ----------------------------------------------------------------------------------------------------


def _shifted(x: TensorType, y: TensorType) -> TensorType:
    for each in (x, y):
        if each.is_float or each.dtype == "bool":
            raise ProgramError(f"needs integers, not {each}", "dtype_mismatch")
    return broadcast(x, y)


def _places(xp, y, most):
    """y held below the width of the dtype, where the machine's shifts end. Raises ExecutionError for a negative one."""
    if y.dtype.kind == "i" and bool(xp.any(y < 0)):
        raise ExecutionError("bits cannot be shifted by a negative number of places", "index_out_of_range")
    return xp.minimum(y, y.dtype.type(most))


@op(elementwise=True, no_gradient=_BITS)
def bitwise_left_shift(xp, x, y):
    """``out = x * 2 ** y``, bits beyond the width of the dtype lost: 0 where all are. y must not be negative."""
    most = 8 * x.dtype.itemsize - 1
    return xp.where(y > most, x.dtype.type(0), xp.left_shift(x, _places(xp, y, most)))


bitwise_left_shift.infer(_shifted)
bitwise_left_shift.example(
    lambda: [
        Example((M, N), (M * 2**N,)),
        Example((np.array([3, 3, 3]), FAR), (np.array([3, -(2**63), 0]),)),
    ]
)


@op(elementwise=True, no_gradient=_BITS)
def bitwise_right_shift(xp, x, y):
    """``out = floor(x / 2 ** y)``: of a negative number -1 remains. y must not be negative."""
    most = 8 * x.dtype.itemsize - 1
    shifted = xp.right_shift(x, _places(xp, y, most))
    return shifted if x.dtype.kind == "i" else xp.where(y > most, x.dtype.type(0), shifted)


bitwise_right_shift.infer(_shifted)
bitwise_right_shift.example(
    lambda: [
        Example((M, N), (M // 2**N,)),
        Example((np.array([3, -3, -3]), FAR), (np.array([3, -1, -1]),)),
    ]
)
