"""Triangular decompositions of matrices: Cholesky and QR.

All axes but the last two are a batch. The VJP rules are the standard ones (Giles 2008; Murray 2016, "Differentiation of
the Cholesky decomposition"). The diagonals of the triangular factors are not negative, which makes the factors unique.
"""

from __future__ import annotations

import numpy as np

from core.ir import TensorType
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.elimination import all_finite, factored, replaced
from core.ops.common.matrices import (
    NO_CONVERGENCE,
    SINGULAR,
    attempt,
    diagonal_part,
    multiplied,
    read_lower,
    row,
    sized,
    square,
    symmetric_part,
    transposed,
)
from core.ops.elementwise.logic import less_equal, logical_and, where
from core.ops.indexing.gather import slice_
from core.ops.linalg.example_matrices import NONE, PAIR, SYMMETRIC, D, R, S
from core.ops.linalg.solve import triangular_solve
from core.ops.reduction.sums import diagonal_mask_like, reduce_max
from core.ops.shape.concat_split import concat
from core.ops.shape.creation import fill_zeros_like
from core.ops.shape.diagonals import diagonal, tril

__all__: list[str] = []


ROUNDING = 4
"""A pivot counts as zero up to this many rounding errors of the largest one for each row."""


@op
def cholesky_factor(xp, x):
    """Lower triangular L with ``L @ L.T = x`` for a symmetric x. The op reads only the lower triangle of x."""
    finite, problem = all_finite(xp, xp.tril(x)), "the matrix is not positive definite"
    if bool(finite.all()):
        return attempt(xp, SINGULAR, problem, xp.linalg.cholesky, x)
    identity = xp.eye(x.shape[-1], dtype=x.dtype)
    out = attempt(xp, SINGULAR, problem, xp.linalg.cholesky, xp.where(finite[..., None, None], x, identity))
    return replaced(xp, ~finite, out, lambda x: factored(xp, x, SINGULAR, problem), x)


@cholesky_factor.vjp
def cholesky_factor_vjp(ct, out, x):
    # Murray 2016, equation 10: with F = tril(L.T ct), its diagonal halved, the symmetric part of L^-T F L^-1
    inner = multiplied(out, ct, transpose_x=True)
    half = tril(inner) - diagonal_part(inner) * 0.5
    left = triangular_solve(out, half, upper=False, transpose=True)
    both = transposed(triangular_solve(out, transposed(left), upper=False, transpose=True))
    return read_lower(both)


cholesky_factor.infer(lambda x: square(x, "cholesky"))


def _cholesky(x):
    """The factor, computed column by column (Cholesky-Banachiewicz)."""
    out = np.zeros_like(x)
    for j in range(x.shape[-1]):
        out[..., j, j] = np.sqrt(x[..., j, j] - (out[..., j, :j] ** 2).sum(-1))
        for i in range(j + 1, x.shape[-1]):
            out[..., i, j] = (x[..., i, j] - (out[..., i, :j] * out[..., j, :j]).sum(-1)) / out[..., j, j]
    return out


cholesky_factor.example(lambda: [Example((x,), (_cholesky(x),)) for x in (S, SYMMETRIC, NONE)])


@composite
def cholesky(x, *, upper: bool = False):
    """Cholesky factor of the symmetric part of x: lower triangular L with ``L @ L.T = x``, or upper U with ``U.T @ U =
    x``.

    - `upper`: return U.

    A matrix that is not positive definite is an error of the run (singular_matrix). The gradient is symmetric.
    """
    factor = cholesky_factor(symmetric_part(x, "cholesky"))
    return transposed(factor) if upper else factor


cholesky.example(
    lambda: [
        Example((S,), (_cholesky(S),)),
        Example((SYMMETRIC,), (_cholesky(SYMMETRIC).swapaxes(1, 2),), {"upper": True}),
        Example((S + np.triu(D, 1) - np.triu(D, 1).T,), (_cholesky(S),)),
        Example((NONE,), (NONE,)),
    ]
)


@op(outputs=("q", "r"))
def qr_factor(xp, x):
    """Orthonormal columns Q and upper triangular R with ``Q @ R = x``, for matrices with at least as many rows as
    columns.

    A matrix with an element that is not finite gives NaN in Q and on and above the diagonal of R.
    """
    q, r = attempt(xp, NO_CONVERGENCE, "the QR decomposition did not converge", xp.linalg.qr, x)
    finite = all_finite(xp, x)[..., None, None]  # LAPACK finds finite columns that depend on a NaN
    q, r = xp.where(finite, q, x.dtype.type(np.nan)), xp.triu(xp.where(finite, r, x.dtype.type(np.nan)))
    sign = xp.where(xp.diagonal(r, axis1=-2, axis2=-1) < 0, x.dtype.type(-1), x.dtype.type(1))
    return q * sign[..., None, :], r * sign[..., :, None]


@qr_factor.infer
def qr_factor_infer(x):
    m, n = sized(x, "qr")
    if m < n:
        raise ProgramError(f"qr_factor needs at least as many rows as columns, not {x}", "shape_mismatch")
    return x, TensorType((*x.shape[:-2], n, n), x.dtype)


@qr_factor.vjp
def qr_factor_vjp(ct, out, x):
    (cq, cr), (q, r) = ct, out
    inner = multiplied(r, cr, transpose_y=True) - multiplied(cq, q, transpose_x=True)
    mirrored = tril(inner) + transposed(tril(inner, diagonal=-1))
    back = cq + multiplied(q, mirrored)
    return transposed(triangular_solve(_without_rounding(r, x), transposed(back)))  # back @ R^-T


def _without_rounding(r, x):
    """R with zeros for the pivots that are zero up to rounding, so that a system of dependent columns is singular."""
    if 0 in r.shape:
        return r
    pivots = diagonal(r, axis1=-2, axis2=-1)
    largest = reduce_max(pivots, axes=(pivots.rank - 1,), keepdims=True)
    limit = largest * float(ROUNDING * max(x.shape[-2:]) * np.finfo(x.dtype).eps)
    gone = logical_and(diagonal_mask_like(r), row(less_equal(pivots, limit)))
    return where(gone, fill_zeros_like(r), r)


def _qr(x):
    """The factors by the Gram-Schmidt process."""
    m, n = x.shape[-2:]
    k = min(m, n)
    q = np.zeros((*x.shape[:-1], k))
    for j in range(k):
        v = x[..., j] - (q @ (q.swapaxes(-1, -2) @ x[..., j : j + 1]))[..., 0]
        q[..., j] = v / np.sqrt((v**2).sum(-1, keepdims=True))
    return q, q.swapaxes(-1, -2) @ x * np.triu(np.ones((k, n)))


qr_factor.example(lambda: [Example((x,), _qr(x)) for x in (R, PAIR, NONE)])


@composite(outputs=("q", "r"))
def qr(x):
    """QR decomposition ``Q @ R = x``: orthonormal columns Q [..., m, k] and upper triangular R [..., k, n] of x [...,
    m, n].

    k is the smaller of m and n. The diagonal of R is not negative. If the first k columns of x are linearly dependent,
    computing the gradient is an error of the run (singular_matrix). If they have an element that is not finite, Q is
    NaN, and so is R on and above its diagonal.
    """
    m, n = sized(x.type, "qr")
    if m >= n:
        return qr_factor(x)
    q, r = qr_factor(slice_(x, axes=(x.rank - 1,), starts=(0,), ends=(m,)))
    rest = multiplied(q, slice_(x, axes=(x.rank - 1,), starts=(m,), ends=(n,)), transpose_x=True)
    return q, concat(r, rest, axis=x.rank - 1)


qr.example(lambda: [Example((x,), _qr(x)) for x in (R, R.T, PAIR, PAIR[:, :2], NONE)])
