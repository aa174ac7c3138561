"""LU factors on a device: a block of threads for each matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.vector_slices import move
from core.device.blocks import PANEL, Block, minus_product
from core.device.threads import WARP
from core.plan.systems import Elimination

__all__ = ["write_elimination"]


def write_elimination(block: Block, spec: Elimination, matrix: IRValue) -> None:
    """``(x, out, order, sign)``: the columns one after another, each with the search for its pivot."""
    f, n, dtype = block.f, spec.n, spec.dtype
    integer = f"int{8 * itemsize(dtype)}"
    x, out = move(f, f.param("x"), dtype, (matrix, spec.x[0])), move(f, f.param("out"), dtype, (matrix, n * n))
    order = move(f, f.param("order"), "int64", (matrix, n))
    at = lambda row, column: move(f, out, dtype, (row, n), (column, 1))
    with f.loop(block.warp, I64(n), block.warps) as row, f.loop(block.lane, I64(n), WARP) as column:
        f.store(f.load(move(f, x, dtype, (row, spec.x[1]), (column, spec.x[2])), dtype), at(row, column))
    with f.loop(block.number, I64(n), block.total) as row:
        f.store(row, f.at(order, row, "int64"))
    sign = f.slot(dtype)
    f.write(literal(1, dtype), sign)
    block.meet()
    with f.loop(I64(0), I64(n), PANEL) as first:
        end = f.intrinsic("smin", f.binary("add", first, I64(PANEL)), I64(n))
        with f.loop(first, end) as j:
            best = _pivot(block, j, n, integer, lambda row, j=j: f.load(at(row, j), dtype))  # type: ignore[misc]
            moved = f.compare("icmp ne", best, j)
            with f.when(moved):
                with f.loop(block.number, I64(n), block.total) as column:
                    _exchange(f, at(j, column), at(best, column), dtype)
                with f.when(block.first):
                    _exchange(f, f.at(order, j, "int64"), f.at(order, best, "int64"), "int64")
            now = f.read(sign, dtype)
            f.write(f.select(moved, f.op(f"fneg {now}", dtype), now), sign)
            block.meet()
            pivot, after = f.load(at(j, j), dtype), f.binary("add", j, I64(1))
            zero = f.compare("fcmp oeq", pivot, literal(0, dtype))
            pivot = f.select(zero, literal(1, dtype), pivot)  # all numbers below it are 0 too
            with f.loop(f.binary("add", after, block.number), I64(n), block.total) as row:
                f.store(f.binary("fdiv", f.load(at(row, j), dtype), pivot), at(row, j))
            block.meet()
            with _of_panel(block, first, after, end, n) as (row, column):
                place = at(row, column)
                product = f.load(at(row, j), dtype), f.load(at(j, column), dtype)
                f.store(minus_product(f, f.load(place, dtype), *product), place)
            block.meet()
        panel = [f.binary("add", first, I64(k)) for k in range(PANEL)]
        with f.loop(f.binary("add", end, block.number), I64(n), block.total) as column:
            known: list[IRValue] = []
            for row in panel:
                value = f.load(at(row, column), dtype)
                for k, above in zip(panel, known, strict=False):
                    value = minus_product(f, value, f.load(at(row, k), dtype), above)
                known.append(value)
                f.store(value, at(row, column))
        block.meet()
        _subtract_panel(block, dtype, n, first, end, at)
    with f.when(block.first):
        f.store(f.read(sign, dtype), f.at(f.param("sign"), matrix, dtype))


def _pivot(block: Block, first: IRValue, n: int, integer: str, number: Callable[[IRValue], IRValue]) -> IRValue:
    """The row of the first largest number of a column, from row `first` on. NaN counts as the largest."""
    f, most, place = block.f, block.f.slot(integer), block.f.slot("int64")
    f.write(IRValue("-1", integer), most)
    f.write(I64(n), place)
    with f.loop(f.binary("add", first, block.number), I64(n), block.total) as row:
        bits = f.bitcast(f.intrinsic("fabs", number(row)), integer)  # ordered as the sizes are
        larger = f.compare("icmp sgt", bits, f.read(most, integer))
        f.write(f.select(larger, bits, f.read(most, integer)), most)
        f.write(f.select(larger, row, f.read(place, "int64")), place)
    own = f.read(most, integer)
    largest = block.combined("max", own)
    mine = f.select(f.compare("icmp eq", own, largest), f.read(place, "int64"), I64(n))
    return block.combined("min", mine)


def _exchange(f: Function, one: IRValue, other: IRValue, dtype: str) -> None:
    a, b = f.load(one, dtype), f.load(other, dtype)
    f.store(b, one)
    f.store(a, other)


@contextmanager
def _of_panel(block: Block, first: IRValue, after: IRValue, end: IRValue, n: int) -> Iterator[tuple[IRValue, IRValue]]:
    """The rows and the columns from `after` on of the panel `first` to `end`, shared by the threads of a block."""
    f = block.f
    column = f.binary("add", first, f.op(f"urem {block.number}, {PANEL}", "int64"))
    start = f.binary("add", after, f.op(f"udiv {block.number}, {PANEL}", "int64"))
    inside = f.binary("and", f.compare("icmp sge", column, after), f.compare("icmp slt", column, end))
    with f.when(inside), f.loop(start, I64(n), block.total // PANEL) as row:
        yield row, column


def _subtract_panel(
    block: Block, dtype: str, n: int, first: IRValue, end: IRValue, at: Callable[[IRValue, IRValue], IRValue]
) -> None:
    """Subtract the products of a whole panel from what follows its rows and columns.

    at: the address of a row and a column.
    """
    f = block.f
    panel = [f.binary("add", first, I64(k)) for k in range(PANEL)]
    with f.loop(f.binary("add", end, block.warp), I64(n), block.warps) as row:
        factors = [f.load(at(row, k), dtype) for k in panel]
        with f.loop(f.binary("add", end, block.lane), I64(n), WARP) as column:
            value = f.load(at(row, column), dtype)
            for k, factor in zip(panel, factors, strict=True):
                value = minus_product(f, value, factor, f.load(at(k, column), dtype))
            f.store(value, at(row, column))
    block.meet()
