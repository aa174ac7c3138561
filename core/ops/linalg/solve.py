"""Linear systems, inverses and pseudo-inverses.

All axes but the last two are a batch. The VJP rules are the standard ones (Giles 2008, "An extended collection of
matrix derivative results for forward and reverse mode algorithmic differentiation"). A singular matrix is an error of
the run (singular_matrix) wherever an inverse is needed. Only a zero pivot counts as singular; a nearly singular matrix
gives large numbers.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, op
from core.ops.common.elimination import all_ordinary, replaced, solved
from core.ops.common.matrices import (
    SINGULAR,
    attempt,
    attempt_on_finite,
    column,
    matrices,
    multiplied,
    square,
    transposed,
)
from core.ops.common.on_cuda import scipy_function
from core.ops.common.ranges import NotNegative
from core.ops.common.types import broadcast_shapes, same_dtype, same_size
from core.ops.linalg.example_matrices import NONE, PAIR, D, R
from core.ops.shape.diagonals import tril, triu
from core.ops.shape.reshape import squeeze

__all__: list[str] = []

POINT = np.zeros((0, 0))


@op
def inverse(xp, x):
    """Inverse of each square matrix: ``out @ x = 1``. A singular matrix is an error of the run (singular_matrix)."""
    identity = xp.eye(x.shape[-1], dtype=x.dtype)
    return _solved(xp, x, identity, "the matrix is singular and has no inverse", lambda x, _: xp.linalg.inv(x))


def _solved(xp, x, y, problem, lapack):
    """``lapack(x, y)`` for the ordinary matrices of a batch, and the solution by elimination for the others.

    y: matrices with the batch of x, or of another one that broadcasts. Raises ExecutionError (singular_matrix) with
    `problem`.
    """
    ordinary = all_ordinary(xp, x, "float64")  # in which LAPACK computes, also for float32
    if bool(ordinary.all()):
        return attempt(xp, SINGULAR, problem, lapack, x, y)
    identity = xp.eye(x.shape[-1], dtype=x.dtype)
    out = attempt(xp, SINGULAR, problem, lapack, xp.where(ordinary[..., None, None], x, identity), y)
    batch = out.shape[:-2]
    ordinary = xp.broadcast_to(ordinary, batch)
    x, y = (xp.broadcast_to(v, (*batch, *v.shape[-2:])) for v in (x, y))
    return replaced(xp, ~ordinary, out, lambda x, y: solved(xp, x, y, SINGULAR, problem), x, y)


inverse.infer(lambda x: square(x, "inverse"))
inverse.vjp(lambda ct, out, x: -multiplied(multiplied(out, ct, transpose_x=True), out, transpose_y=True))
inverse.example(lambda: [Example((x,), (np.linalg.inv(x),)) for x in (D, PAIR, NONE, POINT)])


@op(broadcasts=True)
def solve(xp, x, y):
    """Solution z of the linear system ``x @ z = y``, for square x [..., n, n] and y [..., n, k] or a vector [n].

    Batches broadcast. A singular matrix is an error of the run (singular_matrix).
    """
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if xp is not np:  # cupy's solve does not broadcast
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        x, y = (xp.broadcast_to(v, (*batch, *v.shape[-2:])) for v in (x, y))
    out = _solved(xp, x, y, "the matrix of the linear system is singular", xp.linalg.solve)
    return out[..., 0] if vector else out


def _solution(x: TensorType, y: TensorType, what: str) -> TensorType:
    square(x, what)
    if y.rank == 0:
        raise ProgramError(f"the right-hand side of {what} must be a vector or a matrix, not {y}", "shape_mismatch")
    rows = y.shape[0] if y.rank == 1 else y.shape[-2]
    n = same_size(x.shape[-1], rows, f"cannot solve {x} for {y}: sizes differ")
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return TensorType((*batch, n, *y.shape[1 if y.rank == 1 else -1 :]), same_dtype(x, y))


def _solution_vjp(ct, out, y, solve_adjoint):
    """The cotangents of the matrix, ``-solve_adjoint(ct) @ out.T``, and of the right-hand side,
    ``solve_adjoint(ct)``.

    solve_adjoint: solves the transposed system.
    """
    if y.rank == 1:
        ct, out = column(ct), column(out)
    right = solve_adjoint(ct)
    cx = -multiplied(right, out, transpose_y=True)
    return cx, squeeze(right, axes=(-1,)) if y.rank == 1 else right


solve.infer(lambda x, y: _solution(x, y, "solve"))
solve.vjp(lambda ct, out, x, y: _solution_vjp(ct, out, y, lambda ct: solve(transposed(x), ct)))
solve.example(
    lambda: [
        Example((D, R), (np.linalg.inv(D) @ R,)),
        Example((PAIR, R), (np.stack([np.linalg.inv(m) @ R for m in PAIR]),)),
        Example((PAIR, R[:, 0]), (np.stack([np.linalg.inv(m) @ R[:, 0] for m in PAIR]),)),
        Example((D, np.stack([R, -R])), (np.stack([np.linalg.inv(D) @ R, -np.linalg.inv(D) @ R]),)),
        Example((NONE, NONE[:, :, :1]), (NONE[:, :, :1],)),
        Example((D, R[:, :0]), (R[:, :0],)),
    ]
)


@op(broadcasts=True)
def triangular_solve(xp, x, y, *, upper: bool = True, transpose: bool = False, unitriangular: bool = False):
    """Solution z of the triangular system ``x @ z = y``, or of ``x.T @ z = y``, by substitution.

    y is [..., n, k] or a vector [n]. The op reads only the upper (or lower) triangle of x; the rest of x has gradient
    0.

    - `upper`: whether x is upper triangular.
    - `transpose`: solve with ``x.T``.
    - `unitriangular`: use ones as the diagonal of x; the diagonal then has gradient 0.

    A zero on the diagonal is an error of the run (singular_matrix).
    """
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if x.shape[-2:] != (y.shape[-2], y.shape[-2]):
        raise ExecutionError(f"shapes {list(x.shape)} and {list(y.shape)} do not fit", "shape_mismatch")
    if not unitriangular and bool(xp.any(xp.diagonal(x, axis1=-2, axis2=-1) == 0)):
        raise ExecutionError("the triangular matrix is singular: it has a zero on its diagonal", SINGULAR)
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    out = xp.zeros((*batch, *y.shape[-2:]), y.dtype)
    pivots = xp.abs(xp.diagonal(x, axis1=-2, axis2=-1))
    denormal = not unitriangular and bool(((pivots > 0) & (pivots < float(np.finfo(x.dtype).tiny))).any())
    if out.size and ((batch and x.shape[-1] < 32) or denormal):
        # for small matrices one batched LU call is faster than substitution per matrix
        triangle = (xp.triu if upper else xp.tril)(x, (1 if upper else -1) if unitriangular else 0)
        triangle = triangle + xp.eye(x.shape[-1], dtype=x.dtype) if unitriangular else triangle
        out = solve.body(xp, xp.swapaxes(triangle, -1, -2) if transpose else triangle, y)
    elif out.size:
        solve_triangular = scipy_function(xp, "linalg", "solve_triangular")
        xs, ys = xp.broadcast_to(x, (*batch, *x.shape[-2:])), xp.broadcast_to(y, out.shape)
        options = {"lower": not upper, "trans": int(transpose), "unit_diagonal": unitriangular, "check_finite": False}
        for at in np.ndindex(*batch):
            out[at] = solve_triangular(xs[at], ys[at], **options)
    return out[..., 0] if vector else out


triangular_solve.infer(lambda x, y, **attrs: _solution(x, y, "triangular_solve"))


@triangular_solve.vjp
def triangular_solve_vjp(ct, out, x, y, *, upper, transpose, unitriangular):
    def solve_adjoint(ct):
        flags = {"upper": upper, "transpose": not transpose, "unitriangular": unitriangular}
        return triangular_solve(x, ct, **flags)

    cx, right = _solution_vjp(ct, out, y, solve_adjoint)
    cx = transposed(cx) if transpose else cx
    triangle = triu if upper else tril
    return triangle(cx, diagonal=(1 if upper else -1) if unitriangular else 0), right


def _triangular_examples():
    def solved(m, y=R):
        return np.linalg.inv(m) @ y

    yield Example((D, R), (solved(np.triu(D)),))
    yield Example((D, R[:, 0]), (solved(np.tril(D).T, R[:, 0]),), {"upper": False, "transpose": True})
    yield Example((PAIR, R), (np.stack([solved(np.triu(m, 1) + np.eye(3)) for m in PAIR]),), {"unitriangular": True})
    yield Example(
        (D, np.stack([R, -R])),
        (np.stack([solved(np.tril(D, -1).T + np.eye(3)), -solved(np.tril(D, -1).T + np.eye(3))]),),
        {"upper": False, "transpose": True, "unitriangular": True},
    )
    yield Example((D, R), (solved(np.triu(D, 1).T + np.eye(3)),), {"transpose": True, "unitriangular": True})
    yield Example((D, R[:, :0]), (R[:, :0],), {"upper": False})


triangular_solve.example(_triangular_examples)


@op
def pinv(xp, x, *, rcond: NotNegative | None = None):
    """Moore-Penrose pseudo-inverse of each matrix: ``x @ out @ x = x``, of shape [..., n, m] for x [..., m, n].

    - `rcond`: singular values up to `rcond` times the largest count as 0. The default is the machine epsilon of the
      dtype times the longer side.

    An element of x that is not finite is an error of the run (no_convergence).
    The gradient is valid among matrices of the same rank (Golub and Pereyra 1973): a singular value that counts as 0,
    but is not 0, adds an error of about its ratio to the smallest one that does not. Where the rank changes, the
    pseudo-inverse is discontinuous.
    """
    problem = "the singular values did not converge: is every element finite?"
    u, s, vt = attempt_on_finite(xp, problem, partial(xp.linalg.svd, full_matrices=False), x)
    if s.size == 0:
        return xp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    tolerance = float(np.finfo(x.dtype).eps) * max(x.shape[-2:]) if rcond is None else rcond
    zero = s <= xp.max(s, axis=-1, keepdims=True) * s.dtype.type(tolerance)
    inverted = xp.where(zero, s.dtype.type(0), 1 / xp.where(zero, s.dtype.type(1), s))
    return xp.matmul(xp.swapaxes(vt, -1, -2) * inverted[..., None, :], xp.swapaxes(u, -1, -2))


@pinv.infer
def pinv_infer(x, *, rcond):
    matrices(x, "pinv")
    return TensorType((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


@pinv.vjp
def pinv_vjp(ct, out, x, *, rcond):
    # d out = -out dx out + out out.T dx.T (1 - x out) + (1 - out x) dx.T out.T out
    ct_t = transposed(ct)
    left = multiplied(multiplied(ct_t, out), out, transpose_y=True)  # ct.T out out.T
    right = multiplied(out, multiplied(out, ct_t), transpose_x=True)  # out.T out ct.T
    middle = multiplied(multiplied(out, ct, transpose_x=True), out, transpose_y=True)  # out.T ct out.T
    cx = left - multiplied(x, multiplied(out, left)) - middle
    return cx + right - multiplied(multiplied(right, out), x)


def _pinv(x):
    """The pseudo-inverse of matrices of full rank, from the normal equations."""
    t = x.swapaxes(-1, -2)
    wide = x.shape[-2] < x.shape[-1]
    return t @ np.linalg.inv(x @ t) if wide else np.linalg.inv(t @ x) @ t


pinv.example(
    lambda: [
        Example((R,), (_pinv(R),)),
        Example((np.stack([R, R[::-1] + 1]).swapaxes(1, 2),), (_pinv(np.stack([R, R[::-1] + 1]).swapaxes(1, 2)),)),
        Example((D,), (np.linalg.inv(D),), {"rcond": 1e-3}),
        Example((NONE[:, :, :1],), (NONE[:, :1],)),
        Example((R[:, :0],), (R.T[:0],)),
    ]
)
