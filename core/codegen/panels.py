"""Scratch memory of a factorisation that takes some columns at a time: the matrix by rows, and panels of its columns.

In a panel the elements of a column follow each other, so that work on one column is a vector loop. The rest of the
matrix is updated by products of a panel with rows of the matrix, in tiles of registers.
"""

from __future__ import annotations

from core.codegen.cpus import cpu
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.substitution import lane_numbers
from core.codegen.tile import tile
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import fill_zeros, move

__all__ = ["PANEL", "Panels", "tile_rows"]

PANEL = 16
"""Columns of a panel."""


def tile_rows() -> int:
    """Rows of a tile; a divisor of `PANEL`."""
    return 8 if cpu().vector_bytes == 64 else 4


class Panels:
    """A matrix [m, n] in scratch memory and the current panel.

    width, columns: lanes of a vector, and columns of a strip, whole vectors.
    step, column:   elements from one row of the matrix to the next, and from one column of a panel to the next.
    base, panel:    addresses of the matrix and of the panel.
    """

    def __init__(
        self, f: Function, dtype: str, shape: tuple[int, int], strip: tuple[int, int], steps: tuple[int, int],
        base: IRValue, panel: IRValue,
    ) -> None:  # fmt: skip
        self.f, self.dtype, (self.m, self.n) = f, dtype, shape
        self.width, self.columns = strip
        self.step, self.column = steps
        self.base, self.panel = base, panel

    def at(self, row: IRValue, column: IRValue) -> IRValue:
        return move(self.f, self.base, self.dtype, (row, self.step), (column, 1))

    def in_panel(self, column: IRValue, row: IRValue) -> IRValue:
        return move(self.f, self.panel, self.dtype, (column, self.column), (row, 1))

    def inside(self, at: IRValue) -> IRValue | None:
        """Which lanes of a vector at column `at` belong to the matrix; None if all do."""
        if self.n % self.width == 0:
            return None
        return self.f.compare("icmp slt", self.f.binary("add", lane_numbers(self.width), at), I64(self.n))

    def read(self, x: IRValue, steps: tuple[int, int]) -> None:
        """Copy the matrix at x to the scratch memory; columns up to a whole vector become 0."""
        f = self.f
        with f.loop(I64(0), I64(self.m)) as row, f.loop(I64(0), I64(self.n), self.width) as at:
            address = move(f, x, self.dtype, (row, steps[0]), (at, steps[1]))
            f.store(f.load(address, self.dtype, self.width, self.inside(at)), self.at(row, at))

    def clear_pads(self) -> None:
        """Zeros behind the rows and columns of the matrix and of the panel, as far as vectors and tiles reach.

        They stay zeros while the matrix is factorised, and for the next one. Numbers of earlier kernels there may be
        denormal, for which arithmetic can take a hundred times as long.
        """
        f, (last, end) = self.f, (self.m // self.width * self.width, -(-self.m // self.width) * self.width)
        tiled = self.n > PANEL
        fill_zeros(f, self.at(I64(self.m), I64(0)), max(end - self.m, tile_rows() * tiled) * self.step, self.dtype)
        for column in range(min(self.n, PANEL)):
            for row in (last, last + self.width):
                zeros = f.splat(literal(0, self.dtype), self.width)
                f.store(zeros, self.in_panel(I64(column), I64(row)))
        if tiled:
            behind = -(-self.n // self.width) * self.width
            with f.loop(I64(0), I64(self.m)) as each:
                fill_zeros(f, self.at(each, I64(behind)), self.step - behind, self.dtype)

    def turn(self, first: IRValue, into_panel: bool) -> None:
        """Copy the columns from `first`, from row `first` on, to the panel or back, in squares."""
        f, width = self.f, self.width
        with f.loop(first, I64(self.m), width) as row, f.loop(I64(0), I64(PANEL), width) as column:
            there = f.binary("add", first, column)
            places = [self.at(f.binary("add", row, I64(i)), there) for i in range(width)]
            turned = [self.in_panel(f.binary("add", column, I64(i)), row) for i in range(width)]
            sources, targets = (places, turned) if into_panel else (turned, places)
            square = transposed_square(f, [f.load(each, self.dtype, width) for each in sources])
            for vector, target in zip(square, targets, strict=True):
                f.store(vector, target)

    def minus_tile(self, first: IRValue, row: IRValue, start: IRValue, count: IRValue, store: bool) -> list[IRValue]:
        """A tile at (row, start) minus the products of the panel's first `count` columns and the rows from `first`."""
        b = (self.at(first, start), self.step)
        return self.minus_products((self.in_panel(I64(0), row), 1, self.column), b, (I64(0), count), row, start, store)

    def minus_products(
        self, a: tuple[IRValue, int, int], b: tuple[IRValue, int], steps: tuple[IRValue, IRValue], row: IRValue,
        start: IRValue, store: bool = True,
    ) -> list[IRValue]:  # fmt: skip
        """A tile at (row, start) minus the product of a and b (see `tile`), row after row; `store` writes it back."""
        f = self.f
        c, size = (self.at(row, start), self.step), (tile_rows(), self.columns)
        found = tile(f, self.dtype, size, self.width, steps, a, b, c)
        numbers = [f.binary("fsub", f.load(address, self.dtype, self.width), total) for total, address, _ in found]
        if store:
            for number, (_, address, _) in zip(numbers, found, strict=True):
                f.store(number, address)
        return numbers
