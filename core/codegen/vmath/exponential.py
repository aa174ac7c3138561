"""Exponentials and what is made of them.

All start from ``x = n ln 2 + r`` with a whole n and |r| <= ln(2) / 2, so that ``exp(x) = 2^n exp(r)`` and a short
polynomial gives exp(r). Coefficients here and in the modules beside: minimax fits (Remez exchange in 40 digits, the
error weighted to be relative to the result), rounded one by one from the lowest power, the higher ones fitted anew
each time. Comments say the function, the interval and the error that the rounded coefficients leave.
"""

from __future__ import annotations

import math

from core.codegen.llvm import Function, Value
from core.codegen.vmath.expression import (
    Number,
    fma,
    mantissa_bits,
    maximum,
    minimum,
    polynomial,
    power_of_two,
    scale_by_power,
    where,
)

__all__ = ["exp", "sigmoid", "tanh"]

# ln 2 in two parts: the first rounded to the dtype, the second what that left
LN2 = {
    "float32": (0.693147182464599609375, -1.904654323148236017e-09),
    "float64": (0.693147180559945286226764, 2.319046813846299558e-17),
}
# (exp(r) - 1 - r) / r^2 on |r| <= 0.347: 2^-28.2 and 2^-56.8 of exp(r)
EXP = {
    "float32": (4.9999994e-01, 1.6666517e-01, 4.1668106e-02, 8.369131e-03, 1.3836436e-03),
    "float64": (
        0.5000000000000011,
        0.1666666666666643,
        0.04166666666652566,
        0.00833333333347968,
        0.0013888888944924727,
        0.00019841269546512223,
        2.4801491759719993e-05,
        2.7557534672186516e-06,
        2.7630719918638147e-07,
        2.502392018583073e-08,
    ),
}


def reduce(x: Number, low: Number | None = None) -> tuple[Number, Number, Number]:
    """n as a float and as an integer, and r: ``x - low = n ln 2 + r``.

    low: a small correction of x, for callers that know x to more digits than it has.
    """
    # adding 1.5 * 2^bits rounds to whole numbers and leaves n in the last bits
    magic = 1.5 * 2.0 ** mantissa_bits(x.dtype)
    high, rest = LN2[x.dtype]
    shifted = fma(x, 1.0 / math.log(2.0), magic)
    n = shifted - magic
    r = fma(n, -high, x)  # exact: n * high and x agree in their leading bits
    if low is not None:
        r = r - low
    r = fma(n, -rest, r)
    return n, shifted.bits() - x.const(magic).bits(), r


def exponential(x: Number, low: Number | None = None) -> Number:
    """``exp(x - low)`` for an x between UNDERFLOW and OVERFLOW."""
    _, k, r = reduce(x, low)
    return scale_by_power(polynomial(r, (1.0, 1.0, *EXP[x.dtype])), k)


UNDERFLOW = {"float32": -104.0, "float64": -745.5}  # exp gives 0 from here on down,
OVERFLOW = {"float32": 89.0, "float64": 710.0}  # and infinity from here on up


def exp(f: Function, x: Value) -> Value:
    """e^x. Within 0.9 ulp."""
    a = Number(f, x)
    return exponential(maximum(minimum(a, OVERFLOW[x.dtype]), UNDERFLOW[x.dtype])).value


def sigmoid(f: Function, x: Value) -> Value:
    """1 / (1 + e^-x), with all digits at both ends. Within 2.2 ulp."""
    a = Number(f, x)
    e = exponential(maximum(-a.abs(), UNDERFLOW[x.dtype]))
    return (where(a >= 0.0, 1.0, e) / (1.0 + e)).value


# (exp(r) - 1 - r) / r^2 on |r| <= 0.347 again, now 2^-26.1 and 2^-60.3 of exp(r) - 1
EXPM1 = {
    "float32": (4.9999997e-01, 1.6666539e-01, 4.1667745e-02, 8.367058e-03, 1.3839381e-03),
    "float64": (
        0.5,
        0.16666666666666677,
        0.041666666666666685,
        0.008333333333321832,
        0.001388888888889587,
        0.00019841269885165593,
        2.4801587264032185e-05,
        2.7557245435310485e-06,
        2.755735697661366e-07,
        2.5108565020399085e-08,
        2.088011667888529e-09,
    ),
}


def tanh(f: Function, x: Value) -> Value:
    """The hyperbolic tangent. Within 2.5 ulp."""
    a = Number(f, x)
    _, k, r = reduce(minimum(a.abs() * 2.0, 20.0 if x.dtype == "float32" else 44.0))
    s = power_of_two(k)
    e = fma(s, fma(r * r, polynomial(r, EXPM1[x.dtype]), r), s - 1.0)
    return (e / (e + 2.0)).copysign(a).value
