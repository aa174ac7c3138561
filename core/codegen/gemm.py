"""Products of matrices: tiles of the result in registers, operands read where they lie.

For each step along k a tile takes some vectors of a row of b and one number of each of its rows of a. Nothing is
packed, so b must have its rows without gaps; where it has not, the BLAS does it (see `blas`), which packs.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.llvm import I64, Function, Value, literal
from core.codegen.machine import cpu, lanes
from core.plan.data import Gemm

__all__ = ["Product", "gemm_function", "product_of"]

DEPTH = 256
"""Steps along k after which the sums go back to the result: so many rows of b, and lines of a, stay in the cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """One shape of product: c [m, n] = a [m, k] b [k, n], strides in elements, b and c with rows without gaps."""

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: int
    c: int
    dtype: str
    accumulate: bool
    scale: float


def product_of(each: Gemm) -> Product | None:
    """The product as one of ours, or None if it is one for the BLAS."""
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    if n > 1 and (each.b.strides[-1] != 1 or each.c.strides[-1] != 1):
        return None
    if n == 1 and k > 64:  # a sum along k, one row at a time, would wait for each addition
        return None
    a = (each.a.strides[-2], each.a.strides[-1])
    return Product(m, n, k, a, each.b.strides[-2], each.c.strides[-2], each.c.dtype, each.accumulate, each.scale)


def gemm_function(name: str, p: Product) -> Function:
    """``name(a, b, c, first, end)`` for rows `first` to below `end` of the result, from a multiple of `rows_of(p)`."""
    params = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), ("first", "int64"), ("end", "int64")]
    f = Function(name, params)
    width = lanes(p.dtype)
    while width // 2 >= p.n:
        width //= 2
    rows, wide = tile_of(p, width)
    blocked = p.k > 2 * DEPTH
    if blocked and not p.accumulate:
        _clear(f, p, width)
    with f.loop(I64(0), I64(p.k), DEPTH if blocked else p.k) as k:
        step = wide * width
        whole = p.n // step * step
        if whole == step:
            _panel(f, p, k, I64(0), step, width, rows)
        elif whole:  # one text for all panels of whole tiles
            with f.loop(I64(0), I64(whole), step) as start:
                _panel(f, p, k, start, step, width, rows)
        if whole < p.n:
            _panel(f, p, k, I64(whole), p.n - whole, width, rows)
    return f


def _clear(f: Function, p: Product, width: int) -> None:
    """Zeros in the rows of the result."""
    with f.loop(f.param("first"), f.param("end")) as row:
        c = f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), p.dtype)
        for start in range(0, p.n, width):
            zero = f.splat(literal(0, p.dtype), width)
            f.store(zero, f.at(c, I64(start), p.dtype), _mask(p.n - start, width))


def tile_of(p: Product, width: int) -> tuple[int, int]:
    """Rows of a tile, and vectors of one of its rows: as much as the registers hold beside the operands."""
    registers = 32 if cpu().vector_bytes == 64 else 16
    vectors = -(-p.n // width)
    wide = min(vectors, 4 if registers == 32 else 2)
    if vectors % wide and vectors % 3 == 0 and registers == 32:
        wide = 3
    most = min((registers - wide - 2) // wide, 12, p.m)
    tiles = -(-p.m // most)
    return -(-p.m // tiles), wide  # tiles of nearly equal height


def rows_of(p: Product) -> int:
    """Rows that go together: parts of the result should be multiples of it."""
    width = lanes(p.dtype)
    while width // 2 >= p.n:
        width //= 2
    return tile_of(p, width)[0]


def _panel(f: Function, p: Product, k: Value, start: Value, columns: int, width: int, rows: int) -> None:
    """So many columns of the result from `start` on, all rows of it; `k` is where its block of steps begins."""
    first, end = f.param("first"), f.param("end")
    height = f.binary("sub", end, first)
    whole = f.binary("sub", height, f.op(f"srem {height}, {rows}", "int64"))
    middle = f.binary("add", first, whole)
    with f.loop(first, middle, rows) as row:
        _tile(f, p, k, row, rows, start, columns, width)
    if p.m % rows:  # only the last part of the result ends in less than a tile
        with f.when(f.compare("icmp slt", middle, end)):
            _tile(f, p, k, middle, p.m % rows, start, columns, width)


def _tile(f: Function, p: Product, k: Value, row: Value, rows: int, start: Value, columns: int, width: int) -> None:
    dtype = p.dtype
    count = -(-columns // width)
    masks = [_mask(columns - j * width, width) for j in range(count)]
    zero = f.splat(literal(0, dtype), width)
    sums = [[f.slot(dtype, width) for _ in range(count)] for _ in range(rows)]
    for each in sums:
        for slot in each:
            f.write(zero, slot)
    a = f.at(f.param("a"), f.op(f"mul nsw {row}, {p.a[0]}", "int64"), dtype)
    b = f.at(f.param("b"), start, dtype)
    blocked = p.k > 2 * DEPTH
    end: Value = I64(p.k)
    if blocked:
        end = f.intrinsic("smin", f.binary("add", k, I64(DEPTH)), I64(p.k))
    with f.loop(k, end) as k:
        b_row = f.at(b, f.op(f"mul nsw {k}, {p.b}", "int64"), dtype)
        b_vectors = [f.load(f.at(b_row, I64(j * width), dtype), dtype, width, masks[j]) for j in range(count)]
        a_here = f.at(a, f.op(f"mul nsw {k}, {p.a[1]}", "int64"), dtype)
        for i in range(rows):
            one = f.splat(f.load(f.at(a_here, I64(i * p.a[0]), dtype), dtype), width)
            for j in range(count):
                total = f.read(sums[i][j], dtype, width)
                f.write(f.fma(one, b_vectors[j], total), sums[i][j])
    c = f.at(f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), dtype), start, dtype)
    for i in range(rows):
        for j in range(count):
            address = f.at(c, I64(i * p.c + j * width), dtype)
            value = f.read(sums[i][j], dtype, width)
            if p.accumulate or blocked:
                before = f.load(address, dtype, width, masks[j])
                value = f.fma(f.constant(p.scale, value), value, before)
            elif p.scale != 1.0:
                value = f.binary("fmul", value, f.constant(p.scale, value))
            f.store(value, address, masks[j])


def _mask(left: int, width: int) -> Value | None:
    """Which lanes of a vector exist when `left` elements are left; None if all do."""
    if left >= width or width == 1:
        return None
    bits = ", ".join(f"i1 {'true' if i < left else 'false'}" for i in range(width))
    return Value(f"<{bits}>", "bool", width)
