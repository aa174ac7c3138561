"""Row kernels on many threads: a thread for each element, or a warp for each row if elements of a row are reduced.

Sums over rows have two stages, each in a fixed order: a warp adds up its rows in scratch memory of its own, then a
thread for each element of the result adds up what the warps have. So the bits do not depend on the order of threads.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from core.codegen.checks import fail
from core.codegen.draws import DRAWS
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.reductions import combine, identity, repeated
from core.codegen.scalar import apply
from core.codegen.sweeps import sweeps
from core.device.threads import WARP, Threads, flat_offset, split
from core.plan.data import Instr, RowKernel, Rows

__all__ = ["in_order", "row_kernel", "sums_room"]

ALIGNMENT = 256
"""Bytes between the sums of two arrays."""


def row_kernel(
    name: str, each: Rows, threads: Threads, fresh: bool = True, part: bool = False, inside: Collection[int] = (),
    window: bool = False,
) -> Function:  # fmt: skip
    """``name(operands..., scratch[, first, end][, first_column, end_column])`` for all threads.

    scratch: `sums_room` bytes.
    fresh:  whether results of reductions over rows start with nothing; if not, with what they contain.
    part:   whether it takes the rows from `first` to `end` only.
    inside: operands that hold these rows only, one after another.
    window: whether it takes the elements of rows from `first_column` to `end_column` only.
    """
    operands = [(f"p{i}", "ptr") for i in range(len(each.kernel.operands))]
    range_of = [("first", "int64"), ("end", "int64")] if part else []
    range_of += [("first_column", "int64"), ("end_column", "int64")] if window else []
    f = Function(name, [*operands, ("scratch", "ptr"), *range_of], noalias=False)
    _Writer(f, each, threads, fresh, inside).write()
    return f


def sums_room(each: Rows, threads: Threads) -> int:
    """Bytes of scratch memory that a row kernel needs."""
    kernel, teams = each.kernel, _teams(each, threads)
    shared = (n for n, i in enumerate(kernel.code) if i.kind == "accumulate" and not _is_own(kernel, i))
    return sum(_room(each, n, teams) for n in shared)


def _is_own(kernel: RowKernel, instr: Instr) -> bool:
    """Whether each row is reduced to an element of its own, so that no other row adds to it."""
    operand = kernel.operands[instr.operand]
    return not operand.inner and all(s or n == 1 for n, s in zip(kernel.outer, operand.outer, strict=True))


def _teams(each: Rows, threads: Threads) -> int:
    """Warps that have rows."""
    return min(threads.warps, each.kernel.rows)


def _room(each: Rows, number: int, teams: int) -> int:
    """Bytes for the sums of all warps of one accumulation."""
    view = each.views[each.kernel.code[number].operand]
    nbytes = teams * math.prod(view.shape) * itemsize(view.dtype)
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def in_order(each: Rows, numbers: Iterable[int]) -> list[int]:
    """The instructions `numbers` of a row kernel with each store right behind its value, which then needs no register.

    A store stays where it is if the kernel reads the same memory. Different roots that one instruction touches never
    overlap.
    """
    code, numbers = each.kernel.code, list(numbers)
    read = {each.views[i.operand].root for i in code if i.kind in ("load", "lookup", "accumulate")}
    moved: dict[int, list[int]] = {}
    for n in numbers:
        if code[n].kind == "store" and each.views[code[n].operand].root not in read:
            moved.setdefault(code[n].args[0], []).append(n)
    here = set(numbers)
    found: list[int] = []
    for n in numbers:
        if code[n].kind == "store" and n in moved.get(code[n].args[0], ()) and code[n].args[0] in here:
            continue
        found += [n, *moved.get(n, ())]
    return found


class _Writer:
    """Writes one row kernel.

    row: the position of the present row along the outer axes; flat: its number from `first` on.
    values: those of the row.
    """

    def __init__(self, f: Function, each: Rows, threads: Threads, fresh: bool, inside: Collection[int]) -> None:
        self.f, self.each, self.threads = f, each, threads
        self.fresh, self.inside = fresh, inside
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
        self.flat: IRValue = I64(0)
        self.row: list[IRValue] = []
        self.values: dict[int, IRValue] = {}

    def write(self) -> None:
        totals = [i for i in self.code if i.kind == "reduce" and self.code[i.args[0]].full]
        if totals or self.window or any(i.kind == "accumulate" for i in self.code):
            self._by_warps()
        else:
            self._by_elements()

    def _by_elements(self) -> None:
        """A thread for each element of the domain; the one of a row's first element speaks for the row."""
        f, kernel = self.f, self.kernel
        start, end = self.threads.number(f), I64(kernel.rows * kernel.inner)
        if self.part:
            start = f.binary("add", start, f.op(f"mul nsw {self.first}, {kernel.inner}", "int64"))
            end = f.op(f"mul nsw {self.end}, {kernel.inner}", "int64")
        with f.loop(start, end, self.threads.total) as at:
            row, column = split(f, at, (kernel.rows, kernel.inner))
            self._begin_row(row)
            self.values = {}
            leads = f.compare("icmp eq", column, I64(0))
            for n in in_order(self.each, range(len(self.code))):
                self._one(n, self.values, column, leads)

    def _by_warps(self) -> None:
        f = self.f
        teams = _teams(self.each, self.threads)
        sums = _Sums(self, teams)
        lane, warp = self.threads.lane(f), f.op(f"udiv {self.threads.number(f)}, {WARP}", "int64")
        with f.when(f.compare("icmp slt", warp, I64(teams))):
            sums.start(warp, lane)
            start = f.binary("add", self.first, warp) if self.part else warp
            with f.loop(start, self.end, teams) as row:
                self._begin_row(row)
                self.values = {}
                self._sweep(sums, lane)
        if sums.numbers:
            self.threads.barrier(f)
            sums.finish()

    def _begin_row(self, row: IRValue) -> None:
        self.row = split(self.f, row, self.kernel.outer)
        self.flat = self.f.binary("sub", row, self.first) if self.inside else row

    def _sweep(self, sums: _Sums, lane: IRValue) -> None:
        """All sweeps over a row by one warp."""
        f, code = self.f, self.code
        leads = f.compare("icmp eq", lane, I64(0))
        for sweep in sweeps(code, (), 1):
            for n in sweep.before:
                if code[n].kind == "accumulate":
                    value = self.values[code[n].args[0]]
                    value = repeated(f, code[n].op, value, self.kernel.inner) if code[n].value else value
                    with f.when(leads):
                        sums.add(n, I64(0), value)
                else:
                    self._one(n, self.values, I64(0), leads)
            totals = {n: f.slot(code[n].dtype) for n in sweep.along if code[n].kind == "reduce" or sums.is_total(n)}
            for n, slot in totals.items():
                f.write(identity(code[n].op, code[n].dtype), slot)
            if sweep.along:
                start = f.binary("add", self.columns[0], lane) if self.window else lane
                with f.loop(start, self.columns[1], WARP) as column:
                    made: dict[int, IRValue] = {}
                    for n in in_order(self.each, sweep.along):
                        value = self._argument(n, made)
                        if n in totals:
                            f.write(combine(f, code[n].op, f.read(totals[n], code[n].dtype), value), totals[n])
                        elif code[n].kind == "accumulate":
                            sums.add(n, column, value)
                        else:
                            self._one(n, made, column, leads)
            for n, slot in totals.items():
                total = self.threads.reduce_warp(f, code[n].op, f.read(slot, code[n].dtype))
                if code[n].kind == "reduce":
                    self.values[n] = total
                else:
                    with f.when(leads):
                        sums.add(n, I64(0), total)

    def _argument(self, number: int, made: Mapping[int, IRValue]) -> IRValue:
        """The first argument of an instruction; anything if it has none."""
        args = self.code[number].args
        return (made[args[0]] if args[0] in made else self.values[args[0]]) if args else I64(0)

    def _one(self, number: int, made: dict[int, IRValue], column: IRValue, leads: IRValue) -> None:
        """An instruction at one element. leads: whether this thread speaks for the row."""
        f, instr = self.f, self.code[number]
        args = [made[a] if a in made else self.values[a] for a in instr.args]
        if instr.kind == "constant":
            made[number] = literal(instr.value, instr.dtype)
        elif instr.kind == "load":
            made[number] = f.load(self.address(instr, column), instr.dtype)
        elif instr.kind == "lookup":
            at = f.op(f"mul nsw {args[0]}, {dict(instr.attrs)['step']}", "int64")
            made[number] = f.load(f.at(self.address(instr, column), at, instr.dtype), instr.dtype)
        elif instr.kind == "iota":
            strides = dict(instr.attrs)
            at = flat_offset(f, [*self.row, column], [*strides["outer"], strides["inner"]])
            made[number] = f.binary("add", at, I64(instr.value))
        elif instr.kind == "apply":
            attrs = dict(instr.attrs)
            draw = DRAWS.get(instr.op)
            made[number] = draw(f, attrs, args, False) if draw else apply(f, instr.op, attrs, args)
        elif instr.kind == "reduce":
            made[number] = repeated(f, instr.op, args[0], self.kernel.inner)
        elif instr.kind == "store":
            with f.when(self._writes(instr, column, literal(True, "bool") if instr.full else leads)):
                f.store(args[0], self.address(instr, column))
        elif instr.kind == "check":
            with f.when(f.op(f"xor {args[0]}, true", "bool")):
                fail(f, f.param(f"p{instr.operand}"), I64(instr.value))

    def _writes(self, instr: Instr, column: IRValue, condition: IRValue) -> IRValue:
        """Whether this thread stores: of several rows or elements that would store the same number, the first."""
        f, operand, kernel = self.f, self.kernel.operands[instr.operand], self.kernel
        steps = zip(self.row, operand.outer, kernel.outer, strict=True)
        same = [at for at, stride, size in steps if not stride and size > 1]
        same += [column] if instr.full and not operand.inner and kernel.inner > 1 else []
        for at in same:
            condition = f.binary("and", condition, f.compare("icmp eq", at, I64(0)))
        return condition

    def address(self, instr: Instr, column: IRValue) -> IRValue:
        """The address of the present element in the operand of an instruction."""
        operand = self.kernel.operands[instr.operand]
        if instr.operand in self.inside:
            at = flat_offset(self.f, [self.flat, column], [self.kernel.inner, 1])
        else:
            at = flat_offset(self.f, [*self.row, column], [*operand.outer, operand.inner])
        return self.f.at(self.f.param(f"p{instr.operand}"), at, operand.dtype)


class _Sums:
    """The sums over rows of one kernel. numbers: of the instructions to whose results several rows add."""

    def __init__(self, writer: _Writer, teams: int) -> None:
        self.writer, self.f, self.teams = writer, writer.f, teams
        sums = ((n, i) for n, i in enumerate(writer.code) if i.kind == "accumulate")
        self.numbers = [n for n, i in sums if not _is_own(writer.kernel, i)]
        self.rooms: dict[int, IRValue] = {}
        at = 0
        for n in self.numbers:
            self.rooms[n] = self.f.at(self.f.param("scratch"), I64(at), "uint8")
            at += _room(writer.each, n, teams)
        self.own: dict[int, IRValue] = {}

    def size(self, number: int) -> int:
        return math.prod(self.writer.each.views[self.writer.code[number].operand].shape)

    def is_total(self, number: int) -> bool:
        """Whether all elements of a row are added to one sum."""
        instr = self.writer.code[number]
        return instr.kind == "accumulate" and not self.writer.kernel.operands[instr.operand].inner

    def start(self, warp: IRValue, lane: IRValue) -> None:
        """Start the sums of this warp."""
        f = self.f
        for n in self.numbers:
            instr = self.writer.code[n]
            self.own[n] = f.at(self.rooms[n], f.op(f"mul nsw {warp}, {self.size(n)}", "int64"), instr.dtype)
            with f.loop(lane, I64(self.size(n)), WARP) as i:
                f.store(identity(instr.op, instr.dtype), f.at(self.own[n], i, instr.dtype))
        if self.numbers:
            self.writer.threads.warp_barrier(f)

    def add(self, number: int, column: IRValue, value: IRValue) -> None:
        """Add to the sum of this warp at the present row and `column`; write it if the row has a result of its own."""
        f, instr = self.f, self.writer.code[number]
        if number not in self.own:
            here = self.writer.address(instr, column)
            sofar = identity(instr.op, instr.dtype) if self.writer.fresh else f.load(here, instr.dtype)
            f.store(combine(f, instr.op, sofar, value), here)
            return
        operand = self.writer.kernel.operands[instr.operand]
        at = flat_offset(f, [*self.writer.row, column], [*operand.outer, operand.inner])
        here = f.at(self.own[number], at, instr.dtype)
        f.store(combine(f, instr.op, f.load(here, instr.dtype), value), here)

    def finish(self) -> None:
        """Add up the sums of all warps, in their order."""
        f, threads = self.f, self.writer.threads
        for n in self.numbers:
            instr = self.writer.code[n]
            with f.loop(threads.number(f), I64(self.size(n)), threads.total) as i:
                total = f.slot(instr.dtype)
                result = f.at(f.param(f"p{instr.operand}"), i, instr.dtype)
                f.write(identity(instr.op, instr.dtype) if self.writer.fresh else f.load(result, instr.dtype), total)
                with f.loop(I64(0), I64(self.teams)) as team:
                    at = f.binary("add", f.op(f"mul nsw {team}, {self.size(n)}", "int64"), i)
                    more = f.load(f.at(self.rooms[n], at, instr.dtype), instr.dtype)
                    f.write(combine(f, instr.op, f.read(total, instr.dtype), more), total)
                f.store(f.read(total, instr.dtype), result)
