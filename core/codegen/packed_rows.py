"""Rows of the first operand of a product, packed: the numbers that a tile reads in one step along k lie together."""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.amx import SIDE
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.packed_gemm import PackedGemm
from core.codegen.packed_squares import PackedLines, pack_lines
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import mask, move, slices_of

__all__ = ["pack_rows"]


def pack_rows(
    module: Module,
    f: Function,
    p: PackedGemm,
    packed: IRValue,
    steps: tuple[IRValue, IRValue],
    rows: tuple[IRValue, IRValue],
) -> None:
    """Pack rows [first, end) of a for some steps along k: for each tile, the numbers of one step after those before.

    A vector may be longer than the rows of a tile. The elements that it stores behind them are overwritten by the next
    step, or lie in the padding behind the last one.

    steps: the first step and the number of steps, a multiple of a vector except at the end of k.
    rows:  the first row, and the one after the last; only the last rows of a are less than a tile.
    """
    (first, end), tall = rows, p.tile[0]
    if p.tiled:
        if p.a[1] == 1:
            _in_tiles(f, p, packed, steps, rows)
        else:
            _turned_in_tiles(module, f, p, packed, steps, rows)
        return
    whole = f.binary("sub", end, f.op(f"srem {f.binary('sub', end, first)}, {tall}", "int64"))
    rest = p.m % tall

    def write(rows: tuple[IRValue, IRValue], count: int) -> None:
        if p.a[0] == 1:
            _copied(f, p, packed, steps, first, rows, count)
        else:
            _transposed(module, f, p, packed, steps, first, rows, count)

    write((first, whole), tall)
    if rest:
        with f.when(f.compare("icmp slt", whole, end)):
            write((whole, end), rest)


def _in_tiles(
    f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue], rows: tuple[IRValue, IRValue]
) -> None:
    """Pack rows for tiles: `SIDE` steps of all rows of a block lie together. Zeros fill the last steps of k."""
    (first, end), tall = rows, p.tile[0]
    rest = p.k % SIDE
    with f.loop(first, end, tall) as block:
        place = _place(f, p, packed, first, block, I64(0))
        with f.loop(block, f.intrinsic("smin", f.binary("add", block, I64(tall)), end)) as row:
            source = move(f, f.param("a"), p.dtype, (row, p.a[0]), (steps[0], 1))
            line = move(f, place, p.dtype, (f.binary("sub", row, block), SIDE))
            whole = f.binary("sub", steps[1], f.op(f"srem {steps[1]}, {SIDE}", "int64"))
            with f.loop(I64(0), whole, SIDE) as step:
                value = f.load(f.at(source, step, p.dtype), p.dtype, SIDE)
                f.store(value, move(f, line, p.dtype, (step, tall)))
            if rest:
                with f.when(f.compare("icmp slt", whole, steps[1])):
                    value = f.load(f.at(source, whole, p.dtype), p.dtype, SIDE, mask(rest, SIDE))
                    f.store(value, move(f, line, p.dtype, (whole, tall)))


def _turned_in_tiles(
    module: Module, f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue],
    rows: tuple[IRValue, IRValue],
) -> None:  # fmt: skip
    """Pack rows of an a that is stored by columns: squares of pairs are transposed in registers."""
    (first, end), tall, apart = rows, p.tile[0], p.a[1]
    whole_rows = f.binary("sub", end, f.op(f"srem {f.binary('sub', end, first)}, {SIDE}", "int64"))
    whole_steps = f.binary("sub", steps[1], f.op(f"srem {steps[1]}, {SIDE}", "int64"))

    def square(row: IRValue, step: IRValue, count: int, pairs: int) -> None:
        form = PairSquare(count, pairs)
        name = module.function(form, "square", lambda name: _square_function(name, form))
        source = move(f, f.param("a"), "bfloat16", (steps[0], 2 * apart), (step, 2 * apart), (row, 1))
        inside = f.op(f"urem {f.binary('sub', row, first)}, {tall}", "int64")
        place = _place(f, p, packed, first, f.binary("sub", row, inside), step)
        f.do(f"call void @{name}({source}, {I64(apart)}, {move(f, place, p.dtype, (inside, SIDE))})")

    def some_steps(step: IRValue, pairs: int) -> None:
        with f.loop(first, whole_rows, SIDE) as row:
            square(row, step, SIDE, pairs)
        if rest := p.m % SIDE:
            with f.when(f.compare("icmp slt", whole_rows, end)):
                square(whole_rows, step, rest, pairs)

    with f.loop(I64(0), whole_steps, SIDE) as step:
        some_steps(step, SIDE)
    if pairs := p.k % SIDE:
        with f.when(f.compare("icmp slt", whole_steps, steps[1])):
            some_steps(whole_steps, pairs)


@dataclass(frozen=True, slots=True)
class PairSquare:
    """A tile of `rows` rows of `pairs` pairs, and zeros behind them, from a matrix that is stored by columns."""

    rows: int
    pairs: int


def _square_function(name: str, form: PairSquare) -> Function:
    """``name(source, numbers from one column to the next, tile)``. Columns of the matrix are steps along k."""
    f = Function(name, [("source", "ptr"), ("apart", "int64"), ("tile", "ptr")])
    column, apart, which = f.param("source"), f.param("apart"), mask(form.rows, SIDE)
    lines = []
    for _ in range(form.pairs):
        words = []
        for _ in range(2):
            words.append(f.convert(f.load(column, "uint16", SIDE, which), "int32"))
            column = f.op(f"getelementptr bfloat, {column}, {apart}", "ptr")  # the last one lies outside
        both = f.binary("or", words[0], f.binary("shl", words[1], f.constant(16, words[1])))
        lines.append(f.bitcast(both, "float32"))
    zero = f.splat(literal(0, "float32"), SIDE)
    lines += [zero] * (SIDE - form.pairs)
    for i, line in enumerate(transposed_square(f, lines)[: form.rows]):
        f.store(line, f.at(f.param("tile"), I64(i * SIDE), "float32"))
    return f


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
    module: Module, f: Function, p: PackedGemm, packed: IRValue, steps: tuple[IRValue, IRValue], first: IRValue,
    rows: tuple[IRValue, IRValue], count: int,
) -> None:  # fmt: skip
    """Pack tiles of `count` rows, which lie in memory as rows."""
    width = lanes(p.dtype)
    form = PackedLines(p.dtype, count, p.tile[0], p.k >= width, p.k % width, spills=True)
    with f.loop(*rows, p.tile[0]) as row:
        source = move(f, f.param("a"), p.dtype, (row, p.a[0]), (steps[0], 1))
        pack_lines(module, f, form, source, p.a[0], steps[1], _place(f, p, packed, first, row, I64(0)))


def _place(f: Function, p: PackedGemm, packed: IRValue, first: IRValue, row: IRValue, step: IRValue) -> IRValue:
    """The address of the packed numbers of the tile at `row` for one step."""
    return move(f, packed, p.dtype, (f.binary("sub", row, first), p.row_steps), (step, p.tile[0]))
