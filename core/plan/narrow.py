"""Divide the work of two row kernels so that the first one stores the fewest bytes for the second one.

A row kernel after a product also computes values for later kernels, as soon as it has their operand. For gelu it stores
the result, and three arrays for the adjoint. The adjoint can compute one of them from its operand, and half of the
operand as well: two arrays remain.

A value moves to the second kernel if the first one does not need it. Both compute the cheap ones. The division with the
fewest bytes is a least cut through the graph of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from core.ir.precision import HALVES
from core.ir.stop import poll
from core.ops.common.types import as_dtype
from core.plan.epilogue import TOGETHER
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.least_cut import Flow
from core.plan.memory import Root, View
from core.plan.repeated import CHEAP, MOST
from core.plan.row_kernels import Operand, RowInstruction
from core.plan.unread import part_that_writes

__all__ = ["narrowed"]

PRODUCTS = frozenset({"mul", "scale", "square"})
SUMS = frozenset({"add", "mean", "scale", "sub", "sum"})
"""A processor adds a product before it rounds it. So a product and the sum that reads it stay in one kernel, or apart.
"""

UNMOVED = frozenset({"draw"})
"""Ops that depend on the kernel that they are in."""

LEAST_BYTES = 1 << 15
"""Fewest bytes between two kernels whose work is divided anew: less stays in a core's cache."""

WIDE = 1 << 30
"""More bytes than any value has."""


def narrowed(instructions: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """`instructions` with fewer bytes between row kernels."""
    found = list(instructions)
    touching: dict[Root, list[int]] = {}
    writing: dict[Root, list[int]] = {}
    for at, each in enumerate(found):
        poll()
        written = dict.fromkeys(each.writes())  # not sets: their order would change the text of the code
        for root in dict.fromkeys(each.reads()) | written:
            touching.setdefault(root, []).append(at)
        for root in written:
            writing.setdefault(root, []).append(at)
    between: dict[tuple[int, int], list[Root]] = {}
    for root, both in touching.items():
        if root.place == "arena" and len(both) == 2:
            between.setdefault((both[0], both[1]), []).append(root)
    for (at, later), roots in between.items():
        poll()
        if sum(root.nbytes for root in roots) < LEAST_BYTES:
            continue
        exact = isinstance(found[at], Gemm) or isinstance(found[later], Gemm)
        first, second = _rows_of(found[at]), _rows_of(found[later])

        def stays(root: Root, at: int = at, later: int = later) -> bool:
            """Whether an array is in memory from one kernel to the other in any case."""
            if root.place not in ("given", "arena", "constant") or type(found[at]) is not type(found[later]):
                return False
            if root not in touching or (root.place == "arena" and touching[root][-1] < later):
                return False
            return not any(at <= i <= later for i in writing.get(root, ()))

        made = first and second and _divided(first, second, roots, exact, stays)
        if made:
            found[at], found[later] = _with(found[at], made[0]), _with(found[later], made[1])
    return tuple(found)


def _rows_of(each: Instruction) -> Rows | None:
    return each.then if isinstance(each, Gemm) else each if isinstance(each, Rows) else None


def _with(each: Instruction, rows: Rows) -> Instruction:
    return replace(each, then=rows) if isinstance(each, Gemm) else rows


def _divided(
    first: Rows, second: Rows, roots: Collection[Root], exact: bool, stays: Callable[[Root], bool]
) -> tuple[Rows, Rows] | None:
    """Both kernels with fewer bytes between them; None if there is no better way.

    roots: the arrays that `first` writes, `second` reads, and nothing else touches. exact: whether not only the root
    and the offset of a view count. stays: whether an array that `first` reads is there in any case.
    """
    ours, theirs = first.kernel, second.kernel
    if (ours.outer, ours.inner) != (theirs.outer, theirs.inner) or ours.merged or theirs.merged:
        return None
    if any(i.kind not in TOGETHER for i in theirs.code):
        return None
    stores = _uses(first, roots, "store")
    loads = _uses(second, roots, "load")
    paths = {}
    for root in stores.keys() & loads.keys():
        path = _path(first, ours.code[stores[root]].operand, exact)
        if path == _path(second, theirs.code[loads[root]].operand, exact):
            paths[root] = path
    if len(set(paths.values())) != 1:
        return None
    wanted = {root: ours.code[stores[root]].args[0] for root in roots if root in paths}
    if len({*wanted.values()}) != len(wanted):
        return None
    cut = _Cut(first, second, wanted, stays)
    values = cut.least()
    if values is None:
        return None
    example = next(iter(wanted))
    size = as_dtype(ours.code[wanted[example]].dtype).itemsize
    kept = {number: root for root, number in wanted.items() if number in values}
    there = {
        n: (first.views[ours.code[n].operand], ours.operands[ours.code[n].operand]) for n in values if n in cut.there
    }
    memory = {
        n: kept[n] if n in kept else Root(example.nbytes // size * as_dtype(ours.code[n].dtype).itemsize)
        for n in values
        if n not in there
    }
    operand = ours.code[stores[example]].operand
    arrays = {
        n: (
            replace(first.views[operand], root=root, dtype=ours.code[n].dtype),
            replace(ours.operands[operand], dtype=ours.code[n].dtype),
        )
        for n, root in memory.items()
    }
    more = {n: array for n, array in arrays.items() if n not in kept}
    places = {loads[root]: number for root, number in wanted.items()}
    return (
        _storing(first, {*wanted} - {*memory.values()}, more),
        _computing(second, first, places, arrays | there, cut.moved(values)),
    )


def _uses(rows: Rows, roots: Collection[Root], kind: str) -> dict[Root, int]:
    """For each of these roots that one instruction of this kind uses, and no other, its position."""
    found: dict[Root, list[int]] = {}
    for at, instr in enumerate(rows.kernel.code):
        if instr.operand >= 0 and rows.views[instr.operand].root in roots:
            found.setdefault(rows.views[instr.operand].root, []).append(at)
    alone = {root: places[0] for root, places in found.items() if len(places) == 1}
    return {root: at for root, at in alone.items() if rows.kernel.code[at].kind == kind and rows.kernel.code[at].full}


def _path(rows: Rows, operand: int, exact: bool) -> tuple[object, ...]:
    """Where an array lies under the rows of a kernel, whatever its dtype."""
    view, own = rows.views[operand], rows.kernel.operands[operand]
    return (view.offset, own.outer, own.inner, *((view.shape, view.strides) if exact else ()))


def _storing(first: Rows, left: set[Root], more: Mapping[int, tuple[View, Operand]]) -> Rows:
    """`first` without the stores to `left`, and with stores of further values."""
    kernel = first.kernel
    code = list(kernel.code)
    operands, views = list(kernel.operands), list(first.views)
    for number, (view, operand) in more.items():
        code.append(RowInstruction("store", code[number].dtype, True, (number,), operand=len(operands)))
        operands.append(replace(operand, written=True))
        views.append(view)
    whole = replace(first, kernel=replace(kernel, code=tuple(code), operands=tuple(operands)), views=tuple(views))
    return part_that_writes(whole, {*whole.writes()} - left)


def _computing(
    second: Rows,
    first: Rows,
    loads: Mapping[int, int],
    arrays: Mapping[int, tuple[View, Operand]],
    moved: Sequence[int],
) -> Rows:
    """`second` with values of `first` from other arrays, and with those that it computes itself.

    loads: its loads of values of `first`, and these. arrays: of values. moved: those that it computes, in order.
    """
    ours, kernel = first.kernel.code, second.kernel
    operands, views, code = list(kernel.operands), list(second.views), list[RowInstruction]()
    made: dict[int, int] = {}
    for number, (view, operand) in arrays.items():
        made[number] = len(code)
        code.append(RowInstruction("load", ours[number].dtype, True, operand=len(operands)))
        operands.append(replace(operand, written=False))
        views.append(view)
    for number in moved:
        made[number] = len(code)
        code.append(replace(ours[number], args=tuple(made[a] for a in ours[number].args)))
    place: dict[int, int] = {}
    for at, instr in enumerate(kernel.code):
        if at in loads:
            place[at] = made[loads[at]]
            continue
        place[at] = len(code)
        code.append(replace(instr, args=tuple(place[a] for a in instr.args)))
    ops = (*(ours[n].op for n in moved if ours[n].kind == "apply"), *second.ops)
    kernel = replace(kernel, operands=tuple(operands), code=tuple(code))
    whole = replace(second, kernel=kernel, views=tuple(views), ops=ops)
    return part_that_writes(whole, {*whole.writes()})


class _Cut:
    """The values of `first` that `second` needs, and those that these are computed from.

    wanted: array -> the value in it.
    there:  the values that `first` loads from arrays that stay.
    """

    def __init__(self, first: Rows, second: Rows, wanted: Mapping[Root, int], stays: Callable[[Root], bool]) -> None:
        self.code, self.wanted = first.kernel.code, [*wanted.values()]
        loaded = ((n, first.views[i.operand].root) for n, i in enumerate(self.code) if i.kind == "load")
        self.there = {n for n, root in loaded if stays(root)}
        own = {*wanted}
        self._needed = self._behind(
            at
            for at, instr in enumerate(self.code)
            if instr.kind in ("store", "accumulate", "check") and first.views[instr.operand].root not in own
        )
        self._summed = self._read_by_sums(second, wanted)
        self.graph = sorted(self._behind(self.wanted))

    def _behind(self, ends: Iterable[int]) -> set[int]:
        found = set(ends)
        for at in reversed(range(len(self.code))):
            if at in found:
                found.update(self.code[at].args)
        return found

    def _read_by_sums(self, second: Rows, wanted: Mapping[Root, int]) -> set[int]:
        """The wanted values that a sum of `second` reads."""
        code = second.kernel.code
        loads = {
            at: wanted[second.views[i.operand].root]
            for at, i in enumerate(code)
            if i.kind == "load" and second.views[i.operand].root in wanted
        }
        return {loads[a] for instr in code if instr.op in SUMS for a in instr.args if a in loads}

    def _may_move(self, number: int) -> bool:
        """Whether `second` may compute a value, with the same bits."""
        instr = self.code[number]
        if instr.kind != "apply" or instr.op in UNMOVED or not instr.full or instr.dtype in HALVES:
            return False
        if instr.op in PRODUCTS and number in self._summed:
            return False
        if instr.op in SUMS and any(self.code[a].op in PRODUCTS for a in instr.args):
            return False
        return number not in self._needed or instr.op in CHEAP

    def least(self) -> list[int] | None:
        """The values to store, in order; None if these are no fewer bytes than now, or one must stay there."""
        inside = [n for n in self.graph if self.code[n].kind != "constant"]
        if not {*self.wanted} <= {*inside}:  # a stored constant
            return None
        if any(not self.code[n].full or self.code[n].dtype in HALVES for n in inside):
            return None
        size = {n: 0 if n in self.there else as_dtype(self.code[n].dtype).itemsize for n in inside}
        flow = Flow()
        for n in inside:
            flow.edge((n, 0), (n, 1), size[n])
            if not self._may_move(n):
                flow.edge("source", (n, 0), WIDE)
            for a in self.code[n].args:
                if a in size:
                    flow.edge((a, 1), (n, 0), WIDE)
        for n in self.wanted:
            flow.edge((n, 1), "sink", WIDE)
        reached = flow.least_cut("source", "sink")
        found = [n for n in inside if (n, 0) in reached and (n, 1) not in reached]
        moved = self.moved(found)
        repeated = sum(n in self._needed and self.code[n].kind == "apply" for n in moved)
        if sum(size[n] for n in found) >= sum(size[n] for n in self.wanted) or repeated > MOST:
            return None
        return found

    def moved(self, values: Collection[int]) -> list[int]:
        """The values that `second` computes if it has some others in memory, in order."""
        found, waiting = set[int](), [n for n in self.wanted if n not in values]
        while waiting:
            n = waiting.pop()
            if n not in found and n not in values:
                found.add(n)
                waiting += self.code[n].args
        return sorted(found)
