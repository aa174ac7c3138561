"""The error function and the gamma function."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.polynomial import chebyshev
from scipy import special

from core.onnx.writing.registry import writes

DEGREES = {"float32": 13, "float64": 30}
"""Degrees of the interpolating polynomials."""


@cache
def _tail_coefficients(dtype: str) -> tuple[float, ...]:
    """Coefficients of ``log(erfc(a) exp(a^2) / t)``, t = 2 / (2 + a), in Chebyshev polynomials of ``2 t - 1``."""

    def wanted(u):
        t = np.maximum((u + 1) / 2, 1e-300)
        a = np.minimum(2 / t - 2, 1e150)
        return np.log(special.erfcx(a) / t)

    return tuple(chebyshev.chebinterpolate(wanted, DEGREES[dtype]).tolist())


@cache
def _core_coefficients() -> tuple[float, ...]:
    """Coefficients of ``erf(x) / x`` in Chebyshev polynomials of ``2 x^2 - 1``, for x up to 1."""

    def wanted(u):
        x = np.sqrt(np.maximum((u + 1) / 2, 1e-300))
        return special.erf(x) / x

    return tuple(chebyshev.chebinterpolate(wanted, 18).tolist())


def _clenshaw(w, u, coefficients):
    """The sum of coefficients times Chebyshev polynomials of u."""
    twice = w.add(u, u)
    after, last = w.zeros_like(u), w.number(coefficients[-1], u)
    for c in reversed(coefficients[1:-1]):
        after, last = last, w.add(w.sub(w.mul(twice, last), after), w.number(c, u))
    return w.add(w.sub(w.mul(u, last), after), w.number(coefficients[0], u))


def _tail(w, a):
    """The complementary error function for a of at least 0: ``t exp(p(t) - a^2)``, which does not cancel."""
    two = w.number(2, a)
    t = w.div(two, w.add(two, a))
    fitted = _clenshaw(w, w.sub(w.add(t, t), w.number(1, a)), _tail_coefficients(a.dtype))
    return w.mul(t, w.node("Exp", w.sub(fitted, w.mul(a, a))))


@writes("erf")
def erf(w, x):
    """An `Erf`; for float64, for which onnxruntime has no kernel, polynomials for small and for large x."""
    if x.dtype != "float64":
        return w.node("Erf", x)
    a = w.node("Abs", x)
    one = w.number(1, x)
    inner = w.node("Min", a, one)
    square = w.mul(inner, inner)
    near = w.mul(x, _clenshaw(w, w.sub(w.add(square, square), one), _core_coefficients()))
    far = w.mul(w.node("Sign", x), w.sub(one, _tail(w, a)))
    return w.where(w.node("Less", a, one), near, far)


@writes("erfc")
def erfc(w, x):
    v = w.wide(x)
    tail = _tail(w, w.node("Abs", v))
    return w.cast(w.where(w.node("Less", v, w.number(0, v)), w.sub(w.number(2, v), tail), tail), x.dtype)


SHIFT = 10
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _polynomial(w, x, coefficients):
    """``c[0] + c[1] x + c[2] x^2 + ...`` by Horner."""
    out = w.number(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        out = w.add(w.mul(out, x), w.number(c, x))
    return out


def _log_gamma(w, x):
    """Stirling's series at x + 10, less the logarithm of the product of the ten numbers from x on; x is positive."""
    far = w.add(x, w.number(SHIFT, x))
    inverse = w.node("Reciprocal", far)
    series = [b / ((2 * k) * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)]
    tail = w.mul(inverse, _polynomial(w, w.mul(inverse, inverse), series))
    main = w.sub(w.mul(w.sub(far, w.number(0.5, x)), w.node("Log", far)), far)
    stirling = w.add(w.add(main, w.number(0.5 * math.log(2 * math.pi), x)), tail)
    product = x
    for k in range(1, SHIFT):
        product = w.mul(product, w.add(x, w.number(k, x)))
    return w.sub(stirling, w.node("Log", product))


def _in_float64(w, x, function):
    return w.cast(function(w.cast(x, "float64")), x.dtype)


@writes("lgamma")
def lgamma(w, x):
    """In float64: the series, and the reflection formula below 1/2."""

    def found(x):
        low = w.node("Less", x, w.number(0.5, x))
        size = w.where(low, w.sub(w.number(1, x), x), x)
        capped = w.node("Min", size, w.number(1e25, x))
        above = _log_gamma(w, capped)
        huge = w.mul(size, w.sub(w.node("Log", size), w.number(1, x)))
        above = w.where(w.node("Greater", size, w.number(1e20, x)), huge, above)
        whole = w.node("Floor", x)
        sine = w.node("Abs", w.node("Sin", w.mul(w.number(math.pi, x), w.sub(x, whole))))
        sine = w.where(w.node("Equal", x, whole), w.number(0, x), sine)
        reflected = w.sub(w.node("Log", w.div(w.number(math.pi, x), sine)), above)
        return w.where(low, reflected, above)

    return _in_float64(w, x, found)


@writes("polygamma")
def polygamma(w, x, *, order):
    """In float64: the asymptotic series at x + n, and the recurrence down to x; for the digamma function also
    below 0, by reflection.
    """
    return _in_float64(w, x, lambda x: _digamma(w, x) if order == 0 else _zeta(w, x, order))


def _digamma(w, x):
    low = w.node("Less", x, w.number(0, x))
    a = w.where(low, w.sub(w.number(1, x), x), x)
    far = w.add(a, w.number(SHIFT, x))
    inverse = w.node("Reciprocal", far)
    square = w.mul(inverse, inverse)
    series = w.mul(square, _polynomial(w, square, [-b / (2 * k) for k, b in enumerate(BERNOULLI, 1)]))
    found = w.add(w.sub(w.node("Log", far), w.mul(w.number(0.5, x), inverse)), series)
    for k in range(SHIFT):
        found = w.sub(found, w.node("Reciprocal", w.add(a, w.number(k, x))))
    turn = w.mul(w.number(math.pi, x), w.sub(x, w.node("Floor", x)))
    cotangent = w.div(w.node("Cos", turn), w.node("Sin", turn))
    reflected = w.sub(found, w.mul(w.number(math.pi, x), cotangent))
    return w.where(low, reflected, found)


def _zeta(w, x, order: int):
    """``(-1)^(n + 1) n! zeta(n + 1, x)`` by Euler and Maclaurin, with NaN below 0 as the kernel gives it."""
    s, count = order + 1, max(SHIFT, 2 * order)
    total = None
    for k in range(count):
        term = w.node("Pow", w.add(x, w.number(k, x)), w.number(-s, x))
        total = term if total is None else w.add(total, term)
    far = w.add(x, w.number(count, x))
    power = w.node("Pow", far, w.number(-s, x))
    total = w.add(total, w.div(w.mul(power, far), w.number(s - 1, x)))
    total = w.add(total, w.mul(w.number(0.5, x), power))
    inverse = w.node("Reciprocal", far)
    square = w.mul(inverse, inverse)
    coefficients = []
    rising = float(s)
    for k, b in enumerate(BERNOULLI, 1):
        coefficients.append(b * rising / math.factorial(2 * k))
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    rest = w.mul(w.mul(power, inverse), _polynomial(w, square, coefficients))
    total = w.mul(w.add(total, rest), w.number((-1.0) ** (order + 1) * math.factorial(order), x))
    negative = w.node("Less", x, w.number(0, x))
    return w.where(negative, w.number(math.nan, x), total)


@writes("erfinv")
def erfinv(w, x):
    """In float64: Winitzki's approximation, and four steps of Newton on the side where the function is small."""

    def found(x):
        one = w.number(1, x)
        a = w.node("Abs", x)
        edge = w.node("GreaterOrEqual", a, one)
        inner = w.where(edge, w.number(0.5, x), a)
        rest = w.sub(one, inner)
        log = w.node("Log", w.mul(rest, w.add(one, inner)))
        c = 0.147
        first = w.add(w.number(2 / (math.pi * c), x), w.mul(w.number(0.5, x), log))
        root = w.sub(w.node("Sqrt", w.sub(w.mul(first, first), w.div(log, w.number(c, x)))), first)
        y = w.node("Sqrt", w.node("Max", root, w.number(0, x)))
        for _ in range(4):
            wrong = w.sub(_tail(w, y), rest)
            slope = w.mul(w.number(2 / math.sqrt(math.pi), x), w.node("Exp", w.node("Neg", w.mul(y, y))))
            step = w.div(wrong, slope)
            y = w.add(y, w.div(step, w.add(one, w.mul(y, step))))
        y = w.mul(w.node("Sign", x), y)
        limit = w.mul(w.node("Sign", x), w.number(math.inf, x))
        outside = w.where(w.node("Equal", a, one), limit, w.number(math.nan, x))
        return w.where(edge, outside, y)

    return _in_float64(w, x, found)
