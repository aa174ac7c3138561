"""Operands that lie across the rows of a kernel with reductions: some rows at a time are copied, transposed.

Elements that follow each other in a row may be far apart in memory while those of a column are adjacent. Each line of
such an array is read once for some rows together, and the rows find their elements side by side.
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal, storage_type
from core.codegen.operands import Operands
from core.codegen.prefetch import fetch
from core.codegen.transpose import transposed_square
from core.ir.aligned import LINE
from core.ir.precision import HALVES
from core.plan.data import Operand, RowKernel

__all__ = ["TurnedRows", "across", "rows_turned"]

MOST_BYTES = 9 << 15
"""Most bytes of the copies of a kernel: they stay in the nearest caches."""

APART = 16
"""Elements between the rows of a copy: rows that are a power of two apart would share few places of a cache."""


def across(operand: Operand) -> bool:
    """Whether elements of a column are adjacent, and those of a row are not."""
    return operand.inner > 1 and operand.outer[-1] == 1


def rows_turned(kernel: RowKernel, lanes: int) -> int:
    """Rows that are copied together, or 0 if no operand of `kernel` is."""
    if not kernel.outer or kernel.inner < lanes or lanes == 1 or 2 * kernel.outer[-1] < lanes:
        return 0
    sizes = [itemsize(kernel.operands[n].dtype) for n in _turned(kernel)]
    if not sizes:
        return 0
    room = sum(sizes) * (kernel.inner + APART)
    return next((n for n in (max(lanes, LINE // min(sizes)), lanes) if n * room <= MOST_BYTES), 0)


def _turned(kernel: RowKernel) -> list[int]:
    """The operands that are copied: those of loads along the row."""
    return [
        i.operand
        for i in kernel.code
        if i.kind == "load" and i.full and i.dtype not in HALVES and across(kernel.operands[i.operand])
    ]


class TurnedRows:
    """The copies of some rows, after `operands` has entered the first of them: `read`, then `use` for each row."""

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands, lanes: int) -> None:
        self.f, self.kernel, self.operands, self.lanes = f, kernel, operands, lanes
        self.together = rows_turned(kernel, lanes)
        self.row = -(-kernel.inner // lanes) * lanes + APART
        self.copies: dict[int, IRValue] = {}
        for number in _turned(kernel):
            name, one = f.fresh("turned"), storage_type(kernel.operands[number].dtype)
            f.top.append(f"  {name} = alloca [{self.together * self.row} x {one}], align 64")
            self.copies[number] = IRValue(name, "ptr")

    def read(self, count: IRValue) -> None:
        """Copy `count` rows, at most as many as there are together."""
        whole = self.f.compare("icmp sge", count, I64(self.together))
        self.f.either(whole, lambda: self._read(None), lambda: self._read(count))

    def use(self, row: IRValue) -> None:
        """Read the elements of the copied row number `row` from now on."""
        f = self.f
        first = f.op(f"mul nsw {row}, {self.row}", "int64")
        self.operands.turned = {n: f.at(copy, first, self.kernel.operands[n].dtype) for n, copy in self.copies.items()}

    def _read(self, count: IRValue | None) -> None:
        f, inner, lanes = self.f, self.kernel.inner, self.lanes
        whole = inner // lanes * lanes
        for number, copy in self.copies.items():
            for first in range(0, self.together, lanes):
                if whole:
                    with f.loop(I64(0), I64(whole), lanes) as at:
                        self._square(number, copy, first, count, at, lanes)
                if inner > whole:
                    self._square(number, copy, first, count, I64(whole), inner - whole)

    def _square(
        self, number: int, copy: IRValue, first: int, count: IRValue | None, start: IRValue, columns: int
    ) -> None:
        """Copy `columns` columns from `start` of the rows from `first` on; the lanes of other columns are zeros."""
        f, lanes, operand = self.f, self.lanes, self.kernel.operands[number]
        dtype = "uint8" if operand.dtype == "bool" else operand.dtype
        held = None
        if count is not None:
            rows = IRValue(f"<{', '.join(f'i64 {first + i}' for i in range(lanes))}>", "int64", lanes)
            held = f.compare("icmp slt", rows, f.splat(count, lanes))
        base = f.at(self.operands.base(number), I64(first), dtype)
        place = f.at(base, f.op(f"mul nsw {start}, {operand.inner}", "int64"), dtype)
        places = [f.at(place, I64(j * operand.inner), dtype) for j in range(columns)]
        if not first:  # the columns are too many, and too far apart, for the processor to look ahead in each
            for each in places:
                fetch(f, each, I64(self.together), dtype, 1)
        read = [f.load(each, dtype, lanes, held) for each in places]
        nothing = f.splat(literal(0, dtype), lanes)
        target = f.at(copy, start, dtype)
        for i, each in enumerate(transposed_square(f, read + [nothing] * (lanes - columns))):
            f.store(each, f.at(target, I64((first + i) * self.row), dtype))
