"""Running sums, products, extremes and recurrences along an axis (see `core.plan.geometry.Scan`).

Each result waits for the one before it, so a vector holds neighbours on the axes after the scanned one. A unit is a
vector of them, or a whole row where there are none.
"""

from __future__ import annotations

import math

from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.reductions import identity
from core.codegen.vector_slices import move
from core.plan.geometry import Scan

__all__ = ["scan", "scan_units"]


def scan(_: Module, f: Function, spec: Scan) -> None:
    """``(x, out)``, or ``(a, b, out)`` of a linear recurrence."""
    width = _lanes(spec)
    blocks = -(-spec.inner // width)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        row = f.op(f"udiv {unit}, {blocks}", "int64") if blocks > 1 else unit
        start = I64(0)
        if blocks > 1:
            start = f.op(f"mul nsw {f.op(f'urem {unit}, {blocks}', 'int64')}, {width}", "int64")
        _Row(f, spec, width, row, start).write()


def scan_units(spec: Scan) -> int:
    return spec.outer * -(-spec.inner // _lanes(spec))


def _lanes(spec: Scan) -> int:
    width = lanes(spec.dtype)
    while width // 2 >= spec.inner:
        width //= 2
    return width


class _Row:
    """The scan of one vector of neighbours: elements from `start` on, of slab `row`."""

    def __init__(self, f: Function, spec: Scan, width: int, row: IRValue, start: IRValue) -> None:
        self.f, self.spec, self.width, self.row, self.start = f, spec, width, row, start
        self.mask: IRValue | None = None
        if spec.inner % width:
            at = IRValue(f"<{', '.join(f'i64 {i}' for i in range(width))}>", "int64", width)
            self.mask = f.compare("icmp slt", f.binary("add", at, start), I64(spec.inner))

    def write(self) -> None:
        f, spec = self.f, self.spec
        result = "int64" if spec.kind.startswith("arg") else spec.dtype
        state, best = f.slot(result, self.width), f.slot(spec.dtype, self.width)
        f.write(f.splat(self._initial(result), self.width), state)
        if spec.kind.startswith("arg"):
            f.write(self._get("x", I64(0)), best)
        with f.loop(I64(0), I64(spec.size), polls=True) as step:
            t = f.op(f"sub nsw i64 {spec.size - 1}, {step.name}", "int64") if spec.reverse else step
            before = f.read(state, result, self.width)
            now = self._next(before, best, t)
            self._put(before if spec.exclusive else now, t)
            f.write(now, state)

    def _initial(self, dtype: str) -> IRValue:
        if self.spec.kind == "logsum":
            return literal(-math.inf, dtype)
        return identity("prod" if self.spec.kind == "prod" else "sum", dtype)

    def _next(self, before: IRValue, best: IRValue, t: IRValue) -> IRValue:
        f, kind = self.f, self.spec.kind
        if kind == "linear":
            a, b = self._get("a", t), self._get("b", t)
            return FUNCTIONS["add"](f, b, FUNCTIONS["multiply"](f, a, before))
        x = self._get("x", t)
        if kind == "sum":
            return FUNCTIONS["add"](f, before, x)
        if kind == "prod":
            return FUNCTIONS["multiply"](f, before, x)
        if kind == "logsum":
            return _added_logs(f, before, x)
        old = f.read(best, x.dtype, self.width)
        stays = FUNCTIONS["greater_equal" if kind == "argmax" else "less_equal"](f, old, x)
        if x.is_float:
            stays = f.binary("or", stays, f.compare("fcmp uno", old, old))
        f.write(f.select(stays, old, x), best)
        return f.select(stays, before, f.splat(t, self.width))

    def _get(self, name: str, t: IRValue) -> IRValue:
        return self.f.load(self._address(name, t, self.spec.dtype), self.spec.dtype, self.width, self.mask)

    def _put(self, value: IRValue, t: IRValue) -> None:
        self.f.store(value, self._address("out", t, value.dtype), self.mask)

    def _address(self, name: str, t: IRValue, dtype: str) -> IRValue:
        steps = ((self.row, self.spec.size * self.spec.inner), (t, self.spec.inner), (self.start, 1))
        return move(self.f, self.f.param(name), dtype, *steps)


def _added_logs(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """``log(exp(a) + exp(b))`` without overflow."""
    top = FUNCTIONS["maximum"](f, a, b)
    apart = f.intrinsic("fabs", f.binary("fsub", a, b))
    more = FUNCTIONS["log1p"](f, FUNCTIONS["exp"](f, FUNCTIONS["negative"](f, apart)))
    more = f.select(f.compare("fcmp oeq", a, b), f.constant(math.log(2.0), a), more)  # infinities have no difference
    return f.binary("fadd", top, more)
