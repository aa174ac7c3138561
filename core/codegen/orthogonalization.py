"""QR factors by Householder's reflections, some columns at a time (see `core.plan.systems.Orthogonalization`).

The reflections of a panel are found column by column. Together they are ``1 - V T V.T`` with a triangular T (Schreiber
and Van Loan 1989), which is applied to the columns to the right as products of matrices, and afterwards, panel by panel
from the last one, to the identity, which becomes q. The columns of V stay in the panels, with zeros above their ones.
"""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.panels import PANEL, Panels, tile_rows
from core.codegen.reductions import reduce_lanes
from core.codegen.substitution import lane_numbers, minus_products, strip_of
from core.codegen.tile import tile
from core.codegen.vector_slices import fill_zeros, move
from core.plan.systems import Orthogonalization

__all__ = ["orthogonalization_scratch", "orthogonalize"]


def _strip(spec: Orthogonalization) -> tuple[int, int]:
    return strip_of(spec.dtype, max(spec.n, min(spec.m, PANEL)))


def _steps(spec: Orthogonalization) -> tuple[int, int]:
    """Elements from one row of the scratch matrix to the next, and from one column of a panel to the next."""
    width, columns = _strip(spec)
    round_up = lambda n: -(-n // width) * width
    return round_up(spec.n + max(columns, PANEL)), round_up(spec.m + PANEL) + 2 * width


def _parts(spec: Orthogonalization) -> tuple[int, int, int, int, int]:
    """Elements of the scratch matrix, of all panels, of their triangles T, of two strips, and of the signs."""
    width, columns = _strip(spec)
    step, column = _steps(spec)
    panels = -(-spec.n // PANEL)
    matrix = (spec.m + PANEL + width) * step
    return matrix, panels * PANEL * column, panels * PANEL * PANEL, 2 * PANEL * columns, step


def orthogonalization_scratch(spec: Orthogonalization) -> int:
    """Bytes of all parts."""
    return sum(_parts(spec)) * itemsize(spec.dtype)


def orthogonalize(_: Module, f: Function, spec: Orthogonalization) -> None:
    """``(x, q, r)``; a unit is a matrix."""
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        _Matrix(f, spec, matrix).write()


class _Matrix(Panels):
    """The factors of one matrix."""

    def __init__(self, f: Function, spec: Orthogonalization, matrix: IRValue) -> None:
        self.spec, self.matrix = spec, matrix
        addresses, offset = [], 0
        for size in _parts(spec):
            addresses.append(f.at(f.param("scratch"), I64(offset), spec.dtype))
            offset += size
        base, self.panels, self.triangles, self.strips, self.signs = addresses
        super().__init__(f, spec.dtype, (spec.m, spec.n), _strip(spec), _steps(spec), base, self.panels)
        self.triangle = self.triangles

    def write(self) -> None:
        f, spec = self.f, self.spec
        matrix, panels, triangles, _, signs = _parts(spec)
        fill_zeros(f, self.base, matrix + panels + triangles, spec.dtype)
        fill_zeros(f, self.signs, signs, spec.dtype)
        self.read(move(f, f.param("x"), spec.dtype, (self.matrix, spec.x[0])), spec.x[1:])
        finite = self._is_finite()
        with f.loop(I64(0), I64(spec.n), PANEL, polls=True) as first:
            self._choose(first)
            self.turn(first, into_panel=True)
            count = f.intrinsic("smin", f.binary("sub", I64(spec.n), first), I64(PANEL))
            with f.loop(I64(0), count) as column:
                self._reflect(first, column, count)
            self._leave(first, count)
            self._apply(first, f.binary("add", first, I64(PANEL)), transposed=True)
        self._write_r(finite)
        fill_zeros(f, self.base, matrix, spec.dtype)
        with f.loop(I64(0), I64(spec.n)) as i:
            f.store(literal(1, spec.dtype), self.at(i, i))
        last = (spec.n - 1) // PANEL
        with f.loop(I64(0), I64(last + 1), polls=True) as number:
            first = f.op(f"mul nsw {f.binary('sub', I64(last), number)}, {PANEL}", "int64")
            self._choose(first)
            self._apply(first, first, transposed=False)
        self._write_q()

    def _is_finite(self) -> IRValue:
        """Whether all elements of the matrix are finite."""
        f, dtype, width = self.f, self.dtype, self.width
        total = f.slot(dtype, width)
        f.write(f.splat(literal(0, dtype), width), total)
        with f.loop(I64(0), I64(self.m)) as row, f.loop(I64(0), I64(self.n), width) as at:
            nothing = f.binary("fmul", f.load(self.at(row, at), dtype, width), f.splat(literal(0, dtype), width))
            f.write(f.binary("fadd", f.read(total, dtype, width), nothing), total)
        return f.compare("fcmp oeq", reduce_lanes(f, "sum", f.read(total, dtype, width)), literal(0, dtype))

    def _choose(self, first: IRValue) -> None:
        """Take the panel of the columns from `first`."""
        f = self.f
        self.panel = move(f, self.panels, self.dtype, (first, self.column))
        self.triangle = move(f, self.triangles, self.dtype, (first, PANEL))

    # --- one panel -----------------------------------------------------------------------------------------------

    def _reflect(self, first: IRValue, column: IRValue, count: IRValue) -> None:
        """The reflection that leaves one number of a column, applied to the columns of the panel after it.

        The number, the new diagonal of r, goes to the array of signs; the column becomes v, which begins with 1.
        """
        f, dtype, width = self.f, self.dtype, self.width
        row, end = f.binary("add", first, column), I64(self.m)
        zero, one = literal(0, dtype), literal(1, dtype)
        largest = self._reduced("max", row, lambda at: f.intrinsic("fabs", self._vector(column, at)))
        empty = f.compare("fcmp oeq", largest, zero)
        unit = f.select(empty, one, largest)

        def scaled_square(at: IRValue) -> IRValue:
            x = f.binary("fdiv", self._vector(column, at), f.splat(unit, width))
            return f.binary("fmul", x, x)

        below = self._reduced("sum", f.binary("add", row, I64(1)), scaled_square)
        alpha = f.load(self.in_panel(column, row), dtype)
        part = f.binary("fdiv", alpha, unit)
        norm = f.binary("fmul", f.intrinsic("sqrt", f.fma(part, part, below)), unit)
        beta = f.op(f"fneg {f.intrinsic('copysign', norm, alpha)}", dtype)
        straight = f.compare("fcmp oeq", below, zero)  # the column is zero below its first number already
        beta = f.select(straight, alpha, beta)
        tau = f.binary("fdiv", f.binary("fsub", beta, alpha), f.select(straight, one, beta))
        divisor = f.select(straight, one, f.binary("fsub", alpha, beta))
        with f.loop(row, end, width) as at:
            f.store(f.binary("fdiv", self._vector(column, at), f.splat(divisor, width)), self.in_panel(column, at))
        f.store(one, self.in_panel(column, row))
        f.store(beta, f.at(self.signs, row, dtype))
        with f.loop(f.binary("add", column, I64(1)), count) as other:
            product = self._reduced("sum", row, lambda at: self._times(column, other, at))
            factor = f.binary("fmul", product, tau)
            with f.loop(row, end, width) as at:
                value = minus_products(f, [self._vector(other, at)], factor, [self._vector(column, at)])[0]
                f.store(value, self.in_panel(other, at))
        self._grow_triangle(row, column, tau)

    def _grow_triangle(self, row: IRValue, column: IRValue, tau: IRValue) -> None:
        """The next column of T: ``-tau T (V.T v)``, then tau."""
        f, dtype = self.f, self.dtype
        products = f.at(self.strips, I64(0), dtype)
        with f.loop(I64(0), column) as other:  # v is zero above its row
            product = self._reduced("sum", row, lambda at: self._times(column, other, at))
            f.store(f.binary("fmul", f.op(f"fneg {tau}", dtype), product), f.at(products, other, dtype))
        with f.loop(I64(0), column) as i:
            total = f.slot(dtype)
            f.write(literal(0, dtype), total)
            with f.loop(i, column) as j:
                t = f.load(move(f, self.triangle, dtype, (i, PANEL), (j, 1)), dtype)
                f.write(f.fma(t, f.load(f.at(products, j, dtype), dtype), f.read(total, dtype)), total)
            f.store(f.read(total, dtype), move(f, self.triangle, dtype, (i, PANEL), (column, 1)))
        f.store(tau, move(f, self.triangle, dtype, (column, PANEL + 1)))

    def _leave(self, first: IRValue, count: IRValue) -> None:
        """Copy the numbers of r to the matrix, and write zeros over them in the panel."""
        f, dtype = self.f, self.dtype
        self.turn(first, into_panel=False)
        with f.loop(I64(0), count) as column:
            row = f.binary("add", first, column)
            f.store(f.load(f.at(self.signs, row, dtype), dtype), self.at(row, row))
            with f.loop(first, row) as above:
                f.store(literal(0, dtype), self.in_panel(column, above))

    def _vector(self, column: IRValue, at: IRValue) -> IRValue:
        return self.f.load(self.in_panel(column, at), self.dtype, self.width)

    def _times(self, one: IRValue, other: IRValue, at: IRValue) -> IRValue:
        return self.f.binary("fmul", self._vector(one, at), self._vector(other, at))

    def _reduced(self, op: str, first: IRValue, value) -> IRValue:  # type: ignore[no-untyped-def]
        """The sum or maximum of ``value(row)`` over vectors of rows from `first`; rows after the matrix are 0."""
        f, width = self.f, self.width
        total = f.slot(self.dtype, width)
        f.write(f.splat(literal(0, self.dtype), width), total)
        with f.loop(first, I64(self.m), width) as at:
            sofar, more = f.read(total, self.dtype, width), value(at)
            if op == "sum":
                f.write(f.binary("fadd", sofar, more), total)
            else:
                f.write(f.select(f.compare("fcmp ult", sofar, more), more, sofar), total)
        return reduce_lanes(f, op, f.read(total, self.dtype, width))

    # --- all reflections of a panel ------------------------------------------------------------------------------

    def _apply(self, first: IRValue, start: IRValue, transposed: bool) -> None:
        """Apply the panel's reflections, or the transposed ones, to the columns from `start`, from row `first` on."""
        f, dtype, width, columns, rows = self.f, self.dtype, self.width, self.columns, tile_rows()
        products, turned = self.strips, f.at(self.strips, I64(PANEL * columns), dtype)
        along, across = (1, PANEL) if transposed else (PANEL, 1)
        with f.loop(start, I64(self.n), columns, polls=True) as at:
            for source, target in ((None, products), (products, turned)):
                with f.loop(I64(0), I64(PANEL), rows) as i:
                    if source is None:
                        steps = (first, I64(self.m))
                        a, b = (self.in_panel(i, I64(0)), self.column, 1), (self.at(I64(0), at), self.step)
                    else:
                        steps = (I64(0), I64(PANEL))
                        a, b = (move(f, self.triangle, dtype, (i, along)), along, across), (source, columns)
                    c = (move(f, target, dtype, (i, columns)), columns)
                    for total, address, _ in tile(f, dtype, (rows, columns), width, steps, a, b, c):
                        f.store(total, address)
            with f.loop(first, I64(self.m), rows) as row:
                a = (self.in_panel(I64(0), row), 1, self.column)
                self.minus_products(a, (turned, columns), (I64(0), I64(PANEL)), row, at)

    # --- results -------------------------------------------------------------------------------------------------

    def _write_r(self, finite: IRValue) -> None:
        """Write r with the sign of each row changed where its diagonal is negative; keep the signs.

        finite: whether the matrix is. Otherwise all signs are NaN, since all elements of the results may depend on one
                that is not finite.
        """
        f, dtype, n, width = self.f, self.dtype, self.spec.n, self.width
        with f.loop(I64(0), I64(n)) as row:
            negative = f.compare("fcmp olt", f.load(self.at(row, row), dtype), literal(0, dtype))
            sign = f.select(negative, literal(-1, dtype), literal(1, dtype))
            sign = f.select(finite, sign, literal(math.nan, dtype))
            f.store(sign, f.at(self.signs, row, dtype))
            with f.loop(I64(0), I64(n), width) as at:
                value = f.binary("fmul", f.load(self.at(row, at), dtype, width), sign)
                lane = f.binary("add", lane_numbers(width), at)
                value = f.select(f.compare("icmp sge", lane, row), value, f.constant(0, value))
                f.store(value, move(f, f.param("r"), dtype, (self.matrix, n * n), (row, n), (at, 1)), self.inside(at))

    def _write_q(self) -> None:
        f, dtype, (m, n) = self.f, self.dtype, (self.m, self.n)
        with f.loop(I64(0), I64(m)) as row, f.loop(I64(0), I64(n), self.width) as at:
            sign = f.load(f.at(self.signs, at, dtype), dtype, self.width)
            value = f.binary("fmul", f.load(self.at(row, at), dtype, self.width), sign)
            f.store(value, move(f, f.param("q"), dtype, (self.matrix, m * n), (row, n), (at, 1)), self.inside(at))
