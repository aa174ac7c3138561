"""Running sums, products, extremes and recurrences along an axis (see `core.plan.geometry.Scan`).

Each result waits for the one before it, so a vector holds neighbours on the axes after the scanned one. A unit is some
vectors of them that follow each other in memory, as many as there are or `MOST`, or a whole row where there are none
and too few rows for `core.codegen.row_scans`.
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.row_scans import FEW, in_squares, row_scan, row_scan_units
from core.codegen.scan_steps import first_state, inputs, next_state, result
from core.codegen.vector_slices import mask, move
from core.plan.geometry import Scan

__all__ = ["scan", "scan_units"]

MOST = 16
"""Most vectors of a unit. Whole cache lines are read at each step, some of them side by side."""


def scan(module: Module, f: Function, spec: Scan) -> None:
    """``(x, out)``, or ``(a, b, out)`` or ``(a, b, begins, out)`` of a linear recurrence."""
    if in_squares(spec):
        row_scan(module, f, spec)
        return
    width, vectors = _lanes(spec), _together(spec)
    groups = _groups(spec, vectors)
    with f.loop(f.param("first"), f.param("end"), polls=True) as unit:
        row = f.op(f"udiv {unit}, {groups}", "int64") if groups > 1 else unit
        group = f.op(f"urem {unit}, {groups}", "int64") if groups > 1 else I64(0)
        _Unit(f, spec, width, vectors, row, group).write()


def scan_units(spec: Scan) -> int:
    return row_scan_units(spec) if in_squares(spec) else spec.outer * _groups(spec, _together(spec))


def _lanes(spec: Scan) -> int:
    width = lanes(spec.dtype)
    while width // 2 >= spec.inner:
        width //= 2
    return width


def _together(spec: Scan) -> int:
    """Most vectors of a unit; 1 if a row has no more."""
    if spec.inner <= _lanes(spec):
        return 1
    vectors = MOST
    while vectors > 2 and spec.outer * _groups(spec, vectors) < FEW:
        vectors //= 2
    return vectors


def _groups(spec: Scan, vectors: int) -> int:
    return -(-spec.inner // (vectors * _lanes(spec)))


class _Unit:
    """The scan of the vectors of one group, of row `row`. state: memory of the state of each lane."""

    def __init__(self, f: Function, spec: Scan, width: int, vectors: int, row: IRValue, group: IRValue) -> None:
        self.f, self.spec, self.width, self.vectors, self.row = f, spec, width, vectors, row
        self.start = f.op(f"mul nsw {group}, {vectors * width}", "int64") if group.name != "0" else group
        self.state = [(self._room(value.dtype), value.dtype) for value in first_state(spec)]
        left = f.binary("sub", I64(spec.inner // width), f.op(f"mul nsw {group}, {vectors}", "int64"))
        self.whole = f.intrinsic("smin", left, I64(vectors))

    def _room(self, dtype: str) -> IRValue:
        if self.vectors == 1:
            return self.f.slot(dtype, self.width)
        name, one = self.f.fresh("states"), IRValue("", dtype).type
        self.f.top.append(f"  {name} = alloca [{self.vectors * self.width} x {one}], align 64")
        return IRValue(name, "ptr")

    def write(self) -> None:
        f, spec = self.f, self.spec
        self._for_each(lambda at, _: self._keep([f.splat(v, self.width) for v in first_state(spec)], at))
        with f.loop(I64(0), I64(spec.size), polls=True) as step:
            t = f.op(f"sub nsw i64 {spec.size - 1}, {step.name}", "int64") if spec.reverse else step
            self._for_each(lambda at, count: self._step(t, at, count))

    def _for_each(self, body: Callable[[IRValue, int], None]) -> None:
        """``body(at, count)`` for each vector: its first lane within the unit, and the lanes that hold a number."""
        f, rest = self.f, self.spec.inner % self.width
        if self.vectors == 1:
            body(I64(0), rest or self.width)
            return
        end = f.op(f"mul nsw {self.whole}, {self.width}", "int64")
        with f.loop(I64(0), end, self.width) as at:
            body(at, self.width)
        if rest:
            with f.when(f.compare("icmp slt", self.whole, I64(self.vectors))):
                body(end, rest)

    def _step(self, t: IRValue, at: IRValue, count: int) -> None:
        f, spec, width = self.f, self.spec, self.width
        before = [f.read(f.at(slot, at, dtype), dtype, width) for slot, dtype in self.state]
        lanes_of = mask(count, width)
        given = [f.load(self._address(name, t, at, spec.dtype), spec.dtype, width, lanes_of) for name in inputs(spec)]
        now = next_state(f, spec, before, given, t)
        found = result(f, spec, before if spec.exclusive else now)
        f.store(found, self._address("out", t, at, found.dtype), lanes_of)
        self._keep(now, at)

    def _keep(self, state: list[IRValue], at: IRValue) -> None:
        for (slot, dtype), value in zip(self.state, state, strict=True):
            self.f.write(value, self.f.at(slot, at, dtype))

    def _address(self, name: str, t: IRValue, at: IRValue, dtype: str) -> IRValue:
        inner = self.spec.inner
        steps = ((self.row, self.spec.size * inner), (t, inner), (self.start, 1), (at, 1))
        return move(self.f, self.f.param(name), dtype, *steps)
