"""Merged rows that one row kernel reads: it adds them up itself, and the sums reach no memory.

Most rows of a table are looked up once in a step, if at all: their sum is the one row, where it is.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from core.ir.precision import HALVES
from core.plan.instructions import Instruction, Kernel, Rows
from core.plan.memory import Root
from core.plan.merge_specs import MergedRows
from core.plan.row_kernels import MergedOperand, Operand
from core.plan.sole_readers import Offer, into_readers

__all__ = ["merge_in_readers"]


def merge_in_readers(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without the merges of rows whose sums only one row kernel reads, a row at a time.

    kept: roots that instructions around these touch.
    """
    return into_readers(instructions, kept, _offered, _joined)


def _offered(each: Instruction) -> Offer | None:
    if isinstance(each, Kernel) and isinstance(each.spec, MergedRows) and each.spec.dtype not in HALVES:
        return each.views[:-1], each.views[-1]
    return None


def _joined(merge: Instruction, reader: Instruction) -> Instruction | None:
    """The row kernel with the sums of `merge` as an operand; None unless it reads them as they are."""
    assert isinstance(merge, Kernel) and isinstance(merge.spec, MergedRows)
    if not isinstance(reader, Rows):
        return None
    (x, order, starts, sums), spec, kernel = merge.views, merge.spec, reader.kernel
    operands = [n for n, view in enumerate(reader.views) if view.root == sums.root]
    if (kernel.outer, kernel.inner) != ((spec.room,), spec.inner) or len(operands) != 1:
        return None
    (n,) = operands
    own = Operand(spec.dtype, (spec.inner,), 1)
    uses = [instr for instr in kernel.code if instr.operand == n]
    if kernel.operands[n] != own or reader.views[n].offset != sums.offset:
        return None
    if any(instr.kind != "load" or not instr.full for instr in uses):
        return None
    more = (Operand("int32", (0,), 0), Operand("int32", (1,), 0))
    changed = [*kernel.operands[:n], replace(own, outer=(0,)), *kernel.operands[n + 1 :], *more]
    found = MergedOperand(n, len(kernel.operands), len(kernel.operands) + 1, spec.count)
    views = [*reader.views[:n], x, *reader.views[n + 1 :], order, starts]
    kernel = replace(kernel, operands=tuple(changed), merged=(*kernel.merged, found))
    return replace(reader, kernel=kernel, views=tuple(views), ops=("merge_rows", *reader.ops))
