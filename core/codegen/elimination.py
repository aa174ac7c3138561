"""LU factors with partial pivoting, some columns at a time (see `core.plan.systems.Elimination`).

The search for a pivot, the division by it and the steps of elimination inside a panel are vector loops along columns.
Afterwards the rows of the panel's pivots are solved for the columns to its right, and the product of both is subtracted
from the rest of the matrix, in tiles of registers.
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, element_type, itemsize, literal
from core.codegen.module import Module
from core.codegen.panels import PANEL, Panels, tile_rows
from core.codegen.reductions import reduce_lanes
from core.codegen.substitution import lane_numbers, minus_products, strip_of
from core.codegen.vector_slices import move
from core.plan.systems import Elimination

__all__ = ["eliminate", "elimination_scratch"]


def _sizes(spec: Elimination) -> tuple[int, int, int]:
    """Rows of the scratch matrix; elements from one of its rows to the next; and from one of the panel's columns to
    the next. Squares, strips and tiles may begin at each element and reach over the end.
    """
    width, columns = strip_of(spec.dtype, spec.n)
    round_up = lambda n: -(-n // width) * width
    return spec.n + PANEL + width, round_up(spec.n + max(columns, PANEL)), round_up(spec.n + PANEL) + 2 * width


def elimination_scratch(spec: Elimination) -> int:
    """Bytes of the scratch matrix and of the panel."""
    height, step, column = _sizes(spec)
    return (height * step + PANEL * column) * itemsize(spec.dtype)


def eliminate(_: Module, f: Function, spec: Elimination) -> None:
    """``(x, out, order, sign)``; a unit is a matrix."""
    _Matrix(f, spec, I64(0)).clear_pads()
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        _Matrix(f, spec, matrix).write()


class _Matrix(Panels):
    """The factors of one matrix."""

    def __init__(self, f: Function, spec: Elimination, matrix: IRValue) -> None:
        self.spec, self.matrix, self.end = spec, matrix, I64(spec.n)
        height, step, column = _sizes(spec)
        base = f.param("scratch")
        panel = f.at(base, I64(height * step), spec.dtype)
        strip = strip_of(spec.dtype, spec.n)
        super().__init__(f, spec.dtype, (spec.n, spec.n), strip, (step, column), base, panel)
        self.order = move(f, f.param("order"), "int64", (matrix, spec.n))
        self.sign = f.slot(spec.dtype)

    def write(self) -> None:
        f, n = self.f, self.end
        self.read(move(f, f.param("x"), self.dtype, (self.matrix, self.spec.x[0])), self.spec.x[1:])
        with f.loop(I64(0), n) as row:
            f.store(row, f.at(self.order, row, "int64"))
        f.write(literal(1, self.dtype), self.sign)
        with f.loop(I64(0), n, PANEL, polls=True) as first:
            self.turn(first, into_panel=True)
            end = f.intrinsic("smin", f.binary("add", first, I64(PANEL)), n)
            with f.loop(first, end) as pivot:
                self._eliminate(pivot, f.binary("sub", pivot, first), f.binary("sub", end, first))
            self.turn(first, into_panel=False)
            if self.spec.n > PANEL:
                right = f.binary("add", first, I64(PANEL))
                with f.loop(right, n, self.columns, polls=True) as start:
                    self._solve(first, start)
                    with f.loop(right, n, tile_rows()) as row:
                        self.minus_tile(first, row, start, I64(PANEL), store=True)
        self._put()

    def _put(self) -> None:
        """Write the results."""
        f, n = self.f, self.spec.n
        with f.loop(I64(0), self.end) as row, f.loop(I64(0), self.end, self.width) as at:
            address = move(f, f.param("out"), self.dtype, (self.matrix, n * n), (row, n), (at, 1))
            f.store(f.load(self.at(row, at), self.dtype, self.width), address, self.inside(at))
        f.store(f.read(self.sign, self.dtype), f.at(f.param("sign"), self.matrix, self.dtype))

    # --- one column ----------------------------------------------------------------------------------------------

    def _eliminate(self, pivot: IRValue, column: IRValue, count: IRValue) -> None:
        """Choose the pivot of a column of the panel, exchange rows, and subtract its row from those below.

        pivot: its row. column: its number in the panel. count: columns of the panel.
        """
        f, width = self.f, self.width
        best = self._search(pivot, column)
        with f.when(f.compare("icmp ne", best, pivot)):
            self._exchange(pivot, best)
        number = f.load(self.in_panel(column, pivot), self.dtype)
        zero = f.compare("fcmp oeq", number, literal(0, self.dtype))
        number = f.select(zero, literal(1, self.dtype), number)  # all numbers below it are 0 too
        below = f.binary("add", pivot, I64(1))
        with f.loop(below, self.end, width) as row:
            address = self.in_panel(column, row)
            f.store(f.binary("fdiv", f.load(address, self.dtype, width), number), address)
        with f.loop(f.binary("add", column, I64(1)), count) as other:
            factor = f.load(self.in_panel(other, pivot), self.dtype)
            with f.loop(below, self.end, width) as row:
                address = self.in_panel(other, row)
                value = [f.load(address, self.dtype, width)]
                lower = [f.load(self.in_panel(column, row), self.dtype, width)]
                f.store(minus_products(f, value, factor, lower)[0], address)

    def _search(self, pivot: IRValue, column: IRValue) -> IRValue:
        """The row of the first largest number of a column, from row `pivot` on. NaN counts as the largest."""
        f, width, integer = self.f, self.width, f"int{8 * itemsize(self.dtype)}"
        most, place = f.slot(integer, width), f.slot(integer, width)
        f.write(f.splat(IRValue("-1", integer), width), most)
        f.write(f.splat(f.convert(pivot, integer), width), place)
        lane = IRValue(lane_numbers(width).name.replace("i64", element_type(integer)), integer, width)
        with f.loop(pivot, self.end, width) as row:
            size = f.intrinsic("fabs", f.load(self.in_panel(column, row), self.dtype, width))
            bits = f.bitcast(size, integer)  # ordered as the sizes are
            at = f.binary("add", lane, f.convert(row, integer))
            inside = f.compare("icmp slt", at, f.splat(IRValue(str(self.spec.n), integer), width))
            larger = f.compare("icmp sgt", bits, f.read(most, integer, width))
            larger = f.binary("and", larger, inside)
            f.write(f.select(larger, bits, f.read(most, integer, width)), most)
            f.write(f.select(larger, at, f.read(place, integer, width)), place)
        found = f.read(most, integer, width)
        top = reduce_lanes(f, "max", found)
        places = f.select(
            f.compare("icmp eq", found, top), f.read(place, integer, width), IRValue(str(2**31 - 1), integer)
        )
        return f.convert(reduce_lanes(f, "min", places), "int64")

    def _exchange(self, one: IRValue, other: IRValue) -> None:
        """Exchange two rows in the scratch matrix, in the panel and in the order."""
        f, width = self.f, self.width
        with f.loop(I64(0), I64(self.step), width) as at:
            self._swap(self.at(one, at), self.at(other, at), self.dtype, width)
        with f.loop(I64(0), I64(PANEL)) as column:
            self._swap(self.in_panel(column, one), self.in_panel(column, other), self.dtype)
        self._swap(f.at(self.order, one, "int64"), f.at(self.order, other, "int64"), "int64")
        f.write(f.op(f"fneg {f.read(self.sign, self.dtype)}", self.dtype), self.sign)

    def _swap(self, one: IRValue, other: IRValue, dtype: str, lanes: int = 1) -> None:
        f = self.f
        a, b = f.load(one, dtype, lanes), f.load(other, dtype, lanes)
        f.store(a, other)
        f.store(b, one)

    # --- columns to the right of the panel -----------------------------------------------------------------------

    def _solve(self, first: IRValue, start: IRValue) -> None:
        """Solve the rows of the panel's pivots for the columns of a strip."""
        f, width, rows = self.f, self.width, tile_rows()
        vectors = self.columns // width
        with f.loop(I64(0), I64(PANEL), rows) as done:
            row = f.binary("add", first, done)
            numbers = self.minus_tile(first, row, start, done, store=False)
            for i in range(rows):
                for j in range(i):
                    factor = f.load(
                        self.in_panel(f.binary("add", done, I64(j)), f.binary("add", row, I64(i))), self.dtype
                    )
                    others = numbers[j * vectors : (j + 1) * vectors]
                    numbers[i * vectors : (i + 1) * vectors] = minus_products(
                        f, numbers[i * vectors : (i + 1) * vectors], factor, others
                    )
            corner = self.at(row, start)
            for number, value in enumerate(numbers):
                i, j = divmod(number, vectors)
                f.store(value, f.at(corner, I64(i * self.step + j * width), self.dtype))
