"""Types, run-time errors and short functions of symbols that the ops of linear algebra share.

Matrices are the last two axes; all axes before them are a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ops.common.on_cuda import failing_solvers
from core.ops.common.types import floating, same_size
from core.ops.elementwise.logic import where
from core.ops.linalg.matmul import matmul
from core.ops.reduction.sums import diagonal_mask_like
from core.ops.shape.agreeing import squared
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.diagonals import tril
from core.ops.shape.reshape import transpose, unsqueeze

__all__ = [
    "NO_CONVERGENCE",
    "SINGULAR",
    "as_diagonal",
    "attempt",
    "attempt_on_finite",
    "column",
    "diagonal_part",
    "matrices",
    "multiplied",
    "read_lower",
    "row",
    "sized",
    "square",
    "symmetric_part",
    "transposed",
]

SINGULAR = "singular_matrix"
NO_CONVERGENCE = "no_convergence"


def matrices(x: TensorType, what: str) -> TensorType:
    """The type x, checked: float32 or float64 matrices.

    Raises ProgramError (dtype_mismatch, shape_mismatch). LAPACK has no routines for 16-bit floats, and factors of
    numbers with three digits would mean little. A client who wants them casts.
    """
    floating(x)
    if x.dtype not in ("float32", "float64"):
        raise ProgramError(f"{what} takes float32 or float64, not {x}: cast it", "dtype_mismatch")
    if x.rank < 2:
        raise ProgramError(f"{what} takes matrices, not {x}", "shape_mismatch")
    return x


def square(x: TensorType, what: str) -> TensorType:
    """The type x, checked: square matrices. Raises ProgramError (dtype_mismatch, shape_mismatch)."""
    matrices(x, what)
    same_size(x.shape[-1], x.shape[-2], f"{what} takes square matrices, not {x}")
    return x


def sized(x: TensorType, what: str) -> tuple[int, int]:
    """The numbers of rows and columns of matrices. Raises ProgramError (dtype_mismatch, shape_mismatch) if unknown."""
    matrices(x, what)
    if -1 in x.shape[-2:]:
        raise ProgramError(f"{what} takes matrices of known size, not {x}", "shape_mismatch")
    return x.shape[-2], x.shape[-1]


def attempt(xp: Any, code: str, problem: str, function: Callable[..., Any], *args: Any) -> Any:
    """`function` of arrays. Raises ExecutionError with `code` and `problem` if LAPACK or cuSOLVER fails."""
    try:
        if xp is np:
            return function(*args)
        with failing_solvers():
            return function(*args)
    except np.linalg.LinAlgError as error:
        raise ExecutionError(f"{problem} ({error})", code) from None


def attempt_on_finite(xp: Any, problem: str, function: Callable[..., Any], x: Any, lower: bool = False) -> Any:
    """`function(x)`. Raises ExecutionError (no_convergence) with `problem` if it fails or an element is not finite.

    LAPACK's iterations for values and vectors never end for some matrices with an infinity, and give finite numbers
    for some with a NaN.

    lower: whether the function reads only the lower triangle.
    """
    if not bool(xp.isfinite(xp.tril(x) if lower else x).all()):
        raise ExecutionError(problem, NO_CONVERGENCE)
    return attempt(xp, NO_CONVERGENCE, problem, function, x)


def transposed(x):
    """The symbol x with its last two axes swapped."""
    return transpose(x, axes=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


def multiplied(x, y, **flags):
    return matmul(x, y, **flags)


def row(x):
    """Vectors [..., k] as [..., 1, k]: each element broadcasts over a column of a matrix."""
    return unsqueeze(x, axes=(-2,))


def column(x):
    """Vectors [..., k] as [..., k, 1]: each element broadcasts over a row of a matrix."""
    return unsqueeze(x, axes=(-1,))


def diagonal_part(x):
    """Matrices x with zeros off the diagonal."""
    return where(diagonal_mask_like(x), x, fill_zeros_like(x))


def as_diagonal(x, like):
    """Vectors x as the diagonals of matrices that are zero elsewhere, shaped like `like`."""
    return diagonal_part(row(x) + fill_zeros_like(like))


def symmetric_part(x, what):
    """``(x + x.T) / 2`` for the op `what`."""
    square(x.type, what)
    x = squared(x)
    return (x + transposed(x)) * 0.5


def read_lower(x):
    """The cotangent of the lower triangle, from the cotangent x of the symmetric matrix that it stands for."""
    whole = x + transposed(x)
    return tril(whole) - diagonal_part(x)
