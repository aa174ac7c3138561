"""Row kernels on many threads: a thread for each element, or a team for each row if elements of a row are reduced. A
team is a warp, a block where rows are few and long, or a thread where they are many and short.

Sums over rows, unless a thread can have a column (`column_sums`), have stages, each in a fixed order: a team adds up
its rows in scratch memory of its own, then threads add up what some of the teams have for one element, and then others
add up these sums. So the bits do not depend on the order of threads. The later stages are behind barriers of all
threads, or in a launch of their own (`sums_kernel`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from core.codegen.checks import fail
from core.codegen.draws import DRAWS
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.reductions import combine, identity, repeated
from core.codegen.scalar import apply
from core.codegen.sweeps import sweeps
from core.device.blocks import Block
from core.device.column_sums import ColumnSums, column_sums
from core.device.present_row import PresentRow
from core.device.row_sums import Sums
from core.device.row_teams import RowGroups, added_up, at_once, columns_of, early_loads, groups_of, teams_of, width_of
from core.device.threads import WARP, Threads, block_number, flat_offset, in_bundles, split
from core.plan.instructions import Rows
from core.plan.row_kernels import RowInstruction

__all__ = ["RowWriter", "form_of", "in_order", "row_kernel", "sums_kernel"]


def row_kernel(
    name: str, each: Rows, threads: Threads, fresh: bool = True, part: bool = False, inside: Collection[int] = (),
    window: bool = False, apart: bool = False,
) -> Function:  # fmt: skip
    """``name(operands..., scratch[, first, end][, first_column, end_column])`` for all threads.

    scratch: `sums_room` bytes.
    fresh:  whether results of reductions over rows start with nothing; if not, with what they contain.
    part:   whether it takes the rows from `first` to `end` only.
    inside: operands that hold these rows only, one after another.
    window: whether it takes the elements of rows from `first_column` to `end_column` only.
    apart:  whether `sums_kernel` adds up what teams have.
    """
    operands = [(f"p{i}", "ptr") for i in range(len(each.kernel.operands))]
    range_of = [("first", "int64"), ("end", "int64")] if part else []
    range_of += [("first_column", "int64"), ("end_column", "int64")] if window else []
    f = Function(name, [*operands, ("scratch", "ptr"), *range_of], noalias=False)
    RowWriter(f, each, threads, fresh, inside, apart).write()
    return f


def sums_kernel(name: str, each: Rows, threads: Threads, first: Threads) -> Function:
    """``name(operands..., scratch)``: add up what the teams of a row kernel have, which ran `apart` on `first`."""
    f = Function(
        name, [*((f"p{i}", "ptr") for i in range(len(each.kernel.operands))), ("scratch", "ptr")], noalias=False
    )
    Sums(RowWriter(f, each, threads), added_up(each, first)).finish_apart()
    return f


def form_of(each: Rows) -> tuple[object, ...]:
    """The form of a row kernel. Kernels of equal form share one function on the same threads.

    It has the kernel, the shapes of the arrays, and which of them are the same array: that decides where stores stand
    (`in_order`).
    """
    roots = [view.root for view in each.views]
    return (each.kernel, *(v.shape for v in each.views), *map(roots.index, roots))


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


@dataclass(frozen=True, slots=True)
class _Place:
    """One element. row, flat: see `PresentRow`. leads: whether its thread speaks for the row. values: known ones."""

    row: list[IRValue]
    flat: IRValue
    column: IRValue
    leads: IRValue
    values: dict[int, IRValue]


class RowWriter(PresentRow):
    """Writes one row kernel."""

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

        def write(positions: list[IRValue]) -> None:
            places = []
            for at in positions:
                row, column = split(f, at, (kernel.rows, kernel.inner))
                self.begin_row(row)
                places.append(self._place(column))
            for place in self._loaded(places):
                for n in in_order(self.each, range(len(self.code))):
                    if n not in self.values:
                        self._one(n, self.values, place.column, place.leads)

        size, total = kernel.rows * kernel.inner, self.threads.total
        count = 1 if self.part else at_once(self.each, range(len(self.code)), -(-size // total))
        in_bundles(f, start, end, total, count, write, size % (total * count) == 0)

    def _place(self, column: IRValue) -> _Place:
        """The element of the present row at `column`."""
        return _Place(self.row, self.flat, column, self.f.compare("icmp eq", column, I64(0)), {})

    def _loaded(self, places: list[_Place]) -> Iterator[_Place]:
        """Each place as the present one, with values of its own: what can be loaded for all of them before."""
        early = early_loads(self.each, range(len(self.code))) if len(places) > 1 else []
        for place in places:
            self.row, self.flat, self.values = place.row, place.flat, place.values
            for n in early:
                self._one(n, self.values, place.column, place.leads)
        for place in places:
            self.row, self.flat, self.values = place.row, place.flat, place.values
            yield place

    def _by_teams(self) -> None:
        f, threads = self.f, self.threads
        self.width, groups = width_of(self.each, threads), groups_of(self.each, threads, self.part)
        self.columns_each = 0 if self.window else columns_of(self.each, self.width)
        number = threads.number(f)
        if self.width == 1:
            member = I64(0)
        elif self.width == WARP:
            member, number = threads.lane(f), f.op(f"udiv {number}, {WARP}", "int64")
        else:
            self.block = Block(f, threads)
            member, number = self.block.number, block_number(f, threads)
        teams = teams_of(self.each, threads, self.part)
        sums = Sums(self, added_up(self.each, threads, self.part), frozenset() if groups is None else groups.sums)
        with f.when(f.compare("icmp slt", number, I64(teams))):
            sums.start(number, member)
            if groups is not None:
                self._by_groups(groups, teams, number, member, sums)
            else:
                start = f.binary("add", self.first, number) if self.part else number
                with f.loop(start, self.end, teams) as row:
                    self.begin_row(row)
                    self._sweep(sums, member)
            sums.end(number, member)
        sums.pool(teams)
        if sums.teams and not self.apart:
            threads.barrier(f)
            sums.finish()

    def _by_groups(self, groups: RowGroups, teams: int, team: IRValue, member: IRValue, sums: Sums) -> None:
        """The rows of one group after the other, by the same team."""
        f, outer = self.f, self.kernel.outer
        with f.loop(team, I64(groups.groups), teams) as group:
            sums.start_group()
            places = dict(zip(groups.kept, split(f, group, tuple(outer[axis] for axis in groups.kept)), strict=True))
            with f.loop(I64(0), I64(groups.rows)) as number:
                reduced = split(f, number, tuple(outer[axis] for axis in groups.reduced))
                found = {**places, **dict(zip(groups.reduced, reduced, strict=True))}
                self.row = [found[axis] for axis in range(len(outer))]
                sums.begins = f.compare("icmp eq", number, I64(0))
                self._sweep(sums, member)
            self.row = [places.get(axis, I64(0)) for axis in range(len(outer))]
            sums.end_group(member)

    def _by_columns(self, sums: ColumnSums) -> None:
        f, kernel, threads = self.f, self.kernel, self.threads
        outer = kernel.outer
        rooms = Sums(self, added_up(self.each, threads))
        slots = {n: f.slot(i.dtype) for n, i in enumerate(self.code) if i.kind == "accumulate"}
        totals = [n for n in slots if rooms.is_total(n)]
        columnwise = [n for n in slots if n not in totals]
        for n in totals:
            f.write(identity(self.code[n].op, self.code[n].dtype), slots[n])
        with f.loop(threads.number(f), I64(sums.parts * sums.columns), threads.total) as at:
            part, here = split(f, at, (sums.parts, sums.columns))
            *kept, column = split(f, here, (*(outer[axis] for axis in sums.kept), kernel.inner))
            for n in columnwise:
                f.write(identity(self.code[n].op, self.code[n].dtype), slots[n])
            kept_places = dict(zip(sums.kept, kept, strict=True))

            def write(
                numbers: list[IRValue], column: IRValue = column, kept: Mapping[int, IRValue] = kept_places
            ) -> None:
                places = []
                for number in numbers:
                    reduced = split(f, number, tuple(outer[axis] for axis in sums.reduced))
                    found = {**kept, **dict(zip(sums.reduced, reduced, strict=True))}
                    self.row = [found[axis] for axis in range(len(outer))]
                    places.append(self._place(column))
                for place in self._loaded(places):
                    for n in in_order(self.each, range(len(self.code))):
                        if n in slots:
                            sofar = f.read(slots[n], self.code[n].dtype)
                            f.write(combine(f, self.code[n].op, sofar, self._argument(n, {})), slots[n])
                        elif n not in self.values:
                            self._one(n, self.values, column, place.leads)

            count = at_once(self.each, range(len(self.code)), -(-sums.rows // sums.parts))
            whole = sums.rows % (sums.parts * count) == 0
            in_bundles(f, part, I64(sums.rows), sums.parts, count, write, whole)
            for n in columnwise:
                rooms.put(n, part, column, f.read(slots[n], self.code[n].dtype))
        for n in totals:
            self._put_total(rooms, n, f.read(slots[n], self.code[n].dtype), sums.warps)
        if rooms.teams and not self.apart:
            threads.barrier(f)
            rooms.finish()

    def _put_total(self, rooms: Sums, number: int, own: IRValue, warps: int) -> None:
        """Write what this warp has of a sum over the whole domain, of which each thread has `own`."""
        f, threads = self.f, self.threads
        total = threads.reduce_warp(f, self.code[number].op, own)
        warp = f.op(f"udiv {threads.number(f)}, {WARP}", "int64")
        leads = f.compare("icmp eq", threads.lane(f), I64(0))
        with f.when(f.binary("and", leads, f.compare("icmp slt", warp, I64(warps)))):
            self.row = [I64(0) for _ in self.kernel.outer]
            rooms.put(number, warp, I64(0), total)

    def _sweep(self, sums: Sums, lane: IRValue) -> None:
        """All sweeps over a row by one team. lane: the number of this thread in it."""
        f, code = self.f, self.code
        self.values = {}
        leads = f.compare("icmp eq", lane, I64(0))
        mades: list[dict[int, IRValue]] = [{} for _ in range(self.columns_each)]
        for sweep in sweeps(code, (), 1):
            for n in sweep.before:
                if code[n].kind == "accumulate":
                    value = self.values[code[n].args[0]]
                    value = repeated(f, code[n].op, value, self.kernel.inner) if code[n].value else value
                    if sums.stays(n):
                        sums.add(n, I64(0), f.select(leads, value, identity(code[n].op, code[n].dtype)))
                    else:
                        with f.when(leads):
                            sums.add(n, I64(0), value)
                else:
                    self._one(n, self.values, I64(0), leads)
            totals = {n: f.slot(code[n].dtype) for n in sweep.along if self._is_total(n, sums)}
            for n, slot in totals.items():
                f.write(identity(code[n].op, code[n].dtype), slot)
            early = early_loads(self.each, sweep.along)
            for place, made in enumerate(mades) if self.columns_each > 1 else ():
                if self.is_whole(place):
                    with self.column(place, lane) as column:
                        for n in early:
                            if n not in made:
                                self._one(n, made, column, leads)
            for place, made in enumerate(mades) if sweep.along else ():
                with self.column(place, lane) as column:
                    made = made if self.is_whole(place) else {}  # if all threads have it, they may keep values
                    self._along(sweep.along, made, sums, totals, column, place, leads)
            if sweep.along and not mades:
                self._along_loop(sweep.along, sums, totals, lane, leads)
            for n, slot in totals.items():
                total = self.reduced(code[n].op, f.read(slot, code[n].dtype))
                if code[n].kind == "reduce":
                    self.values[n] = total
                else:
                    with f.when(leads):
                        sums.add(n, I64(0), total)

    def _along_loop(
        self, along: tuple[int, ...], sums: Sums, totals: Mapping[int, IRValue], lane: IRValue, leads: IRValue
    ) -> None:
        """The instructions along a row at all columns of a thread, a few at a time."""
        f = self.f

        def write(columns: list[IRValue]) -> None:
            mades: list[dict[int, IRValue]] = [{} for _ in columns]
            for made, column in zip(mades, columns, strict=True) if len(columns) > 1 else ():
                for n in early_loads(self.each, along):
                    self._one(n, made, column, leads)
            for made, column in zip(mades, columns, strict=True):
                self._along(along, made, sums, totals, column, 0, leads)

        start = f.binary("add", self.columns[0], lane) if self.window else lane
        count = 1 if self.part else at_once(self.each, along, self.kernel.inner // self.width)
        whole = not self.window and self.kernel.inner % (self.width * count) == 0
        in_bundles(f, start, self.columns[1], self.width, count, write, whole)

    def _is_total(self, number: int, sums: Sums) -> bool:
        """Whether a team reduces the elements of each row to one number."""
        return self.code[number].kind == "reduce" or (sums.is_total(number) and not sums.stays(number))

    def _along(
        self, along: Iterable[int], made: dict[int, IRValue], sums: Sums, totals: Mapping[int, IRValue],
        column: IRValue, place: int, leads: IRValue,
    ) -> None:  # fmt: skip
        """The instructions along a row at one column. made: values of this column that are known, and receives more."""
        f, code = self.f, self.code
        for n in in_order(self.each, along):
            if n in made:
                continue
            value = self._argument(n, made)
            if n in totals:
                f.write(combine(f, code[n].op, f.read(totals[n], code[n].dtype), value), totals[n])
            elif code[n].kind == "accumulate":
                sums.add(n, column, value, 0 if sums.is_total(n) else place)
            else:
                self._one(n, made, column, leads)

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

    def _writes(self, instr: RowInstruction, column: IRValue, condition: IRValue) -> IRValue:
        """Whether this thread stores: of several rows or elements that would store the same number, the first."""
        f, operand, kernel = self.f, self.kernel.operands[instr.operand], self.kernel
        steps = zip(self.row, operand.outer, kernel.outer, strict=True)
        same = [at for at, stride, size in steps if not stride and size > 1]
        same += [column] if instr.full and not operand.inner and kernel.inner > 1 else []
        for at in same:
            condition = f.binary("and", condition, f.compare("icmp eq", at, I64(0)))
        return condition
