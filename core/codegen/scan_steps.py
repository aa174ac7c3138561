"""One step of running sums, products, extremes and recurrences, in each lane (see `core.plan.geometry.Scan`).

The state of a scan is its last result; that of a running extreme is the position and the extreme itself.
"""

from __future__ import annotations

import math

from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import Function, IRValue, literal
from core.codegen.reductions import identity
from core.plan.geometry import Scan

__all__ = ["first_state", "inputs", "next_state"]


def inputs(spec: Scan) -> tuple[str, ...]:
    """The arrays whose elements a scan reads one by one, by the names of the kernel's operands."""
    return ("a", "b") if spec.kind == "linear" else ("x",)


def first_state(spec: Scan) -> list[IRValue]:
    """The state before the first element, of one lane."""
    if spec.kind in ("argmax", "argmin"):
        return [literal(0, "int64"), identity(spec.kind.removeprefix("arg"), spec.dtype)]
    if spec.kind == "logsum":
        return [literal(-math.inf, spec.dtype)]
    return [identity("prod" if spec.kind == "prod" else "sum", spec.dtype)]


def next_state(f: Function, spec: Scan, before: list[IRValue], given: list[IRValue], t: IRValue) -> list[IRValue]:
    """The state after the elements `given` at position `t`, one vector for each of `inputs`."""
    if spec.kind == "linear":
        a, b = given
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
    if spec.kind == "logsum":
        return [_added_logs(f, before[0], x)]
    at, best = before
    stays = FUNCTIONS["greater_equal" if spec.kind == "argmax" else "less_equal"](f, best, x)
    if x.is_float:
        stays = f.binary("or", stays, f.compare("fcmp uno", best, best))
    return [f.select(stays, at, f.splat(t, x.lanes)), f.select(stays, best, x)]


def _added_logs(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """``log(exp(a) + exp(b))`` without overflow."""
    top = FUNCTIONS["maximum"](f, a, b)
    apart = f.intrinsic("fabs", f.binary("fsub", a, b))
    more = FUNCTIONS["log1p"](f, FUNCTIONS["exp"](f, FUNCTIONS["negative"](f, apart)))
    more = f.select(f.compare("fcmp oeq", a, b), f.constant(math.log(2.0), a), more)  # infinities have no difference
    return f.binary("fadd", top, more)
