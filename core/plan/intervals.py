"""Bounds of the results of elementwise ops from bounds of their operands.

An interval (low, high) says that a value is a number, not NaN, between the two; either may be infinite. None says
nothing. Bounds of a 16-bit float contain the rounded result and the one that stays in float32 (`unrounded`). Those of
others leave out rounding, which moves a result by a tiny part of itself: callers compare bounds that lie far apart, or
results that are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from core.ir.precision import HALVES, largest
from core.ops.common.types import as_dtype

__all__ = ["TRUTH", "ZERO", "Interval", "applied", "hull", "product_bound"]

Interval = tuple[float, float] | None

ZERO = (0.0, 0.0)
TRUTH = (0.0, 1.0)
"""A bool that may be either."""

LARGEST = {"float32": 3.4e38, "float64": 1.7e308, **{dtype: largest(dtype) for dtype in HALVES}}
VANISHES = {"float32": -110.0, "float64": -750.0, "float16": -110.0, "bfloat16": -110.0}
"""From here down the exponential is exactly 0. That of a 16-bit number may stay in float32."""


def hull(*intervals: Interval) -> Interval:
    """The smallest interval that contains all of them."""
    known = [each for each in intervals if each is not None]
    if len(known) < len(intervals):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def product_bound(terms: int, a: Interval, b: Interval, dtype: str) -> Interval:
    """The bounds of a sum of `terms` products."""
    if a is None or b is None:
        return None
    most = terms * max(map(abs, a)) * max(map(abs, b))
    return (-most, most) if most < LARGEST[dtype] else None


def applied(op: str, attrs: Mapping[str, Any], args: Sequence[Interval], dtype: str) -> Interval:
    """The bounds of elementwise op `op` with a result of `dtype`; None if the op is unknown here."""
    if op == "where":
        return _chosen(args)
    if dtype == "bool":
        return _compared(op, args)
    if op == "draw" and dtype in LARGEST:
        return TRUTH
    known = [each for each in args if each is not None]
    if len(known) < len(args):
        return None
    if op == "scale":
        return _limited(_sum(_product(known[0], (attrs["scale"],) * 2), (attrs["bias"],) * 2), dtype)
    if op == "cast":
        whole = known[0][0] == round(known[0][0]) and known[0][1] == round(known[0][1]) if _finite(known[0]) else False
        return _limited(known[0], dtype) if dtype in LARGEST or whole else None
    if op == "exp":
        low, high = (_exp(x, dtype) for x in known[0])
        return _limited((low, high), dtype)
    if op == "clip":
        low, high = (min(max(x, attrs["min"]), attrs["max"]) for x in known[0])
        return _limited((low, high), dtype)
    rule = RULES.get(op)
    return None if rule is None or dtype not in LARGEST else _limited(rule(*known), dtype)


def _exp(x: float, dtype: str) -> float:
    if x < VANISHES.get(dtype, -math.inf):
        return 0.0
    return math.exp(x) if x < 700.0 else math.inf


def _limited(interval: Interval, dtype: str) -> Interval:
    """The interval in numbers of `dtype`: a bound that is too large for it is infinite."""
    if interval is None:
        return None
    if dtype in HALVES:
        low, high = interval
        return min(low, _rounded(low, dtype)), max(high, _rounded(high, dtype))
    most = LARGEST.get(dtype, math.inf)
    low, high = (x if abs(x) <= most else math.copysign(math.inf, x) for x in interval)
    return low, high


def _rounded(number: float, dtype: str) -> float:
    """A result as the ops on 16-bit floats round it: rounding keeps the order of numbers, and so of bounds."""
    with np.errstate(over="ignore"):
        return float(as_dtype(dtype).type(np.float32(number)))


def _finite(interval: tuple[float, float]) -> bool:
    return math.isfinite(interval[0]) and math.isfinite(interval[1])


def _sum(*terms: Interval) -> Interval:
    low = high = 0.0
    for term in terms:
        if term is None:
            return None
        low, high = low + term[0], high + term[1]
    infinite = {x for term in terms if term is not None for x in term if math.isinf(x)}
    return None if len(infinite) > 1 else (low, high)  # infinity minus infinity is no number


def _negative(x: Interval) -> Interval:
    return None if x is None else (-x[1], -x[0])


def _product(x: Interval, y: Interval) -> Interval:
    assert x is not None and y is not None
    if not (_finite(x) and _finite(y)) and (x[0] <= 0 <= x[1] or y[0] <= 0 <= y[1]):
        return None  # infinity times zero is no number
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


def _quotient(x: Interval, y: Interval) -> Interval:
    assert x is not None and y is not None
    if y[0] <= 0 <= y[1] or not _finite(x):
        return None
    corners = [a / b for a in x for b in y]
    return min(corners), max(corners)


def _square(x: Interval) -> Interval:
    assert x is not None
    ends = sorted(abs(a) for a in x)
    low = 0.0 if x[0] <= 0 <= x[1] else ends[0]
    return low * low, ends[1] * ends[1]


def _abs(x: Interval) -> Interval:
    assert x is not None
    ends = sorted(abs(a) for a in x)
    return (0.0 if x[0] <= 0 <= x[1] else ends[0]), ends[1]


def _each(function: Callable[..., float]) -> Callable[..., Interval]:
    """The rule of an op that grows with each operand."""
    return lambda *args: (function(*(a[0] for a in args)), function(*(a[1] for a in args)))


RULES: dict[str, Callable[..., Interval]] = {
    "add": _sum,
    "sum": _sum,
    "sub": lambda x, y: _sum(x, _negative(y)),
    "neg": _negative,
    "mul": _product,
    "div": _quotient,
    "square": _square,
    "abs": _abs,
    "tanh": _each(math.tanh),
    "relu": _each(lambda x: max(x, 0.0)),
    "maximum": _each(max),
    "minimum": _each(min),
}


def _chosen(args: Sequence[Interval]) -> Interval:
    condition, yes, no = args
    if condition == (1.0, 1.0):
        return yes
    return no if condition == ZERO else hull(yes, no)


def _compared(op: str, args: Sequence[Interval]) -> Interval:
    """The bounds of a bool."""
    if op == "logical_not":
        x = args[0] or TRUTH
        return 1.0 - x[1], 1.0 - x[0]
    if op in ("logical_and", "logical_or"):
        pick = min if op == "logical_and" else max
        x, y = (each or TRUTH for each in args)
        return pick(x[0], y[0]), pick(x[1], y[1])
    if any(each is None for each in args) or len(args) != 2:
        return TRUTH
    (a, b), (c, d) = (each for each in args if each is not None)
    always, never = {
        "less_than": (b < c, a >= d),
        "less_equal": (b <= c, a > d),
        "greater_than": (a > d, b <= c),
        "greater_equal": (a >= d, b < c),
        "equal": (a == b == c == d, b < c or d < a),
        "not_equal": (b < c or d < a, a == b == c == d),
    }.get(op, (False, False))
    return (1.0, 1.0) if always else ZERO if never else TRUTH
