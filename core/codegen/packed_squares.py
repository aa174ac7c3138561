"""Numbers packed across the direction in which they lie in memory: squares of them are transposed in registers.

The products of a step share these functions, since a square is long to write and looks alike in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, storage_type
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import mask, move, slices_of, store_lanes

__all__ = ["PackedLines", "pack_lines"]


@dataclass(frozen=True, slots=True)
class PackedLines:
    """Lines along k, such as rows of a or columns of b: packed, step i of all of them follows step i - 1.

    lines:   packed side by side.
    apart:   packed elements from one step to the next; at least `lines`.
    whole:   whether there may be as many steps as a vector has lanes.
    rest:    steps after the last whole vector.
    spills:  whether a step may be stored with what lies behind it, which the next one overwrites.
    """

    dtype: str
    lines: int
    apart: int
    whole: bool
    rest: int
    spills: bool


def pack_lines(
    module: Module, f: Function, form: PackedLines, source: IRValue, step: int, count: IRValue, packed: IRValue
) -> None:
    """Pack `count` steps of the lines at `source`. step: elements from one line to the next."""
    name = module.function(form, "pack", lambda name: _function(name, form))
    f.do(f"call void @{name}({source}, {I64(step)}, {count}, {packed})")


def _function(name: str, form: PackedLines) -> Function:
    """``name(source, elements from one line to the next, steps, packed)``."""
    f = Function(name, [("source", "ptr"), ("step", "int64"), ("count", "int64"), ("packed", "ptr")])
    width, count = lanes(form.dtype), f.param("count")
    end = f.binary("sub", count, f.op(f"srem {count}, {width}", "int64"))

    def all_steps(line: IRValue, lines: int) -> None:
        """Pack `lines` lines from `line`."""
        if form.whole:
            with f.loop(I64(0), end, width) as at:
                _square(f, form, (line, lines), (at, width))
        if form.rest:
            with f.when(f.compare("icmp slt", end, count)):
                _square(f, form, (line, lines), (end, form.rest))

    if form.spills:  # all lines of a step are stored before the next step
        all_steps(I64(0), form.lines)
        return f
    whole = form.lines // width * width
    if whole:
        with f.loop(I64(0), I64(whole), width) as line:
            all_steps(line, width)
    if whole < form.lines:
        all_steps(I64(whole), form.lines - whole)
    return f


def _square(f: Function, form: PackedLines, lines: tuple[IRValue, int], steps: tuple[IRValue, int]) -> None:
    """Pack some steps of some lines; of each the first and their number."""
    width, dtype, step = lanes(form.dtype), form.dtype, f.param("step")
    line = f.at(f.at(f.param("source"), f.binary("mul", lines[0], step), dtype), steps[0], dtype)
    rows: list[IRValue] = []
    for _ in range(lines[1]):
        rows.append(f.load(line, dtype, width, mask(steps[1], width)))
        line = f.op(f"getelementptr {storage_type(dtype)}, {line}, {step}", "ptr")  # the last one lies outside
    pieces = slices_of(lines[1], width)
    turned = [transposed_square(f, rows[each.start : each.start + each.count]) for each in pieces]
    place = move(f, f.param("packed"), dtype, (steps[0], form.apart), (lines[0], 1))
    for i in range(steps[1]):
        for piece, vectors in zip(pieces, turned, strict=True):
            here = f.at(place, I64(i * form.apart + piece.start), dtype)
            store_lanes(f, vectors[i], here, width if form.spills else piece.count)
