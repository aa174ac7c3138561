"""Checks of types, and arrays for examples, that the ops on tensor arrays share."""

from __future__ import annotations

import numpy as np

from core.ir import INTEGERS, StackType, TensorType, Type
from core.ir.errors import ProgramError
from core.ops.common.types import matches

__all__ = ["ARRAYS", "MATRICES", "ROWS", "X", "array_of", "check_elements", "check_index", "tensor_element"]

X = np.array([[1.0, -2.0], [0.5, 4.0], [3.0, 0.25]])
ROWS = [X[0], X[1], X[2]]
MATRICES = [X[:1], X[1:2], X[2:]]
ARRAYS = (ROWS, MATRICES, [X[0, 0], X[0, 1], X[1, 0]])


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


def check_index(type: Type) -> None:
    """Raise ProgramError (type_mismatch) unless `type` is that of one integer."""
    if not isinstance(type, TensorType) or type.dtype not in INTEGERS or any(n not in (1, -1) for n in type.shape):
        raise ProgramError(f"the index must be one integer, not {type}", "type_mismatch")


def tensor_element(type: Type) -> TensorType:
    """`type`, of an element that is an array. Raises ProgramError (type_mismatch) for a tensor array."""
    if not isinstance(type, TensorType):
        raise ProgramError(f"an element of a tensor array must be an array, not {type}", "type_mismatch")
    return type
