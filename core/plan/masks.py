"""Masks over the scores of attention: bands of positions that a program computes, and arrays that the run gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from core.plan.instructions import Rows
from core.plan.memory import Root
from core.plan.row_kernels import Operand, RowInstruction, RowKernel
from core.plan.striped import Domain

__all__ = ["Band", "Given", "edges_of", "position_bound"]


@dataclass(frozen=True, slots=True)
class Band:
    """Row r sees the columns from ``r + first`` to ``r + last``; None sets no limit."""

    first: int | None = None
    last: int | None = None

    def shows_each_row(self, domain: Domain) -> bool:
        """Whether every row sees a column."""
        starts = self.first is None or domain.rows - 1 + self.first < domain.columns
        ends = self.last is None or self.last >= 0
        return starts and ends and (self.first is None or self.last is None or self.first <= self.last)


@dataclass(frozen=True, slots=True)
class Given:
    """A mask that is data. Elements to add to the scores, or bools.

    walk: the sizes of the row axes and its strides along them, with axes joined where they can be.
    """

    root: Root
    offset: int
    walk: tuple[tuple[int, int], ...]
    dtype: str

    @staticmethod
    def of(rows: Rows, number: int) -> Given | None:
        """The array that instruction `number` loads; None unless adjacent elements belong to adjacent columns."""
        instr = rows.kernel.code[number]
        operand, view = rows.kernel.operands[instr.operand], rows.views[instr.operand]
        if operand.inner != 1 or operand.written:
            return None
        return Given(view.root, view.offset, _joined(rows.kernel, operand), operand.dtype)


def _joined(kernel: RowKernel, operand: Operand) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for size, stride in zip(kernel.outer, operand.outer, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == stride * size:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def edges_of(rows: Rows, domain: Domain) -> Iterator[Band]:
    """The bands with a single edge that a row kernel compares positions with, and those of the other elements."""
    for number in range(len(rows.kernel.code)):
        found = position_bound(rows.kernel, number, domain)
        if found is not None:
            sense, limit = found
            yield from (
                (Band(last=limit), Band(first=limit + 1))
                if sense == "up to"
                else (Band(first=limit), Band(last=limit - 1))
            )


def position_bound(kernel: RowKernel, number: int, domain: Domain) -> tuple[str, int] | None:
    """("up to" or "from", limit) if an instruction is ``column - row <= limit`` or ``column - row >= limit``."""
    instr = kernel.code[number]
    if instr.kind != "apply" or instr.op not in COMPARISONS:
        return None
    left, right = (_affine(kernel, a, domain) for a in instr.args)
    if left is None or right is None:
        return None
    start, down, along = (a - b for a, b in zip(left, right, strict=True))
    strict, below = COMPARISONS[instr.op]
    if (down, along) == (1, -1):
        start, below = -start, not below
    elif (down, along) != (-1, 1):
        return None
    limit = -start  # column - row + start <= 0
    if below:
        return "up to", limit - strict
    return "from", limit + strict


COMPARISONS = {
    "less_than": (1, True),
    "less_equal": (0, True),
    "greater_than": (1, False),
    "greater_equal": (0, False),
}
"""Whether the two must differ, and whether the first one is the lower one."""


def _affine(kernel: RowKernel, number: int, domain: Domain) -> tuple[int, int, int] | None:
    """(start, stride from row to row, stride along the row) of an integer that counts positions; else None."""
    instr: RowInstruction = kernel.code[number]
    if instr.kind == "constant":
        value: Any = instr.value
        return (int(value), 0, 0) if instr.dtype.startswith("int") else None
    if instr.kind == "iota":
        steps = dict(instr.attrs)
        outer = steps["outer"]
        if not any(outer):
            return instr.value, 0, steps["inner"]
        if not kernel.outer or kernel.outer[-1] != domain.rows or any(outer[:-1]):
            return None
        return instr.value, outer[-1], steps["inner"]
    if instr.kind == "apply" and instr.op == "cast" and instr.dtype.startswith("int"):
        return _affine(kernel, instr.args[0], domain)
    if instr.kind == "apply" and instr.op in ("add", "sub", "sum") and len(instr.args) == 2:
        sides = [_affine(kernel, a, domain) for a in instr.args]
        if sides[0] is None or sides[1] is None:
            return None
        sign = -1 if instr.op == "sub" else 1
        (a, b, c), (x, y, z) = sides[0], sides[1]
        return a + sign * x, b + sign * y, c + sign * z
    return None
