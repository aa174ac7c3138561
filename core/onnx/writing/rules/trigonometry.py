"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

import math

from core.onnx.writing.registry import writes
from core.onnx.writing.rules.exponentials import expm1, wide_log1p


@writes("tan")
def tan(w, x):
    if x.dtype == "float64":
        return w.div(w.node("Sin", x), w.node("Cos", x))
    return w.node("Tan", x)


def _atan(w, x):
    """For float64 the result of float32, and one step of the addition theorem, whose error is that of float64."""
    if x.dtype != "float64":
        return w.node("Atan", x)
    near = w.cast(w.node("Atan", w.cast(x, "float32")), "float64")
    sin, cos = w.node("Sin", near), w.node("Cos", near)
    step = w.div(w.sub(w.mul(x, cos), sin), w.add(cos, w.mul(x, sin)))
    exact = w.add(near, step)
    return w.where(w.node("IsInf", x), w.mul(w.node("Sign", x), w.number(math.pi / 2, x)), exact)


@writes("atan")
def atan(w, x):
    return _atan(w, x)


def _root_of_rest(w, x):
    one = w.number(1, x)
    return w.node("Sqrt", w.mul(w.sub(one, x), w.add(one, x)))


@writes("asin")
def asin(w, x):
    if x.dtype != "float64":
        return w.node("Asin", x)
    return w.mul(w.number(2, x), _atan(w, w.div(x, w.add(w.number(1, x), _root_of_rest(w, x)))))


@writes("acos")
def acos(w, x):
    if x.dtype != "float64":
        return w.node("Acos", x)
    return w.mul(w.number(2, x), _atan(w, w.div(_root_of_rest(w, x), w.add(w.number(1, x), x))))


@writes("atan2")
def atan2(w, x, y):
    """The angle of the quotient, and half a turn where y is negative. A zero counts as positive."""
    out = x.dtype
    x, y = w.wide(x), w.wide(y)
    zero = w.number(0, x)
    side = w.where(w.node("Less", x, zero), w.number(-1, x), w.number(1, x))
    flat = w.node("Equal", y, zero)
    angle = _atan(w, w.div(x, w.where(flat, w.number(1, x), y)))
    turned = w.add(angle, w.mul(side, w.number(math.pi, x)))
    upright = w.mul(w.node("Sign", x), w.number(math.pi / 2, x))
    found = w.where(flat, upright, w.where(w.node("Less", y, zero), turned, angle))
    return w.cast(found, out)


@writes("hypot")
def hypot(w, x, y):
    """``a sqrt(1 + (b / a)^2)`` for the larger a and the smaller b, so that no square overflows."""
    out = x.dtype
    x, y = (w.node("Abs", w.wide(v)) for v in (x, y))
    a, b = w.node("Max", x, y), w.node("Min", x, y)
    one = w.number(1, a)
    ratio = w.div(b, w.where(w.node("Equal", a, w.number(0, a)), one, a))
    found = w.mul(a, w.node("Sqrt", w.add(one, w.mul(ratio, ratio))))
    either = w.node("Or", w.node("IsInf", x), w.node("IsInf", y))
    return w.cast(w.where(either, w.number(math.inf, a), found), out)


@writes("sinh")
def sinh(w, x):
    """``(u + u / (u + 1)) / 2`` with ``u = exp(|x|) - 1``, which does not cancel near 0."""
    v = w.wide(x)
    half = w.number(0.5, v)
    u = expm1(w, w.node("Abs", v))
    ratio = w.div(u, w.add(u, w.number(1, v)))
    large = w.node("Greater", w.node("Abs", v), w.number(20, v))
    tail = w.node("Exp", w.sub(w.node("Abs", v), w.number(math.log(2), v)))
    size = w.where(large, tail, w.mul(half, w.add(u, ratio)))
    return w.cast(w.mul(w.node("Sign", v), size), x.dtype)


@writes("cosh")
def cosh(w, x):
    v = w.node("Abs", w.wide(x))
    log2 = w.number(math.log(2), v)
    up = w.node("Exp", w.sub(v, log2))
    down = w.node("Exp", w.node("Neg", w.add(v, log2)))
    return w.cast(w.add(up, down), x.dtype)


@writes("asinh")
def asinh(w, x):
    """``log1p(a + a^2 / (1 + sqrt(a^2 + 1)))`` for a = |x|; for large a, ``log(a) + log(2)``."""
    v = w.wide(x)
    a = w.node("Abs", v)
    one = w.number(1, v)
    large = w.node("Greater", a, w.number(1e9, v))
    small = w.where(large, one, a)
    square = w.mul(small, small)
    near = wide_log1p(w, w.add(small, w.div(square, w.add(one, w.node("Sqrt", w.add(square, one))))))
    far = w.add(w.node("Log", a), w.number(math.log(2), v))
    return w.cast(w.mul(w.node("Sign", v), w.where(large, far, near)), x.dtype)


@writes("acosh")
def acosh(w, x):
    """``log1p(t + sqrt(2 t + t^2))`` for t = x - 1; for large x, ``log(x) + log(2)``."""
    v = w.wide(x)
    one = w.number(1, v)
    large = w.node("Greater", v, w.number(1e9, v))
    t = w.sub(w.where(large, one, v), one)
    near = wide_log1p(w, w.add(t, w.node("Sqrt", w.add(w.add(t, t), w.mul(t, t)))))
    far = w.add(w.node("Log", v), w.number(math.log(2), v))
    return w.cast(w.where(large, far, near), x.dtype)


@writes("atanh")
def atanh(w, x):
    v = w.wide(x)
    a = w.node("Abs", v)
    size = wide_log1p(w, w.div(w.add(a, a), w.sub(w.number(1, v), a)))
    return w.cast(w.mul(w.node("Sign", v), w.mul(w.number(0.5, v), size)), x.dtype)
