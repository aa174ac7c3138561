"""Rows of the first operand of a product, packed: what a tile reads in one step along k lies together."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.machine import lanes
from core.codegen.packed_gemm import PackedGemm
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import mask, move, slices_of

__all__ = ["pack_rows"]


def pack_rows(
    f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue], rows: tuple[IRValue, IRValue]
) -> None:
    """Pack rows [first, end) of a for some steps along k: for each tile, the numbers of one step after those before.

    A vector may be longer than the rows of a tile. What it stores behind them is overwritten by the next step, or lies
    in the room behind the last one.

    steps: the first step and the number of steps, a multiple of a vector except at the end of k.
    rows:  the first row, and the one after the last; only the last rows of a are less than a tile.
    """
    (first, end), tall = rows, p.tile[0]
    whole = f.binary("sub", end, f.op(f"srem {f.binary('sub', end, first)}, {tall}", "int64"))
    write, rest = _copied if p.a[0] == 1 else _transposed, p.m % tall
    write(f, p, packed, steps, first, (first, whole), tall)
    if rest:
        with f.when(f.compare("icmp slt", whole, end)):
            write(f, p, packed, steps, first, (whole, end), rest)


def _copied(
    f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue], first: IRValue,
    rows: tuple[IRValue, IRValue], count: int,
) -> None:  # fmt: skip
    """Pack tiles of `count` rows; a is stored by columns. One step of all tiles at a time: they share a page of a."""
    width = lanes(p.dtype)
    with f.loop(I64(0), steps[1]) as step:
        source = move(f, f.param("a"), p.dtype, (steps[0], p.a[1]), (step, p.a[1]))
        with f.loop(*rows, p.tile[0]) as row:
            place = _place(f, p, packed, first, row, step)
            for piece in slices_of(count, width):
                here = move(f, source, p.dtype, (row, 1), by=piece.start)
                value = f.load(here, p.dtype, width, mask(piece.count, width))
                f.store(value, f.at(place, I64(piece.start), p.dtype))


def _transposed(
    f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue], first: IRValue,
    rows: tuple[IRValue, IRValue], count: int,
) -> None:  # fmt: skip
    """Pack tiles of `count` rows, which lie in memory as rows."""
    width = lanes(p.dtype)

    def square(row: IRValue, step: IRValue, length: int) -> None:
        source = move(f, f.param("a"), p.dtype, (row, p.a[0]), (steps[0], 1), (step, 1))
        pieces = slices_of(count, width)
        turned = [
            transposed_square(
                f,
                [
                    f.load(f.at(source, I64((piece.start + i) * p.a[0]), p.dtype), p.dtype, width, mask(length, width))
                    for i in range(piece.count)
                ],
            )
            for piece in pieces
        ]
        place = _place(f, p, packed, first, row, step)
        for j in range(length):
            for piece, vectors in zip(pieces, turned, strict=True):
                f.store(vectors[j], f.at(place, I64(j * p.tile[0] + piece.start), p.dtype))

    whole = f.binary("sub", steps[1], f.op(f"srem {steps[1]}, {width}", "int64"))
    with f.loop(*rows, p.tile[0]) as row:
        if p.k >= width:
            with f.loop(I64(0), whole, width) as step:
                square(row, step, width)
        if p.k % width:  # only the last block along k ends in less than a vector
            with f.when(f.compare("icmp slt", whole, steps[1])):
                square(row, whole, p.k % width)


def _place(f: Function, p: PackedGemm, packed: IRValue, first: IRValue, row: IRValue, step: IRValue) -> IRValue:
    """The address of the packed numbers of the tile at `row` for one step."""
    return move(f, packed, p.dtype, (f.binary("sub", row, first), p.row_steps), (step, p.tile[0]))
