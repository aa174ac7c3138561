"""LU factors, matrix exponentials and least squares.

All axes but the last two are a batch.
"""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.elimination import all_ordinary, eliminated
from core.ops.common.matrices import matrices, multiplied, square, transposed
from core.ops.common.on_cuda import scipy_function
from core.ops.common.ranges import NotNegative
from core.ops.common.types import matches, same_size
from core.ops.indexing.gather import check_index, slice_
from core.ops.indexing.scatter_gather import take_along_axis
from core.ops.indexing.sort import argsort
from core.ops.linalg.example_matrices import NONE, R, S
from core.ops.linalg.solve import pinv, triangular_solve
from core.ops.shape.agreeing import agreed, squared
from core.ops.shape.broadcast import expand_to
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.diagonals import tril, triu
from core.ops.shape.reshape import squeeze, unsqueeze

__all__: list[str] = []

D = np.array([[0.2, 0.3, -0.4], [2.1, 1.5, 0.2], [-0.6, 0.5, 3.0]])  # pivoting exchanges its first rows
PAIR = np.stack([S, D])


@op(outputs=("lower", "upper", "rows"))
def lu(xp, x):
    """LU decomposition with partial pivoting of square matrices: ``x[rows] = lower @ upper``.

    `lower` is triangular with ones on its diagonal, `upper` is triangular, and `rows` [..., n] (int64) is the order of
    the rows of x. A singular matrix has factors, but computing their gradient is an error of the run (singular_matrix).
    """
    factors = scipy_function(xp, "linalg", "lu")
    lower, upper, rows = xp.zeros_like(x), xp.zeros_like(x), xp.zeros(x.shape[:-1], "int64")
    for at in np.ndindex(*x.shape[:-2]):
        if bool(all_ordinary(xp, x[at], x.dtype)):
            p, lower[at], upper[at] = factors(x[at], check_finite=False)
            rows[at] = xp.argmax(p, axis=0)
        else:
            lower[at], upper[at], rows[at] = (each[0] for each in eliminated(xp, x[at][None])[:3])
    return lower, upper, rows


@lu.infer
def lu_infer(x):
    square(x, "lu")
    return x, x, TensorType(x.shape[:-1], "int64")


@lu.vjp
def lu_vjp(ct, out, x):
    # lower^-T (strictly lower part of lower.T cl, upper part of cu upper.T) upper^-T, with its rows put back
    (cl, cu, _), (lower, upper, rows) = ct, out
    inner = tril(multiplied(lower, cl, transpose_x=True), diagonal=-1) + triu(multiplied(cu, upper, transpose_y=True))
    left = triangular_solve(lower, inner, upper=False, transpose=True, unitriangular=True)
    both = transposed(triangular_solve(upper, transposed(left)))
    return _ordered(both, argsort(rows))


def _ordered(x, rows):
    """The rows of each matrix x in the order of `rows`."""
    return take_along_axis(x, expand_to(unsqueeze(rows, axes=(rows.rank,)), x), axis=x.rank - 2)


def _lu(x):
    """The factors by Gaussian elimination, of one matrix."""
    n = len(x)
    lower, upper, rows = np.eye(n), x.copy(), np.arange(n)
    for k in range(n):
        best = k + int(np.abs(upper[k:, k]).argmax())
        for each in (upper, rows):
            each[[k, best]] = each[[best, k]]
        lower[[k, best], :k] = lower[[best, k], :k]
        for i in range(k + 1, n):
            lower[i, k] = upper[i, k] / upper[k, k]
            upper[i] -= lower[i, k] * upper[k]
    return lower, np.triu(upper), rows


lu.example(
    lambda: [
        Example((D,), _lu(D)),
        Example((PAIR,), tuple(np.stack(each) for each in zip(_lu(S), _lu(D), strict=True))),
        Example((S[:2, :2],), _lu(S[:2, :2])),
        Example((NONE,), (NONE, NONE, np.zeros((0, 2), int))),
    ]
)


@composite
def lu_solve(lower, upper, rows, y):
    """Solution z of ``x @ z = y`` from the factors that `lu` gives for x; y is [..., n, k], or a vector [n].

    A zero on the diagonal of upper is an error of the run (singular_matrix).
    """
    square(upper.type, "lu_solve")
    check_index(rows.type, "rows")
    if not matches(rows.type, TensorType(upper.shape[:-1], rows.dtype)) or y.rank < 1:
        raise ProgramError(f"rows must be the order of the rows of {upper.type}, not {rows.type}", "shape_mismatch")
    vector = y.rank == 1
    right = unsqueeze(y, axes=(1,)) if vector else y
    same_size(upper.shape[-1], right.shape[-2], f"cannot solve {upper.type} for {y.type}: sizes differ")
    if right.rank != upper.rank:
        raise ProgramError(f"y must have the batch of {upper.type}, not {y.type}", "shape_mismatch")
    upper = squared(upper)
    rows, upper = agreed(rows, upper, *((i, i) for i in range(rows.rank)))
    lower, upper = agreed(lower, upper, *((i, i) for i in range(upper.rank)))
    right, upper = agreed(right, upper, *((i, i) for i in range(upper.rank - 1)))
    between = triangular_solve(lower, _ordered(right, rows), upper=False, unitriangular=True)
    out = triangular_solve(upper, between)
    return squeeze(out, axes=(1,)) if vector else out


lu_solve.example(
    lambda: [
        Example((*_lu(D), R), (np.linalg.inv(D) @ R,)),
        Example((*_lu(D), R[:, 0]), (np.linalg.inv(D) @ R[:, 0],)),
        Example((*(np.stack(v) for v in zip(_lu(S), _lu(D), strict=True)), np.stack([R, -R])),
                (np.stack([np.linalg.inv(S) @ R, -np.linalg.inv(D) @ R]),)),
        Example((NONE, NONE, np.zeros((0, 2), int), NONE[:, :, :1]), (NONE[:, :, :1],)),
    ]
)  # fmt: skip


@op
def matrix_exp(xp, x):
    """Exponential of each square matrix: ``1 + x + x @ x / 2 + x @ x @ x / 6 + ...`` (Al-Mohy and Higham 2009).

    A matrix with an element that is not finite gives NaN.
    """
    expm = scipy_function(xp, "linalg", "expm")
    finite = xp.isfinite(x).all(axis=(-2, -1), keepdims=True)
    out = xp.zeros_like(x)
    if x.size:
        with np.errstate(all="ignore"):
            for at in np.ndindex(*x.shape[:-2]):
                out[at] = expm(x[at] if finite[at] else xp.zeros_like(x[at]))
    return xp.where(finite, out, x.dtype.type(np.nan))


matrix_exp.infer(lambda x: square(x, "matrix_exp"))


@matrix_exp.vjp
def matrix_exp_vjp(ct, out, x):
    # The corner of the exponential of a block triangular matrix is the derivative in a direction (Mathias 1996); the
    # adjoint is the derivative at the transposed matrix.
    t = transposed(x)
    above = concat(t, ct, axis=x.rank - 1)
    below = concat(fill_zeros_like(x), t, axis=x.rank - 1)
    whole = matrix_exp(concat(above, below, axis=x.rank - 2))
    n = x.shape[-1]
    if n == -1:
        raise ProgramError(f"the gradient of matrix_exp needs a known size, not {x.type}", "shape_mismatch")
    return slice_(whole, axes=(x.rank - 2, x.rank - 1), starts=(0, n), ends=(n, 2 * n))


def _series(x):
    """The sum of the first terms of the power series."""
    out = term = np.broadcast_to(np.eye(x.shape[-1]), x.shape)
    for k in range(1, 60):
        term = term @ x / k
        out = out + term
    return out


matrix_exp.example(
    lambda: [
        Example((D,), (_series(D),)),
        Example((PAIR,), (_series(PAIR),)),
        Example((np.array([[0.0, -math.pi], [math.pi, 0.0]]),), (-np.eye(2),)),
        Example((NONE,), (NONE,)),
    ]
)


@composite
def lstsq(x, y, *, rcond: NotNegative | None = None):
    """Least-squares solution z of ``x @ z = y``: of all z with the smallest ``norm(x @ z - y)`` the one of the smallest
    norm. x is [..., m, n] and y [..., m, k], or a vector [m].

    - `rcond`: as in `pinv`, which also states where the gradient is valid.
    """
    matrices(x.type, "lstsq")
    return multiplied(pinv(x, rcond=rcond), y)


def _normal_equations(x, y):
    t = x.swapaxes(-1, -2)
    return np.linalg.inv(t @ x) @ t @ y if x.shape[-2] >= x.shape[-1] else t @ np.linalg.inv(x @ t) @ y


lstsq.example(
    lambda: [
        Example((R, D), (_normal_equations(R, D),)),
        Example((R.T, R[:2]), (_normal_equations(R.T, R[:2]),)),
        Example((R, D[:, 0]), (_normal_equations(R, D[:, 0]),)),
        Example((PAIR[:, :, :2], PAIR[:, :, :1]), (_normal_equations(PAIR[:, :, :2], PAIR[:, :, :1]),)),
        Example((NONE, NONE[:, :, :1]), (NONE[:, :, :1],)),
    ]
)
