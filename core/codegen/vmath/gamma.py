"""The logarithm of the gamma function and its derivatives.

float32 is computed in float64. Sums and products of shifted arguments move x to where a series or a ratio of
polynomials is short; arguments below 0 are reflected, in a branch that runs only if there are any.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.expression import Number, by_pairs, fma, polynomial, where
from core.codegen.vmath.logarithm import edges, logarithm, split
from core.codegen.vmath.trigonometric import sine_and_cosine

__all__ = ["digamma", "lgamma", "polygamma"]

# lgamma(2 + t) / t as a ratio of polynomials in t for |t| <= 0.5: 2^-60.3, with rounded coefficients 2^-56.2
ABOVE = (
    0.42278433509846713,
    0.9513718266472596,
    0.7655579526752762,
    0.2825229671782686,
    0.04901539603705264,
    0.0035320918834332304,
    6.920190944187187e-05,
)
BELOW = (
    1.0,
    1.4875309726806067,
    0.835486380448331,
    0.21929378735710933,
    0.026829920858811324,
    0.0013032850823581424,
    1.4916539381886683e-05,
)
# (lgamma(x) - (x - 1/2) log x + x - log(2 pi) / 2) x in 1 / x^2 for x >= 8: 2^-57.6
STIRLING = (
    0.08333333333333333,
    -0.0027777777777568753,
    0.0007936507762393518,
    -0.0005952322504888979,
    0.0008407764777566425,
    -0.00183167204040707,
    0.0025507285177325464,
    0.04295701752243093,
)
FAR = 8
"""Arguments from here on use Stirling's series."""

TINY = 2.0**-60
"""Below, ``lgamma(-x)`` rounds to ``lgamma(x)``."""

SHIFT = 10
"""Arguments of the derivatives are moved up by so many."""

TERMS = 10
"""Terms of the series of the derivatives after the first two, which hold from `SHIFT` on."""


def lgamma(f: Function, x: IRValue) -> IRValue:
    """log |gamma(x)|; inf at 0, at whole numbers below and at -inf. Within 1 ulp; float64 8: of 1 where
    the result is smaller."""
    return _in_double(f, x, _lgamma)


def digamma(f: Function, x: IRValue) -> IRValue:
    """The derivative of `lgamma`; NaN at whole numbers below 0. Within 1 ulp; float64 4: of 32 where the result is
    smaller."""
    return _in_double(f, x, lambda a: _derivative(a, 0))


@functools.cache
def polygamma(order: int) -> Callable[[Function, IRValue], IRValue]:
    """The function that writes the derivative number `order` of `digamma`; infinite at 0 and whole numbers below."""
    if order == 0:
        return digamma

    def write(f: Function, x: IRValue) -> IRValue:
        return _in_double(f, x, lambda a: _derivative(a, order))

    write.__name__ = f"polygamma{order}"
    return write


def _in_double(f: Function, x: IRValue, function: Callable[[Number], Number]) -> IRValue:
    result = function(Number(f, x).to("float64"))
    return result.to(x.dtype).value


# --- the logarithm ---------------------------------------------------------------------------------------------


def _lgamma(x: Number) -> Number:
    size = x.abs()
    above = _above_zero(size)

    def reflected() -> Number:
        # |gamma(-x)| = pi / (x |sin(pi x)| gamma(x))
        sine, _ = _half_turns(size)
        turned = math.log(math.pi) - _log(sine.abs() * size) - above
        return where(size < TINY, above, where(sine == 0.0, math.inf, turned))

    found = _if_any(x < 0.0, above, reflected)
    return where(size == math.inf, size, found)


def _above_zero(x: Number) -> Number:
    """lgamma(x) for x >= 0."""
    far = x >= float(FAR)
    # to 1.5 <= 2 + t < 2.5 by gamma(y + 1) = y gamma(y): `product` is of the arguments on the way; t is exact
    t, product = x - 2.0, x.const(1.0)
    for k in range(2, FAR):
        step = x >= k + 0.5
        t = where(step, x - float(k + 1), t)
        product = where(step, product * (x - float(k - 1)), product)
    up, twice = x < 1.5, x < 0.5
    t = where(twice, x, where(up, x - 1.0, t))
    product = where(twice, x * (x + 1.0), where(up, x, product))
    near = t * (polynomial(t, ABOVE) / polynomial(t, BELOW))
    logs = _log(where(far, x, product))
    near = near + where(up, -logs, logs)
    inverse = 1.0 / x
    rest = inverse * polynomial(inverse * inverse, STIRLING) + 0.5 * math.log(2.0 * math.pi)
    # (x - 1/2) (log x - 1) - 1/2 + rest: the largest terms of nearly equal size come first
    large = fma(x - 0.5, logs - 1.0, rest - 0.5)
    return where(far, large, near)


def _log(x: Number) -> Number:
    e, m = split(x)
    return edges(x, logarithm(e, m - 1.0))


# --- derivatives -----------------------------------------------------------------------------------------------


def _derivative(x: Number, order: int) -> Number:
    """Derivative number `order` of digamma, (-1)^(order + 1) order! times Hurwitz' zeta(order + 1, x)."""
    negative = x < 0.0
    sign = 1.0 if order % 2 else -1.0

    def above(y: Number) -> Number:
        if order == 0:
            return _digamma(y)
        return sign * math.factorial(order) * _zeta(y, order + 1)

    # f(x) = (-1)^order f(1 - x) - pi d^order cot(pi x) / dx^order
    y = where(negative, 1.0 - x, x)
    found = above(y)

    def reflected() -> Number:
        sine, cosine = _half_turns(x)
        turned = -1.0 * math.pi ** (order + 1) * polynomial(cosine / sine, _cotangent(order))
        whole = turned + (found if order % 2 == 0 else -found)
        if order == 0:
            return where(sine == 0.0, math.nan, whole)
        return where(x == -math.inf, sign * math.inf, where(sine == 0.0, sign * math.inf, whole))

    found = _if_any(negative, found, reflected)
    if order == 0:  # -1 / x
        return where(x == 0.0, x.const(-math.inf).copysign(-x), found)
    return where(x == 0.0, sign * math.inf, found)


def _cotangent(order: int) -> tuple[float, ...]:
    """The coefficients of derivative number `order` of cot(t) in powers of cot(t), for t in units of 1."""
    found = [Fraction(0), Fraction(1)]
    for _ in range(order):
        steps = [k * c for k, c in enumerate(found)][1:]  # (cot^k)' = -k cot^(k - 1) (1 + cot^2)
        following = [Fraction(0)] * (len(steps) + 2)
        for k, c in enumerate(steps):
            following[k] -= c
            following[k + 2] -= c
        found = following
    return tuple(float(c) for c in found)


def _digamma(x: Number) -> Number:
    """For x >= 0: log(y) - 1 / (2 y) - the sum of B(2 k) / (2 k y^(2 k)), moved from y = x + SHIFT to x."""
    far = x >= float(SHIFT)
    y = where(far, x, x + float(SHIFT))
    inverse = 1.0 / y
    series = tuple(float(b / (2 * k)) for k, b in enumerate(_bernoulli(TERMS), 1))
    square = inverse * inverse
    large = _log(y) - (0.5 * inverse + square * polynomial(square, series))
    near = where(far, 1.0, x)
    total: Number | None = None
    for k in range(SHIFT - 1, 0, -2):  # the smallest terms first, in pairs: one division for two
        a, b = near + float(k), near + float(k - 1)
        pair = (a + b) / (a * b)
        total = pair if total is None else total + pair
    assert total is not None
    return where(far, large, large - total)


def _zeta(x: Number, s: int) -> Number:
    """The sum of (x + k)^-s over all k >= 0, for x >= 0 and a whole s >= 2 (Euler and Maclaurin)."""
    y = x + float(SHIFT)
    inverse = 1.0 / y
    square = inverse * inverse
    coefficients, rising = [], Fraction(s)
    for k, b in enumerate(_bernoulli(TERMS), 1):  # B(2 k) / (2 k)! s (s + 1) ... (s + 2 k - 2)
        coefficients.append(float(b * rising / math.factorial(2 * k)))
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    tail = fma(inverse, 0.5, 1.0 / (s - 1)) + square * by_pairs(square, square * square, coefficients)
    total = _power(inverse, s - 1) * tail
    for k in reversed(range(SHIFT)):
        total = total + _power(1.0 / (x + float(k)), s)
    return total


def _power(x: Number, exponent: int) -> Number:
    result: Number | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    assert result is not None
    return result


@functools.cache
def _bernoulli(count: int) -> tuple[Fraction, ...]:
    """B(2), B(4), ..., B(2 count)."""
    found = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        found.append(-sum(math.comb(n + 1, k) * found[k] for k in range(n)) / Fraction(n + 1))
    return tuple(found[2::2])


# --- helpers ---------------------------------------------------------------------------------------------------


def _half_turns(x: Number) -> tuple[Number, Number]:
    """sin(pi x) and cos(pi x), or minus both."""
    rest = (x - x.call("rint")) * math.pi  # x minus a whole number is exact
    sine, cosine = sine_and_cosine(x.function, rest.value)
    return Number(x.function, sine), Number(x.function, cosine)


def _if_any(condition: Number, otherwise: Number, value: Callable[[], Number]) -> Number:
    """``where(condition, value(), otherwise)``; the code of `value` runs only if the condition holds in some lane."""
    f, lanes = otherwise.function, otherwise.value.lanes
    which = condition.value
    if lanes > 1:
        f.declarations.add(f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({which.type})")
        which = f.op(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({which})", "bool")
    some, after, before = f.label("some"), f.label("none"), f.block
    f.branch(which, some, after)
    f.begin(some)
    known = f.known
    f.known = known.copy()
    found, end = where(condition, value(), otherwise).value, f.block
    f.known = known
    f.jump(after)
    f.begin(after)
    text = f"phi {found.type} [ {otherwise.value.name}, %{before} ], [ {found.name}, %{end} ]"
    return Number(f, f.op(text, found.dtype, found.lanes))
