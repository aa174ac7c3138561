"""Rows that a merge computes where it adds them up, instead of reading them from memory (`MergedOperand.made`).

The gradient of a lookup has a row for each id, and nothing but the merge reads it, each row once. So the part of the
row kernel that writes it moves into the merge, and then the parts that write what only this one reads. A part that the
kernel needs for other results too is computed twice; it must cost less than its results cost in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

from core.ir.stop import poll
from core.plan.epilogue import roots_of
from core.plan.instructions import Instruction, Rows
from core.plan.memory import Root, View
from core.plan.repeated import CHEAP
from core.plan.row_kernels import MadeRows, MergedOperand, Operand, RowInstruction, RowKernel
from core.plan.shapes import reshaped_view
from core.plan.unread import part_that_writes

__all__ = ["make_in_merges"]

KINDS = frozenset(("apply", "constant", "iota", "load", "lookup"))
"""Instructions that need nothing but arrays and values at their own place."""

TWICE = CHEAP.union(("equal", "logical_and", "logical_not", "logical_or", "not_equal", "sign"))
"""Ops that may be computed twice. Lookups use some of them on their positions."""

MOST_TWICE = 12
"""Most instructions along a row that are computed twice."""

MOST = 64
"""Most instructions along the rows that a merge computes."""


def make_in_merges(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without the arrays that only merges inside of row kernels read, if these can compute their rows.

    kept: roots that instructions around these touch.
    """
    readers = [(at, each) for at, each in enumerate(instructions) if isinstance(each, Rows) and each.kernel.merged]
    if not readers:
        return tuple(instructions)
    places = _Places(instructions)
    for at, reader in readers:
        places.put(at, _Merges(places, at, reader, kept).made())
    return tuple(each for each in places.instructions if each is not None)


class _Places:
    """Instructions by their positions, and the positions that touch each root."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions: list[Instruction | None] = [*instructions]
        self.touching: dict[Root, set[int]] = {}
        for at, each in enumerate(instructions):
            for root in roots_of(each):
                self.touching.setdefault(root, set()).add(at)

    def put(self, at: int, changed: Instruction | None) -> None:
        """Replace the instruction at a position, or remove it."""
        for root in roots_of(self.instructions[at]):
            self.touching[root].discard(at)
        for root in roots_of(changed):
            self.touching[root].add(at)
        self.instructions[at] = changed


class _Merges:
    """The merges inside of the row kernel `reader`, which is at position `at` of `places`.

    rows: for each of them a row kernel whose last instruction is the value of the rows; at first it only loads them.
    """

    def __init__(self, places: _Places, at: int, reader: Rows, kept: Set[Root]) -> None:
        self.places, self.at, self.reader, self.kept = places, at, reader, kept
        self.rows = [_stored(reader, each) for each in reader.kernel.merged]
        stored = {each.x for each in reader.kernel.merged}
        self.others = {view.root for n, view in enumerate(reader.views) if n not in stored}

    def made(self) -> Rows:
        """`reader` with all parts of earlier row kernels that its merges can do; these lose them."""
        while self._moves():
            poll()
        reader = self.reader
        operands, views, merged, ops = [*reader.kernel.operands], [*reader.views], [], [*reader.ops]
        for each, rows in zip(reader.kernel.merged, self.rows, strict=True):
            if [i.kind for i in rows.kernel.code] == ["load"] and rows.views == (reader.views[each.x],):
                merged.append(each)
                continue
            views[each.x] = views[each.order]
            params = tuple(range(len(operands), len(operands) + len(rows.views)))
            operands += (replace(o, outer=(0,) * len(reader.kernel.outer), inner=0) for o in rows.kernel.operands)
            views += rows.views
            ops += rows.ops
            merged.append(replace(each, made=MadeRows(rows.kernel, params)))
        kernel = replace(reader.kernel, operands=tuple(operands), merged=tuple(merged))
        return replace(reader, kernel=kernel, views=tuple(views), ops=tuple(ops))

    def _moves(self) -> bool:
        """Move one part of an earlier row kernel here; False if there is none."""
        for number, rows in enumerate(self.rows):
            for n, instr in enumerate(rows.kernel.code):
                if instr.kind == "load" and (found := self._with_part(number, n)) is not None:
                    self.rows[number] = found
                    return True
        return False

    def _with_part(self, number: int, load: int) -> Rows | None:
        """The rows of merge `number` with the part that writes what their instruction `load` reads."""
        rows = self.rows[number]
        root = rows.views[rows.kernel.code[load].operand].root
        at = self._writer(root)
        if at is None:
            return None
        writer = self.places.instructions[at]
        assert isinstance(writer, Rows)
        part = _part(writer, root)
        if part is None or not self._may_move(part, at, writer):
            return None
        found = _joined(rows, load, part)
        if found is None or sum(i.full for i in found.kernel.code) > MOST:
            return None
        others = set(writer.writes()) - {root}
        results = {writer.views[i.operand].root for i in writer.kernel.code if i.kind in ("store", "accumulate")}
        if results != {root} and not _costs_little(part.kernel):
            return None
        self.places.put(at, part_that_writes(writer, others) if others else None)
        return found

    def _writer(self, root: Root) -> int | None:
        """The position of the row kernel that writes `root`, if one load here is all that reads it."""
        loads = [view.root for rows in self.rows for view in rows.views].count(root)
        if root.place != "arena" or root in self.kept or root in self.others or loads != 1:
            return None
        touching = [*self.places.touching[root] - {self.at}]
        if len(touching) != 1 or touching[0] > self.at:
            return None
        writer = self.places.instructions[touching[0]]
        return touching[0] if isinstance(writer, Rows) and not writer.kernel.merged else None

    def _may_move(self, part: Rows, at: int, writer: Rows) -> bool:
        """Whether all that `part` reads is still the same here."""
        read = {part.views[i.operand].root for i in part.kernel.code if i.kind in ("load", "lookup")}
        between = (each for each in self.places.instructions[at + 1 : self.at] if each is not None)
        written = {root for each in (writer, *between, self.reader) for root in each.writes()}
        return read.isdisjoint(written)


def _stored(reader: Rows, merge: MergedOperand) -> Rows:
    """The rows of an array in memory, as a row kernel."""
    dtype, inner = reader.kernel.operands[merge.x].dtype, reader.kernel.inner
    load = RowInstruction("load", dtype, full=inner > 1, operand=0)
    kernel = RowKernel((merge.count,), inner, (Operand(dtype, (inner,), 1),), (load,))
    return Rows(kernel, (reader.views[merge.x],))


def _part(writer: Rows, root: Root) -> Rows | None:
    """The part of a row kernel that stores to `root`, which ends with the store; None if it is no work on elements."""
    code = writer.kernel.code
    touching = [n for n, i in enumerate(code) if i.operand >= 0 and writer.views[i.operand].root is root]
    if len(touching) != 1 or code[touching[0]].kind != "store":
        return None
    part = part_that_writes(writer, {root})
    fine = all(i.kind in KINDS and i.op != "draw" for i in part.kernel.code[:-1])
    return part if fine else None


def _costs_little(part: RowKernel) -> bool:
    cheap = all(i.op in TWICE for i in part.code if i.kind == "apply")
    return cheap and sum(i.full for i in part.code) <= MOST_TWICE


def _joined(rows: Rows, load: int, part: Rows) -> Rows | None:
    """`rows` with the value that `part` stores in place of what the instruction `load` reads; None if its place among
    the rows differs."""
    inner = rows.kernel.inner
    outer = _axes(rows.kernel, part.kernel)
    whole, cut = (None, None) if outer is None else (_over(rows, outer, inner), _over(part, outer, inner))
    if outer is None or whole is None or cut is None:
        return None
    read, written = whole.kernel.code[load].operand, cut.kernel.code[-1].operand
    if _place(whole, read) != _place(cut, written):
        return None
    # The store is the last instruction of the part, and its array the last operand. The array of the load goes.
    *before, store = cut.kernel.code
    others = [n for n in range(len(whole.views)) if n != read]
    operands = [*cut.kernel.operands[:-1], *(whole.kernel.operands[n] for n in others)]
    views = (*cut.views[:-1], *(whole.views[n] for n in others))
    numbers = {n: len(cut.views) - 1 + i for i, n in enumerate(others)}
    code, places = before, dict[int, int]()
    for n, instr in enumerate(whole.kernel.code):
        places[n] = store.args[0] if n == load else len(code)
        if n != load:
            args = tuple(places[a] for a in instr.args)
            code.append(replace(instr, args=args, operand=numbers.get(instr.operand, -1)))
    kernel = RowKernel(outer, inner, tuple(operands), _with_full(code, operands, inner))
    return Rows(kernel, views, (*cut.ops, *whole.ops))


def _axes(rows: RowKernel, part: RowKernel) -> tuple[int, ...] | None:
    """The axes of the rows, so fine that those of `part` are several of them each; None if that is impossible."""
    sizes = [math.prod(each.outer[i:]) * each.inner for each in (rows, part) for i in range(len(each.outer) + 1)]
    steps = sorted({n for n in sizes if n >= rows.inner})
    if sizes[0] != part.rows * part.inner or any(n % m for m, n in pairwise(steps)):
        return None
    return tuple(n // m for m, n in reversed([*pairwise(steps)]))


def _place(rows: Rows, operand: int) -> tuple[Root, int, Operand]:
    return rows.views[operand].root, rows.views[operand].offset, replace(rows.kernel.operands[operand], written=False)


def _over(rows: Rows, outer: tuple[int, ...], inner: int) -> Rows | None:
    """The row kernel `rows` over another domain of as many elements; None if an array has no strides there."""
    kernel, sizes, wanted = rows.kernel, (*rows.kernel.outer, rows.kernel.inner), (*outer, inner)
    if sizes == wanted:
        return rows

    def along(strides: Sequence[int]) -> tuple[int, ...] | None:
        found = reshaped_view(View(Root(0, "none"), "int64", sizes, tuple(strides)), wanted)
        return None if found is None else found.strides

    operands = []
    for each in kernel.operands:
        strides = along((*each.outer, each.inner))
        if strides is None:
            return None
        operands.append(replace(each, outer=strides[:-1], inner=strides[-1]))
    code = []
    for instr in kernel.code:
        if instr.kind == "iota":
            attrs = dict(instr.attrs)
            strides = along((*attrs["outer"], attrs["inner"]))
            if strides is None:
                return None
            instr = replace(instr, attrs=(("outer", strides[:-1]), ("inner", strides[-1])))
        code.append(instr)
    made = replace(kernel, outer=outer, inner=inner, operands=tuple(operands), code=_with_full(code, operands, inner))
    return replace(rows, kernel=made)


def _with_full(code: Sequence[RowInstruction], operands: Sequence[Operand], inner: int) -> tuple[RowInstruction, ...]:
    """The instructions with `full` as it is for rows of `inner` elements with these strides."""
    found: list[RowInstruction] = []
    for instr in code:
        along = dict(instr.attrs)["inner"] if instr.kind == "iota" else 0
        if instr.operand >= 0:
            along = operands[instr.operand].inner
        wide = any(found[a].full for a in instr.args) or along != 0
        found.append(replace(instr, full=wide and inner > 1))
    return tuple(found)
