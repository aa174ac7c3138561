"""One step of running sums, products, extremes and recurrences, in each lane (see `core.plan.geometry.Scan`).

The state of a running sum, product or recurrence is its last result, in float64 for float32 numbers: a million equal
numbers added one by one in float32 err by one percent. The state of a sum of exponentials is a number near the largest
exponent so far, the sum relative to it, and the sum of the rounding errors (Kahan 1965); that of a running extreme is
the position and the extreme itself.
"""

from __future__ import annotations

import math

from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import Function, IRValue, literal
from core.codegen.reductions import identity
from core.plan.geometry import Scan

__all__ = ["first_state", "inputs", "next_state", "result"]


def inputs(spec: Scan) -> tuple[str, ...]:
    """The arrays whose elements a scan reads one by one, by the names of the kernel's operands."""
    return ("a", "b") if spec.kind == "linear" else ("x",)


def first_state(spec: Scan) -> list[IRValue]:
    """The state before the first element, of one lane."""
    if spec.kind in ("argmax", "argmin"):
        return [literal(0, "int64"), identity(spec.kind.removeprefix("arg"), spec.dtype)]
    if spec.kind == "logsum":
        return [literal(start, spec.dtype) for start in (-math.inf, 0, 0)]
    wide = "float64" if spec.dtype == "float32" else spec.dtype
    return [identity("prod" if spec.kind == "prod" else "sum", wide)]


def next_state(f: Function, spec: Scan, before: list[IRValue], given: list[IRValue], t: IRValue) -> list[IRValue]:
    """The state after the elements `given` at position `t`, one vector for each of `inputs`."""
    if spec.kind == "logsum":
        return _added_exponential(f, before, given[0])
    if spec.kind not in ("argmax", "argmin"):
        given = [f.convert(x, before[0].dtype) for x in given]
    if spec.kind == "linear":
        a, b = given
        if spec.dtype == "float32":  # rounded again at the end: one rounding less costs no digit, and takes less time
            result = f.fma(a, before[0], b)
        else:
            result = FUNCTIONS["add"](f, b, FUNCTIONS["multiply"](f, a, before[0]))
        if spec.restarts:
            begins = f.load(f.at(f.param("begins"), f.convert(t, "int64"), "bool"), "bool")
            result = f.select(f.splat(begins, b.lanes), b, result)
        return [result]
    (x,) = given
    if spec.kind == "sum":
        return [FUNCTIONS["add"](f, before[0], x)]
    if spec.kind == "prod":
        return [FUNCTIONS["multiply"](f, before[0], x)]
    at, best = before
    stays = FUNCTIONS["greater_equal" if spec.kind == "argmax" else "less_equal"](f, best, x)
    if x.is_float:
        stays = f.binary("or", stays, f.compare("fcmp uno", best, best))
    return [f.select(stays, at, f.splat(t, x.lanes)), f.select(stays, best, x)]


def result(f: Function, spec: Scan, state: list[IRValue]) -> IRValue:
    """The result that belongs to a state: a position, or a number of the dtype of the scan."""
    if spec.kind in ("argmax", "argmin"):
        return state[0]
    if spec.kind == "logsum":
        near, total, rest = state
        return f.binary("fadd", near, FUNCTIONS["log"](f, f.binary("fadd", total, rest)))
    return f.convert(state[0], spec.dtype)


def _added_exponential(f: Function, before: list[IRValue], x: IRValue) -> list[IRValue]:
    """The state of a sum of exponentials after one more.

    The number near the largest exponent changes only for one that is larger by more than 1: each change rounds the sum.
    """
    near, total, rest = before
    apart = f.binary("fsub", x, near)
    apart = f.select(f.compare("fcmp oeq", x, near), f.constant(0.0, x), apart)  # infinities have no difference
    far = f.compare("fcmp ogt", apart, f.constant(1.0, x))
    power, one = FUNCTIONS["exp"](f, f.select(far, FUNCTIONS["negative"](f, apart), apart)), f.constant(1.0, x)
    kept, added = f.select(far, power, one), f.select(far, one, power)
    scaled = f.binary("fmul", total, kept)
    now = f.binary("fadd", scaled, added)
    lost = f.binary("fsub", added, f.binary("fsub", now, scaled))
    return [f.select(far, x, near), now, f.fma(rest, kept, lost)]
