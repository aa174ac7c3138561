"""Cholesky factors on a device: a block of threads for each matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from core.codegen.checks import fail
from core.codegen.llvm import I64, IRValue, itemsize, literal
from core.codegen.vector_slices import move
from core.device.blocks import PANEL, Block, minus_product
from core.device.threads import WARP, in_bundles
from core.plan.systems import Cholesky

__all__ = ["write_cholesky"]

TILE_BYTES = 40_000
"""Most bytes of the rows of a panel in shared memory: they are all of them unless a matrix is large."""

ROWS_BYTES = 16
"""Bytes of the numbers of one column, from which a warp subtracts products together."""

AHEAD = 2
"""Columns of a thread whose numbers are loaded together."""


def write_cholesky(block: Block, spec: Cholesky, matrix: IRValue) -> None:
    """``(x, out)``: see `_Factor`."""
    _Factor(block, spec, matrix).write()


class _Factor:
    """Writes a Cholesky factor, one panel of columns after the other.

    One warp factors the square of the panel on the diagonal: a thread has a row of it. Then a thread has a row of the
    panel below, and all threads subtract its products from the columns to its right, some rows of a warp at a time.
    What they share is in shared memory: the pivots, the inverses of the diagonal, the square by columns, and a tile of
    rows of the panel.

    rows: of a tile. whole: whether that is the panel.
    """

    def __init__(self, block: Block, spec: Cholesky, matrix: IRValue) -> None:
        self.block, self.spec, self.f, self.n, self.dtype = block, spec, block.f, spec.n, spec.dtype
        f, n, dtype = block.f, spec.n, spec.dtype
        self.x = move(f, f.param("x"), dtype, (matrix, spec.x[0]))
        self.out = move(f, f.param("out"), dtype, (matrix, n * n))
        self.rows = min(-(-n // PANEL) * PANEL, TILE_BYTES // ((PANEL + 1) * itemsize(dtype)))
        self.whole = n <= self.rows
        sizes = (PANEL, PANEL, PANEL * PANEL, self.rows * (PANEL + 1))
        shared = block.team.shared(f, sum(sizes) * itemsize(dtype))
        starts = list(accumulate(sizes, initial=0))[: len(sizes)]
        self.pivots, self.inverses, self.square, self.tile = (f.at(shared, I64(at), dtype) for at in starts)

    def at(self, row: IRValue, column: IRValue) -> IRValue:
        return move(self.f, self.out, self.dtype, (row, self.n), (column, 1))

    def of_square(self, row: int | IRValue, column: int) -> IRValue:
        row = I64(row) if isinstance(row, int) else row
        return self.f.at(self.square, self._plus(row, column * PANEL), self.dtype)

    def of_tile(self, row: IRValue, column: IRValue | int) -> IRValue:
        """Rows begin in different banks of shared memory."""
        column = I64(column) if isinstance(column, int) else column
        return move(self.f, self.tile, self.dtype, (row, PANEL + 1), (column, 1))

    def write(self) -> None:
        block, f, n = self.block, self.f, self.n
        self._copy()
        block.meet()
        with f.loop(I64(0), I64(n), PANEL) as first:
            end = f.intrinsic("smin", self._plus(first, PANEL), I64(n))
            with f.when(f.compare("icmp eq", block.warp, I64(0))):
                self._factor_square(first, end)
            block.meet()
            with f.loop(end, I64(n), self.rows) as start:
                self._load_tile(first, start)
                block.meet()
                self._solve_tile(start)
                block.meet()
                self._store_tile(first, start)
                block.meet()
            rows = f.binary("sub", I64(n), end)
            tiles = f.op(f"udiv {self._plus(rows, self.rows - 1)}, {self.rows}", "int64")
            with f.loop(I64(0), tiles) as number:  # the last one first, which is there
                back = f.binary("sub", tiles, self._plus(number, 1))
                start = f.binary("add", end, f.op(f"mul nsw {back}, {self.rows}", "int64"))
                with f.when(f.compare("icmp sgt", number, I64(0))):
                    block.meet()
                    self._load_tile(first, start)
                    block.meet()
                self._subtract_tile(first, start)
            block.meet()

    def _plus(self, value: IRValue, more: int) -> IRValue:
        return self.f.binary("add", value, I64(more)) if more else value

    def _copy(self) -> None:
        """The lower triangle; the other one of x is not read, and the result has zeros there."""
        block, f, dtype = self.block, self.f, self.dtype
        with f.loop(block.warp, I64(self.n), block.warps) as row, f.loop(block.lane, I64(self.n), WARP) as column:
            lower = f.compare("icmp sle", column, row)
            place = f.select(lower, column, row)
            steps = (row, self.spec.x[1]), (place, self.spec.x[2])
            value = f.load(move(f, self.x, dtype, *steps), dtype)
            f.store(f.select(lower, value, literal(0, dtype)), self.at(row, column))

    def _factor_square(self, first: IRValue, end: IRValue) -> None:
        """Each thread has one row, and computes the numbers right of the diagonal, too, so that all run the same code.

        Rows of the identity stand for those behind the last row of the matrix.
        """
        block, f, dtype = self.block, self.f, self.dtype
        own = f.op(f"and {block.lane}, {PANEL - 1}", "int64")
        row = f.binary("add", first, own)
        exists = f.compare("icmp slt", row, end)
        values = []
        for k in range(PANEL):
            lower = f.binary("and", exists, f.compare("icmp sge", own, I64(k)))
            given = f.load(self.at(f.select(lower, row, first), f.select(lower, self._plus(first, k), first)), dtype)
            other = f.select(f.compare("icmp eq", own, I64(k)), literal(1, dtype), literal(0, dtype))
            values.append(f.select(lower, given, other))
        wrong, in_square = literal(False, "bool"), f.compare("icmp slt", block.lane, I64(PANEL))
        for j in range(PANEL):
            here = [f.at(array, I64(j), dtype) for array in (self.pivots, self.inverses)]
            with f.when(f.compare("icmp eq", block.lane, I64(j))):
                f.store(values[j], here[0])
            block.team.warp_barrier(f)
            pivot = f.load(here[0], dtype)
            wrong = f.binary("or", wrong, f.op(f"xor {f.compare('fcmp ugt', pivot, literal(0, dtype))}, true", "bool"))
            root = f.intrinsic("sqrt", pivot)
            inverse = f.binary("fdiv", literal(1, dtype), root)
            is_pivot = f.compare("icmp eq", own, I64(j))
            values[j] = f.select(is_pivot, root, f.binary("fmul", values[j], inverse))
            with f.when(in_square):
                f.store(values[j], self.of_square(own, j))
                with f.when(is_pivot):
                    f.store(inverse, here[1])
            block.team.warp_barrier(f)
            for k in range(j + 1, PANEL):
                values[k] = minus_product(f, values[k], values[j], f.load(self.of_square(k, j), dtype))
        with f.when(f.binary("and", wrong, f.compare("icmp eq", block.lane, I64(0)))):
            fail(f, f.param("error"), f.param("check"))
        with f.when(f.binary("and", exists, in_square)):
            for k in range(PANEL):
                with f.when(f.compare("icmp sge", own, I64(k))):
                    f.store(values[k], self.at(row, self._plus(first, k)))

    @contextmanager
    def _each_of_tile(self, first: IRValue, start: IRValue) -> Iterator[tuple[IRValue, IRValue]]:
        """(address in the matrix, address in the tile) of the numbers of the panel from row `start` on."""
        block, f = self.block, self.f
        column = f.op(f"urem {block.number}, {PANEL}", "int64")
        above = f.op(f"udiv {block.number}, {PANEL}", "int64")
        count = f.intrinsic("smin", f.binary("sub", I64(self.n), start), I64(self.rows))
        with f.loop(above, count, block.total // PANEL) as row:
            yield self.at(f.binary("add", start, row), f.binary("add", first, column)), self.of_tile(row, column)

    def _load_tile(self, first: IRValue, start: IRValue) -> None:
        with self._each_of_tile(first, start) as (there, here):
            self.f.store(self.f.load(there, self.dtype), here)

    def _store_tile(self, first: IRValue, start: IRValue) -> None:
        with self._each_of_tile(first, start) as (there, here):
            self.f.store(self.f.load(here, self.dtype), there)

    def _solve_tile(self, start: IRValue) -> None:
        """Only whole panels have rows below them."""
        block, f, dtype = self.block, self.f, self.dtype
        count = f.intrinsic("smin", f.binary("sub", I64(self.n), start), I64(self.rows))
        with f.loop(block.number, count, block.total) as row:
            values = [f.load(self.of_tile(row, k), dtype) for k in range(PANEL)]
            for j in range(PANEL):
                values[j] = f.binary("fmul", values[j], f.load(f.at(self.inverses, I64(j), dtype), dtype))
                for k in range(j + 1, PANEL):
                    values[k] = minus_product(f, values[k], values[j], f.load(self.of_square(k, j), dtype))
            for k, value in enumerate(values):
                f.store(value, self.of_tile(row, k))

    def _subtract_tile(self, first: IRValue, start: IRValue) -> None:
        """Subtract products from the columns whose rows of the panel are in the tile."""
        block, f, dtype, last = self.block, self.f, self.dtype, I64(self.n - 1)
        together = ROWS_BYTES // itemsize(dtype)
        own = f.binary("add", start, f.op(f"mul nsw {block.warp}, {together}", "int64"))
        with f.loop(own, I64(self.n), block.warps * together) as top:
            rows = [self._plus(top, r) for r in range(together)]
            exist = [f.compare("icmp slt", row, I64(self.n)) for row in rows]
            read = [f.select(one, row, top) for one, row in zip(exist, rows, strict=True)]  # not those of other warps
            if self.whole:
                inside = [f.binary("sub", row, start) for row in read]
                factors = [[f.load(self.of_tile(row, k), dtype) for k in range(PANEL)] for row in inside]
            else:
                factors = [[f.load(self.at(row, self._plus(first, k)), dtype) for k in range(PANEL)] for row in read]
            right = f.intrinsic("smin", self._plus(start, self.rows - 1), f.intrinsic("smin", rows[-1], last))

            def subtract(
                columns: list[IRValue], rows: Any = rows, exist: Any = exist, read: Any = read, factors: Any = factors
            ) -> None:
                values = [[f.load(self.at(row, column), dtype) for row in read] for column in columns]
                places = [f.binary("sub", column, start) for column in columns]
                others = [[f.load(self.of_tile(place, k), dtype) for k in range(PANEL)] for place in places]
                for column, given, right in zip(columns, values, others, strict=True):
                    for row, one, factor, value in zip(rows, exist, factors, given, strict=True):
                        for a, b in zip(factor, right, strict=True):
                            value = minus_product(f, value, a, b)
                        with f.when(f.binary("and", one, f.compare("icmp sle", column, row))):
                            f.store(value, self.at(row, column))

            in_bundles(f, f.binary("add", start, block.lane), self._plus(right, 1), WARP, AHEAD, subtract)
