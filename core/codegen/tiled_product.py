"""Products of bfloat16 matrices on CPUs with AMX: four tiles of sums at a time, so that each operand is used twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.codegen import amx
from core.codegen.amx import SIDE
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.module import Module
from core.codegen.vector_slices import move

__all__ = ["BLOCK", "TiledProduct", "multiply_block", "set_block", "steps_of_tiles", "write_tiled_product"]

BLOCK = 2 * SIDE
"""Most rows and columns of the sums that are computed together."""

SUMS, LEFT, RIGHT = 0, 4, 6
"""The first registers of four tiles of sums and of two tiles of each operand."""


def steps_of_tiles(steps: int) -> int:
    """Steps along k of whole tiles: both operands have zeros behind `steps`."""
    return -(-steps // SIDE) * SIDE


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """At most `BLOCK` rows and columns of sums.

    a: pairs from one row to the next, and for each step along k to the next `SIDE` steps, which lie together in a row.
    b: pairs from one step along k to the next.
    """

    rows: int
    columns: int
    a: tuple[int, int]
    b: int


def set_block(module: Module, f: Function, rows: int, columns: int) -> None:
    """Set the sizes of all registers for products of so many rows and columns."""
    heights, widths = _cut(rows), _cut(columns)
    sizes = {r: (heights[i], widths[j]) for (i, j), r in _sums(len(heights), len(widths)).items()}
    sizes |= {LEFT + i: (height, SIDE) for i, height in enumerate(heights)}
    sizes |= {RIGHT + j: (SIDE, width) for j, width in enumerate(widths)}
    amx.set_sizes(module, f, sizes)


def write_tiled_product(
    f: Function, p: TiledProduct, a: IRValue, b: IRValue, c: tuple[IRValue, IRValue], count: IRValue,
    adds: IRValue, meanwhile: Callable[[IRValue, IRValue], None],
) -> None:  # fmt: skip
    """Write the sums of `count` steps along k. `set_block` has set the sizes of its tiles.

    c:         address of the sums, elements from one of its rows to the next.
    adds:      whether the sums are added to those in c.
    meanwhile: writes instructions that run beside the products of steps [first, end).
    """
    down, across = len(_cut(p.rows)), len(_cut(p.columns))
    sums = _sums(down, across)
    size = itemsize("float32")
    apart = f.op(f"mul nsw {c[1]}, {size}", "int64")
    rows = [c[0], move(f, c[0], "float32", (c[1], SIDE))]
    places = {(i, j): move(f, rows[i], "float32", by=j * SIDE) for i, j in sums}

    def begin(added: bool) -> None:
        for place, register in sums.items():
            if added:
                amx.load(f, register, places[place], apart)
            else:
                amx.clear(f, register)

    f.either(adds, lambda: begin(True), lambda: begin(False))
    with f.loop(I64(0), count, SIDE) as k:
        left, right = move(f, a, "float32", (k, p.a[1])), move(f, b, "float32", (k, p.b))
        for i in range(down):
            amx.load(f, LEFT + i, move(f, left, "float32", by=i * SIDE * p.a[0]), I64(p.a[0] * size))
        for j in range(across):
            amx.load(f, RIGHT + j, move(f, right, "float32", by=j * SIDE), I64(p.b * size))
        multiply_block(f, down, across)
        meanwhile(k, f.intrinsic("smin", f.binary("add", k, I64(SIDE)), count))
    for place, register in sums.items():
        amx.store(f, register, places[place], apart)


def multiply_block(f: Function, down: int = 2, across: int = 2) -> None:
    """Add the products of `down` tiles of the left operand and `across` tiles of the right one to the sums."""
    for (i, j), register in _sums(down, across).items():
        amx.multiply(f, register, LEFT + i, RIGHT + j)


def _sums(down: int, across: int) -> dict[tuple[int, int], int]:
    """The registers of sums by their place."""
    return {(i, j): SUMS + 2 * i + j for i in range(down) for j in range(across)}


def _cut(length: int) -> list[int]:
    """The lengths of tiles that cover `length` rows or columns."""
    return [min(SIDE, length - at) for at in range(0, length, SIDE)]
