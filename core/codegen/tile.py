"""A tile of a matrix product: some rows by some vectors of the result, in registers for all steps along k."""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.vector_slices import mask

__all__ = ["STEPS", "dot_pairs", "most_vectors", "tile", "tile_of"]


SUMS = {16: 12, 32: 20}
"""Number of registers -> sums that a tile should have: an addition waits for the one before it, while two others start
in each cycle. With more of them each number of the operands is used more often."""

STEPS = 2
"""Steps along k that follow each other without a test of their number, if it is even. With more of them LLVM moves
loads so far from their uses that registers run out."""


def most_vectors() -> int:
    """Vectors in a row of a tile, if the result has as many."""
    return 4 if cpu().registers == 32 else 2


def tile_of(m: int, n: int, width: int) -> tuple[int, int]:
    """The rows of a tile and the vectors of one row: as many as the registers hold next to the operands."""
    registers = cpu().registers
    vectors = -(-n // width)
    wide = min(vectors, most_vectors())
    if vectors % wide and vectors % 3 == 0 and registers == 32:
        wide = 3
    most = min((registers - wide - 2) // wide, 12, m)
    tiles = -(-m // most)
    for rows in range(most, most * 2 // 3 - 1, -1):
        if m % rows == 0 and (rows == most or rows * wide >= SUMS[registers]):
            return rows, wide  # all tiles have the same height: one function body less to compile
    return -(-m // tiles), wide  # tiles of nearly equal height


def dot_pairs(f: Function, a: IRValue, b: IRValue, total: IRValue) -> IRValue:
    """``total + a0 * b0 + a1 * b1`` for the bfloat16 numbers in each lane of a and b. Denormals count as 0."""
    twice = f"<{2 * total.lanes} x bfloat>"
    x, y = (f.op(f"bitcast {each} to {twice}", "bfloat16", 2 * total.lanes).name for each in (a, b))
    name = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * total.lanes}"
    f.declarations.add(f"declare {total.type} {name}({total.type}, {twice}, {twice})")
    return f.op(f"call {total.type} {name}({total}, {twice} {x}, {twice} {y})", total.dtype, total.lanes)


def tile(
    f: Function, dtype: str, size: tuple[int, int], width: int, steps: tuple[IRValue, IRValue],
    a: tuple[IRValue, int, int], b: tuple[IRValue, int], c: tuple[IRValue, int | IRValue],
    stretches: tuple[IRValue, Callable[[], None]] | None = None, pairs: bool = False, even: bool = False,
    of_b: str = "",
) -> list[tuple[IRValue, IRValue, IRValue | None]]:  # fmt: skip
    """The sums over `steps` along k of a [rows, k] times b [k, columns]: (vector, address in c, mask) of each.

    size:      rows and columns of the tile.
    a:         address of its first row, stride of its rows, stride of its steps along k.
    b:         address of its columns, stride of its steps along k.
    c:         address of the tile, stride of its rows.
    stretches: steps of a stretch along k, and a function that writes more instructions at the start of each.
    pairs:     whether an element of a and b, as long as a float32, is two bfloat16 numbers that follow each other
               along k.
    even:      whether the number of steps is a multiple of `STEPS`, and that of a stretch, too.
    of_b:      the dtype of b, if it is a 16-bit float that loads widen; "" for `dtype`.
    """
    rows, columns = size
    of_b = of_b or dtype
    count = -(-columns // width)
    masks = [mask(columns - j * width, width) if width > 1 else None for j in range(count)]
    zero = f.splat(literal(0, dtype), width)
    sums = [[f.slot(dtype, width) for _ in range(count)] for _ in range(rows)]
    for each in sums:
        for slot in each:
            f.write(zero, slot)

    def step(b_row: IRValue, a_here: IRValue) -> None:
        places = [f.at(b_row, I64(j * width), of_b) for j in range(count)]
        b_vectors = [f.convert(f.load(at, of_b, width, m), dtype) for at, m in zip(places, masks, strict=True)]
        for i in range(rows):
            one = f.splat(f.load(f.at(a_here, I64(i * a[1]), dtype), dtype), width)
            for j in range(count):
                total = f.read(sums[i][j], dtype, width)
                f.write((dot_pairs if pairs else Function.fma)(f, one, b_vectors[j], total), sums[i][j])

    def all_of(first: IRValue, end: IRValue) -> None:
        together = STEPS if even else 1
        with f.loop(first, end, together) as k:
            b_row = f.at(b[0], f.op(f"mul nsw {k}, {b[1]}", "int64"), of_b)
            a_here = f.at(a[0], f.op(f"mul nsw {k}, {a[2]}", "int64"), dtype)
            for i in range(together):
                step(f.at(b_row, I64(i * b[1]), of_b), f.at(a_here, I64(i * a[2]), dtype))

    if stretches is None:
        all_of(*steps)
    else:
        length, begin = stretches
        with f.loop(*steps, length) as first:
            begin()
            all_of(first, f.intrinsic("smin", f.binary("add", first, length), steps[1]))
    apart = c[1] if isinstance(c[1], IRValue) else I64(c[1])
    starts = [f.at(c[0], f.binary("mul", I64(i), apart), dtype) for i in range(rows)]
    return [
        (f.read(sums[i][j], dtype, width), f.at(starts[i], I64(j * width), dtype), masks[j])
        for i in range(rows)
        for j in range(count)
    ]
