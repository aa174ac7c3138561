"""Row kernels: the same instructions for every row of a domain, with values in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["MadeRows", "MergedOperand", "Operand", "RowInstruction", "RowKernel", "is_total", "stages_of"]


@dataclass(frozen=True, slots=True)
class Operand:
    """The path of a row kernel through one array: a stride for each outer axis, and one along the row."""

    dtype: str
    outer: tuple[int, ...]
    inner: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class RowInstruction:
    """One instruction of a row kernel. Other instructions refer to its value by its position in the kernel.

    kind: "constant"   the number `value`.
          "load"       an element of `operand`.
          "lookup"     the element of `operand` that is `args`, an int64, times `step` further on. attrs: `step`.
          "iota"       `value` plus the position along each axis times a stride, int64. attrs: the strides, `outer`
                       and `inner`, as those of an operand.
          "apply"      elementwise op `op` with `attrs` on `args`.
          "reduce"     one value for the row: the reduction `op` (sum, max, ...) of `args`.
          "store"      write `args` to `operand`.
          "accumulate" reduce `args` with `op` into the contents of `operand`. value: whether a value that is constant
                       along the row counts once for each element.
          "check"      `args`, a bool, must be true everywhere; else the number `value` is written to `operand`.
    full:   whether it runs for each element of a row, because its value or its store address varies along the row.
    rounds: of "apply": whether a 16-bit result is rounded (see `core.plan.unrounded`).
    """

    kind: str
    dtype: str = ""
    full: bool = False
    args: tuple[int, ...] = ()
    op: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    operand: int = -1
    value: Any = None
    rounds: bool = True


@dataclass(frozen=True, slots=True)
class MadeRows:
    """How rows that reach no memory are computed.

    kernel: one row for each of them, in order; its last instruction is the value of the row.
    params: for each operand of `kernel` the number of an operand of the row kernel that uses the rows, of which only
            the address counts.
    """

    kernel: RowKernel
    params: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MergedOperand:
    """An operand of a row kernel whose rows are sums of the rows of an array [count, inner]: numbers of operands.

    x:             the array, of which only the address counts.
    order, starts: int32; row i is the sum of rows ``x[order[k]]``, k from ``starts[i]`` to ``starts[i + 1] - 1``.
    count:         elements of `order`.
    made:          how the rows of x are computed, if x is not in memory.
    """

    x: int
    order: int
    starts: int
    count: int
    made: MadeRows | None = None


@dataclass(frozen=True, slots=True)
class RowKernel:
    """The same instructions for every row of a domain: `outer` are the axes of rows, `inner` the elements of a row."""

    outer: tuple[int, ...]
    inner: int
    operands: tuple[Operand, ...]
    code: tuple[RowInstruction, ...]
    merged: tuple[MergedOperand, ...] = ()

    @property
    def rows(self) -> int:
        return math.prod(self.outer)


def stages_of(code: Sequence[RowInstruction]) -> list[int]:
    """The first sweep over a row in which each instruction can run: it needs reductions of earlier sweeps only."""
    stages: list[int] = []
    for instr in code:
        at = max((stages[a] for a in instr.args), default=0)
        stages.append(at + 1 if is_total(code, instr) else at)
    return stages


def is_total(code: Sequence[RowInstruction], instr: RowInstruction) -> bool:
    """Whether an instruction is a reduction along the row, whose value is known when a sweep ends."""
    return instr.kind == "reduce" and code[instr.args[0]].full
