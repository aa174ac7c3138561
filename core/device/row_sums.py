"""The sums over rows of a row kernel, while it is written (see `core.device.rows`)."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from core.codegen.llvm import I64, IRValue, literal
from core.codegen.reductions import combine, identity
from core.device.column_sums import is_own
from core.device.row_teams import parts_of, room_of
from core.device.threads import flat_offset, split

if TYPE_CHECKING:
    from core.device.rows import RowWriter

__all__ = ["Sums"]


class Sums:
    """The sums over rows of one kernel. numbers: of the instructions to whose results several teams add.

    in_place: those to whose results the rows of one team add. begins: whether the present row is the first of them.
    """

    def __init__(self, writer: RowWriter, teams: int, in_place: Collection[int] = ()) -> None:
        self.writer, self.f, self.teams = writer, writer.f, teams
        sums = ((n, i) for n, i in enumerate(writer.code) if i.kind == "accumulate")
        self.numbers = [n for n, i in sums if n not in in_place and not is_own(writer.kernel, i)]
        self.in_place, self.begins = in_place, literal(True, "bool")
        self.rooms: dict[int, IRValue] = {}
        at = 0
        for n in self.numbers:
            self.rooms[n] = self.f.at(self.f.param("scratch"), I64(at), "uint8")
            at += room_of(writer.each, n, teams)
        self.own: dict[int, IRValue] = {}

    def size(self, number: int) -> int:
        return math.prod(self.writer.each.views[self.writer.code[number].operand].shape)

    def put(self, number: int, part: IRValue, column: IRValue, value: IRValue) -> None:
        """Write what a part has for the present row and `column`: to the result, if there is one part."""
        f, instr = self.f, self.writer.code[number]
        if self.teams == 1:
            here = self.writer.address(instr, column)
            before = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(here, instr.dtype)
            f.store(combine(f, instr.op, before, value), here)
            return
        operand = self.writer.kernel.operands[instr.operand]
        at = flat_offset(f, [*self.writer.row, column], [*operand.outer, operand.inner])
        at = f.binary("add", f.op(f"mul nsw {part}, {self.size(number)}", "int64"), at)
        f.store(value, f.at(self.rooms[number], at, instr.dtype))

    def is_total(self, number: int) -> bool:
        """Whether all elements of a row are added to one sum."""
        instr = self.writer.code[number]
        return instr.kind == "accumulate" and not self.writer.kernel.operands[instr.operand].inner

    def start(self, team: IRValue, lane: IRValue) -> None:
        """Start the sums of this team."""
        f = self.f
        for n in self.numbers:
            instr = self.writer.code[n]
            self.own[n] = f.at(self.rooms[n], f.op(f"mul nsw {team}, {self.size(n)}", "int64"), instr.dtype)
            with f.loop(lane, I64(self.size(n)), self.writer.width) as i:
                f.store(identity(instr.op, instr.dtype), f.at(self.own[n], i, instr.dtype))
        if self.numbers:
            self.writer.meet()

    def add(self, number: int, column: IRValue, value: IRValue) -> None:
        """Add to the sum of this team at the present row and `column`; write it if the row has a result of its own."""
        f, instr = self.f, self.writer.code[number]
        if number not in self.own:
            here = self.writer.address(instr, column)
            sofar = identity(instr.op, instr.dtype)
            if not self.writer.fresh:
                sofar = f.load(here, instr.dtype)
            elif number in self.in_place:
                sofar = f.select(self.begins, sofar, f.load(here, instr.dtype))
            f.store(combine(f, instr.op, sofar, value), here)
            return
        operand = self.writer.kernel.operands[instr.operand]
        at = flat_offset(f, [*self.writer.row, column], [*operand.outer, operand.inner])
        here = f.at(self.own[number], at, instr.dtype)
        f.store(combine(f, instr.op, f.load(here, instr.dtype), value), here)

    def finish(self) -> None:
        """Add up the sums of all teams: a thread has each so-and-so-many-th team, then one has the sums of these."""
        f, threads = self.f, self.writer.threads
        parts = {n: parts_of(self.teams, self.size(n), threads) for n in self.numbers}
        for n in self.numbers:
            if parts[n] > 1:
                with f.loop(threads.number(f), I64(parts[n] * self.size(n)), threads.total) as at:
                    part, i = split(f, at, (parts[n], self.size(n)))
                    total = self._total(
                        n, identity(self.writer.code[n].op, self.writer.code[n].dtype), i, part, parts[n]
                    )
                    f.store(total, f.at(self.rooms[n], at, total.dtype))  # only this thread reads that one
        if any(each > 1 for each in parts.values()):
            threads.barrier(f)
        for n in self.numbers:
            instr = self.writer.code[n]
            with f.loop(threads.number(f), I64(self.size(n)), threads.total) as i:
                result = f.at(f.param(f"p{instr.operand}"), i, instr.dtype)
                before = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(result, instr.dtype)
                teams = parts[n] if parts[n] > 1 else self.teams
                f.store(self._total(n, before, i, I64(0), 1, teams), result)

    def _total(
        self, number: int, before: IRValue, i: IRValue, first: IRValue, step: int, teams: int | None = None
    ) -> IRValue:
        """`before` and what teams have for element `i`: from `first` on, each `step`-th one of `teams`."""
        f, instr = self.f, self.writer.code[number]
        total = f.slot(instr.dtype)
        f.write(before, total)
        with f.loop(first, I64(self.teams if teams is None else teams), step) as team:
            at = f.binary("add", f.op(f"mul nsw {team}, {self.size(number)}", "int64"), i)
            more = f.load(f.at(self.rooms[number], at, instr.dtype), instr.dtype)
            f.write(combine(f, instr.op, f.read(total, instr.dtype), more), total)
        return f.read(total, instr.dtype)
