"""A tile of a packed product, as a function that the products of a step share.

Packed operands look alike whatever the matrices are, so products of different sizes run the same few functions: a
step with forty products has no forty copies of their longest part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.tile import STEPS, tile
from core.codegen.tiled_product import TiledProduct, write_tiled_product
from core.ir.aligned import LINE

__all__ = ["Fetched", "PackedTile", "run_tile"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """An array that the epilogue needs; what lies under a tile is fetched while the tile is computed.

    address: of the first element under the tile.
    apart:   elements from one row to the next.
    """

    address: IRValue
    dtype: str
    apart: int


WORDS = 3
"""Words of an array in the table of those that are fetched: address, bytes from one row to the next, and from one part
of a row to the next."""


@dataclass(frozen=True, slots=True)
class PackedTile:
    """One form of tile: the result [rows, columns] of rows of a and packed rows of b.

    a:       elements from one row of a to the next, and from one step along k to the next.
    b:       elements from one step along k to the next.
    pairs:   whether an element of a and b is a pair of bfloat16 numbers.
    even:    whether it takes an even number of steps.
    tiled:   whether the CPU multiplies it in tiles of its own.
    """

    rows: int
    columns: int
    a: tuple[int, int]
    b: int
    dtype: str
    pairs: bool
    even: bool
    tiled: bool = False

    @property
    def lines(self) -> int:
        """Cache lines of a row of the result."""
        return max(self.b * itemsize(self.dtype) // LINE, 1)


def run_tile(
    module: Module, f: Function, form: PackedTile, operands: tuple[IRValue, IRValue], count: IRValue,
    c: tuple[IRValue, int], adds: IRValue, fetched: list[Fetched], depth: int,
) -> None:  # fmt: skip
    """Write the sums of `count` steps along k to the result.

    operands: addresses of the rows of a and of the packed rows of b.
    c:        address of the result, elements from one of its rows to the next.
    adds:     whether the sums are added to it.
    depth:    most steps that a tile takes; the fetches are spread over them.
    """
    name = module.function(form, "tile", lambda name: _function(name, form))
    table, stretch = IRValue("null", "ptr"), count
    if fetched:
        stretch = I64(max(depth // (form.rows * form.lines) // STEPS, 1) * STEPS)
        table = IRValue(f.fresh("fetched"), "ptr")
        f.top.append(f"  {table.name} = alloca [{WORDS * len(fetched)} x i64], align 64")
        for i, each in enumerate(fetched):
            size = itemsize(each.dtype)
            address = f.op(f"ptrtoint {each.address} to i64", "int64")
            for j, word in enumerate((address, I64(each.apart * size), I64(form.b // form.lines * size))):
                f.store(word, f.at(table, I64(WORDS * i + j), "int64"))
    given = [*operands, c[0], I64(c[1]), count, adds, stretch, table, I64(len(fetched))]
    f.do(f"call void @{name}({', '.join(map(str, given))})")


def _function(name: str, form: PackedTile) -> Function:
    """``name(a, b, c, elements between rows of c, steps, adds, steps of a stretch, table, arrays in it)``."""
    params = [*((x, "ptr") for x in "abc"), ("step", "int64"), ("count", "int64"), ("adds", "bool")]
    f = Function(name, [*params, ("stretch", "int64"), ("table", "ptr"), ("number", "int64")], noalias=False)
    a, b, c = (f.param(x) for x in "abc")
    fetch = _fetcher(f, form)
    if form.tiled:

        def fetches(first: IRValue, end: IRValue) -> None:
            with f.loop(first, end, f.param("stretch")):
                fetch()

        product = TiledProduct(form.rows, form.columns, form.a, form.b)
        result = c, f.param("step")
        write_tiled_product(f, product, a, b, result, f.param("count"), f.param("adds"), fetches)
        return f
    sums = tile(
        f, form.dtype, (form.rows, form.columns), lanes(form.dtype), (I64(0), f.param("count")), (a, *form.a),
        (b, form.b), (c, f.param("step")), (f.param("stretch"), fetch), form.pairs, form.even,
    )  # fmt: skip

    def store(adds: bool) -> None:
        for total, address, which in sums:
            if adds:
                total = f.binary("fadd", total, f.load(address, form.dtype, total.lanes, which))
            f.store(total, address, which)

    f.either(f.param("adds"), lambda: store(True), lambda: store(False))
    return f


def _fetcher(f: Function, form: PackedTile) -> Callable[[], None]:
    """A function that writes, at the start of each stretch, the fetch of the next line of each array."""
    f.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    done = f.slot("int64")
    f.write(I64(0), done)

    def fetch() -> None:
        at = f.read(done, "int64")
        f.write(f.intrinsic("smin", f.binary("add", at, I64(1)), I64(form.rows * form.lines - 1)), done)
        row, line = f.op(f"udiv {at}, {form.lines}", "int64"), f.op(f"urem {at}, {form.lines}", "int64")
        with f.loop(I64(0), f.param("number")) as i:
            words = f.at(f.param("table"), f.op(f"mul nsw {i}, {WORDS}", "int64"), "int64")
            address, down, along = (f.load(f.at(words, I64(j), "int64"), "int64") for j in range(WORDS))
            here = f.op(f"inttoptr {address} to ptr", "ptr")
            here = f.at(f.at(here, f.binary("mul", row, down), "uint8"), f.binary("mul", line, along), "uint8")
            f.do(f"call void @llvm.prefetch.p0({here}, i32 0, i32 3, i32 1)")

    return fetch
