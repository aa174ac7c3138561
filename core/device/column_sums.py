"""Sums over rows of which each thread has one column: the sum stays in a register while the thread goes down the rows.

Several threads share the rows of a column where columns are few; then others add up what these have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.device.threads import Threads
from core.plan.data import Instr, RowKernel, Rows

__all__ = ["ColumnSums", "RowGroups", "column_sums", "is_own", "row_groups"]

FEWEST_GROUPS = 64
"""Groups of rows from which on a team of its own for each is faster than sums of all results for each team."""


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The order in which threads go through the domain of a row kernel.

    kept, reduced: axes of the rows: those that the results have, and the others.
    columns:       threads that one part of the rows has, one for each element of the results.
    rows:          of each column. parts: threads that share them.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    columns: int
    rows: int
    parts: int


def is_own(kernel: RowKernel, instr: Instr) -> bool:
    """Whether each row is reduced to an element of its own, so that no other row adds to it."""
    operand = kernel.operands[instr.operand]
    return not operand.inner and all(s or n == 1 for n, s in zip(kernel.outer, operand.outer, strict=True))


def column_sums(each: Rows, threads: Threads) -> ColumnSums | None:
    """None if a row is reduced too, or if its results have other axes than the columns and the same of the rows."""
    kernel = each.kernel
    sums = [i for i in kernel.code if i.kind == "accumulate"]
    if not sums or any(i.kind == "reduce" and kernel.code[i.args[0]].full for i in kernel.code):
        return None
    if any(not kernel.code[i.args[0]].full or not kernel.operands[i.operand].inner for i in sums):
        return None
    found = {_reduced(kernel, i) for i in sums}
    if len(found) != 1:
        return None
    (reduced,) = found
    kept = tuple(axis for axis in range(len(kernel.outer)) if axis not in reduced)
    columns = math.prod(kernel.outer[axis] for axis in kept) * kernel.inner
    rows = math.prod(kernel.outer[axis] for axis in reduced)
    if any(math.prod(each.views[i.operand].shape) != columns for i in sums):
        return None
    parts = 1
    while 2 * parts * columns <= threads.total and parts * parts < rows:
        parts *= 2
    return ColumnSums(kept, reduced, columns, rows, parts)


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Groups of rows that add to the same elements of a result: a team has a whole group, and adds in place.

    kept, reduced: axes of the rows: those that number the groups, and those of the rows of a group.
    groups, rows:  how many groups, and rows of each. sums: the instructions that add in place.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    groups: int
    rows: int
    sums: frozenset[int]


def row_groups(each: Rows) -> RowGroups | None:
    """The groups of the largest result that has enough of them."""
    kernel = each.kernel
    found: dict[tuple[int, ...], set[int]] = {}
    for n, i in enumerate(kernel.code):
        if i.kind == "accumulate" and kernel.operands[i.operand].inner:
            found.setdefault(_reduced(kernel, i), set()).add(n)
    best = None
    for reduced, numbers in found.items():
        kept = tuple(axis for axis in range(len(kernel.outer)) if axis not in reduced)
        groups = math.prod(kernel.outer[axis] for axis in kept)
        if reduced and groups >= FEWEST_GROUPS and (best is None or groups > best.groups):
            best = RowGroups(kept, reduced, groups, kernel.rows // groups, frozenset(numbers))
    return best


def _reduced(kernel: RowKernel, instr: Instr) -> tuple[int, ...]:
    """The axes of rows along which all rows add to the same elements."""
    strides = kernel.operands[instr.operand].outer
    return tuple(axis for axis, (n, s) in enumerate(zip(kernel.outer, strides, strict=True)) if n > 1 and not s)
