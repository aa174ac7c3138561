"""Sums over the rows of blocks (see `row_blocks`): each lane adds up the rows that it computes.

Rows that are added to the same elements one after the other would wait for each other. Each lane has a sum of its own
instead; the lanes are added up where the rows of a run, one after the other along the last outer axis, end. The order
of additions follows from the shape and the number of threads. It is not that of rows which are computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.operands import MOST_ADDITIONS, Operands
from core.codegen.reductions import combine, identity, reduce_lanes, repeated
from core.ir.precision import HALVES
from core.plan.row_kernels import RowKernel

__all__ = ["RUN", "LaneSums", "summed_in_lanes"]

RUN = 8
"""Fewest blocks of a run: less work would not make up for adding up the lanes."""


def summed_in_lanes(kernel: RowKernel, rows: int) -> list[int]:
    """The numbers of the instructions that add all rows of a run to the same elements; `rows` of a block."""
    if not kernel.outer or kernel.outer[-1] < RUN * rows:
        return []
    touched = [i.operand for i in kernel.code if i.kind in ("load", "store", "accumulate")]
    return [
        n
        for n, i in enumerate(kernel.code)
        if i.kind == "accumulate"
        and i.dtype not in HALVES
        and not kernel.operands[i.operand].outer[-1]
        and kernel.operands[i.operand].inner in (0, 1)
        and touched.count(i.operand) == 1
    ]


class LaneSums:
    """The sums of the instructions `numbers` of `kernel`, over blocks of `rows` rows."""

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands, rows: int, numbers: Sequence[int]) -> None:
        self.f, self.kernel, self.operands, self.rows, self.numbers = f, kernel, operands, rows, numbers
        self._slots: dict[int, list[IRValue]] = {}
        self._aside: dict[int, IRValue] = {}
        for n in numbers:
            instr = kernel.code[n]
            count = kernel.inner if self._is_of_columns(n) else 1
            self._slots[n] = [f.slot(instr.dtype, rows) for _ in range(count)]
            additions = kernel.outer[-1] // rows
            if count == 1 and instr.op == "sum" and instr.dtype.startswith("float") and additions > 2 * MOST_ADDITIONS:
                self._aside[n] = f.slot(instr.dtype, rows)

    @contextmanager
    def of_run(self, start: IRValue) -> Iterator[None]:
        """The blocks that the context writes are those of the run that begins, in this function, with row `start`."""
        f = self.f
        self.operands.enter(start)
        arrays = {n: self.operands.base(self.kernel.code[n].operand) for n in self.numbers}
        for n, slots in self._slots.items():
            for slot in [*slots, *([self._aside[n]] if n in self._aside else [])]:
                self._clear(n, slot)
        yield
        for n, slots in self._slots.items():
            instr = self.kernel.code[n]
            for j, slot in enumerate(slots):
                total = self._read(n, slot)
                if n in self._aside:
                    total = combine(f, instr.op, self._read(n, self._aside[n]), total)
                address = f.at(arrays[n], I64(j), instr.dtype)
                before = f.load(address, instr.dtype)
                f.store(combine(f, instr.op, before, reduce_lanes(f, instr.op, total)), address)

    def add(self, number: int, values: Sequence[IRValue]) -> None:
        """Add a block. values: a vector for each position of the rows, or one for all."""
        f, instr, inner = self.f, self.kernel.code[number], self.kernel.inner
        values = [f.splat(each, self.rows) for each in values]
        if self._is_of_columns(number):
            values = [values[j if len(values) > 1 else 0] for j in range(inner)]
        elif instr.full and len(values) > 1:
            while len(values) > 1:
                pairs = [combine(f, instr.op, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
                values = pairs + values[len(pairs) * 2 :]
        elif instr.value:
            values = [repeated(f, instr.op, values[0], inner)]
        for slot, value in zip(self._slots[number], values, strict=True):
            f.write(combine(f, instr.op, self._read(number, slot), value), slot)

    def put_aside(self, start: IRValue, row: IRValue) -> None:
        """After every so many blocks, of which that of `row` may be the last, put the sums aside: see `operands`.

        start: the first row of the run.
        """
        if not self._aside:
            return
        f, every = self.f, MOST_ADDITIONS * self.rows
        within = f.op(f"urem {f.binary('sub', row, start)}, {every}", "int64")
        with f.when(f.compare("icmp eq", within, I64(every - self.rows))):
            for n, aside in self._aside.items():
                (slot,) = self._slots[n]
                f.write(combine(f, self.kernel.code[n].op, self._read(n, aside), self._read(n, slot)), aside)
                self._clear(n, slot)

    def _is_of_columns(self, number: int) -> bool:
        instr = self.kernel.code[number]
        return instr.full and self.kernel.operands[instr.operand].inner == 1

    def _read(self, number: int, slot: IRValue) -> IRValue:
        return self.f.read(slot, self.kernel.code[number].dtype, self.rows)

    def _clear(self, number: int, slot: IRValue) -> None:
        instr = self.kernel.code[number]
        self.f.write(self.f.splat(identity(instr.op, instr.dtype), self.rows), slot)
