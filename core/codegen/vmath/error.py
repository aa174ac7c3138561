"""The error function and its complement."""

from __future__ import annotations

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.exponential import EXP2, EXPM1, reduce, whole_and_rest
from core.codegen.vmath.expression import Number, fma, minimum, polynomial, power_of_two, scale_by_power, where

__all__ = ["erf", "erfc"]

MIDDLE = {"float32": 0.8, "float64": 1.0}  # below, erf is a polynomial; above, it is 1 - erfc
# erf(x) / x - 1 in x^2, up to there: 2^-28.0 and 2^-56.2 of erf(x) / x
ERF = {
    "float32": (1.2837917e-01, -3.7612608e-01, 1.1283162e-01, -2.6822243e-02, 5.0869263e-03, -6.5433845e-04),
    "float64": (
        0.1283791670955126,
        -0.376126389031841,
        0.112837916709711,
        -0.02686617064803173,
        0.005223977652736627,
        -0.000854832854202659,
        0.00012055386588146243,
        -1.4926895425331322e-05,
        1.6481358503844875e-06,
        -1.6561128570335526e-07,
        1.6045702944176676e-08,
        -1.6611755987257019e-09,
        1.4628188241933063e-10,
    ),
}
# log2(erfc(x)) for 0.8 <= x <= 3.93: 2^-28.6 of 1 in erfc(x)
LOG2_ERFC = (
    -9.520334e-05,
    -1.6276902e00,
    -9.1787434e-01,
    -1.5119253e-01,
    3.2685958e-02,
    -4.5497036e-03,
    2.99294e-04,
)
# (x + 2) exp(x^2) erfc(x) in t = (x - 2) / (x + 2) for 0 <= x <= 10.1: 2^-25.4
ERFC_SINGLE = (
    1.0215827,
    -6.8716085e-01,
    2.794714e-01,
    -3.6436807e-02,
    -2.1502314e-02,
    6.438516e-03,
    3.0424565e-03,
    -7.3072943e-04,
    -5.2949152e-04,
    -4.5313814e-05,
)
# exp(x^2) erfc(x) as a ratio of polynomials in x for 0 <= x <= 27.3: 2^-56.4
ERFC_ABOVE = (
    1.0,
    2.341016323179,
    2.716877649676412,
    2.019752568388311,
    1.0551974026257616,
    0.40297296754904555,
    0.11377269862233329,
    0.02347839569872801,
    0.0034021625754563365,
    0.0003148085960284617,
    1.430027826205488e-05,
)
ERFC_BELOW = (
    1.0,
    3.469395490274513,
    5.63167124331728,
    5.65727036306789,
    3.9169345753783036,
    1.9681336822520046,
    0.7347791851070226,
    0.20465927248407215,
    0.04189336472681323,
    0.006042849449837688,
    0.0005579837083297945,
    2.534658327459357e-05,
)
VANISHED = {"float32": 10.1, "float64": 27.3}  # from here on, erfc is below half the smallest denormal


def erf(f: Function, x: IRValue) -> IRValue:
    """The error function. Within 1.4 ulp."""
    a = Number(f, x)
    size = minimum(a.abs(), 3.93 if x.dtype == "float32" else 6.0)
    near = fma(size, polynomial(size * size, ERF[x.dtype]), size)
    far = 1.0 - (_rough_erfc(size) if x.dtype == "float32" else _erfc(size))
    return where(size < MIDDLE[x.dtype], near, far).copysign(a).value


def erfc(f: Function, x: IRValue) -> IRValue:
    """The complementary error function, 1 - erf(x), accurate for large x too. Within 4.6 ulp; float64 6.5."""
    a = Number(f, x)
    y = _erfc(minimum(a.abs(), VANISHED[x.dtype]))
    return where(a < 0.0, 2.0 - y, y).value


def _erfc(x: Number) -> Number:
    """erfc(x) for 0 <= x <= VANISHED."""
    square = x * x
    n, k, r = reduce(-square, fma(x, x, -square))
    if x.dtype == "float32":
        part = 1.0 / (x + 2.0)
        g = part * polynomial((x - 2.0) * part, ERFC_SINGLE)
    else:
        g = polynomial(x, ERFC_ABOVE) / polynomial(x, ERFC_BELOW)
    # e^r g as g + (e^r - 1) g saves one rounding
    return scale_by_power(fma(g, fma(r * r, polynomial(r, EXPM1[x.dtype]), r), g), n, k)


def _rough_erfc(x: Number) -> Number:
    """erfc(x) for 0.8 <= x <= 3.93, accurate enough for 1 - erfc(x) in float32."""
    _, k, r = whole_and_rest(polynomial(x, LOG2_ERFC))
    return power_of_two(k) * polynomial(r, (1.0, *EXP2[x.dtype]))
