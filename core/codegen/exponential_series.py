"""Exponentials of matrices: a polynomial of the matrix divided by a power of two, squared as often.

The Taylor polynomial of degree 16 is evaluated with six products (Paterson and Stockmeyer 1973): powers up to the
fourth, then Horner's rule in the fourth power. It is exact to the rounding of the dtype for norms up to `RADIUS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.module import Module
from core.codegen.panels import tile_rows
from core.codegen.reductions import reduce_lanes
from core.codegen.substitution import lane_numbers, strip_of
from core.codegen.tile import tile
from core.codegen.vector_slices import fill_zeros, move
from core.plan.systems import Exponential

__all__ = ["exponential", "exponential_scratch"]

RADIUS = {"float32": 2.0, "float64": 0.75}
"""The largest norm, the sum of a row's sizes, for which the remainder of the series is below rounding."""

ARRAYS = 6


def _sizes(spec: Exponential) -> tuple[int, int]:
    """Rows of an array in scratch memory, and elements from one row to the next: whole tiles."""
    rows, columns = tile_rows(), strip_of(spec.dtype, spec.n)[1]
    return -(-spec.n // rows) * rows, -(-spec.n // columns) * columns


def exponential_scratch(spec: Exponential) -> int:
    """Bytes of all arrays."""
    height, step = _sizes(spec)
    return ARRAYS * height * step * itemsize(spec.dtype)


def exponential(_: Module, f: Function, spec: Exponential) -> None:
    """``(x, out)``; a unit is a matrix."""
    with f.loop(f.param("first"), f.param("end"), polls=True) as matrix:
        _Matrix(f, spec, matrix).write()


class _Matrix:
    """The exponential of one matrix."""

    def __init__(self, f: Function, spec: Exponential, matrix: IRValue) -> None:
        self.f, self.spec, self.matrix, self.dtype = f, spec, matrix, spec.dtype
        self.width, self.columns = strip_of(spec.dtype, spec.n)
        self.height, self.step = _sizes(spec)
        size = self.height * self.step
        self.powers = [f.at(f.param("scratch"), I64(i * size), spec.dtype) for i in range(4)]
        self.sum, self.product = (f.at(f.param("scratch"), I64(i * size), spec.dtype) for i in (4, 5))

    def write(self) -> None:
        f, (x, square, cube, fourth) = self.f, self.powers
        times = self._read()
        for left, right, out in ((x, x, square), (square, x, cube), (square, square, fourth)):
            self._multiply(left, right, out)
        self._combine([1.0 / math.factorial(i) for i in range(12, 17)], None)
        for first in (8, 4, 0):
            self._multiply(self.sum, fourth, self.product)
            self._combine([1.0 / math.factorial(i) for i in range(first, first + 4)], self.product)
        with f.loop(I64(0), times, polls=True):
            self._multiply(self.sum, self.sum, self.product)
            self._combine([0.0, 0.0, 0.0, 0.0], self.product)
        self._put()

    def _at(self, array: IRValue, row: IRValue, column: IRValue) -> IRValue:
        return move(self.f, array, self.dtype, (row, self.step), (column, 1))

    def _inside(self, at: IRValue) -> IRValue | None:
        if self.spec.n % self.width == 0:
            return None
        lane = self.f.binary("add", lane_numbers(self.width), at)
        return self.f.compare("icmp slt", lane, I64(self.spec.n))

    def _read(self) -> IRValue:
        """Copy x, divided by a power of two; the exponent of that power. A number that is not finite makes all NaN."""
        f, width, n = self.f, self.width, self.spec.n
        x = self.powers[0]
        fill_zeros(f, x, self.height * self.step, self.dtype)
        norm = f.slot(self.dtype)
        f.write(literal(0, self.dtype), norm)
        with f.loop(I64(0), I64(n)) as row:
            total = f.slot(self.dtype, width)
            f.write(f.splat(literal(0, self.dtype), width), total)
            with f.loop(I64(0), I64(n), width) as at:
                address = move(f, f.param("x"), self.dtype, (self.matrix, n * n), (row, n), (at, 1))
                value = f.load(address, self.dtype, width, self._inside(at))
                f.store(value, self._at(x, row, at))
                f.write(f.binary("fadd", f.read(total, self.dtype, width), f.intrinsic("fabs", value)), total)
            size, most = reduce_lanes(f, "sum", f.read(total, self.dtype, width)), f.read(norm, self.dtype)
            f.write(f.select(f.compare("fcmp ule", size, most), most, size), norm)
        limits = np.finfo(self.dtype)
        integer, mantissa, bias = f"int{limits.bits}", limits.nmant, -limits.minexp + 1
        size = f.read(norm, self.dtype)
        bits = f.bitcast(f.binary("fmul", size, literal(1 / RADIUS[self.dtype], self.dtype)), integer)
        power = f.binary("sub", f.binary("lshr", bits, f.constant(mantissa, bits)), f.constant(bias - 1, bits))
        power = f.intrinsic("smax", f.intrinsic("smin", power, f.constant(bias - 1, bits)), f.constant(0, bits))
        scaled = f.binary("shl", f.binary("sub", f.constant(bias, bits), power), f.constant(mantissa, bits))
        factor = f.bitcast(scaled, self.dtype)
        finite = f.compare("fcmp olt", size, literal(math.inf, self.dtype))
        factor = f.select(finite, factor, literal(math.nan, self.dtype))
        with f.loop(I64(0), I64(n)) as row, f.loop(I64(0), I64(n), width) as at:
            address = self._at(x, row, at)
            f.store(f.binary("fmul", f.load(address, self.dtype, width), factor), address)
        return f.convert(f.select(finite, power, f.constant(0, bits)), "int64")

    def _multiply(self, left: IRValue, right: IRValue, out: IRValue) -> None:
        """``out = left @ right``."""
        f, rows = self.f, tile_rows()
        with (
            f.loop(I64(0), I64(self.step), self.columns, polls=True) as start,
            f.loop(I64(0), I64(self.height), rows) as row,
        ):
            a = (self._at(left, row, I64(0)), self.step, 1)
            b, c = (self._at(right, I64(0), start), self.step), (self._at(out, row, start), self.step)
            steps = (I64(0), I64(self.spec.n))
            for total, address, _ in tile(f, self.dtype, (rows, self.columns), self.width, steps, a, b, c):
                f.store(total, address)

    def _combine(self, factors: Sequence[float], more: IRValue | None) -> None:
        """``sum = more`` plus the factors times the powers of x, the 0th one first; factors of 0 are left out."""
        f, width = self.f, self.width
        with f.loop(I64(0), I64(self.height)) as row:
            with f.loop(I64(0), I64(self.step), width) as at:
                value = f.splat(literal(0, self.dtype), width)
                if more is not None:
                    value = f.load(self._at(more, row, at), self.dtype, width)
                for factor, power in zip(factors[1:], self.powers, strict=False):
                    if factor:
                        number = f.load(self._at(power, row, at), self.dtype, width)
                        value = f.fma(f.splat(literal(factor, self.dtype), width), number, value)
                f.store(value, self._at(self.sum, row, at))
            if factors[0]:
                with f.when(f.compare("icmp slt", row, I64(self.spec.n))):
                    place = self._at(self.sum, row, row)
                    f.store(f.binary("fadd", f.load(place, self.dtype), literal(factors[0], self.dtype)), place)

    def _put(self) -> None:
        f, n = self.f, self.spec.n
        with f.loop(I64(0), I64(n)) as row, f.loop(I64(0), I64(n), self.width) as at:
            address = move(f, f.param("out"), self.dtype, (self.matrix, n * n), (row, n), (at, 1))
            f.store(f.load(self._at(self.sum, row, at), self.dtype, self.width), address, self._inside(at))
