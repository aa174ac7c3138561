"""Logarithms, and the inverse hyperbolic functions, which are logarithms too.

``x = 2^e m`` with m between sqrt(1/2) and sqrt(2), so that ``log(x) = e ln 2 + log(m)``. For x near 1, e is 0, so
nothing cancels.
"""

from __future__ import annotations

import math

import numpy as np

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.exponential import LN2, TINY, UNDERFLOW, exponential
from core.codegen.vmath.expression import Number, fma, mantissa_bits, polynomial, power_of_two, sqrt, two_sum, where

__all__ = ["arccosh", "arcsinh", "arctanh", "log", "log1p", "log2", "log10", "logaddexp"]

# (log(1 + f) - f + f^2 / 2) / f^3 on 0.706 <= 1 + f <= 1.416: 2^-26.7 of log(1 + f)
LOG_SINGLE = (
    3.333333e-01,
    -2.5000834e-01,
    2.0001274e-01,
    -1.6622892e-01,
    1.4198183e-01,
    -1.3162225e-01,
    1.2804034e-01,
    -7.690287e-02,
)
# (log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2, on the same interval: 2^-59.5 of log((1 + s) / (1 - s))
LOG_DOUBLE = (
    0.6666666666666736,
    0.39999999999400837,
    0.28571428745797495,
    0.22222198192466888,
    0.1818358559393282,
    0.15313470878855343,
    0.14802086241686507,
)
# constants in two parts: rounded to the dtype, and the remainder
LOG2_E = {
    "float32": (1.4426950216293335, 1.925963033500011e-08),
    "float64": (1.4426950408889634, 2.0355273740931033e-17),
}
LOG10_E = {
    "float32": (0.4342944920063019, -1.0103049952192578e-08),
    "float64": (0.4342944819032518, 1.098319650216765e-17),
}
LOG10_2 = {
    "float32": (0.3010300099849701, -1.432098883924482e-08),
    "float64": (0.3010299956639812, -2.8037281277851704e-18),
}


def log(f: Function, x: IRValue) -> IRValue:
    """The natural logarithm; -inf at 0, NaN below. Within 1 ulp."""
    a = Number(f, x)
    e, m = split(a)
    return edges(a, logarithm(e, m - 1.0)).value


def logarithm(e: Number, rest: Number) -> Number:
    """``e ln 2 + log(1 + rest)`` for 1 + rest between sqrt(1/2) and sqrt(2)."""
    high, low = LN2[rest.dtype]
    return fma(e, high, rest + fma(e, low, log_of_one_plus(rest)))


def log2(f: Function, x: IRValue) -> IRValue:
    """The logarithm to base 2, exact for powers of 2. Within 1.1 ulp."""
    a = Number(f, x)
    e, m = split(a)
    return edges(a, e + _times(m - 1.0, LOG2_E[x.dtype])).value


def log10(f: Function, x: IRValue) -> IRValue:
    """The logarithm to base 10, exact for powers of 10. Within 1.1 ulp."""
    a = Number(f, x)
    e, m = split(a)
    high, low = LOG10_2[x.dtype]
    return edges(a, fma(e, high, fma(e, low, _times(m - 1.0, LOG10_E[x.dtype])))).value


def _times(rest: Number, factor: tuple[float, float]) -> Number:
    """``factor * log(1 + rest)``."""
    high, low = factor
    return fma(rest, high, fma(rest, low, log_of_one_plus(rest) * high))


def log1p(f: Function, x: IRValue) -> IRValue:
    """log(1 + x), accurate for small x too. Within 1.6 ulp."""
    return one_plus(Number(f, x)).value


def one_plus(x: Number) -> Number:
    """log(1 + x)."""
    total = 1.0 + x
    k = exponent(total.bits())
    # (1 + x) / 2^k - 1 from x, not from the rounded sum 1 + x; scaled by 4, because 2^-k may be denormal
    scale = power_of_two(2 - k)
    y = logarithm(k.to(x.dtype), fma(0.25 * x, scale, fma(scale, 0.25, -1.0)))
    return where(x.abs() < TINY[x.dtype], x, edges(total, y))


def logaddexp(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """log(e^x + e^y), without overflow. Within 2 ulp of the larger of the result and the greater operand."""
    a, b = Number(f, x), Number(f, y)
    first = a > b
    most, least = where(first, a, b), where(first, b, a)
    # without the rounding error of the difference, results near 0 would lose digits
    difference, rest = two_sum(least, -most)
    less = difference < UNDERFLOW[x.dtype]
    e = exponential(where(less, UNDERFLOW[x.dtype], difference), where(less, 0.0, -rest))
    # 1 + e lies between 1 and 2
    upper = e > math.sqrt(2.0) - 1.0
    soft = logarithm(where(upper, e.const(1.0), 0.0), where(upper, fma(e, 0.5, -0.5), e))
    # equal infinities have no difference
    return where(a == b, a + LN2[x.dtype][0], most + soft).value


LARGE = {"float32": 2.0**28, "float64": 2.0**56}  # above, x^2 + 1 rounds to x^2, and log(1 + x) is log(x)


def arcsinh(f: Function, x: IRValue) -> IRValue:
    """The inverse hyperbolic sine. Within 2 ulp."""
    a = Number(f, x)
    size = a.abs()
    square = size * size
    beyond_one = size + square / (1.0 + sqrt(square + 1.0))
    return _of_large(size, beyond_one).copysign(a).value


def arccosh(f: Function, x: IRValue) -> IRValue:
    """The inverse hyperbolic cosine; NaN below 1. Within 2 ulp."""
    a = Number(f, x)
    above = a - 1.0
    beyond_one = above + sqrt(above * above + 2.0 * above)
    return where(a >= 1.0, _of_large(a, beyond_one), math.nan).value


def _of_large(x: Number, beyond_one: Number) -> Number:
    """``log(1 + beyond_one)``, and for large x ``log(2 x)``."""
    large = x > LARGE[x.dtype]
    return one_plus(where(large, x, beyond_one)) + where(large, x.const(math.log(2.0)), 0.0)


def arctanh(f: Function, x: IRValue) -> IRValue:
    """The inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond. Within 2.2 ulp."""
    a = Number(f, x)
    size = a.abs()
    return (0.5 * one_plus(2.0 * size / (1.0 - size))).copysign(a).value


def exponent(bits: Number) -> Number:
    """e of the positive normal number that has these bits."""
    dtype = "float32" if bits.dtype == "int32" else "float64"
    middle = int(np.array(math.sqrt(0.5), dtype).view(bits.dtype))
    return (bits - middle) >> mantissa_bits(dtype)


def split(x: Number) -> tuple[Number, Number]:
    """e and m of a positive finite x, as floats: ``x = 2^e m``, with an integer e and sqrt(1/2) <= m < sqrt(2)."""
    width = mantissa_bits(x.dtype)
    denormal = x < float(np.finfo(x.dtype).tiny)
    bits = where(denormal, x * 2.0**width, x).bits()
    k = exponent(bits)
    e = k.to(x.dtype)
    return where(denormal, e - float(width), e), (bits - (k << width)).as_float()


def log_of_one_plus(f: Number) -> Number:
    """``log(1 + f) - f`` for 1 + f between sqrt(1/2) and sqrt(2)."""
    if f.dtype == "float32":
        return f * f * fma(f, polynomial(f, LOG_SINGLE), -0.5)
    s = f / (2.0 + f)
    z = s * s
    # 2 s = f - s f, so log(1 + f) = f - s f + s z p = f - h + s (h + z p) with h = f^2 / 2; s scales the error of h
    h = 0.5 * f * f
    return fma(s, fma(z, polynomial(z, LOG_DOUBLE), h), -h)


def edges(x: Number, y: Number) -> Number:
    """y for 0 < x < inf; the values of logarithms elsewhere."""
    below = where(x == 0.0, x.const(-math.inf), math.nan)
    return where(x > 0.0, where(x == math.inf, math.inf, y), below)
