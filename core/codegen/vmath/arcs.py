"""The inverse trigonometric functions."""

from __future__ import annotations

from core.codegen.llvm import Function, IRValue
from core.codegen.vmath.expression import Number, fma, polynomial, sqrt, where
from core.codegen.vmath.trigonometric import PI_2

__all__ = ["arccos", "arcsin", "arctan", "arctan2"]

# (arctan(z) / z - 1) / z^2 in z^2 for |z| <= 1: 2^-31.1 and 2^-58.8
ATAN = {
    "float32": (
        -3.3333328e-01,
        1.9999716e-01,
        -1.4280343e-01,
        1.1061233e-01,
        -8.821462e-02,
        6.763649e-02,
        -4.4983257e-02,
        2.2777617e-02,
        -7.425363e-03,
        1.1345221e-03,
    ),
    "float64": (
        -0.33333333333333287,
        0.19999999999990617,
        -0.1428571428504475,
        0.11111111086651945,
        -0.09090908550390245,
        0.0769229974349273,
        -0.06666583945256556,
        0.058817172586432355,
        -0.052594376024869424,
        0.04744934242308282,
        -0.042863943867616924,
        0.03820959709856333,
        -0.03278340202978333,
        0.02614676615700955,
        -0.018606075787549695,
        0.011307968218186224,
        -0.0056040514863512055,
        0.00214651328075235,
        -0.0005908173132445709,
        0.00010335947845484512,
        -8.59649672253612e-06,
    ),
}
# (arcsin(s) / s - 1) / s^2 in s^2 for |s| <= 0.5: 2^-31.7 and 2^-59.8
ASIN = {
    "float32": (1.666666e-01, 7.500522e-02, 4.4513352e-02, 3.1839523e-02, 1.4312172e-02, 3.7702125e-02),
    "float64": (
        0.1666666666666676,
        0.0749999999997081,
        0.044642857174645556,
        0.030381942704732507,
        0.022372215104018166,
        0.017351609485158303,
        0.013980855264738908,
        0.01139859689964933,
        0.010782176032309021,
        0.0036986105439630323,
        0.02172761502688902,
        -0.02102917598105605,
        0.03264837979444771,
    ),
}


def arcsin(f: Function, x: IRValue) -> IRValue:
    """The inverse sine; NaN outside [-1, 1]. Within 2 ulp."""
    a = Number(f, x)
    large, y = _small_arc(a)
    high, low, _ = PI_2[x.dtype]
    return where(large, fma(-2.0, y, high) + low, y).copysign(a).value


def arccos(f: Function, x: IRValue) -> IRValue:
    """The inverse cosine; NaN outside [-1, 1]. Within 1.3 ulp."""
    a = Number(f, x)
    large, y = _small_arc(a)
    high, low, _ = PI_2[x.dtype]
    ends = where(a > 0.0, 2.0 * y, fma(-2.0, y, 2.0 * high) + 2.0 * low)
    return where(large, ends, (high - y.copysign(a)) + low).value


def _small_arc(x: Number) -> tuple[Number, Number]:
    """Whether |x| > 0.5, and an angle: arcsin(|x|), or if |x| > 0.5 ``(pi/2 - arcsin(|x|)) / 2``."""
    size = x.abs()
    large = size > 0.5
    z = where(large, fma(size, -0.5, 0.5), size * size)
    s = where(large, sqrt(z), size)
    return large, fma(s * z, polynomial(z, ASIN[x.dtype]), s)


def arctan(f: Function, x: IRValue) -> IRValue:
    """The inverse tangent. Within 1.5 ulp."""
    a = Number(f, x)
    size = a.abs()
    steep = size > 1.0
    return _arc(where(steep, 1.0, size) / where(steep, size, 1.0), steep).copysign(a).value


def arctan2(f: Function, y: IRValue, x: IRValue) -> IRValue:
    """The angle of the point (x, y) from the x axis, -pi to pi; the signs of zeros count. Within 1.6 ulp."""
    b, a = Number(f, y), Number(f, x)
    height, width = b.abs(), a.abs()
    steep = height > width
    short, long = where(steep, width, height), where(steep, height, width)
    # two zeros or two infinities have no ratio; their angles are those of 0 : 1 and 1 : 1
    equal = where(short == 0.0, short.const(0.0), 1.0)
    angle = _arc(where(short == long, equal, short / long), steep)
    high, low, _ = PI_2[x.dtype]
    back = (2.0 * high - angle) + 2.0 * low
    return where(a.bits() < 0, back, angle).copysign(b).value


def _arc(ratio: Number, steep: Number) -> Number:
    """arctan(ratio) for a ratio from 0 to 1; if `steep`, arctan(1 / ratio)."""
    z = ratio * ratio
    y = fma(ratio * z, polynomial(z, ATAN[ratio.dtype]), ratio)
    high, low, _ = PI_2[ratio.dtype]
    return where(steep, (high - y) + low, y)
