"""Row kernels on many threads: a thread for each element, or a team for each row if elements of a row are reduced. A
team is a warp, a block where rows are few and long, or a thread where they are many and short.

Sums over rows, unless a thread can have a column (`column_sums`), have stages, each in a fixed order: a team adds up
its rows in scratch memory of its own, then threads add up what some of the teams have for one element, and then others
add up these sums. So the bits do not depend on the order of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from core.codegen.checks import fail
from core.codegen.draws import DRAWS
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.reductions import combine, identity, repeated
from core.codegen.scalar import apply
from core.codegen.sweeps import sweeps
from core.device.column_sums import ColumnSums, column_sums
from core.device.row_sums import Sums
from core.device.row_teams import RowGroups, groups_of, teams_of, width_of
from core.device.systems import Block
from core.device.threads import WARP, Threads, block_number, flat_offset, split
from core.plan.data import Instr, RowKernel, Rows

__all__ = ["RowWriter", "in_order", "row_kernel"]


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
    RowWriter(f, each, threads, fresh, inside).write()
    return f


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


class RowWriter:
    """Writes one row kernel.

    row: the position of the present row along the outer axes; flat: its number from `first` on.
    values: those of the row. block: that of this thread, if teams are blocks; width: threads of a team.
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
        self.block: Block | None = None
        self.width = WARP
        self.flat: IRValue = I64(0)
        self.row: list[IRValue] = []
        self.values: dict[int, IRValue] = {}

    def write(self) -> None:
        totals = [i for i in self.code if i.kind == "reduce" and self.code[i.args[0]].full]
        columns = None if self.part or self.window else column_sums(self.each, self.threads)
        if columns is not None:
            self._by_columns(columns)
        elif totals or self.window or any(i.kind == "accumulate" for i in self.code):
            self._by_teams()
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

    def _by_teams(self) -> None:
        f, threads = self.f, self.threads
        self.width, groups = width_of(self.each, threads), groups_of(self.each, threads, self.part)
        teams = teams_of(self.each, threads, self.part)
        number = threads.number(f)
        if self.width == 1:
            member = I64(0)
        elif self.width == WARP:
            member, number = threads.lane(f), f.op(f"udiv {number}, {WARP}", "int64")
        else:
            self.block = Block(f, threads)
            member, number = self.block.number, block_number(f, threads)
        sums = Sums(self, teams, frozenset() if groups is None else groups.sums)
        with f.when(f.compare("icmp slt", number, I64(teams))):
            sums.start(number, member)
            if groups is not None:
                self._by_groups(groups, teams, number, member, sums)
            else:
                start = f.binary("add", self.first, number) if self.part else number
                with f.loop(start, self.end, teams) as row:
                    self._begin_row(row)
                    self._sweep(sums, member)
        if sums.numbers:
            threads.barrier(f)
            sums.finish()

    def _by_groups(self, groups: RowGroups, teams: int, team: IRValue, member: IRValue, sums: Sums) -> None:
        """The rows of one group after the other, by the same team."""
        f, outer = self.f, self.kernel.outer
        with f.loop(team, I64(groups.groups), teams) as group, f.loop(I64(0), I64(groups.rows)) as number:
            places: dict[int, IRValue] = {}
            for axes, at in ((groups.kept, group), (groups.reduced, number)):
                places |= zip(axes, split(f, at, tuple(outer[axis] for axis in axes)), strict=True)
            self.row = [places[axis] for axis in range(len(outer))]
            sums.begins = f.compare("icmp eq", number, I64(0))
            self._sweep(sums, member)

    def meet(self) -> None:
        """The threads of a team wait for each other."""
        if self.block is not None:
            self.block.meet()
        elif self.width > 1:
            self.threads.warp_barrier(self.f)

    def _reduced(self, op: str, value: IRValue) -> IRValue:
        """The reduction of the values of a team, in each of its threads."""
        if self.block is not None:
            return self.block.combined(op, value)
        return self.threads.reduce_warp(self.f, op, value) if self.width > 1 else value

    def _by_columns(self, sums: ColumnSums) -> None:
        f, kernel, threads = self.f, self.kernel, self.threads
        outer = kernel.outer
        rooms = Sums(self, sums.parts)
        with f.loop(threads.number(f), I64(sums.parts * sums.columns), threads.total) as at:
            part, here = split(f, at, (sums.parts, sums.columns))
            *kept, column = split(f, here, (*(outer[axis] for axis in sums.kept), kernel.inner))
            totals = {n: f.slot(i.dtype) for n, i in enumerate(self.code) if i.kind == "accumulate"}
            for n, slot in totals.items():
                f.write(identity(self.code[n].op, self.code[n].dtype), slot)
            leads = f.compare("icmp eq", column, I64(0))
            with f.loop(part, I64(sums.rows), sums.parts) as number:
                reduced = split(f, number, tuple(outer[axis] for axis in sums.reduced))
                found = {**dict(zip(sums.kept, kept, strict=True)), **dict(zip(sums.reduced, reduced, strict=True))}
                self.row = [found[axis] for axis in range(len(outer))]
                self.values = {}
                for n in in_order(self.each, range(len(self.code))):
                    if n in totals:
                        value = combine(
                            f, self.code[n].op, f.read(totals[n], self.code[n].dtype), self._argument(n, {})
                        )
                        f.write(value, totals[n])
                    else:
                        self._one(n, self.values, column, leads)
            for n, slot in totals.items():
                rooms.put(n, part, column, f.read(slot, self.code[n].dtype))
        if sums.parts > 1:
            threads.barrier(f)
            rooms.finish()

    def _begin_row(self, row: IRValue) -> None:
        self.row = split(self.f, row, self.kernel.outer)
        self.flat = self.f.binary("sub", row, self.first) if self.inside else row

    def _sweep(self, sums: Sums, lane: IRValue) -> None:
        """All sweeps over a row by one team. lane: the number of this thread in it."""
        f, code = self.f, self.code
        self.values = {}
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
                with f.loop(start, self.columns[1], self.width) as column:
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
                total = self._reduced(code[n].op, f.read(slot, code[n].dtype))
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
