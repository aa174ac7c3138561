"""Trigonometric and hyperbolic functions and their inverses, element by element; angles are in radians."""

from __future__ import annotations

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast, floating
from core.ops.elementwise.logic import kept_where, not_equal, where
from core.ops.elementwise.math import rsqrt, square
from core.ops.shape.creation import fill_zeros_like, full_like

__all__: list[str] = []

A = np.array([[1.0, -1.2, 0.3], [0.5, -0.7, 0.9]])
INSIDE = 0.8 * A / 1.2
ABOVE = 1.2 + A * A


def _one_minus_square(x):
    # as a product, which keeps its digits where x * x rounds to nearly 1
    return (1.0 - x) * (x + 1.0)


@op(elementwise=True)
def tan(xp, x):
    """The tangent, ``sin(x) / cos(x)``; x in radians."""
    return xp.tan(x)


tan.infer(floating)
tan.vjp(lambda ct, out, x: ct * (square(out) + 1.0))
tan.example(lambda: [Example((A,), (np.tan(A),))])


@op(elementwise=True)
def asin(xp, x):
    """The inverse sine, ``sin(out) = x`` with out in [-pi/2, pi/2]; NaN outside [-1, 1]. Its gradient at -1 and 1 is
    inf.
    """
    return xp.arcsin(x)


asin.infer(floating)
asin.vjp(lambda ct, out, x: ct * rsqrt(_one_minus_square(x)))
asin.example(lambda: [Example((INSIDE,), (np.arcsin(INSIDE),))])


@op(elementwise=True)
def acos(xp, x):
    """The inverse cosine, ``cos(out) = x``, in [0, pi]; NaN outside [-1, 1]. Its gradient at -1 and 1 is -inf."""
    return xp.arccos(x)


acos.infer(floating)
acos.vjp(lambda ct, out, x: -(ct * rsqrt(_one_minus_square(x))))
acos.example(lambda: [Example((INSIDE,), (np.arccos(INSIDE),))])


@op(elementwise=True)
def atan(xp, x):
    """The inverse tangent, ``tan(out) = x`` with out in (-pi/2, pi/2)."""
    return xp.arctan(x)


atan.infer(floating)
atan.vjp(lambda ct, out, x: ct / (square(x) + 1.0))  # an infinite square gives the right 0
atan.example(lambda: [Example((A,), (np.arctan(A),))])


@op(elementwise=True)
def atan2(xp, x, y):
    """The angle of the point (y, x) seen from the origin, in [-pi, pi]: ``tan(out) = x / y``.

    At the origin the gradient is NaN: there is no direction to prefer.
    """
    return xp.arctan2(x, y)


@atan2.infer
def atan2_infer(x, y):
    if not (x.is_float and y.is_float):
        raise ProgramError(f"needs floating-point inputs, not {x} and {y}", "dtype_mismatch")
    return broadcast(x, y)


@atan2.vjp
def atan2_vjp(ct, out, x, y):
    # not over x * x + y * y, which leaves the range of numbers long before x and y do
    away = hypot(x, y)
    share = ct / away
    return share * (y / away), -(share * (x / away))


atan2.example(
    lambda: [Example((A, ABOVE), (np.arctan2(A, ABOVE),)), Example((A, -ABOVE[:1]), (np.arctan2(A, -ABOVE[:1]),))]
)


@op(elementwise=True)
def hypot(xp, x, y):
    """``out = sqrt(x ** 2 + y ** 2)``, also where the squares are too large or too small to be held.

    The gradient at the origin is 0, as that of `norm`.
    """
    return xp.hypot(x, y)


hypot.infer(atan2_infer)


@hypot.vjp
def hypot_vjp(ct, out, x, y):
    somewhere = not_equal(out, fill_zeros_like(out))
    away = where(somewhere, out, full_like(out, value=1.0))
    return tuple(kept_where(somewhere, ct * (each / away)) for each in (x, y))


hypot.example(
    lambda: [
        Example((A, ABOVE), (np.sqrt(A**2 + ABOVE**2),)),
        Example((np.array([0.0, -3.0]), np.array([0.0, 4.0])), (np.array([0.0, 5.0]),), smooth=False),
    ]
)


@op(elementwise=True)
def sinh(xp, x):
    """The hyperbolic sine, ``(exp(x) - exp(-x)) / 2``."""
    return xp.sinh(x)


sinh.infer(floating)
sinh.vjp(lambda ct, out, x: ct * cosh(x))
sinh.example(lambda: [Example((A,), (np.sinh(A),))])


@op(elementwise=True)
def cosh(xp, x):
    """The hyperbolic cosine, ``(exp(x) + exp(-x)) / 2``."""
    return xp.cosh(x)


cosh.infer(floating)
cosh.vjp(lambda ct, out, x: ct * sinh(x))
cosh.example(lambda: [Example((A,), (np.cosh(A),))])


@op(elementwise=True)
def asinh(xp, x):
    """The inverse hyperbolic sine, ``log(x + sqrt(x ** 2 + 1))``."""
    return xp.arcsinh(x)


asinh.infer(floating)
asinh.vjp(lambda ct, out, x: ct / hypot(x, full_like(x, value=1.0)))
asinh.example(lambda: [Example((A,), (np.arcsinh(A),))])


@op(elementwise=True)
def acosh(xp, x):
    """The inverse hyperbolic cosine, ``log(x + sqrt(x ** 2 - 1))``; NaN below 1. Its gradient at 1 is inf."""
    return xp.arccosh(x)


acosh.infer(floating)
# the product of two roots: x * x - 1 would lose digits near 1
acosh.vjp(lambda ct, out, x: ct * rsqrt(x - 1.0) * rsqrt(x + 1.0))
acosh.example(lambda: [Example((ABOVE,), (np.arccosh(ABOVE),))])


@op(elementwise=True)
def atanh(xp, x):
    """The inverse hyperbolic tangent, ``log((1 + x) / (1 - x)) / 2``; inf at -1 and 1, NaN beyond."""
    return xp.arctanh(x)


atanh.infer(floating)
atanh.vjp(lambda ct, out, x: ct / _one_minus_square(x))
atanh.example(lambda: [Example((INSIDE,), (np.arctanh(INSIDE),))])
