"""The sums over rows of a row kernel, while it is written (see `core.device.rows`).

What teams have is added up behind a barrier of all threads, or in a launch of its own (`Sums.finish_apart`). Without
the barrier, more blocks can share the rows than are resident at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import accumulate

from core.codegen.llvm import I64, IRValue, itemsize, literal
from core.codegen.reductions import combine, identity
from core.device.present_row import PresentRow
from core.device.row_teams import parts_of, pools, room_of
from core.device.threads import WARP, Threads, block_number, flat_offset, one_block, split

__all__ = ["Sums", "finishing_blocks"]

SUMS_AT_ONCE = 8
"""Sums of teams that a thread loads at once: it waits once for all of them."""

SECTOR = 8
"""Neighbouring elements that threads of a block read at least, if there are as many: 32 bytes of float32."""


def finishing_blocks(size: int, teams: int, threads: Threads) -> int:
    """Blocks that add up what `teams` teams have for `size` elements in a launch of its own."""
    return -(-size // _neighbours(size, teams, threads))


def _neighbours(size: int, teams: int, threads: Threads) -> int:
    """Elements that a block has at a time, a power of two. Its other threads share the teams."""
    count = 1
    while count < min(size, SECTOR):
        count *= 2
    while count < threads.block and (2 * threads.block > count * teams or size > count * threads.blocks):
        count *= 2
    return min(count, threads.block)


class Sums:
    """The sums over rows of one kernel. teams: of each instruction to whose result several teams add, how many.

    in_place: those to whose results the rows of one team add. begins: whether the present row is the first of them.
    """

    def __init__(self, writer: PresentRow, teams: Mapping[int, int], in_place: Collection[int] = ()) -> None:
        self.writer, self.f, self.teams = writer, writer.f, teams
        self.in_place, self.begins = in_place, literal(True, "bool")
        self.rooms: dict[int, IRValue] = {}
        at = 0
        for n, count in teams.items():
            self.rooms[n] = self.f.at(self.f.param("scratch"), I64(at), "uint8")
            at += room_of(writer.each, n, count)
        self.pools = pools(writer.each, writer.threads, writer.part)
        self.own: dict[int, IRValue] = {}
        self.slots: dict[int, list[IRValue]] = {}

    def size(self, number: int) -> int:
        return math.prod(self.writer.each.views[self.writer.code[number].operand].shape)

    def put(self, number: int, part: IRValue, column: IRValue, value: IRValue) -> None:
        """Write what a part has for the present row and `column`: to the result, if there is one part."""
        f, instr = self.f, self.writer.code[number]
        if number not in self.teams:
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

    def stays(self, number: int) -> bool:
        """Whether all rows of a team, or of a group of its rows, add to the same elements, which are in registers."""
        kernel, instr = self.writer.kernel, self.writer.code[number]
        if instr.kind != "accumulate" or not (self.writer.columns_each or self.is_total(number)):
            return False
        steps = zip(kernel.outer, kernel.operands[instr.operand].outer, strict=True)
        if number in self.in_place or number in self.pools:
            return True
        return number in self.teams and all(n == 1 or not s for n, s in steps)

    def start(self, team: IRValue, lane: IRValue) -> None:
        """Start the sums of this team."""
        f = self.f
        for n in sorted({*self.teams, *self.pools}):
            if self.stays(n):
                self._clear(n)
                continue
            instr = self.writer.code[n]
            self.own[n] = f.at(self.rooms[n], f.op(f"mul nsw {team}, {self.size(n)}", "int64"), instr.dtype)
            with f.loop(lane, I64(self.size(n)), self.writer.width) as i:
                f.store(identity(instr.op, instr.dtype), f.at(self.own[n], i, instr.dtype))
        if self.own:
            self.writer.meet()

    def start_group(self) -> None:
        """Start the sums of a group of rows that are in registers."""
        for n in sorted(self.in_place):
            if self.stays(n):
                self._clear(n)

    def _clear(self, number: int) -> None:
        instr = self.writer.code[number]
        count = 1 if self.is_total(number) else self.writer.columns_each
        slots = self.slots.setdefault(number, [self.f.slot(instr.dtype) for _ in range(count)])
        for slot in slots:
            self.f.write(identity(instr.op, instr.dtype), slot)

    def end_group(self, lane: IRValue) -> None:
        """Write the sums of a group of rows to their results."""
        f = self.f
        for n in sorted(self.in_place):
            instr = self.writer.code[n]
            for column, value in self._elements(n, lane):
                here = self.writer.address(instr, column)
                before = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(here, instr.dtype)
                f.store(combine(f, instr.op, before, value), here)

    def end(self, team: IRValue, lane: IRValue) -> None:
        """Write what this team has in registers: to shared memory, if the warps of a block add up theirs (`pool`)."""
        f = self.f
        for n in sorted({*self.teams, *self.pools}):
            instr, number = self.writer.code[n], team
            if n in self.pools:
                room, number = self._pool(n), f.op(f"urem {team}, {self._warps}", "int64")
            else:
                room = self.rooms[n]
            start = f.op(f"mul nsw {number}, {self.size(n)}", "int64")
            for column, value in self._elements(n, lane):
                operand = self.writer.kernel.operands[instr.operand]
                at = f.binary("add", start, flat_offset(f, [column], [operand.inner]))
                f.store(value, f.at(room, at, instr.dtype))

    @property
    def _warps(self) -> int:
        return self.writer.threads.block // WARP

    def _pool(self, number: int) -> IRValue:
        """The shared memory where the warps of this block have what they add up."""
        nbytes = self._warps * self.size(number) * itemsize(self.writer.code[number].dtype)
        room = self.writer.threads.shared(self.f, self.pools[number] + nbytes)
        return self.f.at(room, I64(self.pools[number]), "uint8")

    def pool(self, teams: int) -> None:
        """Add up what the warps of this block have. All threads of the block call it. teams: warps that have rows."""
        if not self.pools:
            return
        f, launch, warps = self.f, self.writer.threads, self._warps
        block, team = block_number(f, launch), one_block(launch)
        team.barrier(f)
        here = f.binary("sub", I64(teams), f.op(f"mul nsw {block}, {warps}", "int64"))
        with f.when(f.compare("icmp sgt", here, I64(0))):
            for n in self.pools:
                instr, size, room = self.writer.code[n], self.size(n), self._pool(n)
                last = f.binary("sub", here, I64(1))
                with f.loop(team.number(f), I64(size), launch.block) as i:
                    found = []
                    for warp in range(warps):  # all loads first
                        nearest = f.intrinsic("smin", I64(warp), last)
                        at = f.binary("add", f.op(f"mul nsw {nearest}, {size}", "int64"), i)
                        found.append(f.load(f.at(room, at, instr.dtype), instr.dtype))
                    total = found[0]
                    for warp, more in enumerate(found[1:], 1):
                        has = f.compare("icmp slt", I64(warp), here)
                        total = f.select(has, combine(f, instr.op, total, more), total)
                    if n in self.teams:
                        at = f.binary("add", f.op(f"mul nsw {block}, {size}", "int64"), i)
                        f.store(total, f.at(self.rooms[n], at, instr.dtype))
                    else:
                        self._put_result(n, i, total)
        team.barrier(f)  # the shared memory is used again

    def _elements(self, number: int, lane: IRValue) -> Iterator[tuple[IRValue, IRValue]]:
        """The column and the value of each element of a sum in registers, where this thread has one to write."""
        f, instr, writer = self.f, self.writer.code[number], self.writer
        slots = self.slots.get(number, ()) if self.stays(number) else ()
        if slots and self.is_total(number):
            total = writer.reduced(instr.op, f.read(slots[0], instr.dtype))
            with f.when(f.compare("icmp eq", lane, I64(0))):
                yield I64(0), total
            return
        for i, slot in enumerate(slots):
            with writer.column(i, lane) as column:
                yield column, f.read(slot, instr.dtype)

    def add(self, number: int, column: IRValue, value: IRValue, place: int = 0) -> None:
        """Add to the sum of this team at the present row and `column`; write it if the row has a result of its own.

        place: the number of the column among those of this thread, if it has few.
        """
        f, instr = self.f, self.writer.code[number]
        if self.stays(number):
            slot = self.slots[number][place]
            f.write(combine(f, instr.op, f.read(slot, instr.dtype), value), slot)
            return
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
        parts = {n: parts_of(teams, self.size(n), threads) for n, teams in self.teams.items()}
        for n in self.teams:
            if parts[n] > 1:
                with f.loop(threads.number(f), I64(parts[n] * self.size(n)), threads.total) as at:
                    part, i = split(f, at, (parts[n], self.size(n)))
                    total = self._total(
                        n, identity(self.writer.code[n].op, self.writer.code[n].dtype), i, part, parts[n]
                    )
                    f.store(total, f.at(self.rooms[n], at, total.dtype))  # only this thread reads that one
        if any(each > 1 for each in parts.values()):
            threads.barrier(f)
        for n in self.teams:
            instr = self.writer.code[n]
            with f.loop(threads.number(f), I64(self.size(n)), threads.total) as i:
                result = f.at(f.param(f"p{instr.operand}"), i, instr.dtype)
                before = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(result, instr.dtype)
                teams = parts[n] if parts[n] > 1 else self.teams[n]
                f.store(self._total(n, before, i, I64(0), 1, teams), result)

    def finish_apart(self) -> None:
        """Add up the sums of all teams in a launch of its own: threads of one block have the teams of an element."""
        f, launch = self.f, self.writer.threads  # each sum has blocks of its own, if there are enough
        ends = list(accumulate(finishing_blocks(self.size(n), teams, launch) for n, teams in self.teams.items()))
        with f.loop(block_number(f, launch), I64(ends[-1]), launch.blocks) as unit:
            for n, start, end in zip(self.teams, (0, *ends), ends, strict=False):
                inside = f.compare("icmp sge", unit, I64(start)), f.compare("icmp slt", unit, I64(end))
                with f.when(f.binary("and", *inside)):
                    self._finish_elements(n, f.binary("sub", unit, I64(start)))

    def _finish_elements(self, number: int, unit: IRValue) -> None:
        """The threads of a block add up what all teams have for some neighbouring elements of one sum."""
        f, launch = self.f, self.writer.threads
        instr, size, team = self.writer.code[number], self.size(number), one_block(launch)
        here, width = team.number(f), _neighbours(size, self.teams[number], launch)
        parts = 1
        while 2 * parts * width <= launch.block:
            parts *= 2
        own = f.at(team.shared(f, launch.block * itemsize(instr.dtype)), here, instr.dtype)
        part, column = f.op(f"udiv {here}, {width}", "int64"), f.op(f"urem {here}, {width}", "int64")
        i = f.binary("add", f.op(f"mul nsw {unit}, {width}", "int64"), column)
        nearest = f.intrinsic("smin", i, I64(size - 1))
        f.store(self._total(number, identity(instr.op, instr.dtype), nearest, part, parts), own)
        half = parts // 2
        while half:
            team.barrier(f)
            with f.when(f.compare("icmp slt", part, I64(half))):
                other = f.load(f.at(own, I64(half * width), instr.dtype), instr.dtype)
                f.store(combine(f, instr.op, f.load(own, instr.dtype), other), own)
            half //= 2
        first = f.compare("icmp eq", part, I64(0))
        with f.when(f.binary("and", first, f.compare("icmp slt", i, I64(size)))):
            self._put_result(number, i, f.load(own, instr.dtype))
        team.barrier(f)  # the shared memory is used again, and the result may be read

    def _put_result(self, number: int, i: IRValue, total: IRValue) -> None:
        """Write the sum of all rows for element `i`."""
        f, instr = self.f, self.writer.code[number]
        result = f.at(f.param(f"p{instr.operand}"), i, instr.dtype)
        before = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(result, instr.dtype)
        f.store(combine(f, instr.op, before, total), result)

    def _total(
        self, number: int, before: IRValue, i: IRValue, first: IRValue, step: int, teams: int | None = None
    ) -> IRValue:
        """`before` and what teams have for element `i`: from `first` on, each `step`-th one of `teams`."""
        f, instr = self.f, self.writer.code[number]
        teams, size, nothing = teams or self.teams[number], self.size(number), identity(instr.op, instr.dtype)
        total = f.slot(instr.dtype)
        f.write(before, total)
        together = max(1, min(SUMS_AT_ONCE, -(-teams // step)))
        with f.loop(first, I64(teams), step * together) as team:
            found = []
            for k in range(together):  # all loads first
                one = f.binary("add", team, I64(k * step)) if k else team
                nearest = f.intrinsic("smin", one, I64(teams - 1)) if k else one
                at = f.binary("add", f.op(f"mul nsw {nearest}, {size}", "int64"), i)
                more = f.load(f.at(self.rooms[number], at, instr.dtype), instr.dtype)
                found.append(f.select(f.compare("icmp slt", one, I64(teams)), more, nothing) if k else more)
            for more in found:
                f.write(combine(f, instr.op, f.read(total, instr.dtype), more), total)
        return f.read(total, instr.dtype)
