"""Exponential functions.

All start from ``x = n ln 2 + r`` with an integer n and |r| <= ln(2) / 2, so that ``exp(x) = 2^n exp(r)``, and a short
polynomial gives exp(r). The coefficients in this package are minimax fits (Remez exchange in 40 digits, for the error
relative to the result). They were rounded one by one from the lowest power, with the higher ones fitted again each
time. Comments give the function, the interval, and the error with the rounded coefficients.
"""

from __future__ import annotations

import math

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.expression import (
    Number,
    by_pairs,
    fma,
    mantissa_bits,
    maximum,
    minimum,
    polynomial,
    power_of_two,
    scale_by_power,
    where,
)

__all__ = ["cosh", "exp", "exp2", "expm1", "sigmoid", "sinh", "tanh"]

# ln 2 in two parts: rounded to the dtype, and the remainder
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


# (exp(r) - 1 - r) / r^2 on |r| <= 0.347, fitted for exp(r) - 1: 2^-26.1 and 2^-60.3 of it
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
# (2^r - 1) / r on |r| <= 0.5: 2^-26.2 and 2^-57.2 of 2^r
EXP2 = {
    "float32": (6.931472e-01, 2.4022594e-01, 5.5503663e-02, 9.625439e-03, 1.3387899e-03, 1.3336992e-04),
    "float64": (
        0.6931471805599453,
        0.24022650695909997,
        0.05550410866482376,
        0.009618129107670757,
        0.0013333558145900177,
        0.0001540353031509997,
        1.5252734318631113e-05,
        1.3215549943284472e-06,
        1.0177862674357253e-07,
        7.03183133486652e-09,
        4.4844239089033105e-10,
        5.7004046707828467e-11,
    ),
}
# (sinh(r) / r - 1) / r^2 and (cosh(r) - 1) / r^2 in r^2 on |r| <= 0.347: 2^-34.3 and 2^-33.2, 2^-61.7 and 2^-70.0
SINH = {
    "float32": (1.6666667e-01, 8.333176e-03, 1.997301e-04),
    "float64": (
        0.16666666666666677,
        0.008333333333321386,
        0.00019841269886814778,
        2.75572434548808e-06,
        2.5109318916857382e-08,
    ),
}
COSH = {
    "float32": (0.5, 4.166646e-02, 1.3935458e-03),
    "float64": (
        0.5,
        0.041666666666666685,
        0.001388888888887327,
        2.4801587349251184e-05,
        2.755725176065584e-07,
        2.092179275890677e-09,
    ),
}
# tanh(r / 2) / r as a ratio of polynomials in r^2 on |r| <= 0.347: 2^-32.1 and 2^-58.8 of exp(r)
TANH_HALF = {
    "float32": ((0.5, 8.3233956e-03), (1.0, 9.9980064e-02)),
    "float64": (
        (0.5, 0.013887422275221372, 3.3044357111186695e-05),
        (1.0, 0.11110817788377464, 0.0009917702046535225),
    ),
}
UNDERFLOW = {"float32": -104.0, "float64": -745.5}  # from here down, exp is 0
OVERFLOW = {"float32": 89.0, "float64": 710.0}  # from here up, exp is infinity
TINY = {"float32": 2.0**-25, "float64": 2.0**-55}  # below, sinh(x) and similar functions round to x


def reduce(x: Number, low: Number | None = None) -> tuple[Number, Number, Number]:
    """n as a float and as an integer, and r: ``x - low = n ln 2 + r``.

    low: a small correction of x, for callers that know x more precisely than its dtype holds.
    """
    high, rest = LN2[x.dtype]
    n, k = _times_to_whole(x, 1.0 / math.log(2.0))
    r = fma(n, -high, x)  # exact: n * high and x agree in their leading bits
    if low is not None:
        r = r - low
    return n, k, fma(n, -rest, r)


def _times_to_whole(x: Number, factor: float) -> tuple[Number, Number]:
    """The integer nearest to ``factor * x``, as a float and as an integer."""
    # adding 1.5 * 2^bits rounds to an integer and leaves n in the last bits
    magic = 1.5 * 2.0 ** mantissa_bits(x.dtype)
    shifted = fma(x, factor, magic)
    return shifted - magic, shifted.bits() - x.const(magic).bits()


def exponential(x: Number, low: Number | None = None) -> Number:
    """``exp(x - low)`` for an x between UNDERFLOW and OVERFLOW."""
    n, k, r = reduce(x, low)
    square = r * r
    return scale_by_power(fma(r, fma(r, by_pairs(r, square, EXP[x.dtype]), 1.0), 1.0), n, k)


def exp(f: Function, x: IRValue) -> IRValue:
    """e^x. Within 0.9 ulp."""
    return exponential(maximum(minimum(Number(f, x), OVERFLOW[x.dtype]), UNDERFLOW[x.dtype])).value


def exp2(f: Function, x: IRValue) -> IRValue:
    """2^x, exact for integers. Within 0.9 ulp."""
    least, most = (-151.0, 129.0) if x.dtype == "float32" else (-1076.0, 1025.0)
    n, k, r = whole_and_rest(maximum(minimum(Number(f, x), most), least))
    return scale_by_power(polynomial(r, (1.0, *EXP2[x.dtype])), n, k).value


def whole_and_rest(x: Number) -> tuple[Number, Number, Number]:
    """The nearest integer, as a float and as an integer, and x minus it, exactly."""
    magic = 1.5 * 2.0 ** mantissa_bits(x.dtype)
    shifted = x + magic
    n = shifted - magic
    return n, shifted.bits() - x.const(magic).bits(), x - n


def expm1(f: Function, x: IRValue) -> IRValue:
    """e^x - 1, accurate for small x too. Within 1.8 ulp."""
    a = Number(f, x)
    _, k, r = reduce(maximum(minimum(a, OVERFLOW[x.dtype]), -45.0))
    s = power_of_two(k - 1)  # half of 2^k, because 2^k overflows before the result does
    y = 2.0 * fma(s, _expm1_of_rest(r), s - 0.5)
    return where(a.abs() < TINY[x.dtype], a, y).value


def _expm1_of_rest(r: Number) -> Number:
    return fma(r * r, polynomial(r, EXPM1[r.dtype]), r)


def sinh(f: Function, x: IRValue) -> IRValue:
    """The hyperbolic sine. Within 2.1 ulp."""
    a = Number(f, x)
    total, difference, s, c = _halves(a.abs())
    y = 2.0 * (difference + fma(difference, c, total * s))
    return where(a.abs() < TINY[x.dtype], a, y.copysign(a)).value


def cosh(f: Function, x: IRValue) -> IRValue:
    """The hyperbolic cosine. Within 1.8 ulp."""
    total, difference, s, c = _halves(Number(f, x).abs())
    return (2.0 * (total + fma(total, c, difference * s))).value


def _halves(x: Number) -> tuple[Number, Number, Number, Number]:
    """``(2^n + 2^-n) / 4``, ``(2^n - 2^-n) / 4``, sinh(r) and cosh(r) - 1 for ``x = n ln 2 + r`` >= 0.

    sinh(x) and cosh(x) follow by the addition theorems. The factor is 1/4, because n exceeds the largest exponent by 1.
    """
    _, k, r = reduce(minimum(x, 89.5 if x.dtype == "float32" else 710.6))
    up, down = power_of_two(k - 2), power_of_two(-2 - where(k < 100, k, 100))
    z = r * r
    s = fma(r * z, polynomial(z, SINH[x.dtype]), r)
    return up + down, up - down, s, z * polynomial(z, COSH[x.dtype])


def sigmoid(f: Function, x: IRValue) -> IRValue:
    """1 / (1 + e^-x), accurate at both ends. Within 2.5 ulp."""
    # -x = n ln 2 + r, and e^r = (a + r b) / (a - r b) with tanh(r / 2) = r b / a: one division is enough
    bounded = maximum(minimum(Number(f, x), 20.0 if x.dtype == "float32" else 44.0), UNDERFLOW[x.dtype])
    n, k = _times_to_whole(bounded, -1.0 / math.log(2.0))
    high, rest = LN2[x.dtype]
    nearly = fma(n, -high, -bounded)
    r = fma(n, -rest, nearly)
    z = nearly * nearly if x.dtype == "float32" else r * r  # in float64 `rest` affects more digits of r
    b, a = (polynomial(z, coefficients) for coefficients in TANH_HALF[x.dtype])
    below = fma(-r, b, a)
    # 2^-n may be denormal; scaled by 2^places it is normal
    places = mantissa_bits(x.dtype) + 1
    scale = power_of_two(places - k) * 2.0**-places
    return (scale * below / fma(scale, below, fma(r, b, a))).value


def tanh(f: Function, x: IRValue) -> IRValue:
    """The hyperbolic tangent. Within 2.6 ulp."""
    # x = (n ln 2 + r) / 2, and the result is e / (e + 2) with e = 2^n e^r - 1, which never exceeds 1
    a = Number(f, x)
    bounded = minimum(a.abs(), 10.0 if x.dtype == "float32" else 22.0)
    n, k = _times_to_whole(bounded, 2.0 / math.log(2.0))
    high, rest = LN2[x.dtype]
    nearly = fma(n, -0.5 * high, bounded)
    half = fma(n, -0.5 * rest, nearly)
    # the effect of `rest` on the higher powers of r is below the last digit of e
    square = nearly * nearly
    higher = by_pairs(nearly, square, [c * 2.0 ** (i + 2) for i, c in enumerate(EXPM1[x.dtype])])
    scale = power_of_two(k)
    e = fma(scale * square, higher, fma(scale + scale, half, scale - 1.0))
    return (e / (e + 2.0)).copysign(a).value
