"""Determinants, and the cofactors that their gradients are made of.

All axes but the last two are a batch. A determinant is a polynomial, so it has gradients at singular matrices, too: in
the bases of the singular vectors they are products of all singular values but one or two.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from core.ir import TensorType
from core.ir.errors import ExecutionError, ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.elimination import all_finite, eliminated, replaced, solved
from core.ops.common.matrices import NO_CONVERGENCE, SINGULAR, attempt, multiplied, square, transposed
from core.ops.common.types import same_dtype, same_size
from core.ops.elementwise.arithmetic import stop_gradient
from core.ops.elementwise.math import log
from core.ops.linalg.example_matrices import NONE, PAIR, D
from core.ops.linalg.solve import inverse
from core.ops.linalg.spectral import NO_VALUES
from core.ops.reduction.sums import reduce_sum
from core.ops.shape.reshape import unsqueeze

__all__: list[str] = []

POINT = np.zeros((0, 0))
NO_INVERSE = "the matrix is singular and has no inverse"


@op
def det(xp, x):
    """Determinant of each square matrix.

    The gradient is the matrix of `cofactors`, also where x is singular; second gradients exist there, too. Third
    gradients need the inverse: at a singular matrix they are an error of the run (singular_matrix).
    """
    out, finite = xp.asarray(xp.linalg.det(x).astype(x.dtype)), all_finite(xp, x)
    if bool(finite.all()):
        return out

    def product(x):
        _, upper, _, sign = eliminated(xp, x)
        return sign * xp.diagonal(upper, axis1=1, axis2=2).prod(-1)

    return replaced(xp, ~finite, out, product, x)


def _scalars(x: TensorType) -> TensorType:
    return TensorType(x.shape[:-2], x.dtype)


def _as_matrices(x):
    return unsqueeze(x, axes=(-2, -1))


det.infer(lambda x: _scalars(square(x, "det")))
det.vjp(lambda ct, out, x: _as_matrices(ct) * cofactors(x))


def _leibniz(x):
    """The determinant of 3 x 3 matrices by the Leibniz formula."""
    return (x[..., 0, :] * np.cross(x[..., 1, :], x[..., 2, :])).sum(-1)


det.example(
    lambda: [
        Example((D,), (_leibniz(D),)),
        Example((PAIR,), (_leibniz(PAIR),)),
        Example((NONE,), (np.zeros(0),)),
        Example((POINT,), (np.array(1.0),)),
    ]
)


@op
def cofactors(xp, x):
    """Matrix of cofactors of each square matrix, the gradient of its determinant.

    ``out[i, j]`` is ``(-1)**(i + j)`` times the determinant of x without row i and column j.
    """
    if not x.size:
        return x.copy()
    wide, finite = x.astype("float64"), all_finite(xp, x)
    det = xp.asarray(xp.linalg.det(wide))
    regular = (finite & (det != 0))[..., None, None]
    inverted = attempt(xp, SINGULAR, NO_INVERSE, xp.linalg.inv, xp.where(regular, wide, xp.eye(x.shape[-1])))
    out = (det[..., None, None] * xp.swapaxes(inverted, -1, -2)).astype(x.dtype)
    if bool(regular.all()):
        return out
    out = replaced(xp, finite & ~regular[..., 0, 0], out, partial(_singular_cofactors, xp), x)
    return replaced(xp, ~finite, out, partial(_infinite_cofactors, xp), x)


def _singular_cofactors(xp, x):
    u, s, v, sign = _decomposed(xp, x)
    before, after = _products(xp, s)
    return xp.matmul(u * (sign * before * after)[:, None, :], xp.swapaxes(v, -1, -2)).astype(x.dtype)


def _infinite_cofactors(xp, x):
    identity = xp.zeros_like(x) + xp.eye(x.shape[-1], dtype=x.dtype)
    inverted = solved(xp, x, identity, SINGULAR, NO_INVERSE)
    return det.body(xp, x)[:, None, None] * xp.swapaxes(inverted, -1, -2)


def _decomposed(xp, x):
    """Orthogonal u and v, singular values s, and the sign [batch, 1] of ``det(u) * det(v)``, in float64."""
    u, s, vt = attempt(xp, NO_CONVERGENCE, NO_VALUES, xp.linalg.svd, x.astype("float64"))
    sign = xp.sign(xp.linalg.det(u) * xp.linalg.det(vt))
    return u, s, xp.swapaxes(vt, -1, -2), sign[:, None]


def _products(xp, s):
    """The products of the numbers [batch, n] before each one, and of those after it."""
    n, one = s.shape[-1], xp.ones_like(s[:, :1])
    before, after = (xp.cumprod(xp.concatenate([one, each], -1), -1)[:, :n] for each in (s, s[:, ::-1]))
    return before, after[:, ::-1]


cofactors.infer(lambda x: square(x, "cofactors"))
cofactors.vjp(lambda ct, out, x: cofactors_adjoint(x, ct))


def _minors(x):
    """The cofactors of 3 x 3 matrices: products of rows."""
    rows = [x[..., i, :] for i in range(3)]
    return np.stack([np.cross(rows[i - 2], rows[i - 1]) for i in range(3)], -2)


cofactors.example(
    lambda: [
        Example((D,), (_minors(D),)),
        Example((PAIR,), (_minors(PAIR),)),
        Example((NONE,), (NONE,)),
        Example((POINT,), (POINT,)),
        Example((np.full((1, 1), 2.0),), (np.ones((1, 1)),)),
    ]
)


@op
def cofactors_adjoint(xp, x, y):
    """Cotangent of the operand x of `cofactors`, for the cotangent y of its result: the second derivative of ``det(x)``
    applied to y. The shapes are equal.

    At a singular matrix its gradient to x is an error of the run (singular_matrix).
    """
    if x.shape != y.shape:
        raise ExecutionError(f"the shapes {list(x.shape)} and {list(y.shape)} differ", "shape_mismatch")
    out = xp.full(x.shape, xp.nan, x.dtype)
    return replaced(xp, all_finite(xp, x), out, partial(_second, xp), x, y) if x.size else out


def _second(xp, x, y):
    # In the bases of the singular vectors x is diagonal, and a derivative by two elements the product of the others.
    u, s, v, sign = _decomposed(xp, x)
    inner = xp.matmul(xp.matmul(xp.swapaxes(u, -1, -2), y), v)
    before, after = _products(xp, s)
    n = s.shape[-1]
    columns = xp.arange(n)
    later, apart = (columns - columns[:, None] > k for k in (0, 1))
    between = xp.where(apart, xp.roll(s, 1, -1)[:, None, :], 1).cumprod(-1)
    pairs = xp.where(later, before[:, :, None] * between * after[:, None, :], 0)
    pairs = (pairs + xp.swapaxes(pairs, -1, -2)) * sign[:, :, None]
    diagonal = xp.diagonal(inner, axis1=-2, axis2=-1)
    out = -pairs * xp.swapaxes(inner, -1, -2)
    out = xp.where(xp.eye(n, dtype=bool), (pairs * diagonal[:, None, :]).sum(-1)[:, :, None], out)
    return xp.matmul(xp.matmul(u, out), xp.swapaxes(v, -1, -2)).astype(x.dtype)


@cofactors_adjoint.infer
def cofactors_adjoint_infer(x, y):
    square(x, "cofactors_adjoint")
    what = f"cofactors_adjoint takes matrices of equal shapes, not {x} and {y}"
    if x.rank != y.rank:
        raise ProgramError(what, "shape_mismatch")
    return TensorType(tuple(same_size(m, n, what) for m, n in zip(x.shape, y.shape, strict=True)), same_dtype(x, y))


@cofactors_adjoint.vjp
def cofactors_adjoint_vjp(ct, out, x, y):
    """The third derivative of ``det(x)`` applied to y and ct; the second one is symmetric."""
    b = transposed(inverse(x))
    of_y, of_ct = (multiplied(multiplied(b, each, transpose_y=True), b) for each in (y, ct))
    mixed = multiplied(multiplied(of_y, ct, transpose_y=True), b)
    mixed = mixed + multiplied(multiplied(of_ct, y, transpose_y=True), b)
    traces = [reduce_sum(each * b, axes=(-2, -1), keepdims=True) for each in (y, ct)]
    both = traces[0] * traces[1] - reduce_sum(ct * of_y, axes=(-2, -1), keepdims=True)
    third = both * b - traces[1] * of_y - traces[0] * of_ct + mixed
    return _as_matrices(det(x)) * third, cofactors_adjoint(x, ct)


def _second_of_three(x, y):
    """The derivative of ``sum(y * _minors(x))`` by x: it is linear in x."""
    out = np.zeros_like(x)
    for at in np.ndindex(3, 3):
        unit = np.zeros((3, 3))
        unit[at] = 1.0
        out[(..., *at)] = (y * (_minors(x + unit) - _minors(x - unit))).sum((-2, -1)) / 2
    return out


cofactors_adjoint.example(
    lambda: [
        Example((D, PAIR[0]), (_second_of_three(D, PAIR[0]),)),
        Example((PAIR, PAIR[::-1] + 1), (_second_of_three(PAIR, PAIR[::-1] + 1),)),
        Example((NONE, NONE), (NONE,)),
        Example((POINT, POINT), (POINT,)),
        Example((np.full((1, 1), 2.0), np.ones((1, 1))), (np.zeros((1, 1)),)),
    ]
)


@op(outputs=("sign", "logabs"))
def slogdet(xp, x):
    """Sign of each determinant, and ``log(|det(x)|)``. A singular matrix gives 0 and -inf. Where the determinant is
    NaN, both are NaN.

    The sign has no gradient. The gradient of the logarithm is the transposed inverse; at a singular matrix it is an
    error of the run (singular_matrix).
    """
    found, finite = [xp.asarray(each.astype(x.dtype)) for each in xp.linalg.slogdet(x)], all_finite(xp, x)
    if not bool(finite.all()):
        found = [replaced(xp, ~finite, each, partial(_of_pivots, xp, i), x) for i, each in enumerate(found)]
    lost = xp.isnan(found[0]) | xp.isnan(found[1])
    return tuple(xp.where(lost, x.dtype.type(np.nan), each) for each in found)


def _of_pivots(xp, i, x):
    """The sign of the determinants (i = 0), or the logarithms of their sizes, by elimination."""
    _, upper, _, sign = eliminated(xp, x)
    pivots = xp.diagonal(upper, axis1=1, axis2=2)
    return xp.log(xp.abs(pivots)).sum(-1) if i else sign * xp.sign(pivots).prod(-1)


slogdet.infer(lambda x: (_scalars(square(x, "slogdet")),) * 2)
slogdet.vjp(lambda ct, out, x: _as_matrices(ct[1]) * transposed(inverse(x)))
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
    """Logarithm of each determinant: ``log(det(x))``. It is -inf where the determinant is 0, and NaN where it is
    negative.
    """
    sign, logabs = slogdet(x)
    return logabs + log(stop_gradient(sign))


logdet.example(
    lambda: [
        Example((D,), (np.log(_leibniz(D)),)),
        Example((PAIR,), (np.log(_leibniz(PAIR)),)),
        Example((NONE,), (np.zeros(0),)),
    ]
)
