"""Trigonometric and hyperbolic functions and their inverses, element by element. Angles are in radians."""

from __future__ import annotations

import numpy as np

from core.ir.errors import ProgramError
from core.ir.registry import Example, op
from core.ops.common.types import broadcast, floating
from core.ops.elementwise.arithmetic import stop_gradient
from core.ops.elementwise.logic import not_equal, where, where_or_zero
from core.ops.elementwise.math import clip, rsqrt, square
from core.ops.shape.creation import fill_zeros_like, full_like

__all__: list[str] = []

A = np.array([[1.0, -1.2, 0.3], [0.5, -0.7, 0.9]])
INSIDE = 0.8 * A / 1.2
ABOVE = 1.2 + A * A


def _one_minus_square(x):
    # The value is a product, because 1 - x * x cancels near |x| = 1. The derivative is that of -x * x, because the
    # derivative of the product, (1 - x) - (1 + x), cancels near 0. Clipped, x * x does not overflow outside the domain.
    squared = square(clip(x, min=-1.0, max=1.0))
    return stop_gradient((1.0 - x) * (x + 1.0)) + (stop_gradient(squared) - squared)


@op(elementwise=True)
def tan(xp, x):
    """Tangent: ``sin(x) / cos(x)``, with x in radians."""
    return xp.tan(x)


tan.infer(floating)
tan.vjp(lambda ct, out, x: ct * (square(out) + 1.0))
tan.example(lambda: [Example((A,), (np.tan(A),))])


@op(elementwise=True)
def asin(xp, x):
    """Inverse sine: ``sin(out) = x`` with out in [-pi/2, pi/2].

    The result is NaN outside [-1, 1]. The gradient at -1 and at 1 is inf.
    """
    return xp.arcsin(x)


asin.infer(floating)
asin.vjp(lambda ct, out, x: ct * rsqrt(_one_minus_square(x)))
asin.example(lambda: [Example((INSIDE,), (np.arcsin(INSIDE),))])


@op(elementwise=True)
def acos(xp, x):
    """Inverse cosine: ``cos(out) = x`` with out in [0, pi].

    The result is NaN outside [-1, 1]. The gradient at -1 and at 1 is -inf.
    """
    return xp.arccos(x)


acos.infer(floating)
acos.vjp(lambda ct, out, x: -(ct * rsqrt(_one_minus_square(x))))
acos.example(lambda: [Example((INSIDE,), (np.arccos(INSIDE),))])


@op(elementwise=True)
def atan(xp, x):
    """Inverse tangent: ``tan(out) = x`` with out in (-pi/2, pi/2)."""
    return xp.arctan(x)


atan.infer(floating)
atan.vjp(lambda ct, out, x: ct / (square(x) + 1.0))  # where the square overflows, ct / inf = 0 is correct
atan.example(lambda: [Example((A,), (np.arctan(A),))])


@op(elementwise=True)
def atan2(xp, x, y):
    """Angle of the point (y, x) as seen from the origin, in [-pi, pi]: ``tan(out) = x / y``.

    The gradient at the origin is NaN, because the angle is undefined there.
    """
    return xp.arctan2(x, y)


@atan2.infer
def atan2_infer(x, y):
    if not (x.is_float and y.is_float):
        raise ProgramError(f"needs floating-point inputs, not {x} and {y}", "dtype_mismatch")
    return broadcast(x, y)


@atan2.vjp
def atan2_vjp(ct, out, x, y):
    # Divides by hypot twice: x * x + y * y overflows and underflows at a much smaller range. ct / radius may overflow
    # where the other operand is 0.
    radius = hypot(x, y)
    return y / radius * ct / radius, -(x / radius * ct / radius)


atan2.example(
    lambda: [Example((A, ABOVE), (np.arctan2(A, ABOVE),)), Example((A, -ABOVE[:1]), (np.arctan2(A, -ABOVE[:1]),))]
)


@op(elementwise=True)
def hypot(xp, x, y):
    """Length of the hypotenuse: ``out = sqrt(x ** 2 + y ** 2)``, even where the squares would overflow or underflow.

    The gradient at the origin is 0, as for `norm`.
    """
    return xp.hypot(x, y)


hypot.infer(atan2_infer)


@hypot.vjp
def hypot_vjp(ct, out, x, y):
    not_origin = not_equal(out, fill_zeros_like(out))
    radius = where(not_origin, out, full_like(out, value=1.0))
    return tuple(where_or_zero(not_origin, ct * (each / radius)) for each in (x, y))


hypot.example(
    lambda: [
        Example((A, ABOVE), (np.sqrt(A**2 + ABOVE**2),)),
        Example((np.array([0.0, -3.0]), np.array([0.0, 4.0])), (np.array([0.0, 5.0]),), smooth=False),
    ]
)


@op(elementwise=True)
def sinh(xp, x):
    """Hyperbolic sine: ``(exp(x) - exp(-x)) / 2``."""
    return xp.sinh(x)


sinh.infer(floating)
sinh.vjp(lambda ct, out, x: ct * cosh(x))
sinh.example(lambda: [Example((A,), (np.sinh(A),))])


@op(elementwise=True)
def cosh(xp, x):
    """Hyperbolic cosine: ``(exp(x) + exp(-x)) / 2``."""
    return xp.cosh(x)


cosh.infer(floating)
cosh.vjp(lambda ct, out, x: ct * sinh(x))
cosh.example(lambda: [Example((A,), (np.cosh(A),))])


@op(elementwise=True)
def asinh(xp, x):
    """Inverse hyperbolic sine: ``log(x + sqrt(x ** 2 + 1))``."""
    return xp.arcsinh(x)


asinh.infer(floating)
asinh.vjp(lambda ct, out, x: ct / hypot(x, full_like(x, value=1.0)))
asinh.example(lambda: [Example((A,), (np.arcsinh(A),))])


@op(elementwise=True)
def acosh(xp, x):
    """Inverse hyperbolic cosine: ``log(x + sqrt(x ** 2 - 1))``. The result is NaN below 1. The gradient at 1 is inf."""
    return xp.arccosh(x)


acosh.infer(floating)
# a product of two roots: x * x - 1 cancels near 1
acosh.vjp(lambda ct, out, x: ct * rsqrt(x - 1.0) * rsqrt(x + 1.0))
acosh.example(lambda: [Example((ABOVE,), (np.arccosh(ABOVE),))])


@op(elementwise=True)
def atanh(xp, x):
    """Inverse hyperbolic tangent: ``log((1 + x) / (1 - x)) / 2``.

    The result is -inf at -1, inf at 1, and NaN outside [-1, 1].
    """
    return xp.arctanh(x)


atanh.infer(floating)
atanh.vjp(lambda ct, out, x: ct / _one_minus_square(x))
atanh.example(lambda: [Example((INSIDE,), (np.arctanh(INSIDE),))])
