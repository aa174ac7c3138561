"""Exponentials and logarithms, without cancellation and overflow."""

from __future__ import annotations

import math

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import writes


@writes("expm1")
def expm1(w, x):
    """Kahan's form: ``(u - 1) x / log(u)`` with ``u = exp(x)`` near 0, where ``u - 1`` would cancel."""
    v = w.wide(x)
    one = w.number(1, v)
    u = w.node("Exp", v)
    less = w.sub(u, one)
    exact = w.node("Equal", less, w.number(0, v))
    quotient = w.div(w.mul(less, v), w.node("Log", w.where(exact, w.number(2, v), u)))
    near = w.node("Less", w.node("Abs", v), one)
    return w.cast(w.where(near, w.where(exact, v, quotient), less), x.dtype)


@writes("log1p")
def log1p(w, x):
    return w.cast(wide_log1p(w, w.wide(x)), x.dtype)


def wide_log1p(w, v):
    """Kahan's form: ``log(u) x / (u - 1)`` with ``u = 1 + x`` near 0, where u is rounded."""
    one = w.number(1, v)
    u = w.add(one, v)
    less = w.sub(u, one)
    exact = w.node("Equal", less, w.number(0, v))
    quotient = w.div(w.mul(w.node("Log", u), v), w.where(exact, one, less))
    near = w.node("Less", w.node("Abs", v), one)
    return w.where(near, w.where(exact, v, quotient), w.node("Log", u))


@writes("softplus")
def softplus(w, x, *, beta, threshold):
    """The asymptote plus a bounded rest, as the kernel computes it."""
    v = w.wide(x)
    scaled = v if beta == 1.0 else w.mul(v, w.number(beta, v))
    zero = w.number(0, v)
    asymptote = w.node("Max" if beta > 0 else "Min", v, zero)
    rest = wide_log1p(w, w.node("Exp", w.node("Neg", w.node("Abs", scaled))))
    soft = w.add(asymptote, rest if beta == 1.0 else w.div(rest, w.number(beta, v)))
    if threshold is not None:
        soft = w.where(w.node("Greater", scaled, w.number(threshold, v)), v, soft)
    return w.cast(soft, x.dtype)


@writes("logsigmoid")
def logsigmoid(w, x):
    v = w.wide(x)
    rest = wide_log1p(w, w.node("Exp", w.node("Neg", w.node("Abs", v))))
    return w.cast(w.sub(w.node("Min", v, w.number(0, v)), rest), x.dtype)


def _logarithm(w: OpSite, x: Tensor, base: float) -> Tensor:
    """The logarithm of x to `base`, computed in float64, so that powers of the base give whole numbers."""
    v = w.cast(x, "float64")
    found = w.div(w.node("Log", v), w.number(math.log(base), v))
    whole = w.node("Round", found)
    power = w.node("Pow", w.number(base, v), whole)
    return w.cast(w.where(w.node("Equal", power, v), whole, found), x.dtype)


@writes("log2")
def log2(w, x):
    return _logarithm(w, x, 2.0)


@writes("log10")
def log10(w, x):
    return _logarithm(w, x, 10.0)


@writes("logaddexp")
def logaddexp(w, x, y):
    """The larger operand plus ``log(1 + exp(-|x - y|))``. For equal ones, also infinite ones, the distance is 0."""
    a, b = w.wide(x), w.wide(y)
    distance = w.where(w.node("Equal", a, b), w.number(0, a), w.node("Abs", w.sub(a, b)))
    rest = wide_log1p(w, w.node("Exp", w.node("Neg", distance)))
    return w.cast(w.add(w.node("Max", a, b), rest), x.dtype)


@writes("xlogy")
def xlogy(w, x, y):
    a, b = w.wide(x), w.wide(y)
    none = w.node("And", w.node("Equal", a, w.number(0, a)), w.node("Equal", b, b))
    product = w.mul(a, w.node("Log", w.where(none, w.number(1, b), b)))
    return w.cast(w.where(none, w.number(0, a), product), x.dtype)
