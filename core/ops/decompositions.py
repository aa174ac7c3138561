"""Matrices taken apart: Cholesky, eigenvalues, QR, singular values.

A batch over all axes but the last two. The rules are the standard ones (Giles 2008; Murray 2016, "Differentiation of
the Cholesky decomposition"; Townsend 2016, "Differentiating the singular value decomposition").

Factors that are not unique get a convention: of the components of an eigenvector or of a left singular vector that are
at least nine tenths as large as its largest the first is positive, and the diagonal of R is not negative. (Taking the
largest itself would let rounding choose the sign of (1, -1).)

Vectors of equal values are not unique beyond their signs, and a loss that reads them has, in general, no gradient.
Where it has one, being the same for every choice of vectors, their cotangents do not tell it: of the loss
``sum(c * (v @ diag(g(w)) @ v.T))`` they depend on g(w), but the gradient depends on g'(w). So a cotangent that reaches
the product of two such vectors is an error of the run (degenerate_spectrum); one that is exactly zero, as when a loss
reads only the values, is not. Values that differ by rounding alone count as equal.
"""

from __future__ import annotations

import math

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import TensorType
from core.ops.matrices import (
    NO_CONVERGENCE,
    SINGULAR,
    as_diagonal,
    attempt,
    column,
    diagonal_part,
    matrices,
    multiplied,
    row,
    square,
    transposed,
)
from core.ops.types import broadcast
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.3], [0.5, -0.3, 2.0]])
D = np.array([[2.0, 0.3, -0.4], [0.1, 1.5, 0.2], [-0.6, 0.5, 3.0]])
SYMMETRIC = np.stack([S, S @ S])
PAIR = np.stack([S, D])
R = np.array([[1.0, -2.0], [0.5, 0.4], [0.3, 1.0]])
NONE = np.zeros((0, 2, 2))
NO_VALUES = "there are no eigenvalues or singular values: is every element finite?"
ROUNDING = 64
"""Two values this many roundings of the largest apart count as equal."""


def _symmetric_part(x, what):
    square(x.type, what)
    return (x + transposed(x)) * 0.5


def _read_lower(x):
    """The cotangent of the lower triangle, which is all that is read, from that of the symmetric matrix."""
    whole = x + transposed(x)
    return lookup("tril")(whole) - diagonal_part(x)


# --- Cholesky --------------------------------------------------------------------------------------------------


@op
def cholesky_factor(xp, x):
    """The lower triangular L with ``L @ L.T`` the symmetric x, of which only the lower triangle is read."""
    return attempt(xp, SINGULAR, "the matrix is not positive definite", xp.linalg.cholesky, x)


@cholesky_factor.vjp
def cholesky_factor_vjp(ct, out, x):
    # Murray 2016, equation 10: with F = tril(L.T ct), its diagonal halved, the symmetric part of L^-T F L^-1
    inner = multiplied(out, ct, transpose_x=True)
    half = lookup("tril")(inner) - diagonal_part(inner) * 0.5
    left = lookup("triangular_solve")(out, half, upper=False, transpose=True)
    both = transposed(lookup("triangular_solve")(out, transposed(left), upper=False, transpose=True))
    return _read_lower(both)


cholesky_factor.infer(lambda x: square(x, "cholesky"))


def _cholesky(x):
    """Column by column (Cholesky, Banachiewicz)."""
    out = np.zeros_like(x)
    for j in range(x.shape[-1]):
        out[..., j, j] = np.sqrt(x[..., j, j] - (out[..., j, :j] ** 2).sum(-1))
        for i in range(j + 1, x.shape[-1]):
            out[..., i, j] = (x[..., i, j] - (out[..., i, :j] * out[..., j, :j]).sum(-1)) / out[..., j, j]
    return out


cholesky_factor.example(lambda: [Example((x,), (_cholesky(x),)) for x in (S, SYMMETRIC, NONE)])


@composite
def cholesky(x, *, upper: bool = False):
    """The lower triangular L with ``L @ L.T = x``, or the upper U with ``U.T @ U = x``, for the symmetric part of x.

    Where that is not positive definite the run ends with an error (singular_matrix). The gradient is symmetric.
    """
    factor = lookup("cholesky_factor")(_symmetric_part(x, "cholesky"))
    return transposed(factor) if upper else factor


cholesky.example(
    lambda: [
        Example((S,), (_cholesky(S),)),
        Example((SYMMETRIC,), (_cholesky(SYMMETRIC).swapaxes(1, 2),), {"upper": True}),
        Example((S + np.triu(D, 1) - np.triu(D, 1).T,), (_cholesky(S),)),
        Example((NONE,), (NONE,)),
    ]
)


# --- quotients by gaps -----------------------------------------------------------------------------------------


@op(broadcasts=True)
def gap_quotient(xp, x, gap, values):
    """``x / gap``, and 0 where x is 0 and the gap is 0 up to the rounding of `values` [..., k].

    The gaps are between eigenvalues or singular values, or from one to 0. Where one is 0 and x is not, there is no
    gradient, and the run ends with an error (degenerate_spectrum).
    """
    if values.size == 0:
        return x / gap
    unit = x.dtype.type(ROUNDING * np.finfo(x.dtype).eps)
    equal = xp.abs(gap) <= unit * xp.max(xp.abs(values), axis=-1)[..., None, None]
    if bool(xp.any(equal & (x != 0))):
        raise ExecutionError(
            "there is no gradient through vectors of equal eigenvalues or singular values, nor of a singular value 0",
            "degenerate_spectrum",
            suggestion="make the loss depend on the values alone, or on vectors of values that differ",
        )
    return xp.where(equal, x.dtype.type(0), x / xp.where(equal, x.dtype.type(1), gap))


@gap_quotient.infer
def gap_quotient_infer(x, gap, values):
    if not x.is_float or values.rank == 0 or max(x.rank, gap.rank) != values.rank + 1:
        raise ProgramError(f"needs matrices of quotients and vectors of values, not {x} and {values}", "shape_mismatch")
    return broadcast(x, gap, TensorType((*values.shape[:-1], 1, 1), values.dtype))


@gap_quotient.vjp
def gap_quotient_vjp(ct, out, x, gap, values):
    quotient = lookup("gap_quotient")
    return quotient(ct, gap, values), -quotient(ct * out, gap, values), None


gap_quotient.example(
    lambda: [
        Example((D, S, D[0]), (D / S,)),
        Example((PAIR, S[:1], D[:2]), (PAIR / S[0],)),
        Example((NONE, NONE, NONE[:, 0]), (NONE,)),
    ]
)


def _apart(gap):
    """`gap` between different values only: infinite on the diagonal, whose quotients are then 0."""
    return lookup("where")(lookup("diagonal_mask_like")(gap), lookup("full_like")(gap, value=math.inf), gap)


# --- eigenvalues of symmetric matrices -------------------------------------------------------------------------


def _signs(xp, vectors):
    """[..., 1, k]: by what to multiply each column, by the convention of this module."""
    if 0 in vectors.shape:
        return xp.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    size = xp.abs(vectors)
    large = size >= vectors.dtype.type(0.9) * xp.max(size, axis=-2, keepdims=True)
    first = xp.take_along_axis(vectors, xp.argmax(large, axis=-2)[..., None, :], axis=-2)
    return xp.where(first < 0, vectors.dtype.type(-1), vectors.dtype.type(1))


@op(outputs=("values", "vectors"))
def eigh_factor(xp, x):
    """Ascending eigenvalues and orthonormal eigenvectors, as columns, of the symmetric x; reads its lower triangle."""
    values, vectors = attempt(xp, NO_CONVERGENCE, NO_VALUES, xp.linalg.eigh, x)
    return values, vectors * _signs(xp, vectors)


@eigh_factor.infer
def eigh_factor_infer(x):
    square(x, "eigh")
    return TensorType(x.shape[:-1], x.dtype), x


@eigh_factor.vjp
def eigh_factor_vjp(ct, out, x):
    values, vectors = out
    inner = multiplied(vectors, ct[1], transpose_x=True)
    inner = lookup("gap_quotient")(inner, _apart(row(values) - column(values)), values) + as_diagonal(ct[0], inner)
    return _read_lower(multiplied(multiplied(vectors, inner), vectors, transpose_y=True))


def _eigh(x):
    """By the Schur form, which is diagonal here, and signs by a loop."""
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
    """Ascending eigenvalues and orthonormal eigenvectors, as columns, of the symmetric part of x.

    In each vector, of the components at least 0.9 times as large as the largest, the first is positive. The gradient is
    symmetric. Vectors of equal eigenvalues (equal up to rounding) are not unique, and a cotangent that reaches them is
    an error of the run (degenerate_spectrum); the values themselves always have a gradient, see `eigvalsh`.
    """
    return lookup("eigh_factor")(_symmetric_part(x, "eigh"))


eigh.example(lambda: [*(Example((x,), _eigh(x)) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1])])


@op
def eigvalsh_factor(xp, x):
    """Ascending eigenvalues of the symmetric x, of which the lower triangle is read."""
    return attempt(xp, NO_CONVERGENCE, NO_VALUES, xp.linalg.eigvalsh, x)


@eigvalsh_factor.vjp
def eigvalsh_factor_vjp(ct, out, x):
    _, vectors = lookup("eigh_factor")(x)
    return _read_lower(multiplied(vectors * row(ct), vectors, transpose_y=True))


eigvalsh_factor.infer(lambda x: TensorType(square(x, "eigvalsh").shape[:-1], x.dtype))
eigvalsh_factor.example(
    lambda: [*(Example((x,), _eigh(x)[:1]) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1][:1])]
)


@composite
def eigvalsh(x):
    """Ascending eigenvalues of the symmetric part of x.

    The cotangent of each goes along its eigenvector: ``v @ diag(ct) @ v.T``. Where eigenvalues are equal that is the
    gradient of a loss that treats them alike; another loss has a kink there, and this is one of its subgradients. The
    second derivative at equal eigenvalues is an error of the run (degenerate_spectrum).
    """
    return lookup("eigvalsh_factor")(_symmetric_part(x, "eigvalsh"))


eigvalsh.example(lambda: [*(Example((x,), _eigh(x)[:1]) for x in _EIGH), Example((_NO_EIGH[0],), _NO_EIGH[1][:1])])


# --- factors of any matrices -----------------------------------------------------------------------------------


def _sized(x: TensorType, what: str) -> tuple[int, int]:
    matrices(x, what)
    if -1 in x.shape[-2:]:
        raise ProgramError(f"{what} takes matrices of known size, not {x}", "shape_mismatch")
    return x.shape[-2], x.shape[-1]


@op(outputs=("q", "r"))
def qr_factor(xp, x):
    """Orthonormal columns Q and upper triangular R with ``Q @ R = x``, for matrices that are not wider than high."""
    q, r = attempt(xp, NO_CONVERGENCE, "there is no QR decomposition", xp.linalg.qr, x)
    sign = xp.where(xp.diagonal(r, axis1=-2, axis2=-1) < 0, x.dtype.type(-1), x.dtype.type(1))
    return q * sign[..., None, :], r * sign[..., :, None]


@qr_factor.infer
def qr_factor_infer(x):
    m, n = _sized(x, "qr")
    if m < n:
        raise ProgramError(f"qr_factor takes matrices that are not wider than high, not {x}", "shape_mismatch")
    return x, TensorType((*x.shape[:-2], n, n), x.dtype)


@qr_factor.vjp
def qr_factor_vjp(ct, out, x):
    (cq, cr), (q, r) = ct, out
    inner = multiplied(r, cr, transpose_y=True) - multiplied(cq, q, transpose_x=True)
    mirrored = lookup("tril")(inner) + transposed(lookup("tril")(inner, diagonal=-1))
    back = cq + multiplied(q, mirrored)
    return transposed(lookup("triangular_solve")(r, transposed(back)))  # back @ R^-T


def _qr(x):
    """Gram and Schmidt."""
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
    """``Q @ R = x``: orthonormal columns Q [..., m, k] and upper triangular R [..., k, n] of x [..., m, n].

    k is the smaller of m and n. The diagonal of R is not negative. If the first k columns of x depend on each other,
    the gradient is an error of the run (singular_matrix).
    """
    m, n = _sized(x.type, "qr")
    if m >= n:
        return lookup("qr_factor")(x)
    part = lookup("slice")
    q, r = lookup("qr_factor")(part(x, axes=(x.rank - 1,), starts=(0,), ends=(m,)))
    rest = multiplied(q, part(x, axes=(x.rank - 1,), starts=(m,), ends=(n,)), transpose_x=True)
    return q, lookup("concat")(r, rest, axis=x.rank - 1)


qr.example(lambda: [Example((x,), _qr(x)) for x in (R, R.T, PAIR, PAIR[:, :2], NONE)])


@op(outputs=("u", "s", "v"))
def svd(xp, x):
    """Orthonormal columns U and V and descending s with ``U @ diag(s) @ V.T = x``, as many as the shorter side has.

    In each column of U, of the components at least 0.9 times as large as the largest, the first is positive. Note that
    V is not transposed.

    Vectors of equal singular values (equal up to rounding) are not unique, and on the longer side neither are those of
    a singular value 0; a cotangent that reaches them is an error of the run (degenerate_spectrum). The values always
    have a gradient, ``u @ diag(ct) @ v.T``, in which a singular value of 0 counts nothing: it has a kink there, like
    the absolute value.
    """
    u, s, vt = attempt(xp, NO_CONVERGENCE, NO_VALUES, lambda: xp.linalg.svd(x, full_matrices=False))
    sign = _signs(xp, u)
    return u * sign, s, xp.swapaxes(vt, -1, -2) * sign


@svd.infer
def svd_infer(x):
    m, n = _sized(x, "svd")
    k, batch = min(m, n), x.shape[:-2]
    return TensorType((*batch, m, k), x.dtype), TensorType((*batch, k), x.dtype), TensorType((*batch, n, k), x.dtype)


@svd.vjp
def svd_vjp(ct, out, x):
    (cu, cs, cv), (u, s, v) = ct, out
    quotient = lookup("gap_quotient")
    uu, vv = multiplied(u, cu, transpose_x=True), multiplied(v, cv, transpose_x=True)
    # With W = u.T du, Z = v.T dv and P = u.T dx v: (W + Z)[i, j] = (P + P.T)[i, j] / (s[j] - s[i]), and
    # (W - Z)[i, j] = (P - P.T)[i, j] / (s[j] + s[i]). One quotient of s[j]^2 - s[i]^2 would lose digits.
    gap, sum = _apart(row(s) - column(s)), _apart(row(s) + column(s))
    even, odd = quotient(uu, gap, s) + quotient(vv, gap, s), quotient(uu - vv, sum, s)
    inner = (even + transposed(even) + odd - transposed(odd)) * 0.5
    inner = inner + as_diagonal(lookup("where")(_counts(s), cs, lookup("fill_zeros_like")(cs)), inner)
    back = multiplied(multiplied(u, inner), v, transpose_y=True)
    m, n = x.shape[-2:]
    if m > n:
        back = back + multiplied(quotient(cu - multiplied(u, uu), row(s), s), v, transpose_y=True)
    if n > m:
        back = back + multiplied(u, quotient(cv - multiplied(v, vv), row(s), s), transpose_y=True)
    return back


def _counts(s):
    """Whether each singular value is more than the rounding of the first."""
    first = lookup("slice")(s, axes=(s.rank - 1,), starts=(0,), ends=(1,))
    return lookup("greater_than")(s, first * float(ROUNDING * np.finfo(s.dtype).eps))


def _svd(x):
    """By the eigenvectors of ``x @ x.T`` or ``x.T @ x``, whichever is smaller."""
    t = x.swapaxes(-1, -2)
    wide = x.shape[-2] <= x.shape[-1]
    values, vectors = (v[..., ::-1] for v in _eigh(x @ t if wide else t @ x))
    s = np.sqrt(values)
    other = (t if wide else x) @ vectors / s[..., None, :]
    u, v = (vectors, other) if wide else (other, vectors)
    large = np.abs(u) >= 0.9 * np.abs(u).max(-2, keepdims=True)
    sign = np.sign(np.take_along_axis(u, large.argmax(-2)[..., None, :], -2))
    return u * sign, s, v * sign


svd.example(
    lambda: [
        *(Example((x,), _svd(x)) for x in (R, R.T.copy(), PAIR)),
        Example((NONE[:, :, :1],), (NONE[:, :, :1], NONE[:, 0, :1], NONE[:, :1, :1])),
    ]
)
