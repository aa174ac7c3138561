"""Elementwise kernels with arrays that lie across the rows: squares of rows and columns, transposed in registers.

Elements of an array that follow each other in a row may be far apart in memory while those of a column are adjacent: a
transposed operand. Row by row, such an array is read number by number, and each of its cache lines once for every row.
A square of as many rows and columns as a vector has lanes takes it with one load for each column.
"""

from __future__ import annotations

from core.codegen.draws import DRAWS
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.operands import Operands
from core.codegen.prefetch import fetch
from core.codegen.scalar import apply
from core.codegen.transpose import transposed_square
from core.codegen.turned_rows import across
from core.codegen.vector_slices import mask
from core.ir.aligned import LINE
from core.plan.row_kernels import Operand, RowInstruction, RowKernel

__all__ = ["Squares", "rows_in_squares"]

KINDS = {True: frozenset({"load", "apply", "store"}), False: frozenset({"constant", "load", "apply"})}
"""Instructions along the row, and those that are the same along it."""


def rows_in_squares(kernel: RowKernel, lanes: int) -> int:
    """Rows in a block, or 1 if the rows of `kernel` are computed one by one."""
    if not kernel.outer or kernel.inner < lanes or lanes == 1:
        return 1
    if any(i.kind not in KINDS[i.full] or i.op in DRAWS for i in kernel.code):
        return 1
    used = [kernel.operands[i.operand] for i in kernel.code if i.full and i.kind != "apply"]
    if not any(across(each) for each in used) or not all(across(each) or each.inner == 1 for each in used):
        return 1
    written = [kernel.operands[i.operand] for i in kernel.code if i.kind == "store"]
    if any(each.outer[-1] == 0 for each in written):  # then the last row must come last
        return 1
    rows = kernel.outer[-1]
    most = max(lanes, LINE // min(itemsize(each.dtype) for each in used if across(each)))
    together = rows if rows <= most else max(range(most // 2, most + 1), key=lambda n: (rows // n * n, n))
    return together if 2 * together >= lanes else 1


class Squares:
    """Writes a block of rows, after `operands` has entered the first one: `begin`, then `write` for all columns.

    same: of each instruction that is the same along the row, its value in each row.
    """

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands, lanes: int) -> None:
        self.f, self.kernel, self.operands, self.lanes = f, kernel, operands, lanes
        self.rows = rows_in_squares(kernel, lanes)
        self.same: dict[int, list[IRValue]] = {}

    def begin(self) -> None:
        """Every instruction that is the same along the row, for all rows."""
        f = self.f
        self.same = {}
        for number, instr in enumerate(self.kernel.code):
            if instr.full:
                continue
            if instr.kind == "constant":
                made = [literal(instr.value, instr.dtype)] * self.rows
            elif instr.kind == "load":
                made = [f.load(self._line(instr, row), instr.dtype) for row in range(self.rows)]
            else:
                made = [self._applied(instr, [self.same[a][row] for a in instr.args]) for row in range(self.rows)]
            self.same[number] = made

    def write(self, start: IRValue, count: int) -> None:
        """Every instruction along the row, for `count` columns from `start`, at most as many as there are lanes."""
        for first in range(0, self.rows, self.lanes):
            self._square(start, count, range(first, min(first + self.lanes, self.rows)))

    def _square(self, start: IRValue, count: int, rows: range) -> None:
        f, code = self.f, self.kernel.code
        made = {n: [each[row] for row in rows] for n, each in self.same.items()}
        for number, instr in enumerate(code):
            if instr.kind == "load" and instr.full and across(self._operand(instr)):
                made[number] = self._read_across(instr, start, count, rows)
        for i, row in enumerate(rows):
            for number, instr in enumerate(code):
                if not instr.full or i < len(made.get(number, ())):
                    continue
                if instr.kind == "load":
                    value = f.load(self._at(instr, row, start), instr.dtype, self.lanes, mask(count, self.lanes))
                else:
                    value = f.splat(self._applied(instr, [made[a][i] for a in instr.args]), self.lanes)
                    if instr.kind == "store" and not across(self._operand(instr)):
                        f.store(value, self._at(instr, row, start), mask(count, self.lanes))
                made.setdefault(number, []).append(value)
        for number, instr in enumerate(code):
            if instr.kind == "store" and across(self._operand(instr)):
                self._write_across(instr, made[number], start, count, rows)

    def _read_across(self, instr: RowInstruction, start: IRValue, count: int, rows: range) -> list[IRValue]:
        """The values of a load, a vector for each of the rows; zeros where a row has no element."""
        f, dtype = self.f, "uint8" if instr.dtype == "bool" else instr.dtype
        places = [self._column(instr, start, j, rows) for j in range(count)]
        if not rows.start:  # the columns are too many, and too far apart, for the processor to look ahead in each
            for each in places:
                fetch(f, each, I64(self.rows), dtype, 1)
        columns = [f.load(each, dtype, self.lanes, mask(len(rows), self.lanes)) for each in places]
        nothing = f.splat(literal(0, dtype), self.lanes)
        found = transposed_square(f, columns + [nothing] * (self.lanes - count))
        return [f.convert(each, instr.dtype) for each in found[: len(rows)]]

    def _write_across(
        self, instr: RowInstruction, values: list[IRValue], start: IRValue, count: int, rows: range
    ) -> None:
        f = self.f
        if instr.dtype == "bool":
            values = [f.convert(each, "uint8") for each in values]
        for j, each in enumerate(transposed_square(f, values)[:count]):
            f.store(each, self._column(instr, start, j, rows), mask(len(rows), self.lanes))

    def _applied(self, instr: RowInstruction, args: list[IRValue]) -> IRValue:
        """The value of an instruction other than a load; that of a store is what it stores."""
        if instr.kind == "store":
            return args[0]
        return apply(self.f, instr.op, dict(instr.attrs), args, instr.rounds)

    def _operand(self, instr: RowInstruction) -> Operand:
        return self.kernel.operands[instr.operand]

    def _line(self, instr: RowInstruction, row: int) -> IRValue:
        """The address of the first element of a row."""
        operand, base = self._operand(instr), self.operands.base(instr.operand)
        return self.f.at(base, I64(row * operand.outer[-1]), operand.dtype) if row and operand.outer[-1] else base

    def _at(self, instr: RowInstruction, row: int, start: IRValue) -> IRValue:
        """The address of an element of a row whose elements are adjacent."""
        return self.f.at(self._line(instr, row), start, self._operand(instr).dtype)

    def _column(self, instr: RowInstruction, start: IRValue, number: int, rows: range) -> IRValue:
        """The address of the elements of these rows in column `start` + `number`."""
        f, operand = self.f, self._operand(instr)
        first = f.op(f"mul nsw {start}, {operand.inner}", "int64")
        at = f.at(self._line(instr, rows[0]), first, operand.dtype)
        return f.at(at, I64(number * operand.inner), operand.dtype) if number else at
