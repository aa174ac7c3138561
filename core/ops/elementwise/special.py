"""Special functions and logarithms to other bases, element by element."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from core.ir.bounds import Bounds
from core.ir.registry import Example, composite, op
from core.ops.common.on_cuda import scipy_function
from core.ops.common.types import broadcast, floating
from core.ops.elementwise.logic import equal, less_equal, logical_and, where
from core.ops.elementwise.math import exp, log, sigmoid, square
from core.ops.elementwise.rounding import isinf
from core.ops.shape.creation import fill_zeros_like, full_like

__all__: list[str] = []

A = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.5]])
P = np.abs(A) + 0.25
INSIDE = A / 5


def _in_float32(xp: Any, x: Any, function: Any) -> Any:
    """`function` of x, computed in float32 for 16-bit floats, which SciPy lacks."""
    wide = x.astype("float32") if x.dtype.itemsize < 4 else x
    return function(wide).astype(x.dtype, copy=False)


@op(elementwise=True)
def log2(xp, x):
    """Logarithm to base 2: ``2 ** out = x``. It is exact for powers of 2.

    At 0 the result is -inf and the gradient inf. Below 0 the result is NaN.
    """
    return xp.log2(x)


log2.infer(floating)
log2.vjp(lambda ct, out, x: ct / x * (1.0 / math.log(2.0)))
log2.example(lambda: [Example((P,), (np.vectorize(math.log2)(P),))])


@op(elementwise=True)
def log10(xp, x):
    """Logarithm to base 10: ``10 ** out = x``. It is exact for powers of 10.

    At 0 the result is -inf and the gradient inf. Below 0 the result is NaN.
    """
    return xp.log10(x)


log10.infer(floating)
log10.vjp(lambda ct, out, x: ct / x * (1.0 / math.log(10.0)))
log10.example(lambda: [Example((P,), (np.vectorize(math.log10)(P),))])


@composite
def reciprocal(x):
    """Reciprocal: ``out = 1 / x``. At 0 the result is inf and the gradient -inf."""
    return 1.0 / x


reciprocal.example(lambda: [Example((P,), (1 / P,)), Example((P[:0],), (P[:0],)), Example((P[0, 0],), (1 / P[0, 0],))])


@op(elementwise=True)
def erfc(xp, x):
    """Complementary error function: ``1 - erf(x)``. It stays accurate for large x."""
    return _in_float32(xp, x, scipy_function(xp, "special", "erfc"))


erfc.infer(floating)
erfc.vjp(lambda ct, out, x: ct * exp(-square(x)) * (-2.0 / math.sqrt(math.pi)))
erfc.example(lambda: [Example((A,), (np.vectorize(math.erfc)(A),))])


@op(elementwise=True)
def erfinv(xp, x):
    """Inverse of the error function: ``erf(out) = x``. The result is -inf at -1, inf at 1, and NaN outside [-1, 1]."""
    return _in_float32(xp, x, scipy_function(xp, "special", "erfinv"))


erfinv.infer(floating)
erfinv.vjp(lambda ct, out, x: ct * exp(square(out)) * (math.sqrt(math.pi) / 2.0))
erfinv.example(lambda: [Example((np.vectorize(math.erf)(INSIDE),), (INSIDE,))])


@op(elementwise=True)
def lgamma(xp, x):
    """Logarithm of the absolute value of the gamma function: ``log(|gamma(x)|)``.

    The result is inf at 0, at negative whole numbers and at infinity of either sign.
    """
    gammaln = scipy_function(xp, "special", "gammaln")

    def of_wide(wide: Any) -> Any:
        limits = np.finfo(wide.dtype)
        found = gammaln(xp.maximum(wide, limits.min))  # SciPy has -inf at -inf, and inf at the whole number next to it
        size = xp.abs(wide)
        denormal = (size > 0) & (size < limits.smallest_normal)  # SciPy has inf there
        return xp.where(denormal, -xp.log(xp.where(denormal, size, 1)), found)

    return _in_float32(xp, x, of_wide)


lgamma.infer(floating)
lgamma.vjp(lambda ct, out, x: ct * digamma(x))
lgamma.example(lambda: [Example((P,), (np.vectorize(math.lgamma)(P),))])


@composite
def digamma(x):
    """Derivative of `lgamma`: ``polygamma(x, order=0)``."""
    return polygamma(x, order=0)


EULER = 0.5772156649015329
digamma.example(
    lambda: [
        Example((np.array([1.0, 2.0, 3.0, 0.5]),), (np.array([0.0, 1.0, 1.5, -2 * math.log(2)]) - EULER,)),
        Example((P[:0],), (P[:0],)),
        Example((np.array(2.0),), (np.array(1 - EULER),)),
    ]
)


@op(elementwise=True)
def polygamma(xp, x, *, order: Annotated[int, Bounds(ge=0, le=20)] = 1):
    """Derivative of order `order` + 1 of ``log(gamma(x))``. `order` is 0 to 20."""
    if order == 0:
        return _in_float32(xp, x, scipy_function(xp, "special", "digamma"))
    scale = (-1.0) ** (order + 1) * math.factorial(order)
    zeta = scipy_function(xp, "special", "zeta")
    return _in_float32(xp, x, lambda v: v.dtype.type(scale) * zeta(v.dtype.type(order + 1), v))


@polygamma.infer
def polygamma_infer(x, *, order):
    return floating(x)


polygamma.vjp(lambda ct, out, x, *, order: ct * polygamma(x, order=order + 1))
polygamma.example(
    lambda: [
        Example(
            (np.array([[1.0, 2.0], [3.0, 0.5]]),), (math.pi**2 / np.array([[6, 6], [6, 2]]) - [[0, 1], [1.25, 0]],)
        ),
        Example((np.array([1.0, 2.0]),), (np.array([-2.4041138063191886, -0.4041138063191886]),), {"order": 2}),
    ]
)


@op(elementwise=True)
def logsigmoid(xp, x):
    """Logarithm of the sigmoid: ``out = log(1 / (1 + exp(-x)))``, without overflow for large positive or negative x."""
    return xp.negative(xp.logaddexp(xp.negative(x), x.dtype.type(0)))


logsigmoid.infer(floating)
logsigmoid.vjp(lambda ct, out, x: ct * sigmoid(-x))
logsigmoid.example(lambda: [Example((A,), (-np.log1p(np.exp(-A)),))])


# --- two operands ----------------------------------------------------------------------------------------------

B = np.array([0.5, 3.0, -1.25])


def _both_floating(x, y):
    return broadcast(floating(x), floating(y))


@op(elementwise=True)
def logaddexp(xp, x, y):
    """Logarithm of the sum of exponentials: ``log(exp(x) + exp(y))``, without overflow. Shapes broadcast.

    Where both are -inf, the result is -inf and each operand gets half of the gradient.
    """
    return xp.logaddexp(x, y)


logaddexp.infer(_both_floating)


@logaddexp.vjp
def logaddexp_vjp(ct, out, x, y):
    difference = x - y
    both = logical_and(equal(x, y), isinf(x))  # inf - inf would be NaN
    difference = where(both, fill_zeros_like(difference), difference)
    return ct * sigmoid(difference), ct * sigmoid(-difference)


logaddexp.example(
    lambda: [
        Example((A, B), (np.log(np.exp(A) + np.exp(B)),)),
        Example((np.array([-np.inf, 800.0]), np.array([-np.inf, 800.0])), (np.array([-np.inf, 800 + np.log(2)]),),
                smooth=False),
    ]
)  # fmt: skip


@op(elementwise=True)
def xlogy(xp, x, y):
    """``out = x * log(y)``, and 0 where x is 0, also for a y of 0 or below. NaN where y is NaN. Shapes broadcast.

    Where x is 0 and y is at most 0, both gradients are 0.
    """
    kind = x.dtype.type
    none = xp.logical_and(xp.equal(x, kind(0)), xp.equal(y, y))
    return xp.where(none, kind(0), xp.multiply(x, xp.log(xp.where(none, kind(1), y))))


xlogy.infer(_both_floating)


@xlogy.vjp
def xlogy_vjp(ct, out, x, y):
    none = logical_and(equal(x, fill_zeros_like(x)), less_equal(y, fill_zeros_like(y)))
    safe = where(none, full_like(y, value=1.0), y)
    ct = where(none, fill_zeros_like(ct), ct)
    return ct * log(safe), ct * (x / safe)


_SOME = np.array([[0.0, 2.0, -1.0], [3.0, 0.0, 0.5]])
xlogy.example(
    lambda: [
        Example((A, P[0]), (A * np.log(P[0]),)),
        Example((_SOME, P), (_SOME * np.log(P),)),
        Example((np.zeros(3), np.array([0.0, -1.0, np.nan])), (np.array([0.0, 0.0, np.nan]),), smooth=False),
    ]
)


@composite
def lerp(x, y, weight):
    """Linear interpolation: ``out = x + weight * (y - x)``. Shapes broadcast."""
    return x + weight * (y - x)


lerp.example(
    lambda: [
        Example((A, B, INSIDE), (A * (1 - INSIDE) + B * INSIDE,)),
        Example((A, P, np.array(0.25)), (0.75 * A + 0.25 * P,)),
        Example((A[:0], P[:0], INSIDE[:0]), (A[:0],)),
    ]
)
