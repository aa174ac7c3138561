"""Matrix products."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.halves import with_halves_widened
from core.ops.common.types import broadcast_shapes, same_dtype, same_size
from core.ops.linalg.einsum import einsum
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.reshape import squeeze, unsqueeze

__all__: list[str] = []


@op(broadcasts=True)
def matmul(xp, x, y, *, transpose_x: bool = False, transpose_y: bool = False):
    """Matrix product: ``out[i, j] = sum over k of x[i, k] * y[k, j]``. The axes before the last two are a batch and
    broadcast.

    A vector is a row on the left and a column on the right, and its axis is missing in the result.

    - `transpose_x`, `transpose_y`: swap the last two axes of the operand first. A vector stays as it is.
    """
    x, y = _transposed_if(xp, x, transpose_x), _transposed_if(xp, y, transpose_y)
    if x.ndim > 2 and y.ndim == 2 and not transpose_x and x.shape[-1] == y.shape[0]:
        # the batch shares y: one product over all rows is faster than one product per batch element
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return with_halves_widened(xp.matmul, rows, y).reshape(*x.shape[:-1], y.shape[1])
    return with_halves_widened(xp.matmul, x, y)


def _transposed_if(xp, x, transpose):
    return xp.swapaxes(x, -1, -2) if transpose and x.ndim > 1 else x


@matmul.infer
def matmul_infer(x, y, *, transpose_x, transpose_y):
    dtype = same_dtype(x, y)
    if dtype == "bool":
        raise ProgramError("matmul needs numbers, not bool", "dtype_mismatch")
    if x.rank == 0 or y.rank == 0:
        raise ProgramError(f"matmul needs at least one axis on each side, not {x} and {y}", "shape_mismatch")
    a = _swapped(x.shape) if transpose_x else x.shape
    b = _swapped(y.shape) if transpose_y else y.shape
    inner = a[-1], b[-2] if len(b) > 1 else b[0]
    same_size(*inner, f"cannot multiply x={x} by y={y}: inner sizes differ")
    batch = broadcast_shapes(a[:-2], b[:-2])
    return TensorType((*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())), dtype)


def _swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2]) if len(shape) > 1 else shape


@matmul.vjp
def matmul_vjp(ct, out, x, y, *, transpose_x, transpose_y):
    if x.rank == 1 and y.rank == 1:
        return ct * y, ct * x
    row, column = x.rank == 1, y.rank == 1
    a, b = (unsqueeze(x, axes=(0,)) if row else x), (unsqueeze(y, axes=(-1,)) if column else y)
    tx, ty = transpose_x and not row, transpose_y and not column
    if row:
        ct = unsqueeze(ct, axes=(-2,))
    if column:
        ct = unsqueeze(ct, axes=(-1,))
    # for X = op(a), Y = op(b): dX = ct Y^T and dY = X^T ct; a transposed operand gets the transpose
    da = matmul(b, ct, transpose_x=ty, transpose_y=True) if tx else matmul(ct, b, transpose_y=not ty)
    if a.rank > 2 and b.rank == 2 and not column:
        # one sum over batch and rows: a product per batch element would store one matrix each before the sum
        left = "...ji" if tx else "...ij"
        db = einsum(a, ct, equation=f"{left},...ik->{'kj' if ty else 'jk'}")
    else:
        db = matmul(ct, a, transpose_x=True, transpose_y=tx) if ty else matmul(a, ct, transpose_x=not tx)
    if row:
        da = squeeze(_unbatched(da), axes=(0,))
    if column:
        db = squeeze(_unbatched(db), axes=(-1,))
    return da, db


def _unbatched(value):
    """The cotangent of a vector operand, summed over the batch that shared the vector."""
    return reduce_sum(value, axes=tuple(range(value.rank - 2))) if value.rank > 2 else value


def _examples():
    r = np.random.default_rng(0)
    a, b = r.standard_normal((2, 3)), r.standard_normal((3, 4))
    batch = r.standard_normal((3, 1, 2, 3))
    yield Example((a, b), (a @ b,))
    yield Example((a.T, b), (a @ b,), {"transpose_x": True})
    yield Example((a, b.T), (a @ b,), {"transpose_y": True})
    yield Example((a.T, b.T), (a @ b,), {"transpose_x": True, "transpose_y": True})
    yield Example((batch, np.stack([b, 2 * b])), (batch @ np.stack([b, 2 * b]),))
    yield Example((a[0], b), (a[0] @ b,))
    yield Example((batch, b), (batch @ b,))
    yield Example((batch.swapaxes(2, 3), b.T), (batch @ b,), {"transpose_x": True, "transpose_y": True})
    yield Example((batch[:0], b), (batch[:0] @ b,))
    yield Example((a, b[:, 0]), (a @ b[:, 0],))
    yield Example((a[0], b[:, 0]), (a[0] @ b[:, 0],))
    yield Example((batch, b[:, 0]), (batch @ b[:, 0],))
    yield Example((a[0], np.stack([b, 2 * b])), (a[0] @ np.stack([b, 2 * b]),))


matmul.example(_examples)
