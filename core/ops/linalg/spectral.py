"""Eigenvalues of symmetric matrices and singular values of any matrix, with their vectors.

All axes but the last two are a batch. The VJP rules are the standard ones (Giles 2008; Townsend 2016, "Differentiating
the singular value decomposition").

Signs. The sign of an eigenvector or a left singular vector is fixed by a convention: among its components with at least
0.9 times the magnitude of the largest, the first is positive. The largest component alone would not do: for (1, -1),
rounding would choose the sign.

Equal values. Vectors of equal values are not unique beyond their signs, and a loss that reads them has, in general, no
gradient. Some losses are the same for every choice of vectors and do have a gradient, but the cotangents of the vectors
do not determine it: for ``sum(c * (v @ diag(g(w)) @ v.T))`` the cotangents depend on g(w), the gradient on g'(w).
Therefore a nonzero cotangent for the product of two such vectors is an error of the run (degenerate_spectrum). An exact
zero, as in a loss of the values alone, is not. Values that differ only by rounding count as equal.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.matrices import (
    as_diagonal,
    attempt_on_finite,
    column,
    multiplied,
    read_lower,
    row,
    sized,
    square,
    symmetric_part,
    transposed,
)
from core.ops.common.types import broadcast
from core.ops.elementwise.logic import greater_than, where
from core.ops.indexing.gather import slice_
from core.ops.linalg.example_matrices import NONE, PAIR, SYMMETRIC, D, R, S
from core.ops.reduction.sums import diagonal_mask_like
from core.ops.shape.creation import fill_zeros_like, full_like

__all__ = ["EQUAL_VALUES", "NO_VALUES", "ROUNDING"]

NO_VALUES = "the eigenvalues or singular values did not converge: is every element finite?"
EQUAL_VALUES = "the vectors of equal eigenvalues or singular values, or of a singular value 0, have no gradient"
ROUNDING = 64
"""Two values count as equal if they differ by at most this many rounding errors of the largest value."""


@op(broadcasts=True)
def gap_quotient(xp, x, gap, values):
    """Quotient ``x / gap``, and 0 where x is 0 and the gap is 0 up to the rounding of `values` [..., k].

    A gap is a difference of two eigenvalues or singular values, or of one and 0. Where a gap is 0 and x is not, the
    gradient does not exist, and the op is an error of the run (degenerate_spectrum).
    """
    if values.size == 0:
        return x / gap
    unit = x.dtype.type(ROUNDING * np.finfo(x.dtype).eps)
    equal = xp.abs(gap) <= unit * xp.max(xp.abs(values), axis=-1)[..., None, None]
    if bool(xp.any(equal & (x != 0))):
        raise ExecutionError(
            EQUAL_VALUES,
            "degenerate_spectrum",
            suggestion="make the loss depend only on the values, or only on vectors of distinct values",
        )
    return xp.where(equal, x.dtype.type(0), x / xp.where(equal, x.dtype.type(1), gap))


@gap_quotient.infer
def gap_quotient_infer(x, gap, values):
    if x.dtype not in ("float32", "float64"):
        raise ProgramError(f"gap_quotient takes float32 or float64, not {x}: cast it", "dtype_mismatch")
    if values.rank == 0 or max(x.rank, gap.rank) != values.rank + 1:
        raise ProgramError(
            f"gap_quotient needs matrices of quotients and vectors of values, not {x} and {values}", "shape_mismatch"
        )
    return broadcast(x, gap, TensorType((*values.shape[:-1], 1, 1), values.dtype))


@gap_quotient.vjp
def gap_quotient_vjp(ct, out, x, gap, values):
    return gap_quotient(ct, gap, values), -gap_quotient(ct * out, gap, values), None


gap_quotient.example(
    lambda: [
        Example((D, S, D[0]), (D / S,)),
        Example((PAIR, S[:1], D[:2]), (PAIR / S[0],)),
        Example((NONE, NONE, NONE[:, 0]), (NONE,)),
    ]
)


def _off_diagonal(gap):
    """`gap` with an infinite diagonal, so that the quotient of a value with itself is 0."""
    return where(diagonal_mask_like(gap), full_like(gap, value=math.inf), gap)


# --- eigenvalues of symmetric matrices -------------------------------------------------------------------------


def _signs(xp, vectors):
    """The factor 1 or -1 for each column, [..., 1, k], by the sign convention of this module."""
    if 0 in vectors.shape:
        return xp.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    size = xp.abs(vectors)
    candidates = size >= vectors.dtype.type(0.9) * xp.max(size, axis=-2, keepdims=True)
    first = xp.take_along_axis(vectors, xp.argmax(candidates, axis=-2)[..., None, :], axis=-2)
    return xp.where(first < 0, vectors.dtype.type(-1), vectors.dtype.type(1))


@op(outputs=("values", "vectors"))
def eigh_factor(xp, x):
    """Ascending eigenvalues w and orthonormal eigenvectors V (columns) of a symmetric x: ``V @ diag(w) @ V.T = x``.

    The op reads only the lower triangle of x.
    """
    values, vectors = attempt_on_finite(xp, NO_VALUES, xp.linalg.eigh, x, lower=True)
    return values, vectors * _signs(xp, vectors)


@eigh_factor.infer
def eigh_factor_infer(x):
    square(x, "eigh")
    return TensorType(x.shape[:-1], x.dtype), x


@eigh_factor.vjp
def eigh_factor_vjp(ct, out, x):
    values, vectors = out
    inner = multiplied(vectors, ct[1], transpose_x=True)
    inner = gap_quotient(inner, _off_diagonal(row(values) - column(values)), values) + as_diagonal(ct[0], inner)
    return read_lower(multiplied(multiplied(vectors, inner), vectors, transpose_y=True))


def _eigh(x):
    """Eigenvalues and vectors from the Schur form, which is diagonal for symmetric matrices, with signs set in a
    loop.
    """
    from scipy.linalg import schur

    out = []
    for m in x.reshape(-1, *x.shape[-2:]):
        t, z = schur(m)
        order = np.argsort(np.diagonal(t))
        z = z[:, order]
        for v in z.T:
            v *= np.sign(next(c for c in v if abs(c) >= 0.9 * np.abs(v).max()))
        out.append((np.diagonal(t)[order], z))
    return tuple(np.array(v).reshape(*x.shape[:-2], *v[0].shape) for v in zip(*out, strict=True))


_EIGH = (S, SYMMETRIC, np.array([[2.0, -1.0], [-1.0, 2.0]]))
_NO_EIGH = (NONE, (NONE[:, 0], NONE))
eigh_factor.example(lambda: [*(Example((x,), _eigh(x)) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1])])


@composite(outputs=("values", "vectors"))
def eigh(x):
    """Ascending eigenvalues w and orthonormal eigenvectors V (columns): ``V @ diag(w) @ V.T = (x + x.T) / 2``.

    In each vector, the first of the components with at least 0.9 times the largest magnitude is positive. The gradient
    is symmetric. An element of x that is not finite is an error of the run (no_convergence).
    Eigenvectors of equal eigenvalues (equal up to rounding) are not unique: a nonzero cotangent that reaches them is an
    error of the run (degenerate_spectrum), even in a loss that is the same for all choices of vectors, because its
    gradient does not follow from the cotangents. The eigenvalues always have a gradient, as in `eigvalsh`.
    """
    return eigh_factor(symmetric_part(x, "eigh"))


eigh.example(lambda: [*(Example((x,), _eigh(x)) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1])])


@op
def eigvalsh_factor(xp, x):
    """Ascending eigenvalues w of a symmetric x: ``det(x - w) = 0``. The op reads only the lower triangle of x."""
    return attempt_on_finite(xp, NO_VALUES, xp.linalg.eigvalsh, x, lower=True)


@eigvalsh_factor.vjp
def eigvalsh_factor_vjp(ct, out, x):
    _, vectors = eigh_factor(x)
    return read_lower(multiplied(vectors * row(ct), vectors, transpose_y=True))


eigvalsh_factor.infer(lambda x: TensorType(square(x, "eigvalsh").shape[:-1], x.dtype))
eigvalsh_factor.example(
    lambda: [*(Example((x,), _eigh(x)[:1]) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1][:1])]
)


@composite
def eigvalsh(x):
    """Ascending eigenvalues of the symmetric part of x.

    The gradient is ``v @ diag(ct) @ v.T`` with the eigenvectors v. Where eigenvalues are equal, this is exact for a
    loss that treats them alike; any other loss has a kink there, and this is one of its subgradients. The second
    derivative at equal eigenvalues is an error of the run (degenerate_spectrum), and so is an element of x that is not
    finite (no_convergence).
    """
    return eigvalsh_factor(symmetric_part(x, "eigvalsh"))


eigvalsh.example(lambda: [*(Example((x,), _eigh(x)[:1]) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1][:1])])


@op(outputs=("u", "s", "v"))
def svd(xp, x):
    """Singular value decomposition ``U @ diag(s) @ V.T = x`` with orthonormal columns U and V and descending s.

    The number of singular values is the size of the shorter side. V is not transposed. In each column of U, the first
    of the components with at least 0.9 times the largest magnitude is positive. An element of x that is not finite is
    an error of the run (no_convergence).
    Vectors of equal singular values (equal up to rounding) are not unique, and neither are vectors of a singular value
    0 on the longer side: a nonzero cotangent that reaches them is an error of the run (degenerate_spectrum). The values
    always have a gradient, ``u @ diag(ct) @ v.T``. A singular value of 0 contributes 0 to it, because it has a kink
    there like the absolute value.
    """
    u, s, vt = attempt_on_finite(xp, NO_VALUES, partial(xp.linalg.svd, full_matrices=False), x)
    sign = _signs(xp, u)
    return u * sign, s, xp.swapaxes(vt, -1, -2) * sign


@svd.infer
def svd_infer(x):
    m, n = sized(x, "svd")
    k, batch = min(m, n), x.shape[:-2]
    return TensorType((*batch, m, k), x.dtype), TensorType((*batch, k), x.dtype), TensorType((*batch, n, k), x.dtype)


@svd.vjp
def svd_vjp(ct, out, x):
    (cu, cs, cv), (u, s, v) = ct, out
    uu, vv = multiplied(u, cu, transpose_x=True), multiplied(v, cv, transpose_x=True)
    # With W = u.T du, Z = v.T dv and P = u.T dx v: (W + Z)[i, j] = (P + P.T)[i, j] / (s[j] - s[i]), and
    # (W - Z)[i, j] = (P - P.T)[i, j] / (s[j] + s[i]). A single quotient by s[j]^2 - s[i]^2 would cancel.
    gap, sum = _off_diagonal(row(s) - column(s)), _off_diagonal(row(s) + column(s))
    even, odd = gap_quotient(uu, gap, s) + gap_quotient(vv, gap, s), gap_quotient(uu - vv, sum, s)
    inner = (even + transposed(even) + odd - transposed(odd)) * 0.5
    inner = inner + as_diagonal(where(_nonzero(s), cs, fill_zeros_like(cs)), inner)
    cx = multiplied(multiplied(u, inner), v, transpose_y=True)
    m, n = x.shape[-2:]
    if m > n:
        cx = cx + multiplied(gap_quotient(cu - multiplied(u, uu), row(s), s), v, transpose_y=True)
    if n > m:
        cx = cx + multiplied(u, gap_quotient(cv - multiplied(v, vv), row(s), s), transpose_y=True)
    return cx


def _nonzero(s):
    """Whether each singular value exceeds the rounding error of the largest."""
    first = slice_(s, axes=(s.rank - 1,), starts=(0,), ends=(1,))
    return greater_than(s, first * float(ROUNDING * np.finfo(s.dtype).eps))


def _svd(x):
    """The decomposition from the eigenvectors of ``x @ x.T`` or ``x.T @ x``, whichever is smaller."""
    t = x.swapaxes(-1, -2)
    wide = x.shape[-2] <= x.shape[-1]
    values, vectors = (v[..., ::-1] for v in _eigh(x @ t if wide else t @ x))
    s = np.sqrt(values)
    other = (t if wide else x) @ vectors / s[..., None, :]
    u, v = (vectors, other) if wide else (other, vectors)
    candidates = np.abs(u) >= 0.9 * np.abs(u).max(-2, keepdims=True)
    sign = np.sign(np.take_along_axis(u, candidates.argmax(-2)[..., None, :], -2))
    return u * sign, s, v * sign


svd.example(
    lambda: [
        *(Example((x,), _svd(x)) for x in (R, R.T.copy(), PAIR)),
        Example((NONE[:, :, :1],), (NONE[:, :, :1], NONE[:, 0, :1], NONE[:, :1, :1])),
    ]
)
