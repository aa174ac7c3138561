"""Scans of rows, whose elements lie side by side (see `core.plan.geometry.Scan`).

Each result waits for the one before it, so the lanes of a vector are rows. Squares of their elements are transposed in
registers, scanned from one column to the next, and transposed back.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.scan_steps import first_state, inputs, next_state, result
from core.codegen.substitution import lane_numbers
from core.codegen.transpose import transpose_square
from core.plan.geometry import Scan

__all__ = ["FEW", "in_squares", "row_scan", "row_scan_units"]

LEAST = 4
"""Fewest rows of a square."""

FEW = 8
"""Units that there should be, for threads to share them."""

POSITION = "int32"
"""The dtype of positions in registers, which has the lanes of most dtypes. They are widened when they are stored."""


def in_squares(spec: Scan) -> bool:
    """Whether a scan has rows enough, long enough, for squares of their elements."""
    return spec.inner == 1 and min(spec.outer, lanes(spec.dtype)) >= LEAST and LEAST <= spec.size < 2**31


def row_scan_units(spec: Scan) -> int:
    return -(-spec.outer // (_width(spec) * _strips(spec)))


def _width(spec: Scan) -> int:
    """Columns of a square, and rows."""
    width = lanes(spec.dtype)
    while width > LEAST and spec.outer < width * FEW:
        width //= 2
    return width


def _strips(spec: Scan) -> int:
    """Squares above each other in a unit: steps that take long do not wait for each other there."""
    return 2 if spec.kind == "logsum" and spec.outer >= 2 * _width(spec) * FEW else 1


def row_scan(module: Module, f: Function, spec: Scan) -> None:
    """``(x, out)``, or ``(a, b, out)`` or ``(a, b, begins, out)`` of a linear recurrence."""
    unit = _Unit(module, f, spec)
    with f.loop(f.param("first"), f.param("end"), polls=True) as number:
        unit.write(f.op(f"mul nsw {number}, {unit.width * len(unit.strips)}", "int64"))


@dataclass(frozen=True, slots=True)
class _Strip:
    """Memory for as many rows as a square has.

    read:    a square of elements for each input.
    written: a square of results.
    state:   the state of each row.
    """

    read: list[IRValue]
    written: IRValue
    state: list[IRValue]


class _Unit:
    """Writes the scans of the rows of a unit."""

    def __init__(self, module: Module, f: Function, spec: Scan) -> None:
        self.module, self.f, self.spec, self.width = module, f, spec, _width(spec)
        self.finds = spec.kind in ("argmax", "argmin")
        self.result = POSITION if self.finds else spec.dtype
        self.first = first_state(spec)
        self.dtypes = [self.result, spec.dtype] if self.finds else [value.dtype for value in self.first]
        self.turned = self._square(self.result)
        self.strips = [self._strip() for _ in range(_strips(spec))]

    def _square(self, dtype: str) -> IRValue:
        return self.f.slot(dtype, self.width**2)

    def _strip(self) -> _Strip:
        read = [self._square(self.spec.dtype) for _ in inputs(self.spec)]
        return _Strip(read, self._square(self.result), [self.f.slot(dtype, self.width) for dtype in self.dtypes])

    def write(self, row: IRValue) -> None:
        """Scan the rows from number `row` on."""
        f, spec, width = self.f, self.spec, self.width
        last_row, last = I64(spec.outer - 1), (spec.size - 1) // width * width
        # a strip without rows of its own does the last row again
        begins = [f.intrinsic("smin", f.binary("add", row, I64(i * width)), last_row) for i in range(len(self.strips))]
        counts = [f.intrinsic("smin", f.binary("sub", I64(spec.outer), begin), I64(width)) for begin in begins]
        for strip in self.strips:
            for slot, value, dtype in zip(strip.state, self.first, self.dtypes, strict=True):
                f.write(f.splat(IRValue(value.name, dtype), width), slot)
        with f.loop(I64(0), I64(last + width), width, polls=True) as step:
            column = f.binary("sub", I64(last), step) if spec.reverse else step
            columns = f.intrinsic("smin", f.binary("sub", I64(spec.size), column), I64(width))
            at = [f.binary("add", f.op(f"mul nsw {begin}, {spec.size}", "int64"), column) for begin in begins]
            for strip, place, rows in zip(self.strips, at, counts, strict=True):
                self._load(strip, place, rows, columns)
            with f.loop(I64(0), columns) as i:
                within = f.binary("sub", f.binary("sub", columns, I64(1)), i) if spec.reverse else i
                for strip in self.strips:
                    self._step(strip, column, within)
            for strip, place, rows in zip(self.strips, at, counts, strict=True):
                self._store(strip, place, rows, columns)

    def _load(self, strip: _Strip, at: IRValue, rows: IRValue, columns: IRValue) -> None:
        for name, square in zip(inputs(self.spec), strip.read, strict=True):
            source = (self.f.at(self.f.param(name), at, self.spec.dtype), I64(self.spec.size))
            self._transpose(self.spec.dtype, source, (square, I64(self.width)), rows, columns)

    def _step(self, strip: _Strip, column: IRValue, within: IRValue) -> None:
        f, spec, width = self.f, self.spec, self.width
        line = f.op(f"mul nsw {within}, {width}", "int64")
        before = [f.read(slot, dtype, width) for slot, dtype in zip(strip.state, self.dtypes, strict=True)]
        given = [f.load(f.at(square, line, spec.dtype), spec.dtype, width) for square in strip.read]
        now = next_state(f, spec, before, given, f.convert(f.binary("add", column, within), POSITION))
        found = result(f, spec, before if spec.exclusive else now)
        f.store(found, f.at(strip.written, line, self.result))
        for slot, value in zip(strip.state, now, strict=True):
            f.write(value, slot)

    def _store(self, strip: _Strip, at: IRValue, rows: IRValue, columns: IRValue) -> None:
        """Write a square of results, from element `at` of the array on."""
        f, width, size = self.f, self.width, I64(self.spec.size)
        source = (strip.written, I64(width))
        if not self.finds:
            out = f.at(f.param("out"), at, self.result)
            self._transpose(self.result, source, (out, size), columns, rows)
            return
        self._transpose(self.result, source, (self.turned, I64(width)), columns, rows)
        which = f.compare("icmp slt", lane_numbers(width), f.splat(columns, width))
        with f.loop(I64(0), rows) as i:
            found = f.load(f.at(self.turned, f.op(f"mul nsw {i}, {width}", "int64"), POSITION), POSITION, width)
            to = f.at(f.param("out"), f.binary("add", at, f.binary("mul", i, size)), "int64")
            f.store(f.convert(found, "int64"), to, which)

    def _transpose(
        self,
        dtype: str,
        source: tuple[IRValue, IRValue],
        target: tuple[IRValue, IRValue],
        rows: IRValue,
        columns: IRValue,
    ) -> None:
        transpose_square(self.module, self.f, dtype, source, target, rows, columns, self.width)
