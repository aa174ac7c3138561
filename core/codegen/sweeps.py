"""The schedule of a long row: which instructions run in which sweep, decided before any code is written.

Each reduction that later instructions need ends a sweep. A later sweep computes the value of an earlier one again, or
reads it from a row of scratch memory if computing it costs more than memory. If each result waits for another one, the
sweep is unrolled: several slices of the row are computed together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from core.codegen.llvm import itemsize
from core.ir.precision import HALVES
from core.ir.stop import poll
from core.plan.row_kernels import RowInstruction, is_total, stages_of

__all__ = ["EXPENSIVE", "KEPT_BYTES", "STRAIGHT", "STRAIGHT_ONCE", "UNROLLED", "Sweep", "kept_values", "sweeps"]

STRAIGHT = 450
"""Most vector instructions of a row that is straight code. Longer code takes more time to compile, and its values are
more than there are registers: it is no faster than sweeps."""

STRAIGHT_ONCE = 300
"""Most vector instructions of a single row, such as an update of small parameters, if no sum needs its values again."""

UNROLLED = 1500
"""Most vector instructions of the slices of a long row, or of the rows of a block, that are computed together."""

EXPENSIVE = frozenset(
    [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "div",
        "draw",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "expm1",
        "floor_div",
        "fmod",
        "hypot",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "logsigmoid",
        "mod",
        "polygamma",
        "pow",
        "rsqrt",
        "sigmoid",
        "sin",
        "sinh",
        "softplus",
        "sqrt",
        "tan",
        "tanh",
    ]
)
"""Ops that take long. Later sweeps read their values from memory instead of computing them again."""

KEPT_BYTES = 1 << 20
"""Most bytes of the rows of scratch memory of a function, which are on the stack of its thread. It is as large as one
row of float64 that a kernel reduces and reads again can be."""

LONG = 12
"""Most instructions that a later sweep runs again for one value of an earlier one."""

CYCLES, EXPENSIVE_CYCLES = 3, 40
"""Latency of an op in cycles, and latency of an op in `EXPENSIVE`."""

ROUNDING = {"bfloat16": 12, "float16": 14}
"""Latency of rounding the result of an op to 16 bits, in cycles; more for the several instructions that it takes."""

EXACT = frozenset(["abs", "maximum", "minimum", "neg", "where"])
"""Ops of 16-bit floats whose results need no rounding."""

REACH = 100
"""Cycles of latency that out-of-order execution hides: a processor looks ahead some 300 instructions."""

MOST_UNROLLED = 4


@dataclass(frozen=True, slots=True)
class Sweep:
    """One sweep. Instructions are given by their numbers, in order.

    before: instructions whose value is the same along the row; they run before the sweep.
    along:  instructions that run for each slice of the row; reductions among them have their values at the end.
    read:   those of `along` whose values an earlier sweep kept in memory.
    unroll: how many slices are computed together.
    """

    before: tuple[int, ...]
    along: tuple[int, ...]
    read: frozenset[int]
    unroll: int


def kept_values(code: Sequence[RowInstruction], elements: int) -> tuple[int, ...]:
    """The values that a later sweep needs again and that take long to compute, the last one first, as far as there is
    memory for them.

    elements: of a row of scratch memory.
    """
    stages, costly = stages_of(code), _costly(code)
    last = list(stages)  # the last sweep that needs each value
    kept, left = [], KEPT_BYTES
    for number in reversed(range(len(code))):
        instr = code[number]
        if number in costly and last[number] > stages[number]:
            nbytes = elements * (4 if instr.dtype in HALVES else itemsize(instr.dtype))
            if nbytes <= left:
                left -= nbytes
                kept.append(number)
                last[number] = stages[number]
        if instr.full:
            for a in instr.args:
                last[a] = max(last[a], last[number])
    return tuple(kept)


def _costly(code: Sequence[RowInstruction]) -> set[int]:
    """The values along the row that are expensive, or end a long way from the last such one."""
    found: set[int] = set()
    way: list[int] = []  # instructions that compute each value from costly ones
    for number, instr in enumerate(code):
        way.append(1 + sum(way[a] for a in instr.args if code[a].full and a not in found))
        if instr.full and instr.kind == "apply" and (instr.op in EXPENSIVE or way[number] > LONG):
            found.add(number)
    return found


def sweeps(code: Sequence[RowInstruction], kept: Collection[int], pieces: int) -> tuple[Sweep, ...]:
    """The sweeps along a row of `pieces` whole slices. kept: see `kept_values`."""
    stages = stages_of(code)
    found = []
    for stage in range(max(stages, default=0) + 1):
        poll()
        before = tuple(
            n for n, instr in enumerate(code) if stages[n] == stage and not instr.full and not is_total(code, instr)
        )
        ends = [
            n
            for n, instr in enumerate(code)
            if (instr.full and stages[n] == stage and (instr.kind in ("store", "accumulate", "check") or n in kept))
            or (stages[n] == stage + 1 and is_total(code, instr))
        ]
        read = frozenset(n for n in kept if stages[n] < stage)
        along = _needed(code, ends, read)
        found.append(Sweep(before, along, read.intersection(along), _unroll(code, along, read, pieces)))
    return tuple(found)


def _needed(code: Sequence[RowInstruction], ends: Sequence[int], read: Collection[int]) -> tuple[int, ...]:
    """The instructions along the row that `ends` need, in order. Values in `read` come from memory."""
    needed = set(ends)
    for number in reversed(range(len(code))):
        if number in needed and number not in read:
            needed.update(a for a in code[number].args if code[a].full)
    return tuple(sorted(needed))


def _unroll(code: Sequence[RowInstruction], along: Sequence[int], read: Collection[int], pieces: int) -> int:
    """How many slices of the row to compute together: more if each result waits for another one."""
    ready: dict[int, int] = {}
    for n in along:
        if n in read:
            ready[n] = CYCLES
        else:
            waits = max((ready.get(a, 0) for a in code[n].args), default=0)
            ready[n] = waits + _latency(code[n])
    wanted = 1 + max(ready.values(), default=0) // REACH
    if any(is_total(code, code[n]) for n in along):  # each addition to a total waits for the one before
        wanted = MOST_UNROLLED
    return max(1, min(wanted, MOST_UNROLLED, UNROLLED // max(len(along), 1), pieces))


def _latency(instr: RowInstruction) -> int:
    """Cycles until the result of an instruction is known."""
    exact = instr.kind != "apply" or instr.op in EXACT or not instr.rounds
    rounding = 0 if exact else ROUNDING.get(instr.dtype, 0)
    return rounding + (EXPENSIVE_CYCLES if instr.op in EXPENSIVE else CYCLES)
