"""Running sums, products, extremes and recurrences along an axis (see `core.plan.geometry.Scan`).

Each result waits for the one before it, so a vector holds neighbours on the axes after the scanned one. A unit is some
vectors of them that follow each other in memory, as many as there are or `MOST`, or a whole row where there are none.
Kinds in `TURNED` run some rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from core.codegen.functions import FUNCTIONS
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.reductions import identity
from core.codegen.vector_slices import load_strided, mask, move
from core.plan.geometry import Scan

__all__ = ["scan", "scan_units"]

MOST = 16
"""Most vectors of a unit. Whole cache lines are read at each step, some of them side by side."""

TURNED = ("logsum",)
"""Kinds whose steps take so long that the scans of rows, whose elements lie side by side, run in the lanes of a vector:
its elements are loaded and stored one by one.
"""

MOST_TURNED = 2
"""Most vectors of such a unit: each lane reads a cache line of its own."""

FEW = 8
"""Units that there should be, for threads to share them."""


def scan(_: Module, f: Function, spec: Scan) -> None:
    """``(x, out)``, or ``(a, b, out)`` of a linear recurrence."""
    width, vectors = _lanes(spec), _together(spec)
    groups = _groups(spec, vectors)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        row = f.op(f"udiv {unit}, {groups}", "int64") if groups > 1 else unit
        group = f.op(f"urem {unit}, {groups}", "int64") if groups > 1 else I64(0)
        _Unit(f, spec, width, vectors, row, group).write()


def scan_units(spec: Scan) -> int:
    return _layout(spec).slabs * _groups(spec, _together(spec))


@dataclass(frozen=True, slots=True)
class _Layout:
    """`slabs` of `scans` side by side, whose elements are `apart`; an element follows the one before by `step`."""

    slabs: int
    scans: int
    apart: int
    step: int


def _layout(spec: Scan) -> _Layout:
    if spec.inner == 1 and spec.outer > 1 and spec.kind in TURNED:
        return _Layout(1, spec.outer, spec.size, 1)
    return _Layout(spec.outer, spec.inner, 1, spec.inner)


def _lanes(spec: Scan) -> int:
    width = lanes(spec.dtype)
    while width // 2 >= _layout(spec).scans:
        width //= 2
    return width


def _together(spec: Scan) -> int:
    """Most vectors of a unit; 1 if a slab has no more."""
    layout = _layout(spec)
    if layout.scans <= _lanes(spec):
        return 1
    vectors = MOST if layout.apart == 1 else MOST_TURNED
    while vectors > 2 and layout.slabs * _groups(spec, vectors) < FEW:
        vectors //= 2
    return vectors


def _groups(spec: Scan, vectors: int) -> int:
    return -(-_layout(spec).scans // (vectors * _lanes(spec)))


class _Unit:
    """The scan of the vectors of one group, of slab `row`.

    state: the last result of each lane. best: the extreme that it is the position of.
    """

    def __init__(self, f: Function, spec: Scan, width: int, vectors: int, row: IRValue, group: IRValue) -> None:
        self.f, self.spec, self.width, self.vectors, self.row = f, spec, width, vectors, row
        self.layout = _layout(spec)
        self.result = "int64" if spec.kind.startswith("arg") else spec.dtype
        self.start = f.op(f"mul nsw {group}, {vectors * width}", "int64") if group.name != "0" else group
        self.state, self.best = self._room(self.result), self._room(spec.dtype)
        left = f.binary("sub", I64(self.layout.scans // width), f.op(f"mul nsw {group}, {vectors}", "int64"))
        self.whole = f.intrinsic("smin", left, I64(vectors))

    def _room(self, dtype: str) -> IRValue:
        if self.vectors == 1:
            return self.f.slot(dtype, self.width)
        name, one = self.f.fresh("states"), IRValue("", dtype).type
        self.f.top.append(f"  {name} = alloca [{self.vectors * self.width} x {one}], align 64")
        return IRValue(name, "ptr")

    def write(self) -> None:
        f, spec = self.f, self.spec
        self._for_each(self._begin)
        with f.loop(I64(0), I64(spec.size), polls=True) as step:
            t = f.op(f"sub nsw i64 {spec.size - 1}, {step.name}", "int64") if spec.reverse else step
            self._for_each(lambda at, count: self._step(t, at, count))

    def _for_each(self, body: Callable[[IRValue, int], None]) -> None:
        """``body(at, count)`` for each vector: its first lane within the unit, and the lanes that hold a number."""
        f, rest = self.f, self.layout.scans % self.width
        if self.vectors == 1:
            body(I64(0), rest or self.width)
            return
        end = f.op(f"mul nsw {self.whole}, {self.width}", "int64")
        with f.loop(I64(0), end, self.width) as at:
            body(at, self.width)
        if rest:
            with f.when(f.compare("icmp slt", self.whole, I64(self.vectors))):
                body(end, rest)

    def _begin(self, at: IRValue, count: int) -> None:
        f = self.f
        f.write(f.splat(self._initial(self.result), self.width), f.at(self.state, at, self.result))
        if self.spec.kind.startswith("arg"):
            f.write(self._get("x", I64(0), at, count), f.at(self.best, at, self.spec.dtype))

    def _step(self, t: IRValue, at: IRValue, count: int) -> None:
        f, state = self.f, self.f.at(self.state, at, self.result)
        before = f.read(state, self.result, self.width)
        now = self._next(before, t, at, count)
        self._put(before if self.spec.exclusive else now, t, at, count)
        f.write(now, state)

    def _initial(self, dtype: str) -> IRValue:
        if self.spec.kind == "logsum":
            return literal(-math.inf, dtype)
        return identity("prod" if self.spec.kind == "prod" else "sum", dtype)

    def _next(self, before: IRValue, t: IRValue, at: IRValue, count: int) -> IRValue:
        f, kind = self.f, self.spec.kind
        if kind == "linear":
            a, b = (self._get(name, t, at, count) for name in ("a", "b"))
            return FUNCTIONS["add"](f, b, FUNCTIONS["multiply"](f, a, before))
        x = self._get("x", t, at, count)
        if kind == "sum":
            return FUNCTIONS["add"](f, before, x)
        if kind == "prod":
            return FUNCTIONS["multiply"](f, before, x)
        if kind == "logsum":
            return _added_logs(f, before, x)
        best = f.at(self.best, at, x.dtype)
        old = f.read(best, x.dtype, self.width)
        stays = FUNCTIONS["greater_equal" if kind == "argmax" else "less_equal"](f, old, x)
        if x.is_float:
            stays = f.binary("or", stays, f.compare("fcmp uno", old, old))
        f.write(f.select(stays, old, x), best)
        return f.select(stays, before, f.splat(t, self.width))

    def _get(self, name: str, t: IRValue, at: IRValue, count: int) -> IRValue:
        dtype, address = self.spec.dtype, self._address(name, t, at, self.spec.dtype)
        if self.layout.apart == 1 or self.width == 1:
            return self.f.load(address, dtype, self.width, mask(count, self.width))
        return load_strided(self.f, address, dtype, self.layout.apart, self.width, count)

    def _put(self, value: IRValue, t: IRValue, at: IRValue, count: int) -> None:
        f, address = self.f, self._address("out", t, at, value.dtype)
        if self.layout.apart == 1 or self.width == 1:
            f.store(value, address, mask(count, self.width))
            return
        for lane in range(count):
            one = f.op(f"extractelement {value}, i64 {lane}", value.dtype)
            f.store(one, f.at(address, I64(lane * self.layout.apart), value.dtype))

    def _address(self, name: str, t: IRValue, at: IRValue, dtype: str) -> IRValue:
        layout = self.layout
        slab = self.spec.size * layout.scans
        steps = ((self.row, slab), (t, layout.step), (self.start, layout.apart), (at, layout.apart))
        return move(self.f, self.f.param(name), dtype, *steps)


def _added_logs(f: Function, a: IRValue, b: IRValue) -> IRValue:
    """``log(exp(a) + exp(b))`` without overflow."""
    top = FUNCTIONS["maximum"](f, a, b)
    apart = f.intrinsic("fabs", f.binary("fsub", a, b))
    more = FUNCTIONS["log1p"](f, FUNCTIONS["exp"](f, FUNCTIONS["negative"](f, apart)))
    more = f.select(f.compare("fcmp oeq", a, b), f.constant(math.log(2.0), a), more)  # infinities have no difference
    return f.binary("fadd", top, more)
