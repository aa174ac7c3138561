"""Small matrix products: tiles of the result in registers, operands read in place.

For each step along k a tile multiplies some vectors of a row of b by one number of each of its rows of a. Nothing is
packed, so the elements of a row of b must be adjacent; other products go to the BLAS (see `blas`), which packs.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.codegen.denormals import vanishing
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.tile import STEPS, tile, tile_of
from core.codegen.vector_slices import mask
from core.plan.data import Gemm

__all__ = ["Product", "gemm_function", "product_of"]

DEPTH = 256
"""Steps along k in one block, whose sums are then added to the result. Rows of b and lines of a fit in the cache."""


@dataclass(frozen=True, slots=True)
class Product:
    """One shape of product: c [m, n] = a [m, k] b [k, n]. Strides count elements; rows of b and c have no gaps.

    vanishes: whether it takes denormal numbers for zero.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: int
    c: int
    dtype: str
    accumulate: bool
    vanishes: bool = False


def product_of(each: Gemm) -> Product | None:
    """The shape of a product, or None if the BLAS must compute it."""
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    if n > 1 and (each.b.strides[-1] != 1 or each.c.strides[-1] != 1):
        return None
    if n == 1 and k > 64:  # one sum along k for each row: every addition would wait for the one before
        return None
    a = (each.a.strides[-2], each.a.strides[-1])
    return Product(m, n, k, a, each.b.strides[-2], each.c.strides[-2], each.c.dtype, each.accumulate)


def gemm_function(name: str, p: Product) -> Function:
    """``name(a, b, c[, stop], first, end)`` for rows `first` to `end` of the result.

    `first` is a multiple of `rows_of(p)`. `stop` is there if the product is long (`product_polls`).
    """
    polls = product_polls(p.m, p.n, p.k)
    pointers = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")])
    f.stop = f.param("stop") if polls else None
    with vanishing(f, p.vanishes):
        _write(f, p)
    return f


def _write(f: Function, p: Product) -> None:
    width = lanes(p.dtype)
    while width // 2 >= p.n:
        width //= 2
    rows, wide = tile_of(p.m, p.n, width)
    blocked = p.k > 2 * DEPTH
    if blocked and not p.accumulate:
        _clear(f, p, width)
    with f.loop(I64(0), I64(p.k), DEPTH if blocked else p.k, polls=True) as k:
        step = wide * width
        whole = p.n // step * step
        if whole == step:
            _panel(f, p, k, I64(0), step, width, rows)
        elif whole:  # one loop over the panels of whole tiles keeps the text short
            with f.loop(I64(0), I64(whole), step, polls=True) as start:
                _panel(f, p, k, start, step, width, rows)
        if whole < p.n:
            _panel(f, p, k, I64(whole), p.n - whole, width, rows)


def _clear(f: Function, p: Product, width: int) -> None:
    """Write zeros to the rows of the result."""
    with f.loop(f.param("first"), f.param("end")) as row:
        c = f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), p.dtype)
        for start in range(0, p.n, width):
            zero = f.splat(literal(0, p.dtype), width)
            which = mask(p.n - start, width) if width > 1 else None
            f.store(zero, f.at(c, I64(start), p.dtype), which)


def rows_of(p: Product) -> int:
    """Rows of a tile. The rows of a thread's share should be a multiple of it."""
    width = lanes(p.dtype)
    while width // 2 >= p.n:
        width //= 2
    return tile_of(p.m, p.n, width)[0]


def _panel(f: Function, p: Product, k: IRValue, start: IRValue, columns: int, width: int, rows: int) -> None:
    """`columns` columns of the result from `start`, in all its rows. k: first step of the block."""
    first, end = f.param("first"), f.param("end")
    height = f.binary("sub", end, first)
    whole = f.binary("sub", height, f.op(f"srem {height}, {rows}", "int64"))
    middle = f.binary("add", first, whole)
    with f.loop(first, middle, rows, polls=True) as row:
        _tile(f, p, k, row, rows, start, columns, width)
    if p.m % rows:  # only the last share of the result ends in less than a tile
        with f.when(f.compare("icmp slt", middle, end)):
            _tile(f, p, k, middle, p.m % rows, start, columns, width)


def _tile(
    f: Function, p: Product, k: IRValue, row: IRValue, rows: int, start: IRValue, columns: int, width: int
) -> None:
    dtype = p.dtype
    blocked = p.k > 2 * DEPTH
    end: IRValue = I64(p.k)
    if blocked:
        end = f.intrinsic("smin", f.binary("add", k, I64(DEPTH)), I64(p.k))
    a = f.at(f.param("a"), f.op(f"mul nsw {row}, {p.a[0]}", "int64"), dtype)
    b = f.at(f.param("b"), start, dtype)
    c = f.at(f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), dtype), start, dtype)

    size, even = (rows, columns), p.k % STEPS == 0
    for total, address, which in tile(f, dtype, size, width, (k, end), (a, *p.a), (b, p.b), (c, p.c), even=even):
        if p.accumulate or blocked:
            total = f.binary("fadd", total, f.load(address, dtype, width, which))
        f.store(total, address, which)
