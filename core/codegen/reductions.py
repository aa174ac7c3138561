"""Reductions in registers: of no value, of two values, of the lanes of a vector, and of one value repeated.

`op` is the name that row kernels use: sum, prod, max, min, and, or.
"""

from __future__ import annotations

import numpy as np

from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import Function, IRValue, literal
from core.codegen.scalar import apply

__all__ = ["combine", "identity", "masked", "padded", "reduce_lanes", "repeated"]

COMBINE: dict[str, str] = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "and": "logical_and",
    "or": "logical_or",
}


def identity(op: str, dtype: str) -> IRValue:
    """The identity of `op`: the value of an empty reduction."""
    if op in ("sum", "or"):
        return literal(0, dtype)
    if op in ("prod", "and"):
        return literal(1, dtype)
    if dtype.endswith(("float16", "float32", "float64")):
        return literal(-np.inf if op == "max" else np.inf, dtype)
    if dtype == "bool":
        return literal(op == "min", dtype)
    limits = np.iinfo(dtype)
    return literal(limits.min if op == "max" else limits.max, dtype)


def combine(f: Function, op: str, a: IRValue, b: IRValue) -> IRValue:
    return FUNCTIONS[COMBINE[op]](f, a, b)


def reduce_lanes(f: Function, op: str, value: IRValue) -> IRValue:
    """One value from all lanes: the upper half is combined with the lower one until one lane is left."""
    while value.lanes > 2:
        lanes = value.lanes // 2
        low = ", ".join(f"i32 {i}" for i in range(lanes))
        high = ", ".join(f"i32 {i + lanes}" for i in range(lanes))
        halves = [
            f.op(f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{which}>", value.dtype, lanes)
            for which in (low, high)
        ]
        value = combine(f, op, *halves)
    if value.lanes == 1:
        return value
    return combine(f, op, *[f.op(f"extractelement {value}, i64 {i}", value.dtype) for i in (0, 1)])


def masked(f: Function, op: str, value: IRValue, which: IRValue | None) -> IRValue:
    """`value` with the identity of `op` in the lanes where `which` is false; `which` None selects all lanes."""
    if which is None:
        return value
    return f.select(which, value, f.splat(identity(op, value.dtype), value.lanes))


def padded(f: Function, op: str, value: IRValue, lanes: int) -> IRValue:
    """`value` in the first lanes of a vector of `lanes` lanes, with the identity of `op` in the others."""
    if value.lanes == lanes:
        return value
    if value.lanes == 1:
        rest = f.splat(identity(op, value.dtype), lanes)
        return f.op(f"insertelement {rest}, {value}, i64 0", value.dtype, lanes)
    rest = f.splat(identity(op, value.dtype), value.lanes)
    places = ", ".join(f"i32 {min(i, value.lanes)}" for i in range(lanes))
    return f.op(f"shufflevector {value}, {rest}, <{lanes} x i32> <{places}>", value.dtype, lanes)


def repeated(f: Function, op: str, value: IRValue, count: int) -> IRValue:
    """The reduction of `count` copies of one value."""
    if op == "sum" and count > 1:
        factor = count if value.is_float else int(np.array(count).astype(value.dtype))  # a sum of integers wraps around
        return FUNCTIONS["multiply"](f, value, literal(factor, value.dtype))
    if op == "prod" and count > 1:
        return apply(f, "pow", {}, [value, literal(count, value.dtype)]) if value.is_float else _power(f, value, count)
    return value


def _power(f: Function, value: IRValue, exponent: int) -> IRValue:
    """An integer to a power of at least 1, by squaring. It wraps around as a product of as many factors does."""
    result = None
    while exponent:
        if exponent & 1:
            result = value if result is None else FUNCTIONS["multiply"](f, result, value)
        exponent >>= 1
        if exponent:
            value = FUNCTIONS["multiply"](f, value, value)
    assert result is not None
    return result
