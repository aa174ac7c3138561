"""Diagonals and triangles of matrices, and of batches of matrices."""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Dtype, Example, composite, op
from core.ops.common.types import as_dtype, axis_of, matches
from core.ops.elementwise.logic import where
from core.ops.shape.creation import fill_zeros_like

__all__: list[str] = []

X = np.arange(6.0).reshape(2, 3) + 1
CUBE = np.arange(12.0).reshape(2, 3, 2) - 4
EMPTY = X[:0]


def _diagonal_length(rows: int, columns: int, offset: int) -> int:
    if -1 in (rows, columns):
        return -1
    return max(0, min(rows + min(offset, 0), columns - max(offset, 0)))


@op
def diagonal(xp, x, *, offset: int = 0, axis1: int = 0, axis2: int = 1):
    """Diagonal of two axes of x: ``out[..., i] = x[i, i + offset]``. The diagonal becomes the last axis."""
    return xp.diagonal(x, _within(x, offset, axis1, axis2), axis1, axis2)


def _within(x, offset: int, axis1: int, axis2: int) -> int:
    """`offset`, or the nearest one that is still empty: NumPy keeps it in a C int, where a larger one wraps."""
    return min(max(offset, -x.shape[axis1]), x.shape[axis2])


@diagonal.infer
def diagonal_infer(x, *, offset, axis1, axis2):
    if x.rank < 2 or axis_of(axis1, x.rank) == axis_of(axis2, x.rank):
        raise ProgramError(f"a diagonal needs two different axes of {x}", "bad_attr")
    a, b = axis_of(axis1, x.rank), axis_of(axis2, x.rank)
    rest = tuple(n for i, n in enumerate(x.shape) if i not in (a, b))
    return TensorType((*rest, _diagonal_length(x.shape[a], x.shape[b], offset)), x.dtype)


@diagonal.vjp
def diagonal_vjp(ct, out, x, **attrs):
    return diagonal_into(ct, x, **attrs)


diagonal.example(
    lambda: [
        Example((X,), (np.diagonal(X, 1),), {"offset": 1}),
        Example((CUBE,), (np.diagonal(CUBE, -1, 1, 2),), {"offset": -1, "axis1": 1, "axis2": -1}),
        Example((EMPTY,), (np.zeros(0),)),
    ]
)


@op
def diagonal_into(xp, x, like, *, offset: int = 0, axis1: int = 0, axis2: int = 1):
    """Zeros shaped like `like`, with x at the positions that `diagonal(like)` reads: the transpose of `diagonal`."""
    out, offset = xp.zeros(like.shape, x.dtype), _within(like, offset, axis1, axis2)
    last = xp.moveaxis(out, (axis1, axis2), (-2, -1))
    at = xp.arange(x.shape[-1])
    last[..., at + max(-offset, 0), at + max(offset, 0)] = x
    return out


@diagonal_into.infer
def diagonal_into_infer(x, like, *, offset, axis1, axis2):
    wanted = diagonal_infer(TensorType(like.shape, x.dtype), offset=offset, axis1=axis1, axis2=axis2)
    if not matches(x, wanted):
        raise ProgramError(f"the diagonal of {like} has type {wanted}, not {x}", "shape_mismatch")
    return TensorType(like.shape, x.dtype)


diagonal_into.vjp(lambda ct, out, x, like, **attrs: (diagonal(ct, **attrs), None))
diagonal_into.example(
    lambda: [
        Example((X[0, :2], X), (np.array([[1.0, 0, 0], [0, 2, 0]]),)),
        Example(
            (X[:, :2], CUBE),
            (np.array([[[0.0, 0], [1, 0], [0, 2]], [[0, 0], [4, 0], [0, 5]]]),),
            {"offset": -1, "axis1": 1, "axis2": 2},
        ),
        Example((np.zeros(0), EMPTY), (EMPTY,)),
    ]
)


@composite
def diag(x, *, offset: int = 0):
    """Square matrix with the vector x on a diagonal: ``out[i, i + offset] = x[i]``. For a matrix x, its diagonal.

    - `offset`: 0 is the main diagonal; positive numbers are above it.
    """
    if x.rank == 2:
        return diagonal(x, offset=offset)
    if x.rank != 1:
        raise ProgramError(f"diag takes a vector or a matrix, not {x.type}", "shape_mismatch")
    if -1 in x.shape:
        raise ProgramError(f"the size of the vector must be known, not {x.type}", "shape_mismatch")
    n = x.shape[0] + abs(offset)
    return diagonal_into(x, x.builder.constant(0.0, x.dtype, (n, n)), offset=offset)


diag.example(
    lambda: [
        Example((X[0],), (np.diag(X[0]),)),
        Example((X[0],), (np.diag(X[0], -1),), {"offset": -1}),
        Example((X,), (np.diag(X, 1),), {"offset": 1}),
        Example((X[0, :0],), (np.zeros((0, 0)),)),
    ]
)


@op(no_gradient="its result is bool")
def triangle_mask_like(xp, x, *, diagonal: int = 0):
    """True on and below a diagonal of the last two axes, false above. x gives only its shape.

    - `diagonal`: 0 is the main diagonal; positive numbers are above it.
    """
    if x.size == 0:
        return xp.zeros(x.shape, bool)  # np.tri would allocate the last two axes even where a batch axis has size 0
    return xp.broadcast_to(xp.tri(x.shape[-2], x.shape[-1], diagonal, dtype=bool), x.shape)


@triangle_mask_like.infer
def triangle_mask_like_infer(x, *, diagonal):
    if x.rank < 2:
        raise ProgramError(f"a triangle needs at least two axes, not {x}", "shape_mismatch")
    return TensorType(x.shape, "bool")


triangle_mask_like.example(lambda: [Example((X,), (np.tri(2, 3, 1, dtype=bool),), {"diagonal": 1})])


@composite
def tril(x, *, diagonal: int = 0):
    """Lower triangle of the last two axes: ``out[i, j] = x[i, j]`` where ``j <= i + diagonal``, else 0."""
    mask = triangle_mask_like(x, diagonal=diagonal)
    return where(mask, x, fill_zeros_like(x))


@composite
def triu(x, *, diagonal: int = 0):
    """Upper triangle of the last two axes: ``out[i, j] = x[i, j]`` where ``j >= i + diagonal``, else 0."""
    mask = triangle_mask_like(x, diagonal=diagonal - 1)
    return where(mask, fill_zeros_like(x), x)


tril.example(
    lambda: [
        Example((X,), (np.tril(X),)),
        Example((CUBE,), (np.tril(CUBE, -1),), {"diagonal": -1}),
        Example((EMPTY,), (EMPTY,)),
    ]
)
triu.example(
    lambda: [
        Example((X,), (np.triu(X),)),
        Example((CUBE,), (np.triu(CUBE, -1),), {"diagonal": -1}),
        Example((EMPTY,), (EMPTY,)),
    ]
)


@op(no_gradient="its result is a constant")
def eye_like(xp, x, *, offset: int = 0, dtype: Dtype | None = None):
    """Ones on a diagonal and zeros elsewhere, in the shape of the matrix x: ``out[i, i + offset] = 1``.

    - `offset`: 0 is the main diagonal; positive numbers are above it.
    - `dtype`: that of x by default.
    """
    reach = max(x.shape)  # a diagonal beyond the matrix; NumPy takes no offset beyond int64
    bounded = max(-reach, min(offset, reach))
    return xp.eye(*x.shape, bounded, dtype=x.dtype if dtype is None else as_dtype(dtype))


@eye_like.infer
def eye_like_infer(x, *, offset, dtype):
    if x.rank != 2:
        raise ProgramError(f"eye_like takes a matrix, not {x}", "shape_mismatch")
    return TensorType(x.shape, dtype or x.dtype)


eye_like.example(
    lambda: [
        Example((X,), (np.array([[1.0, 0, 0], [0, 1, 0]]),)),
        Example((X,), (np.array([[0, 0, 0], [1, 0, 0]]),), {"offset": -1, "dtype": "int64"}),
        Example((EMPTY,), (EMPTY,)),
    ]
)
