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
from core.codegen.vector_slices import move
from core.ir.aligned import LINE

__all__ = ["Fetched", "PackedTile", "run_tile"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """An array whose rows and columns under a tile are fetched while it is computed. written: whether for writing."""

    dtype: str
    written: bool


@dataclass(frozen=True, slots=True)
class PackedTile:
    """One form of tile: the result [rows, columns] of rows of a and packed rows of b.

    a:       elements from one row of a to the next, and from one step along k to the next.
    b:       elements from one step along k to the next.
    pairs:   whether an element of a and b is a pair of bfloat16 numbers.
    even:    whether it takes an even number of steps.
    fetched: the arrays that the epilogue reads or writes.
    """

    rows: int
    columns: int
    a: tuple[int, int]
    b: int
    dtype: str
    pairs: bool
    even: bool
    fetched: tuple[Fetched, ...]

    @property
    def lines(self) -> int:
        """Cache lines of a row of the result."""
        return max(self.b * itemsize(self.dtype) // LINE, 1)


def run_tile(
    module: Module, f: Function, form: PackedTile, operands: tuple[IRValue, IRValue], count: IRValue,
    c: tuple[IRValue, int], adds: IRValue, fetched: list[tuple[IRValue, int]], depth: int,
) -> None:  # fmt: skip
    """Write the sums of `count` steps along k to the result.

    operands: addresses of the rows of a and of the packed rows of b.
    c:        address of the result, elements from one of its rows to the next.
    adds:     whether the sums are added to it.
    fetched:  for each array of the form the address of its first element, and elements from one row to the next.
    depth:    most steps that a tile takes; the fetches are spread over them.
    """
    name = module.function(form, "tile", lambda name: _function(name, form))
    stretch = max(depth // (form.rows * form.lines) // STEPS, 1) * STEPS
    given = [*operands, c[0], I64(c[1]), count, adds]
    if fetched:
        given += [I64(stretch), *(each for at, step in fetched for each in (at, I64(step)))]
    f.do(f"call void @{name}({', '.join(map(str, given))})")


def _function(name: str, form: PackedTile) -> Function:
    """``name(a, b, c, rows of c apart, steps, adds[, steps of a stretch, (array, rows apart)...])``."""
    params = [*((x, "ptr") for x in "abc"), ("step", "int64"), ("count", "int64"), ("adds", "bool")]
    if form.fetched:
        params.append(("stretch", "int64"))
    for i in range(len(form.fetched)):
        params += [(f"p{i}", "ptr"), (f"s{i}", "int64")]
    f = Function(name, params, noalias=False)
    a, b, c = (f.param(x) for x in "abc")
    stretches = (f.param("stretch"), _fetcher(f, form)) if form.fetched else None
    sums = tile(
        f, form.dtype, (form.rows, form.columns), lanes(form.dtype), (I64(0), f.param("count")), (a, *form.a),
        (b, form.b), (c, f.param("step")), stretches, form.pairs, form.even,
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
        for i, each in enumerate(form.fetched):
            here = f.at(f.param(f"p{i}"), f.binary("mul", row, f.param(f"s{i}")), each.dtype)
            here = move(f, here, each.dtype, (line, form.b // form.lines))
            f.do(f"call void @llvm.prefetch.p0({here}, i32 {int(each.written)}, i32 3, i32 1)")

    return fetch
