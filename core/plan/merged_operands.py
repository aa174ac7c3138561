"""Merged rows that one row kernel reads: it adds them up itself, and the sums reach no memory.

Most rows of a table are looked up once in a step, if at all: their sum is the one row, where it is.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from core.ir.precision import HALVES
from core.ir.stop import poll
from core.plan.data import Instruction, Kernel, MergedOperand, Operand, Root, Rows
from core.plan.merge_specs import MergedRows

__all__ = ["merge_in_readers"]


def merge_in_readers(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without the merges of rows whose sums only one row kernel reads, a row at a time.

    kept: roots that instructions around these touch.
    """
    if not any(isinstance(each, Kernel) and isinstance(each.spec, MergedRows) for each in instructions):
        return tuple(instructions)
    touching: dict[Root, list[int]] = {}
    for at, each in enumerate(instructions):
        poll()
        for root in {*each.reads(), *each.writes()}:
            touching.setdefault(root, []).append(at)
    made = list[Instruction | None](instructions)
    for at, merge in enumerate(instructions):
        if not isinstance(merge, Kernel) or not isinstance(merge.spec, MergedRows) or merge.spec.dtype in HALVES:
            continue
        *given, sums = merge.views
        readers = [i for i in touching[sums.root] if i != at]
        reader = made[readers[0]] if len(readers) == 1 and readers[0] > at else None
        if not isinstance(reader, Rows) or sums.root.place != "arena" or sums.root in kept:
            continue
        late = {root for each in instructions[at + 1 : readers[0] + 1] for root in each.writes()}
        if late.isdisjoint(view.root for view in given) and (found := _merged(reader, merge, merge.spec)):
            made[readers[0]], made[at] = found, None
    return tuple(each for each in made if each is not None)


def _merged(rows: Rows, merge: Kernel, spec: MergedRows) -> Rows | None:
    """`rows` with the sums of `merge` as an operand; None unless it reads them as they are."""
    x, order, starts, sums = merge.views
    kernel = rows.kernel
    operands = [n for n, view in enumerate(rows.views) if view.root == sums.root]
    if (kernel.outer, kernel.inner) != ((spec.room,), spec.inner) or len(operands) != 1:
        return None
    (n,) = operands
    own = Operand(spec.dtype, (spec.inner,), 1)
    uses = [instr for instr in kernel.code if instr.operand == n]
    if kernel.operands[n] != own or rows.views[n].offset != sums.offset:
        return None
    if any(instr.kind != "load" or not instr.full for instr in uses):
        return None
    more = (Operand("int32", (0,), 0), Operand("int32", (1,), 0))
    changed = [*kernel.operands[:n], replace(own, outer=(0,)), *kernel.operands[n + 1 :], *more]
    found = MergedOperand(n, len(kernel.operands), len(kernel.operands) + 1, spec.count)
    views = [*rows.views[:n], x, *rows.views[n + 1 :], order, starts]
    kernel = replace(kernel, operands=tuple(changed), merged=(*kernel.merged, found))
    return replace(rows, kernel=kernel, views=tuple(views), ops=("merge_rows", *rows.ops))
