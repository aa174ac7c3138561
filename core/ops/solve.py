"""Systems of linear equations: solutions, inverses, determinants.

A batch over all axes but the last two. The rules are the standard ones (Giles 2008, "An extended collection of matrix
derivative results for forward and reverse mode algorithmic differentiation"). A matrix that has no inverse, where one
is needed, is an error of the run (singular_matrix). Only a zero pivot counts as singular: a matrix that is merely close
to singular gives large numbers.
"""

from __future__ import annotations

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import TensorType
from core.ops.matrices import (
    NO_CONVERGENCE,
    SINGULAR,
    attempt,
    column,
    matrices,
    multiplied,
    square,
    transposed,
)
from core.ops.types import broadcast_shapes, same_dtype, same_size
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.3], [0.5, -0.3, 2.0]])
D = np.array([[2.0, 0.3, -0.4], [0.1, 1.5, 0.2], [-0.6, 0.5, 3.0]])
PAIR = np.stack([S, D])
R = np.array([[1.0, -2.0], [0.5, 0.4], [0.3, 1.0]])
NONE = np.zeros((0, 2, 2))
POINT = np.zeros((0, 0))


@op
def inverse(xp, x):
    """``out @ x = 1``, the inverse of each square matrix; a singular one is an error of the run (singular_matrix)."""
    return attempt(xp, SINGULAR, "a singular matrix has no inverse", xp.linalg.inv, x)


inverse.infer(lambda x: square(x, "inverse"))
inverse.vjp(lambda ct, out, x: -multiplied(multiplied(out, ct, transpose_x=True), out, transpose_y=True))
inverse.example(lambda: [Example((x,), (np.linalg.inv(x),)) for x in (D, PAIR, NONE, POINT)])


@op(broadcasts=True)
def solve(xp, x, y):
    """The solution z of ``x @ z = y`` for square x [..., n, n] and y [..., n, k] or a vector [n]; batches broadcast.

    A singular matrix is an error of the run (singular_matrix).
    """
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if xp is not np:  # cupy does not broadcast here
        batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
        x, y = (xp.broadcast_to(v, (*batch, *v.shape[-2:])) for v in (x, y))
    out = attempt(xp, SINGULAR, "the matrix of a system of equations is singular", xp.linalg.solve, x, y)
    return out[..., 0] if vector else out


def _solution(x: TensorType, y: TensorType, what: str) -> TensorType:
    square(x, what)
    if y.rank == 0:
        raise ProgramError(f"the right side of {what} is a vector or a matrix, not {y}", "shape_mismatch")
    rows = y.shape[0] if y.rank == 1 else y.shape[-2]
    n = same_size(x.shape[-1], rows, f"cannot solve {x} for {y}")
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return TensorType((*batch, n, *y.shape[1 if y.rank == 1 else -1 :]), same_dtype(x, y))


def _solution_vjp(ct, out, y, back):
    """``-back(ct) @ out.T``, the cotangent of the matrix, and back(ct); back solves the transposed system."""
    if y.rank == 1:
        ct, out = column(ct), column(out)
    right = back(ct)
    whole = -multiplied(right, out, transpose_y=True)
    return whole, lookup("squeeze")(right, axes=(-1,)) if y.rank == 1 else right


solve.infer(lambda x, y: _solution(x, y, "solve"))
solve.vjp(lambda ct, out, x, y: _solution_vjp(ct, out, y, lambda ct: lookup("solve")(transposed(x), ct)))
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
    """The solution z of ``x @ z = y``, or of ``x.T @ z = y``, by substitution; y [..., n, k] or a vector [n].

    Only the upper (lower) triangle of x is read, and with `unitriangular` its diagonal is taken as ones; the gradient
    is zero elsewhere. A zero on the diagonal is an error of the run (singular_matrix).
    """
    vector = y.ndim == 1
    y = y[:, None] if vector else y
    if x.shape[-2:] != (y.shape[-2], y.shape[-2]):
        raise ExecutionError(f"shapes {list(x.shape)} and {list(y.shape)} do not fit", "shape_mismatch")
    if not unitriangular and bool(xp.any(xp.diagonal(x, axis1=-2, axis2=-1) == 0)):
        raise ExecutionError("a triangular matrix with a zero on its diagonal is singular", SINGULAR)
    batch = broadcast_shapes(x.shape[:-2], y.shape[:-2])
    out = xp.zeros((*batch, *y.shape[-2:]), y.dtype)
    if out.size and batch and x.shape[-1] < 32:
        # small matrices: one call for all is faster than the fewer operations of substitution
        part = (xp.triu if upper else xp.tril)(x, (1 if upper else -1) if unitriangular else 0)
        part = part + xp.eye(x.shape[-1], dtype=x.dtype) if unitriangular else part
        out = solve.body(xp, xp.swapaxes(part, -1, -2) if transpose else part, y)
    elif out.size:
        if xp is np:
            from scipy.linalg import solve_triangular
        else:
            from cupyx.scipy.linalg import solve_triangular
        xs, ys = xp.broadcast_to(x, (*batch, *x.shape[-2:])), xp.broadcast_to(y, out.shape)
        how = {"lower": not upper, "trans": int(transpose), "unit_diagonal": unitriangular, "check_finite": False}
        for at in np.ndindex(*batch):
            out[at] = solve_triangular(xs[at], ys[at], **how)
    return out[..., 0] if vector else out


triangular_solve.infer(lambda x, y, **attrs: _solution(x, y, "triangular_solve"))


@triangular_solve.vjp
def triangular_solve_vjp(ct, out, x, y, *, upper, transpose, unitriangular):
    def back(ct):
        flags = {"upper": upper, "transpose": not transpose, "unitriangular": unitriangular}
        return lookup("triangular_solve")(x, ct, **flags)

    whole, right = _solution_vjp(ct, out, y, back)
    whole = transposed(whole) if transpose else whole
    return lookup("triu" if upper else "tril")(whole, diagonal=(1 if upper else -1) if unitriangular else 0), right


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
def det(xp, x):
    """The determinant of each square matrix. Its gradient at a singular one is an error of the run (singular_matrix).

    That gradient, the matrix of cofactors, does exist; it is computed as ``det(x) * inverse(x).T``.
    """
    return xp.linalg.det(x).astype(x.dtype)


def _scalars(x: TensorType) -> TensorType:
    return TensorType(x.shape[:-2], x.dtype)


def _as_matrices(x):
    return lookup("unsqueeze")(x, axes=(-2, -1))


det.infer(lambda x: _scalars(square(x, "det")))
det.vjp(lambda ct, out, x: _as_matrices(ct * out) * transposed(lookup("inverse")(x)))


def _leibniz(x):
    """The determinant of 3 x 3 matrices, written out."""
    return (x[..., 0, :] * np.cross(x[..., 1, :], x[..., 2, :])).sum(-1)


det.example(
    lambda: [
        Example((D,), (_leibniz(D),)),
        Example((PAIR,), (_leibniz(PAIR),)),
        Example((NONE,), (np.zeros(0),)),
        Example((POINT,), (np.array(1.0),)),
    ]
)


@op(outputs=("sign", "logabs"))
def slogdet(xp, x):
    """The sign of each determinant, and ``log(|det(x)|)``; of a singular matrix 0 and -inf.

    The sign has no gradient. The gradient of the logarithm is the transposed inverse; at a singular matrix it is an
    error of the run (singular_matrix).
    """
    sign, logabs = xp.linalg.slogdet(x)
    return sign.astype(x.dtype), logabs.astype(x.dtype)


slogdet.infer(lambda x: (_scalars(square(x, "slogdet")),) * 2)
slogdet.vjp(lambda ct, out, x: _as_matrices(ct[1]) * transposed(lookup("inverse")(x)))
slogdet.example(
    lambda: [
        Example((D,), (np.array(1.0), np.log(_leibniz(D)))),
        Example((-PAIR,), (-np.ones(2), np.log(_leibniz(PAIR)))),
        Example((NONE,), (np.zeros(0), np.zeros(0))),
        Example((POINT,), (np.array(1.0), np.array(0.0))),
    ]
)


@composite
def logdet(x):
    """``log(det(x))``, the logarithm of each determinant: -inf where it is 0, NaN where it is negative."""
    sign, logabs = lookup("slogdet")(x)
    return logabs + lookup("log")(lookup("stop_gradient")(sign))


logdet.example(
    lambda: [
        Example((D,), (np.log(_leibniz(D)),)),
        Example((PAIR,), (np.log(_leibniz(PAIR)),)),
        Example((NONE,), (np.zeros(0),)),
    ]
)


@op
def pinv(xp, x, *, rcond: float | None = None):
    """The pseudo-inverse (Moore, Penrose) of each matrix, ``x @ out @ x = x``: [..., n, m] of [..., m, n].

    Singular values up to `rcond` times the largest count as 0; by default `rcond` is the distance from 1 to the next
    number, times the longer side. The gradient is that among matrices of the same rank (Golub and Pereyra 1973): where
    the rank changes, the pseudo-inverse jumps.
    """
    u, s, vt = attempt(
        xp, NO_CONVERGENCE, "there are no singular values: is every element finite?", lambda: _thin(xp, x)
    )
    if s.size == 0:
        return xp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    share = float(np.finfo(x.dtype).eps) * max(x.shape[-2:]) if rcond is None else rcond
    zero = s <= xp.max(s, axis=-1, keepdims=True) * s.dtype.type(share)
    inverted = xp.where(zero, s.dtype.type(0), 1 / xp.where(zero, s.dtype.type(1), s))
    return xp.matmul(xp.swapaxes(vt, -1, -2) * inverted[..., None, :], xp.swapaxes(u, -1, -2))


def _thin(xp, x):
    return xp.linalg.svd(x, full_matrices=False)


@pinv.infer
def pinv_infer(x, *, rcond):
    matrices(x, "pinv")
    if rcond is not None and not 0 <= rcond < 1:
        raise ProgramError(f"rcond is a share of the largest singular value, in [0, 1), not {rcond}", "bad_attr")
    return TensorType((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


@pinv.vjp
def pinv_vjp(ct, out, x, *, rcond):
    # d out = -out dx out + out out.T dx.T (1 - x out) + (1 - out x) dx.T out.T out
    turned = transposed(ct)
    left = multiplied(multiplied(turned, out), out, transpose_y=True)  # ct.T out out.T
    right = multiplied(out, multiplied(out, turned), transpose_x=True)  # out.T out ct.T
    middle = multiplied(multiplied(out, ct, transpose_x=True), out, transpose_y=True)  # out.T ct out.T
    back = left - multiplied(x, multiplied(out, left)) - middle
    return back + right - multiplied(multiplied(right, out), x)


def _pinv(x):
    """Of matrices of full rank, by the normal equations."""
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
