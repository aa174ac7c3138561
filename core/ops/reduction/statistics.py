"""Norms, variance, logical reductions, argmin and logsumexp."""

from __future__ import annotations

import math

import numpy as np

from core.ir import TensorType
from core.ir.attr_values import Extended
from core.ir.errors import ProgramError
from core.ir.registry import Example, composite, op
from core.ops.common.long_sums import summed
from core.ops.common.types import axes_of, axis_of, floating, product
from core.ops.elementwise.arithmetic import abs_, cast, pow_, stop_gradient
from core.ops.elementwise.logic import equal, greater_than, logical_and, not_equal, where
from core.ops.elementwise.math import exp, flat_root, square
from core.ops.elementwise.rounding import isfinite
from core.ops.reduction.sums import inverse_count, reduce_max, reduce_mean, reduce_min, reduce_sum, restored
from core.ops.shape.creation import fill_zeros_like, full_like
from core.ops.shape.reshape import squeeze

__all__: list[str] = []

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
CUBE = np.arange(8.0).reshape(2, 2, 2) / 4 + 0.5


def _reduced_shape(x: TensorType, axes, keepdims: bool) -> tuple[int, ...]:
    reduced = axes_of(axes, x.rank)
    return tuple(1 if i in reduced else n for i, n in enumerate(x.shape) if keepdims or i not in reduced)


def _reduced_bool(x: TensorType, *, axes, keepdims) -> TensorType:
    if x.dtype != "bool":
        raise ProgramError(f"needs bools, not {x}", "dtype_mismatch")
    return TensorType(_reduced_shape(x, axes, keepdims), "bool")


_BOOL = "its result is bool"


@op(no_gradient=_BOOL)
def reduce_all(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Whether all elements over `axes` are true: ``x[0] and x[1] and ...``. An empty set gives true."""
    return xp.all(x, axis=axes, keepdims=keepdims)


reduce_all.infer(_reduced_bool)
reduce_all.example(
    lambda: [Example((X > -2,), (np.array(False),)), Example((X > -2,), ((X > -2).all(0),), {"axes": (0,)})]
)


@op(no_gradient=_BOOL)
def reduce_any(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Whether any element over `axes` is true: ``x[0] or x[1] or ...``. An empty set gives false."""
    return xp.any(x, axis=axes, keepdims=keepdims)


reduce_any.infer(_reduced_bool)
reduce_any.example(lambda: [Example((X > 3,), (np.array(True),)), Example((X > 3,), ((X > 3).any(0),), {"axes": (0,)})])


@op(no_gradient="its result is an integer")
def argmin(xp, x, *, axis: int = -1, keepdims: bool = False):
    """Position of the smallest element along `axis`, as int64: ``x[out] = min(x)``. Ties give the first position."""
    return xp.argmin(x, axis=axis, keepdims=keepdims).astype("int64")


@argmin.infer
def argmin_infer(x, *, axis, keepdims):
    at = axis_of(axis, x.rank)
    if x.shape[at] == 0:
        raise ProgramError(f"argmin needs at least one element along the axis, not {x}", "shape_mismatch")
    return TensorType(_reduced_shape(x, (at,), keepdims), "int64")


argmin.example(lambda: [Example((X,), (X.argmin(-1),)), Example((X,), (X.argmin(0),), {"axis": 0})])


@op
def logsumexp(xp, x, *, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """Logarithm of the sum of exponentials over `axes`: ``log(sum(exp(x)))``, without overflow.

    If all elements are -inf, or there are none, the result is -inf with gradient 0.
    """
    if product(x.shape[i] for i in axes_of(axes, x.ndim)) == 0:
        return xp.log(xp.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype))
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, x.dtype.type(0))
    total = summed(xp, xp.exp(x - top), axes, keepdims=True)
    out = (xp.log(total) + top).astype(x.dtype, copy=False)
    return out if keepdims else xp.squeeze(out, axis=axes_of(axes, x.ndim))


@logsumexp.infer
def logsumexp_infer(x, *, axes, keepdims):
    return TensorType(_reduced_shape(floating(x), axes, keepdims), x.dtype)


@logsumexp.vjp
def logsumexp_vjp(ct, out, x, *, axes, keepdims):
    back = {"axes": axes, "keepdims": keepdims}
    out, ct = restored(out, x, **back), restored(ct, x, **back)
    nothing = equal(out, full_like(out, value=-math.inf))
    share = exp(x - where(nothing, fill_zeros_like(out), out))
    return where(nothing, fill_zeros_like(ct), ct) * share


logsumexp.example(
    lambda: [
        Example((X,), (np.log(np.exp(X).sum()),)),
        Example((X,), (np.log(np.exp(X).sum(1)),), {"axes": (1,)}),
        Example((CUBE,), (np.log(np.exp(CUBE).sum((0, 2), keepdims=True)),), {"axes": (0, -1), "keepdims": True}),
        Example((X[:, :0],), (np.full(2, -np.inf),), {"axes": (1,)}),
        Example((np.full((2, 2), -np.inf),), (np.full(2, -np.inf),), {"axes": (1,)}, smooth=False),
    ]
)


# --- variance --------------------------------------------------------------------------------------------------


@composite
def var(x, *, axes: tuple[int, ...] | None = None, ddof: int = 1, keepdims: bool = False):
    """Variance over `axes`: ``sum((x - mean(x)) ** 2) / (n - ddof)``.

    Where ``n - ddof`` is 0 or less, the result is inf, or NaN if all elements are equal, as one element is with a
    `ddof` of 1.
    """
    centred = x - reduce_mean(x, axes=axes, keepdims=True)
    out = reduce_mean(square(centred), axes=axes, keepdims=keepdims)
    if ddof == 0 and all(x.shape[i] > 0 for i in axes_of(axes, x.rank)):
        return out  # other sizes may be 0 when the program runs: the ratio is NaN then
    return out * (inverse_count(x, axes=axes, ddof=ddof) / inverse_count(x, axes=axes))


var.example(
    lambda: [
        Example((X,), (X.var(ddof=1),)),
        Example((X,), (X.var(1),), {"axes": (1,), "ddof": 0}),
        Example((CUBE,), (CUBE.var((0, 2), ddof=1, keepdims=True),), {"axes": (0, 2), "keepdims": True}),
        Example((X[:0],), (np.zeros(0),), {"axes": (1,)}),
        Example((X[:, :1],), (np.full(2, np.nan),), {"axes": (1,)}, smooth=False),
    ]
)


@composite
def std(x, *, axes: tuple[int, ...] | None = None, ddof: int = 1, keepdims: bool = False):
    """Standard deviation over `axes`: ``sqrt(var(x))``, with `ddof` as in `var`.

    Where all elements are equal, the result is 0 with gradient 0. The same holds where the squares of all deviations
    underflow; where a square overflows, the result is inf.
    """
    return flat_root(var(x, axes=axes, ddof=ddof, keepdims=keepdims))


std.example(
    lambda: [
        Example((X,), (X.std(ddof=1),)),
        Example((X,), (X.std(1),), {"axes": (1,), "ddof": 0}),
        Example((CUBE,), (CUBE.std((0, 2), ddof=1, keepdims=True),), {"axes": (0, 2), "keepdims": True}),
        Example((X[0],), (X[0].std(ddof=1),)),
        Example((np.ones((2, 3)),), (np.zeros(2),), {"axes": (1,)}, smooth=False),
    ]
)


# --- norms -----------------------------------------------------------------------------------------------------


@composite
def norm(x, *, p: Extended = 2.0, axes: tuple[int, ...] | None = None, keepdims: bool = False):
    """p-norm over `axes`: ``sum(|x| ** p) ** (1 / p)``.

    p = inf gives the largest ``|x|`` and p = -inf the smallest. p = 0 counts the nonzero elements and has no gradient.
    For p < 0 the result is 0 as soon as one element is 0. Squares of p = 2 may overflow or underflow; for other p no
    power does.
    Where the norm is 0 its gradient is 0. For p = 1 the gradient is the sign of x. For p = inf and -inf, tied elements
    share the gradient evenly.
    """
    if math.isnan(p):
        raise ProgramError("p must be a number", "bad_attr")
    back = {"axes": axes, "keepdims": keepdims}
    if p == 2:
        return flat_root(reduce_sum(square(x), **back))
    size = abs_(x)
    if p == math.inf:
        return reduce_max(size, **back)
    if p == -math.inf:
        return reduce_min(size, **back)
    if p == 1:
        return reduce_sum(size, **back)
    nonzero = not_equal(size, fill_zeros_like(size))
    if p == 0:
        return reduce_sum(cast(nonzero, dtype=x.dtype), **back)
    unit = _largest_term(size, nonzero, p, axes)
    terms = pow_(where(nonzero, size, unit) / unit, full_like(x, value=p))
    total = reduce_sum(where(nonzero, terms, fill_zeros_like(x)), axes=axes, keepdims=True)
    positive = not_equal(total, fill_zeros_like(total))
    if p < 0:  # a zero element is an infinite term, and the norm is 0
        positive = reduce_all(nonzero, axes=axes, keepdims=True)
    one = full_like(total, value=1.0)
    found = where(positive, unit * pow_(where(positive, total, one), one * (1.0 / p)), fill_zeros_like(total))
    return found if keepdims else squeeze(found, axes=axes_of(axes, x.rank))


def _largest_term(size, nonzero, p: float, axes):
    """The nonzero size with the largest power, without a gradient; 1 if it is not finite, or there is none.

    A norm is homogeneous: divided by this number its powers neither overflow nor all underflow, and all of its
    derivatives are the same.
    """
    if p > 0:
        found = reduce_max(size, axes=axes, keepdims=True, empty="identity")
    else:
        least = where(nonzero, size, full_like(size, value=math.inf))
        found = reduce_min(least, axes=axes, keepdims=True, empty="identity")
    one = full_like(found, value=1.0)
    usable = logical_and(isfinite(found), greater_than(found, fill_zeros_like(found)))
    return stop_gradient(where(usable, found, one))


norm.example(
    lambda: [
        Example((X,), (np.sqrt((X**2).sum()),)),
        Example((X,), (np.abs(X).sum(0),), {"p": 1.0, "axes": (0,)}),
        Example((X,), (np.abs(X).max(1),), {"p": math.inf, "axes": (1,)}),
        Example((X,), ((np.abs(X) ** 3).sum(1, keepdims=True) ** (1 / 3),), {"p": 3.0, "axes": (1,), "keepdims": True}),
        Example((X,), (1 / (1 / np.abs(X)).sum(1),), {"p": -1.0, "axes": (1,)}),
        Example((X,), (np.full(2, 3.0),), {"p": 0.0, "axes": (1,)}),
        Example((np.array([[0.0, 1.0]]),), (np.zeros(1),), {"p": -1.0, "axes": (1,)}, smooth=False),
        Example((CUBE,), ((CUBE**1.5).sum((0, 2)) ** (2 / 3),), {"p": 1.5, "axes": (0, 2)}),
        Example((X[0, 1],), (np.array(2.0),)),
        Example((np.zeros((2, 3)),), (np.zeros(2),), {"axes": (1,)}, smooth=False),
    ]
)


@composite
def frobenius_norm(x, *, axes: tuple[int, ...] = (-2, -1), keepdims: bool = False):
    """Frobenius norm: ``sqrt(sum(x ** 2))`` over `axes`, by default the last two."""
    return norm(x, p=2.0, axes=axes, keepdims=keepdims)


frobenius_norm.example(
    lambda: [
        Example((X,), (np.sqrt((X**2).sum()),)),
        Example((CUBE,), (np.sqrt((CUBE**2).sum((1, 2))),)),
        Example((CUBE,), (np.sqrt((CUBE**2).sum((0, 1), keepdims=True)),), {"axes": (0, 1), "keepdims": True}),
        Example((X[:1, :1],), (np.array(1.0),)),
    ]
)


@composite
def l1_norm(x):
    """Sum of absolute values of all elements: ``sum(|x|)``, a 0-d array. The gradient at 0 is 0."""
    return reduce_sum(abs_(x))


l1_norm.example(lambda: [Example((x,), (np.abs(x).sum(),)) for x in (X, CUBE, X[:, :0], X[0, 0])])


@composite
def squared_l2_norm(x):
    """Sum of squares of all elements: ``sum(x ** 2)``, a 0-d array."""
    return reduce_sum(square(x))


squared_l2_norm.example(lambda: [Example((x,), ((x**2).sum(),)) for x in (X, CUBE, X[:, :0], X[0, 0])])
