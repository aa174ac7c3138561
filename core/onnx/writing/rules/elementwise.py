"""Elementwise ops."""

from __future__ import annotations

import math

import numpy as np

from core.onnx.writing.arrays import Stack
from core.onnx.writing.dtypes import ELEM
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
