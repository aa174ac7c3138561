"""Sums over rows, column by column: a thread keeps the sum of its column in a register while it goes down the rows.

If columns are few, several threads share the rows of a column, and their sums are added up. A sum over the whole domain
goes along: each thread has a part of it in a register, and each warp adds up those of its threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.device.threads import WARP, Threads
from core.plan.instructions import Rows
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["FEW_ROWS", "ColumnSums", "column_sums", "is_own", "is_total", "reduced_axes"]

FEW_ROWS = 24
"""Rows of a column up to which one thread adds them up. It waits for memory once for four rows, so by `Rules.load_wait`
that takes less time than a second launch, which would add up the parts of several threads.
"""

ADDERS = 16
"""Threads that add up the parts of one column, about: each has as many parts as each part has rows."""


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The order in which threads go through the domain of a row kernel.

    kept, reduced: axes of the rows: those that the results have, and the others.
    columns:       threads that one part of the rows has, one for each element of the results.
    rows:          of each column. parts: threads that share them. warps: those that have something to do.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    columns: int
    rows: int
    parts: int
    warps: int


def is_own(kernel: RowKernel, instr: RowInstruction) -> bool:
    """Whether each row is reduced to an element of its own, so that no other row adds to it."""
    operand = kernel.operands[instr.operand]
    return not operand.inner and all(s or n == 1 for n, s in zip(kernel.outer, operand.outer, strict=True))


def is_total(kernel: RowKernel, instr: RowInstruction) -> bool:
    """Whether all elements of the domain are reduced to one number."""
    operand = kernel.operands[instr.operand]
    return not operand.inner and all(n == 1 or not s for n, s in zip(kernel.outer, operand.outer, strict=True))


def column_sums(each: Rows, threads: Threads) -> ColumnSums | None:
    """None if the kernel also reduces rows, or if its sums are over different axes of the rows."""
    kernel = each.kernel
    sums = [i for i in kernel.code if i.kind == "accumulate"]
    if not sums or any(i.kind == "reduce" and kernel.code[i.args[0]].full for i in kernel.code):
        return None
    columnwise = [i for i in sums if kernel.operands[i.operand].inner]
    others = (i for i in sums if not kernel.operands[i.operand].inner)
    if any(not kernel.code[i.args[0]].full for i in sums) or not all(is_total(kernel, i) for i in others):
        return None
    whole = tuple(axis for axis, n in enumerate(kernel.outer) if n > 1)
    found = {reduced_axes(kernel, i) for i in columnwise} or {whole}
    if len(found) != 1:
        return None
    (reduced,) = found
    kept = tuple(axis for axis in range(len(kernel.outer)) if axis not in reduced)
    columns = math.prod(kernel.outer[axis] for axis in kept) * kernel.inner
    rows = math.prod(kernel.outer[axis] for axis in reduced)
    if any(math.prod(each.views[i.operand].shape) != columns for i in columnwise):
        return None
    parts = max(1, min(threads.total // columns, rows))
    if columnwise and rows <= FEW_ROWS:
        parts = 1
    elif columnwise:
        parts = min(parts, 1 << ((ADDERS * rows - 1).bit_length() + 1) // 2)  # about the square root
    return ColumnSums(kept, reduced, columns, rows, parts, min(threads.warps, -(-parts * columns // WARP)))


def reduced_axes(kernel: RowKernel, instr: RowInstruction) -> tuple[int, ...]:
    """The axes of rows along which all rows add to the same elements."""
    strides = kernel.operands[instr.operand].outer
    return tuple(axis for axis, (n, s) in enumerate(zip(kernel.outer, strides, strict=True)) if n > 1 and not s)
