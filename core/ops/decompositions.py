"""Solving, inverting and taking apart square matrices, in batches over all axes but the last two.

The rules are the standard ones (Giles 2008; Murray 2016; Townsend 2016). What has no unique factors gets a convention:
the largest part of an eigenvector or of a left singular vector is positive, and so is the diagonal of R. A gradient
that does not exist, of a singular matrix or through vectors of equal eigenvalues, is an error of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.errors import ExecutionError, ProgramError
from core.ir import TensorType
from core.ops.types import broadcast_shapes, floating, same_dtype, same_size
from core.registry import Example, composite, lookup, op

__all__: list[str] = []

S = np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -0.3], [0.5, -0.3, 2.0]])
D = np.array([[2.0, 0.3, -0.4], [0.1, 1.5, 0.2], [-0.6, 0.5, 3.0]])
PAIR = np.stack([S, D])
R = np.array([[1.0, -2.0], [0.5, 0.4], [0.3, 1.0]])
NONE = np.zeros((0, 2, 2))


def _square(x: TensorType, what: str) -> TensorType:
    floating(x)
    if x.dtype not in ("float32", "float64"):
        raise ProgramError(f"{what} takes float32 or float64, not {x}", "dtype_mismatch")
    if x.rank < 2:
        raise ProgramError(f"{what} takes square matrices, not {x}", "shape_mismatch")
    same_size(x.shape[-1], x.shape[-2], f"{what} takes square matrices, not {x}")
    return x


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """`function` of matrices. Raises ExecutionError (singular_matrix) where it cannot be done."""
    try:
        return function(*args)
    except np.linalg.LinAlgError as error:
        raise ExecutionError(f"a matrix is singular or not positive definite: {error}", "singular_matrix") from None


def _t(x):
    order = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
    return lookup("transpose")(x, axes=order)


def _mm(*x, **flags):
    return lookup("matmul")(*x, **flags)


def _symmetric(x):
    return (x + _t(x)) * 0.5


def _diagonal(x):
    return lookup("where")(lookup("diagonal_mask_like")(x), x, lookup("fill_zeros_like")(x))


# --- inverse, solve, determinant -------------------------------------------------------------------------------


@op
def inverse(xp, x):
    """The inverse of each square matrix; a singular one is an error of the run."""
    return _call(xp.linalg.inv, x)


inverse.infer(lambda x: _square(x, "inverse"))
inverse.vjp(lambda ct, out, x: -_mm(_mm(out, ct, transpose_x=True), out, transpose_y=True))
inverse.example(lambda: [Example((x,), (np.linalg.inv(x),)) for x in (D, PAIR, NONE)])


@op(broadcasts=True)
def solve(xp, x, y):
    """The solution z of ``x @ z = y`` for square x [..., n, n] and y [..., n, k]; batches broadcast."""
    return _call(xp.linalg.solve, x, y)


@solve.infer
def solve_infer(x, y):
    _square(x, "solve")
    if y.rank < 2:
        raise ProgramError(f"the right side is a matrix, not {y}: give a vector an axis of 1", "shape_mismatch")
    n = same_size(x.shape[-1], y.shape[-2], f"cannot solve {x} for {y}")
    return TensorType((*broadcast_shapes(x.shape[:-2], y.shape[:-2]), n, y.shape[-1]), same_dtype(x, y))


@solve.vjp
def solve_vjp(ct, out, x, y):
    back = lookup("solve")(_t(x), ct)
    return -_mm(back, out, transpose_y=True), back


solve.example(
    lambda: [
        Example((D, R), (np.linalg.solve(D, R),)),
        Example((PAIR, R), (np.stack([np.linalg.solve(m, R) for m in PAIR]),)),
        Example((NONE, NONE[:, :, :1]), (NONE[:, :, :1],)),
    ]
)


def _triangle(x, upper: bool, unit: bool):
    """The triangle that counts, with ones on the diagonal if `unit`."""
    part = lookup("triu" if upper else "tril")(x, diagonal=(1 if upper else -1) if unit else 0)
    return part + lookup("cast")(lookup("diagonal_mask_like")(x), dtype=x.dtype) if unit else part


@composite
def triangular_solve(x, y, *, upper: bool = True, transpose: bool = False, unitriangular: bool = False):
    """The solution z of ``x @ z = y``, or of ``x.T @ z = y``, reading only the upper (lower) triangle of x.

    With `unitriangular` the diagonal is taken as ones.
    """
    part = _triangle(x, upper, unitriangular)
    return lookup("solve")(_t(part) if transpose else part, y)


triangular_solve.example(
    lambda: [
        Example((D, R), (np.linalg.solve(np.triu(D), R),)),
        Example((D, R), (np.linalg.solve(np.tril(D).T, R),), {"upper": False, "transpose": True}),
        Example(
            (PAIR, R),
            (np.stack([np.linalg.solve(np.triu(m, 1) + np.eye(3), R) for m in PAIR]),),
            {"unitriangular": True},
        ),
    ]
)


@op
def det(xp, x):
    """The determinant of each square matrix. Its gradient at a singular matrix is an error of the run."""
    return xp.linalg.det(x).astype(x.dtype)


def _scalars(x: TensorType) -> TensorType:
    return TensorType(x.shape[:-2], x.dtype)


def _as_matrices(x):
    return lookup("unsqueeze")(x, axes=(-2, -1))


det.infer(lambda x: _scalars(_square(x, "det")))
det.vjp(lambda ct, out, x: _as_matrices(ct * out) * _t(lookup("inverse")(x)))
det.example(lambda: [Example((x,), (np.linalg.det(x),)) for x in (D, PAIR, NONE)])


@op(outputs=("sign", "logabs"))
def slogdet(xp, x):
    """The sign of each determinant, and the logarithm of its absolute value. The sign has no gradient."""
    sign, logabs = xp.linalg.slogdet(x)
    return sign.astype(x.dtype), logabs.astype(x.dtype)


slogdet.infer(lambda x: (_scalars(_square(x, "slogdet")),) * 2)
slogdet.vjp(lambda ct, out, x: _as_matrices(ct[1]) * _t(lookup("inverse")(x)))
slogdet.example(lambda: [Example((x,), tuple(np.linalg.slogdet(x))) for x in (D, -PAIR, NONE)])


@composite
def logdet(x):
    """The logarithm of each determinant; NaN where it is negative."""
    sign, logabs = lookup("slogdet")(x)
    return logabs + lookup("log")(lookup("stop_gradient")(sign))


logdet.example(lambda: [Example((x,), (np.log(np.linalg.det(x)),)) for x in (D, PAIR, NONE)])


# --- factors of symmetric matrices -----------------------------------------------------------------------------


@op
def cholesky_factor(xp, x):
    """The lower triangular L with ``L @ L.T`` the symmetric x, of which only the lower triangle is read."""
    return _call(xp.linalg.cholesky, x)


@cholesky_factor.vjp
def cholesky_factor_vjp(ct, out, x):
    inner = _mm(out, ct, transpose_x=True)
    half = lookup("tril")(inner) - _diagonal(inner) * 0.5
    left = lookup("triangular_solve")(out, half, upper=False, transpose=True)
    both = _t(lookup("triangular_solve")(out, _t(left), upper=False, transpose=True))
    # x enters as a symmetric matrix whose lower triangle is read: both halves belong to that
    whole = both + _t(both)
    return lookup("tril")(whole) - _diagonal(both)


cholesky_factor.infer(lambda x: _square(x, "cholesky"))
cholesky_factor.example(lambda: [Example((x,), (np.linalg.cholesky(x),)) for x in (S, np.stack([S, S @ S]), NONE)])


@composite
def cholesky(x, *, upper: bool = False):
    """The lower triangular L with ``L @ L.T = x``, or the upper U with ``U.T @ U = x``, for the symmetric part of x."""
    factor = lookup("cholesky_factor")(_symmetric(x))
    return _t(factor) if upper else factor


cholesky.example(
    lambda: [
        Example((S,), (np.linalg.cholesky(S),)),
        Example((np.stack([S, S @ S]),), (np.linalg.cholesky(np.stack([S, S @ S])).swapaxes(1, 2),), {"upper": True}),
        Example((NONE,), (NONE,)),
    ]
)


def _signed(xp, vectors):
    """Each column turned so that its largest component, of equal ones the first, is positive."""
    if 0 in vectors.shape:
        return xp.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    at = xp.argmax(xp.abs(vectors), axis=-2)[..., None, :]
    largest = xp.take_along_axis(vectors, at, axis=-2)
    return xp.where(largest < 0, vectors.dtype.type(-1), vectors.dtype.type(1))


@op(outputs=("values", "vectors"))
def eigh_factor(xp, x):
    """Ascending eigenvalues and orthonormal eigenvectors, as columns, of the symmetric x; reads its lower triangle."""
    values, vectors = _call(xp.linalg.eigh, x)
    return values, vectors * _signed(xp, vectors)


@op
def inverse_gaps(xp, x):
    """``out[i, j] = 1 / (x[j] - x[i])``, 0 on the diagonal. Two equal elements are an error of the run."""
    gaps = x[..., None, :] - x[..., :, None]
    here = xp.eye(x.shape[-1], dtype=bool)
    if bool(xp.any((gaps == 0) & ~here)):
        raise ExecutionError(
            "two eigenvalues or singular values are equal: their vectors are not unique", "degenerate_spectrum"
        )
    return xp.where(here, x.dtype.type(0), 1 / xp.where(here, x.dtype.type(1), gaps))


@inverse_gaps.infer
def inverse_gaps_infer(x):
    floating(x)
    if x.rank == 0:
        raise ProgramError(f"needs vectors, not {x}", "shape_mismatch")
    return TensorType((*x.shape, x.shape[-1]), x.dtype)


@inverse_gaps.vjp
def inverse_gaps_vjp(ct, out, x):
    each = ct * lookup("square")(out)
    return lookup("reduce_sum")(each, axes=(each.rank - 1,)) - lookup("reduce_sum")(each, axes=(each.rank - 2,))


inverse_gaps.example(
    lambda: [
        Example((np.array([1.0, 3.0]),), (np.array([[0, 0.5], [-0.5, 0]]),)),
        Example((R,), (np.array([[[0, 1 / (b - a)], [1 / (a - b), 0]] for a, b in R]),)),
        Example((R[:0],), (NONE,)),
    ]
)


@eigh_factor.infer
def eigh_factor_infer(x):
    _square(x, "eigh")
    return TensorType(x.shape[:-1], x.dtype), x


def _read_lower(x):
    """The cotangent of the lower triangle that is read, from that of the symmetric matrix."""
    whole = x + _t(x)
    return lookup("tril")(whole) - _diagonal(x)


@eigh_factor.vjp
def eigh_factor_vjp(ct, out, x):
    values, vectors = out
    inner = _mm(vectors, ct[1], transpose_x=True) * lookup("inverse_gaps")(values)
    inner = inner + _as_diagonal(ct[0], inner)
    return _read_lower(_mm(_mm(vectors, inner), vectors, transpose_y=True))


def _as_diagonal(x, like):
    """The vectors x as diagonals of matrices shaped like `like`."""
    wide = lookup("unsqueeze")(x, axes=(-2,)) + lookup("fill_zeros_like")(like)
    return _diagonal(wide)


def _eigh(x):
    values, vectors = np.linalg.eigh(x)
    at = np.abs(vectors).argmax(-2)
    return values, vectors * np.sign(np.take_along_axis(vectors, at[..., None, :], -2))


eigh_factor.example(lambda: [Example((x,), _eigh(x)) for x in (S, np.stack([S, S @ S]), NONE[:, :1, :1])])


@composite(outputs=("values", "vectors"))
def eigh(x):
    """Ascending eigenvalues and orthonormal eigenvectors, as columns, of the symmetric part of x.

    The largest component of each vector is positive. Through vectors of equal eigenvalues there is no gradient: that is
    an error of the run; `eigvalsh` has one.
    """
    return lookup("eigh_factor")(_symmetric(x))


eigh.example(lambda: [Example((x,), _eigh(x)) for x in (S, np.stack([S, S @ S]), NONE[:, :1, :1])])


@op
def eigvalsh_factor(xp, x):
    """Ascending eigenvalues of the symmetric x, of which the lower triangle is read."""
    return _call(xp.linalg.eigvalsh, x)


@eigvalsh_factor.vjp
def eigvalsh_factor_vjp(ct, out, x):
    _, vectors = lookup("eigh_factor")(x)
    scaled = vectors * lookup("unsqueeze")(ct, axes=(-2,))
    return _read_lower(_mm(scaled, vectors, transpose_y=True))


eigvalsh_factor.infer(lambda x: TensorType(_square(x, "eigvalsh").shape[:-1], x.dtype))
eigvalsh_factor.example(lambda: [Example((x,), (np.linalg.eigvalsh(x),)) for x in (S, np.stack([S, S @ S]), NONE)])


@composite
def eigvalsh(x):
    """Ascending eigenvalues of the symmetric part of x."""
    return lookup("eigvalsh_factor")(_symmetric(x))


eigvalsh.example(lambda: [Example((x,), (np.linalg.eigvalsh(x),)) for x in (S, np.stack([S, S @ S]), NONE)])


# --- factors of any matrices -----------------------------------------------------------------------------------


def _tall(x: TensorType, what: str) -> tuple[int, int]:
    floating(x)
    if x.dtype not in ("float32", "float64") or x.rank < 2 or -1 in x.shape[-2:]:
        raise ProgramError(f"{what} takes float32 or float64 matrices of known size, not {x}", "shape_mismatch")
    return x.shape[-2], x.shape[-1]


@op(outputs=("q", "r"))
def qr(xp, x):
    """Orthonormal columns Q and upper triangular R, its diagonal not negative, with ``Q @ R = x``."""
    q, r = _call(xp.linalg.qr, x)
    sign = xp.where(xp.diagonal(r, axis1=-2, axis2=-1) < 0, x.dtype.type(-1), x.dtype.type(1))
    return q * sign[..., None, :], r * sign[..., :, None]


@qr.infer
def qr_infer(x):
    m, n = _tall(x, "qr")
    if m < n:
        raise ProgramError(f"qr takes matrices that are not wider than high, not {x}", "shape_mismatch")
    return x, TensorType((*x.shape[:-2], n, n), x.dtype)


@qr.vjp
def qr_vjp(ct, out, x):
    (cq, cr), (q, r) = ct, out
    inner = _mm(r, cr, transpose_y=True) - _mm(cq, q, transpose_x=True)
    mirrored = lookup("tril")(inner, diagonal=-1)
    whole = lookup("tril")(inner) + _t(mirrored)
    back = cq + _mm(q, whole)
    return _t(lookup("triangular_solve")(r, _t(back)))


def _qr(x):
    q, r = np.linalg.qr(x)
    sign = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
    return q * sign[..., None, :], r * sign[..., :, None]


qr.example(lambda: [Example((x,), _qr(x)) for x in (R, PAIR, NONE)])


@op(outputs=("u", "s", "v"))
def svd(xp, x):
    """Orthonormal columns U and V and descending s with ``U @ diag(s) @ V.T = x``, as many as the shorter side has.

    The largest component of each column of U is positive. Through equal singular values, and through the vectors of a
    singular value of 0, there is no gradient.
    """
    u, s, vt = _call(lambda m: xp.linalg.svd(m, full_matrices=False), x)
    sign = _signed(xp, u)
    return u * sign, s, xp.swapaxes(vt, -1, -2) * sign


@svd.infer
def svd_infer(x):
    m, n = _tall(x, "svd")
    k, batch = min(m, n), x.shape[:-2]
    return TensorType((*batch, m, k), x.dtype), TensorType((*batch, k), x.dtype), TensorType((*batch, n, k), x.dtype)


@svd.vjp
def svd_vjp(ct, out, x):
    (cu, cs, cv), (u, s, v) = ct, out
    column, row = lookup("unsqueeze")(s, axes=(-1,)), lookup("unsqueeze")(s, axes=(-2,))
    gaps = lookup("inverse_gaps")(lookup("square")(s))
    uu, vv = _mm(u, cu, transpose_x=True), _mm(v, cv, transpose_x=True)
    inner = (uu - _t(uu)) * gaps * row + column * ((vv - _t(vv)) * gaps)
    inner = inner + _as_diagonal(cs, inner)
    back = _mm(_mm(u, inner), v, transpose_y=True)
    if x.shape[-2] > x.shape[-1]:
        back = back + _mm((cu - _mm(u, uu)) / row, v, transpose_y=True)
    if x.shape[-1] > x.shape[-2]:
        back = back + _mm(u, (cv - _mm(v, vv)) / row, transpose_y=True)
    return back


def _svd(x):
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    at = np.abs(u).argmax(-2)
    sign = np.sign(np.take_along_axis(u, at[..., None, :], -2))
    return u * sign, s, vt.swapaxes(-1, -2) * sign


svd.example(lambda: [Example((x,), _svd(x)) for x in (R, R.T.copy(), PAIR, NONE[:, :1, :1])])
