"""Elementwise ops."""

from __future__ import annotations

import math

import numpy as np

from core.onnx.writing.arrays import Stack
from core.onnx.writing.blocks import OpSite
from core.onnx.writing.dtypes import ELEM
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import Refused, writes
from core.onnx.writing.rules.arrays import sum_of_stacks

UNARY = {
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "neg": "Neg",
    "abs": "Abs",
    "logical_not": "Not",
}

BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "equal": "Equal",
    "less_than": "Less",
    "less_equal": "LessOrEqual",
    "greater_than": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
}


def _unary(operator: str):
    return lambda w, x: w.node(operator, x)


def _binary(operator: str):
    return lambda w, x, y: w.node(operator, x, y)


for _op, _operator in UNARY.items():
    writes(_op)(_unary(_operator))
for _op, _operator in BINARY.items():
    writes(_op)(_binary(_operator))


@writes("not_equal")
def not_equal(w, x, y):
    return w.node("Not", w.node("Equal", x, y))


@writes("assign", "stop_gradient", "print")
def assign(w, x, **_):
    return x


@writes("barrier")
def barrier(w, *x, **_):
    return x


@writes("where")
def where(w, condition, x, y):
    return w.where(condition, x, y)


@writes("mask_gradient")
def mask_gradient(w, condition, x):
    if condition.rank == 0 or (condition.is_static and condition.shape == x.shape):
        return x
    return w.expand_like(x, condition)


@writes("bitcast")
def bitcast(w, x, *, dtype):
    if x.dtype == dtype:
        return x
    if dtype == "bool" or x.dtype == "bool":
        return w.cast(x, dtype)
    if w.model.opset < 26:
        raise Refused("the operator BitCast needs opset 26")
    return w.node("BitCast", x, dtype=dtype, shape=x.shape, to=ELEM[dtype])


@writes("square")
def square(w, x):
    return w.mul(x, x)


@writes("rsqrt")
def rsqrt(w, x):
    return w.node("Reciprocal", w.node("Sqrt", x))


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
    return w.cast(_log1p(w, w.wide(x)), x.dtype)


def _log1p(w, v):
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
    rest = _log1p(w, w.node("Exp", w.node("Neg", w.node("Abs", scaled))))
    soft = w.add(asymptote, rest if beta == 1.0 else w.div(rest, w.number(beta, v)))
    if threshold is not None:
        soft = w.where(w.node("Greater", scaled, w.number(threshold, v)), v, soft)
    return w.cast(soft, x.dtype)


@writes("logsigmoid")
def logsigmoid(w, x):
    v = w.wide(x)
    rest = _log1p(w, w.node("Exp", w.node("Neg", w.node("Abs", v))))
    return w.cast(w.sub(w.node("Min", v, w.number(0, v)), rest), x.dtype)


@writes("clip")
def clip(w, x, *, min, max):
    """A `Clip`; a bound of integers stays within their dtype, and an infinite one is left out."""
    low = None if math.isinf(min) and min < 0 else w.number(min, x)
    high = None if math.isinf(max) and max > 0 else w.number(max, x)
    if low is None and high is None:
        return x
    return w.node("Clip", x, low, high)


@writes("scale")
def scale(w, x, *, scale, bias):
    v = w.wide(x)
    if scale != 1.0:
        v = w.mul(v, w.number(scale, v))
    if bias != 0.0:
        v = w.add(v, w.number(bias, v))
    return w.cast(v, x.dtype)


@writes("increment")
def increment(w, x, *, step):
    return w.add(x, w.number(step, x))


@writes("sign")
def sign(w, x, **_):
    return w.node("Sign", x)


@writes("cast")
def cast(w, x, *, dtype):
    """A `Cast`. From floats to integers it saturates, and NaN becomes 0, which ONNX leaves open."""
    if not x.is_float or not dtype.startswith(("int", "uint")):
        return w.cast(x, dtype)
    v = w.wide(x)
    limits = np.iinfo(dtype)
    low, high = w.number(float(limits.min), v), w.number(float(limits.max) + 1, v)
    inside = w.node("And", w.node("Greater", v, low), w.node("Less", v, high))
    whole = w.cast(w.where(inside, v, w.number(0, v)), dtype)
    below = w.where(w.node("LessOrEqual", v, low), w.const(limits.min, dtype), whole)
    return w.where(w.node("GreaterOrEqual", v, high), w.const(limits.max, dtype), below)


@writes("sum")
def sum_(w, *x):
    if isinstance(x[0], Stack):
        return sum_of_stacks(w, *x)
    if len(x) == 1:
        return x[0]
    if len(x) == 2:
        return w.add(*x)
    total = w.wide(x[0])
    for each in x[1:]:
        total = w.add(total, w.wide(each))
    return w.cast(total, x[0].dtype)


# --- rounding and remainders ------------------------------------------------------------------------------------------


@writes("floor")
def floor(w, x, **_):
    return w.node("Floor", x)


@writes("ceil")
def ceil(w, x, **_):
    return w.node("Ceil", x)


@writes("round")
def round_(w, x, **_):
    return w.node("Round", x)


@writes("trunc")
def trunc(w, x, **_):
    v = w.wide(x)
    down, up = w.node("Floor", v), w.node("Ceil", v)
    return w.cast(w.where(w.node("Less", v, w.number(0, v)), up, down), x.dtype)


def _nonzero(w, y):
    """y, after a check that no divisor is 0; constants are checked here."""
    known = w.model.known.get(y.name)
    if known is not None and known.all():
        return y
    return w.guarded(y, w.node("Not", w.node("Equal", y, w.number(0, y))))


@writes("mod")
def mod(w, x, y):
    if not x.is_float:
        return w.node("Mod", x, _nonzero(w, y))
    return w.cast(_float_mod(w, w.wide(x), w.wide(y)), x.dtype)


def _float_mod(w, x, y):
    """The exact remainder of C, moved to the sign of y."""
    rest = w.node("Mod", x, y, fmod=1)
    zero = w.number(0, x)
    other = w.node("Xor", w.node("Less", rest, zero), w.node("Less", y, zero))
    moved = w.node("And", other, w.node("Not", w.node("Equal", rest, zero)))
    return w.where(moved, w.add(rest, y), rest)


@writes("fmod")
def fmod(w, x, y):
    return w.node("Mod", x, y if x.is_float else _nonzero(w, y), fmod=1)


@writes("floor_div")
def floor_div(w, x, y):
    if not x.is_float:
        return _whole_floor_div(w, x, _nonzero(w, y))
    a, b = w.wide(x), w.wide(y)
    quotient = w.div(w.sub(a, _float_mod(w, a, b)), b)
    down = w.node("Floor", quotient)
    far = w.node("Greater", w.sub(quotient, down), w.number(0.5, a))
    near = w.where(far, w.add(down, w.number(1, a)), down)
    return w.cast(w.where(w.node("Equal", b, w.number(0, b)), w.div(a, b), near), x.dtype)


def _whole_floor_div(w, x, y):
    """Integer division rounds towards 0, so a negative quotient with a remainder is one less."""
    quotient = w.div(x, y)
    if x.dtype == "uint8":
        return quotient
    rest = w.sub(x, w.mul(quotient, y))
    zero = w.number(0, x)
    below = w.node("Xor", w.node("Less", rest, zero), w.node("Less", y, zero))
    inexact = w.node("And", below, w.node("Not", w.node("Equal", rest, zero)))
    return w.sub(quotient, w.cast(inexact, x.dtype))


@writes("isnan")
def isnan(w, x):
    return w.node("IsNaN", x) if x.is_float else w.zeros_like(x, "bool")


@writes("isinf")
def isinf(w, x, *, positive=True, negative=True):
    if not x.is_float or not (positive or negative):
        return w.zeros_like(x, "bool")
    return w.node("IsInf", x, detect_positive=int(positive), detect_negative=int(negative))


@writes("isfinite")
def isfinite(w, x):
    if not x.is_float:
        return w.full_like(x, True, "bool")
    return w.node("Not", w.node("Or", w.node("IsNaN", x), w.node("IsInf", x)))


# --- bits -------------------------------------------------------------------------------------------------------------


def _bits(operator: str, logical: str):
    return lambda w, x, y: w.node(logical if x.dtype == "bool" else operator, x, y)


writes("bitwise_and")(_bits("BitwiseAnd", "And"))
writes("bitwise_or")(_bits("BitwiseOr", "Or"))
writes("bitwise_xor")(_bits("BitwiseXor", "Xor"))


@writes("bitwise_not")
def bitwise_not(w, x):
    return w.node("Not" if x.dtype == "bool" else "BitwiseNot", x)


def _power_of_two(w, y):
    """2 to the power of an int64 y from 0 to 63; the last is negative, with the same bits."""
    powers = [2**i for i in range(63)] + [-(2**63)]
    return w.gather(w.ints(powers), y)


def _counts(w, y):
    y = w.cast(y, "int64")
    return w.guarded(y, w.node("GreaterOrEqual", y, w.number(0, y)))


@writes("bitwise_left_shift")
def bitwise_left_shift(w, x, y):
    """A product in int64, whose low bits are those of the shift."""
    y = _counts(w, y)
    most = w.number(np.dtype(x.dtype).itemsize * 8 - 1, y)
    power = _power_of_two(w, w.node("Min", y, most))
    shifted = w.mul(w.cast(x, "int64"), power)
    return w.cast(w.where(w.node("Greater", y, most), w.number(0, shifted), shifted), x.dtype)


@writes("bitwise_right_shift")
def bitwise_right_shift(w, x, y):
    """Floor divisions in int64; a shift by 63 takes two."""
    y = _counts(w, y)
    y = w.node("Min", y, w.number(63, y))
    first = w.node("Min", y, w.number(62, y))
    rest = w.sub(y, first)
    half = _whole_floor_div(w, w.cast(x, "int64"), _power_of_two(w, first))
    return w.cast(_whole_floor_div(w, half, _power_of_two(w, rest)), x.dtype)


# --- trigonometry -----------------------------------------------------------------------------------------------------


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


def _exact_expm1(w, v):
    return expm1(w, v)


@writes("sinh")
def sinh(w, x):
    """``(u + u / (u + 1)) / 2`` with ``u = exp(|x|) - 1``, which does not cancel near 0."""
    v = w.wide(x)
    half = w.number(0.5, v)
    u = _exact_expm1(w, w.node("Abs", v))
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
    near = _log1p(w, w.add(small, w.div(square, w.add(one, w.node("Sqrt", w.add(square, one))))))
    far = w.add(w.node("Log", a), w.number(math.log(2), v))
    return w.cast(w.mul(w.node("Sign", v), w.where(large, far, near)), x.dtype)


@writes("acosh")
def acosh(w, x):
    """``log1p(t + sqrt(2 t + t^2))`` for t = x - 1; for large x, ``log(x) + log(2)``."""
    v = w.wide(x)
    one = w.number(1, v)
    large = w.node("Greater", v, w.number(1e9, v))
    t = w.sub(w.where(large, one, v), one)
    near = _log1p(w, w.add(t, w.node("Sqrt", w.add(w.add(t, t), w.mul(t, t)))))
    far = w.add(w.node("Log", v), w.number(math.log(2), v))
    return w.cast(w.where(large, far, near), x.dtype)


@writes("atanh")
def atanh(w, x):
    v = w.wide(x)
    a = w.node("Abs", v)
    size = _log1p(w, w.div(w.add(a, a), w.sub(w.number(1, v), a)))
    return w.cast(w.mul(w.node("Sign", v), w.mul(w.number(0.5, v), size)), x.dtype)


def logarithm(w: OpSite, x: Tensor, base: float) -> Tensor:
    """The logarithm of x to `base`, computed in float64, so that powers of the base give whole numbers."""
    v = w.cast(x, "float64")
    found = w.div(w.node("Log", v), w.number(math.log(base), v))
    whole = w.node("Round", found)
    power = w.node("Pow", w.number(base, v), whole)
    return w.cast(w.where(w.node("Equal", power, v), whole, found), x.dtype)


@writes("log2")
def log2(w, x):
    return logarithm(w, x, 2.0)


@writes("log10")
def log10(w, x):
    return logarithm(w, x, 10.0)


@writes("logaddexp")
def logaddexp(w, x, y):
    """The larger operand plus ``log(1 + exp(-|x - y|))``. For equal ones, also infinite ones, the distance is 0."""
    a, b = w.wide(x), w.wide(y)
    distance = w.where(w.node("Equal", a, b), w.number(0, a), w.node("Abs", w.sub(a, b)))
    rest = _log1p(w, w.node("Exp", w.node("Neg", distance)))
    return w.cast(w.add(w.node("Max", a, b), rest), x.dtype)


@writes("xlogy")
def xlogy(w, x, y):
    a, b = w.wide(x), w.wide(y)
    none = w.node("And", w.node("Equal", a, w.number(0, a)), w.node("Equal", b, b))
    product = w.mul(a, w.node("Log", w.where(none, w.number(1, b), b)))
    return w.cast(w.where(none, w.number(0, a), product), x.dtype)
