"""Logarithms.

``x = 2^e m`` with m between sqrt(1/2) and sqrt(2), so that ``log(x) = e ln 2 + log(m)``: e is 0 for all x near 1, and
nothing cancels.
"""

from __future__ import annotations

import math

import numpy as np

from core.codegen.llvm import Function, Value
from core.codegen.vmath.exponential import LN2
from core.codegen.vmath.expression import Number, fma, mantissa_bits, polynomial, where

__all__ = ["log"]

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
# (log((1 + s) / (1 - s)) / s - 2) / s^2 as a polynomial in s^2, on the same interval: 2^-59.5 of log((1 + s) / (1 - s))
LOG_DOUBLE = (
    0.6666666666666736,
    0.39999999999400837,
    0.28571428745797495,
    0.22222198192466888,
    0.1818358559393282,
    0.15313470878855343,
    0.14802086241686507,
)


def split(x: Number) -> tuple[Number, Number]:
    """e and m of a positive finite x, as floats: ``x = 2^e m``, e whole and sqrt(1/2) <= m < sqrt(2)."""
    width = mantissa_bits(x.dtype)
    denormal = x < float(np.finfo(x.dtype).tiny)
    bits = where(denormal, x * 2.0**width, x).bits()
    exponent = (bits - x.const(math.sqrt(0.5)).bits()) >> width
    m = (bits - (exponent << width)).as_float()
    e = exponent.to(x.dtype)
    return where(denormal, e - float(width), e), m


def log_of_one_plus(f: Number) -> Number:
    """``log(1 + f) - f`` for 1 + f between sqrt(1/2) and sqrt(2)."""
    if f.dtype == "float32":
        return f * f * fma(f, polynomial(f, LOG_SINGLE), -0.5)
    s = f / (2.0 + f)
    z = s * s
    # 2 s = f - s f, so log(1 + f) = f - s f + s z p = f - h + s (h + z p) with h = f^2 / 2, whose error counts s times
    h = 0.5 * f * f
    return fma(s, fma(z, polynomial(z, LOG_DOUBLE), h), -h)


def log(f: Function, x: Value) -> Value:
    """The natural logarithm; -inf at 0, NaN below. Within 0.9 ulp."""
    a = Number(f, x)
    e, m = split(a)
    high, low = LN2[x.dtype]
    rest = m - 1.0
    y = fma(e, high, rest + fma(e, low, log_of_one_plus(rest)))
    return edges(a, y).value


def edges(x: Number, y: Number) -> Number:
    """y for 0 < x < inf; the values of logarithms elsewhere."""
    below = where(x == 0.0, -math.inf, x.const(math.nan))
    return where(x > 0.0, where(x == math.inf, math.inf, y), below)
