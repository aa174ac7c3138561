"""Powers with real exponents: ``|x|^y = exp(y log|x|)``, with a logarithm of higher precision than the result."""

from __future__ import annotations

import math

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.exponential import OVERFLOW, UNDERFLOW, exponential
from core.codegen.vmath.expression import Number, fma, maximum, minimum, polynomial, two_sum, where
from core.codegen.vmath.logarithm import edges, logarithm, split

__all__ = ["power"]

# (log((1 + s) / (1 - s)) / s - 2 - 2/3 s^2) / s^4 in s^2 for |s| <= 0.172: 2^-66.2 of log((1 + s) / (1 - s))
LOG = (
    0.4000000000000232,
    0.28571428570066015,
    0.22222222526186422,
    0.1818178379716154,
    0.15386784513967064,
    0.13256164829267733,
    0.1320256029613177,
)
THIRDS = (0.6666666666666666, 3.700743415417188e-17)  # 2/3 in two parts
LN2 = (0.693147180559663, 2.8235290563031577e-13)  # the first has 41 bits, so its products with exponents are exact


def power(f: Function, x: IRValue, y: IRValue) -> IRValue:
    """x^y as C's pow: 1 for y = 0 and for x = 1, NaN for x < 0 unless y is an integer. Within 0.6 ulp; float64 1.5."""
    base, exponent = Number(f, x), Number(f, y)
    size = base.abs()
    if x.dtype == "float32":
        wide = size.to("float64")
        e, m = split(wide)
        high = exponent.to("float64") * edges(wide, logarithm(e, m - 1.0))
        result = exponential(_bounded(high)).to("float32")
    else:
        result = _double(size, exponent)
    whole = exponent.call("rint") == exponent
    half = 0.5 * exponent
    odd = where(half.call("rint") == half, whole.const(False), whole)
    result = where(size == 1.0, 1.0, result)  # infinite exponents included
    signed = where(base.bits() < 0, where(odd, -result, result), result)
    defined = where(whole, whole.const(True), where(base < 0.0, size == math.inf, whole.const(True)))
    signed = where(defined, signed, math.nan)
    signed = where(base == base, where(exponent == exponent, signed, math.nan), math.nan)
    return where(exponent == 0.0, 1.0, where(base == 1.0, 1.0, signed)).value


def _bounded(x: Number) -> Number:
    return maximum(minimum(x, OVERFLOW[x.dtype]), UNDERFLOW[x.dtype])


def _double(x: Number, power: Number) -> Number:
    high, low = _log_in_two(x)
    high = edges(x, high)
    p = power * high
    rest = fma(power, high, -p) + power * low
    bounded = _bounded(p)
    rest = where(bounded == p, rest, 0.0)
    return exponential(bounded, -where(p.abs() < math.inf, rest, 0.0))


def _log_in_two(x: Number) -> tuple[Number, Number]:
    """log(x) in two parts, with a relative error of 2^-64."""
    e, m = split(x)
    f = m - 1.0
    # s = f / (2 + f) in two parts, log(m) = 2 s + s^3 (2/3 + s^2 LOG(s^2))
    below = 2.0 + f
    inverse = 1.0 / below
    s = f * inverse
    s_low = (fma(-s, below, f) - s * (f - (below - 2.0))) * inverse
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    tail = z * polynomial(z, LOG)
    q = THIRDS[0] + tail
    q_low = (THIRDS[0] - q) + tail + THIRDS[1]
    t = z * q
    t_low = fma(z, q, -t) + (z * q_low + z_low * q)
    cube = s * t
    cube_low = fma(s, t, -cube) + (s * t_low + s_low * t)
    first, first_low = two_sum(e * LN2[0], 2.0 * s)
    second, second_low = two_sum(first, cube)
    low = (first_low + second_low) + (cube_low + 2.0 * s_low + e * LN2[1])
    high = second + low
    return high, low - (high - second)
