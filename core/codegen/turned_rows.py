"""Operands that lie across the rows of a kernel with reductions: some rows at a time are copied, transposed.

Elements that follow each other in a row may be far apart in memory while those of a column are adjacent. Each line of
such an array is read once for some rows together, and the rows find their elements side by side. Their results
are collected in the same form, and written for all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal, storage_type
from core.codegen.operands import Operands
from core.codegen.prefetch import fetch
from core.codegen.transpose import transposed_square
from core.ir.aligned import LINE
from core.ir.precision import HALVES
from core.plan.row_kernels import Operand, RowKernel

__all__ = ["TurnedRows", "across", "rows_turned"]

MOST_BYTES = 1 << 20
"""Most bytes of the copies of a kernel, on the stack. Row by row, the lines of their elements are as many bytes."""

BITS = {"bool": "uint8", **dict.fromkeys(HALVES, "uint16")}
"""Dtype of numbers -> that of their bits, as which they are moved."""

APART = 16
"""Elements between the rows of a copy: rows that are a power of two apart would share few places of a cache."""


def across(operand: Operand) -> bool:
    """Whether elements of a column are adjacent, and those of a row are not."""
    return operand.inner > 1 and operand.outer[-1] == 1


def rows_turned(kernel: RowKernel, lanes: int) -> int:
    """Rows that are copied together, or 0 if no operand of `kernel` is."""
    if not kernel.outer or kernel.inner < lanes or lanes == 1 or 2 * kernel.outer[-1] < lanes:
        return 0
    sizes = [itemsize(kernel.operands[n].dtype) for n in sorted(_turned(kernel, "load") | _turned(kernel, "store"))]
    if not sizes:
        return 0
    room = sum(sizes) * (kernel.inner + APART)
    return next((n for n in (max(lanes, LINE // min(sizes)), lanes) if n * room <= MOST_BYTES), 0)


def _turned(kernel: RowKernel, kind: str) -> set[int]:
    """The operands that are copied: those of loads or of stores along the row, and of nothing else."""
    other = {i.operand for i in kernel.code if i.operand >= 0 and not (i.full and i.kind in ("load", "store"))}
    found = {i.operand for i in kernel.code if i.kind == kind and i.full}
    return {n for n in found - other if across(kernel.operands[n])}


class TurnedRows:
    """The copies of some rows, after `operands` has entered the first of them: `read`, then `use` for each row, and
    `write` after the last one."""

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands, lanes: int) -> None:
        self.f, self.kernel, self.operands, self.lanes = f, kernel, operands, lanes
        self.together = rows_turned(kernel, lanes)
        self.row = -(-kernel.inner // lanes) * lanes + APART
        self.copies: dict[int, IRValue] = {}
        self.loaded, self.stored = (sorted(_turned(kernel, kind)) for kind in ("load", "store"))
        for number in sorted({*self.loaded, *self.stored}):
            name, one = f.fresh("turned"), storage_type(kernel.operands[number].dtype)
            f.top.append(f"  {name} = alloca [{self.together * self.row} x {one}], align 64")
            self.copies[number] = IRValue(name, "ptr")

    def read(self, count: IRValue) -> None:
        """Copy `count` rows, at most as many as there are together."""
        self.bases = {n: self.operands.base(n) for n in self.copies}
        self._squares(self.loaded, count, self._read)

    def use(self, row: IRValue) -> None:
        """Read and write the elements of the copied row number `row` from now on."""
        f = self.f
        first = f.op(f"mul nsw {row}, {self.row}", "int64")
        self.operands.turned = {n: f.at(copy, first, self.kernel.operands[n].dtype) for n, copy in self.copies.items()}

    def write(self, count: IRValue) -> None:
        """Write what `count` rows have stored."""
        self._squares(self.stored, count, self._write)

    def _squares(
        self, operands: Iterable[int], count: IRValue, each: Callable[[_Square, IRValue | None], None]
    ) -> None:
        """``each(square, lanes that hold one of `count` rows)`` for all squares of rows and columns of `operands`."""
        f, inner, lanes = self.f, self.kernel.inner, self.lanes
        whole = inner // lanes * lanes

        def run(count: IRValue | None) -> None:
            for number in operands:
                for first in range(0, self.together, lanes):
                    held = None
                    if count is not None:
                        rows = IRValue(f"<{', '.join(f'i64 {first + i}' for i in range(lanes))}>", "int64", lanes)
                        held = f.compare("icmp slt", rows, f.splat(count, lanes))
                    if whole:
                        with f.loop(I64(0), I64(whole), lanes) as at:
                            each(self._square(number, first, at, lanes), held)
                    if inner > whole:
                        each(self._square(number, first, I64(whole), inner - whole), held)

        if operands:
            f.either(f.compare("icmp sge", count, I64(self.together)), lambda: run(None), lambda: run(count))

    def _square(self, number: int, first: int, start: IRValue, columns: int) -> _Square:
        f, operand = self.f, self.kernel.operands[number]
        dtype = BITS.get(operand.dtype, operand.dtype)
        base = f.at(self.bases[number], I64(first), dtype)
        place = f.at(base, f.op(f"mul nsw {start}, {operand.inner}", "int64"), dtype)
        places = tuple(f.at(place, I64(j * operand.inner), dtype) for j in range(columns))
        copy = f.at(self.copies[number], start, dtype)
        rows = tuple(f.at(copy, I64((first + i) * self.row), dtype) for i in range(self.lanes))
        return _Square(dtype, places, rows, first)

    def _read(self, square: _Square, held: IRValue | None) -> None:
        f, lanes, dtype = self.f, self.lanes, square.dtype
        if not square.first:  # the columns are too many, and too far apart, for the processor to look ahead in each
            for each in square.places:
                fetch(f, each, I64(self.together), dtype, 1)
        read = [f.load(each, dtype, lanes, held) for each in square.places]
        nothing = [f.splat(literal(0, dtype), lanes)] * (lanes - len(read))
        for value, row in zip(transposed_square(f, read + nothing), square.rows, strict=True):
            f.store(value, row)

    def _write(self, square: _Square, held: IRValue | None) -> None:
        f = self.f
        rows = [f.load(each, square.dtype, self.lanes) for each in square.rows]
        for value, place in zip(transposed_square(f, rows), square.places, strict=False):
            f.store(value, place, held)


@dataclass(frozen=True, slots=True)
class _Square:
    """Some rows, as many as a vector has lanes, and at most as many columns.

    places: addresses of the first of the rows in each of the columns.
    rows:   addresses of the copied rows, at the first of the columns.
    first:  number of the first row.
    """

    dtype: str
    places: tuple[IRValue, ...]
    rows: tuple[IRValue, ...]
    first: int
