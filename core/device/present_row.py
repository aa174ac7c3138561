"""The present row of a row kernel (`core.device.rows`), its team of threads, and the columns of each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue
from core.device.blocks import Block
from core.device.threads import WARP, Threads, flat_offset, split
from core.plan.instructions import Rows
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["PresentRow"]


class PresentRow:
    """A row kernel while it is written, at one of its rows.

    fresh, inside, apart: as of `core.device.rows.row_kernel`; part, window: whether the kernel takes a range of rows,
    of columns.
    row: the position of the present row along the outer axes; flat: its number from `first` on.
    values: those of the row. block: that of this thread, if teams are blocks; width: threads of a team.
    columns_each: elements of a row that each thread of a team has in registers; 0 if it has them one after another.
    """

    def __init__(
        self, f: Function, each: Rows, threads: Threads, fresh: bool = True, inside: Collection[int] = (),
        apart: bool = False,
    ) -> None:  # fmt: skip
        self.f, self.each, self.threads = f, each, threads
        self.fresh, self.inside, self.apart = fresh, inside, apart
        self.kernel: RowKernel = each.kernel
        self.code = each.kernel.code
        names = [p.name for p in f.params]
        self.part = "%first" in names
        self.first = f.param("first") if self.part else I64(0)
        self.end = f.param("end") if self.part else I64(each.kernel.rows)
        self.window = "%first_column" in names
        self.columns = (
            (f.param("first_column"), f.param("end_column")) if self.window else (I64(0), I64(self.kernel.inner))
        )
        self.block: Block | None = None
        self.width, self.columns_each = WARP, 0
        self.flat: IRValue = I64(0)
        self.row: list[IRValue] = []
        self.values: dict[int, IRValue] = {}

    def begin_row(self, row: IRValue) -> None:
        """From here on the present row is the one of this number."""
        self.row = split(self.f, row, self.kernel.outer)
        self.flat = self.f.binary("sub", row, self.first) if self.inside else row

    def meet(self) -> None:
        """The threads of a team wait for each other."""
        if self.block is not None:
            self.block.meet()
        elif self.width > 1:
            self.threads.warp_barrier(self.f)

    def reduced(self, op: str, value: IRValue) -> IRValue:
        """The reduction of the values of a team, in each of its threads."""
        if self.block is not None:
            return self.block.combined(op, value)
        return self.threads.reduce_warp(self.f, op, value) if self.width > 1 else value

    def is_whole(self, place: int) -> bool:
        """Whether all threads of a team have the column `place` of their columns."""
        return (place + 1) * self.width <= self.kernel.inner

    @contextmanager
    def column(self, place: int, lane: IRValue) -> Iterator[IRValue]:
        """The column `place` of those of this thread, which has it inside the context, or nothing."""
        f = self.f
        column = f.binary("add", lane, I64(place * self.width)) if place else lane
        if self.is_whole(place):
            yield column
        else:
            with f.when(f.compare("icmp slt", column, I64(self.kernel.inner))):
                yield column

    def address(self, instr: RowInstruction, column: IRValue) -> IRValue:
        """The address of the present element in the operand of an instruction."""
        operand = self.kernel.operands[instr.operand]
        if instr.operand in self.inside:
            at = flat_offset(self.f, [self.flat, column], [self.kernel.inner, 1])
        else:
            at = flat_offset(self.f, [*self.row, column], [*operand.outer, operand.inner])
        return self.f.at(self.f.param(f"p{instr.operand}"), at, operand.dtype)
