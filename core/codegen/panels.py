"""Large products of matrices: some columns of the result at a time, for which those of b are packed.

A panel of b, as many columns as a tile has, is copied so that what a tile reads in one step along k follows what it
read in the step before. In a large matrix it would lie a page apart, where neither caches nor translations of addresses
keep much of it. A b that is stored by columns is turned in registers on the way. What is packed lies on the stack of
the thread, in its own cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core.codegen.llvm import I64, Function, Value
from core.codegen.machine import lanes
from core.codegen.pieces import Piece, cut, mask, move, put
from core.codegen.tile import tile, tile_of
from core.codegen.turn import turned
from core.plan.data import Gemm
from core.plan.geometry import is_packed

__all__ = ["Panels", "panels_function", "panels_of"]

DEPTH = 512
"""Steps along k after which the sums go back to the result: so much of a panel stays in the cache."""

PARTS = 16
"""Parts of a result that there should be, so that threads have enough to share."""

BAND = 128
"""Rows that a band should have, for which a panel is packed."""


@dataclass(frozen=True, slots=True)
class Panels:
    """One shape of product: c [m, n] = a [m, k] b [k, n], strides in elements, c with rows without gaps."""

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    dtype: str
    accumulate: bool

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, wide = tile_of(self.m, self.n, lanes(self.dtype))
        return rows, wide * lanes(self.dtype)

    @property
    def panels(self) -> int:
        return -(-self.n // self.tile[1])

    @property
    def bands(self) -> int:
        """Into how many bands of rows the result is cut, so that there are enough parts."""
        return max(1, min(-(-PARTS // self.panels), self.m // BAND))

    @property
    def height(self) -> int:
        """Rows of a band, whole tiles but for the last one."""
        rows = self.tile[0]
        return math.ceil(self.m / self.bands / rows) * rows

    @property
    def parts(self) -> int:
        return -(-self.m // self.height) * self.panels

    @property
    def depth(self) -> int:
        """Steps along k in one block: whole vectors, all blocks but the last one of the same size."""
        blocks = math.ceil(self.k / DEPTH)
        return min(self.k, math.ceil(self.k / blocks / 16) * 16)


def panels_of(each: Gemm) -> Panels | None:
    """The product as one of panels, or None if that would not pay, or it cannot be."""
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    if not is_packed(m, n) or each.c.strides[-1] != 1 or 1 not in each.b.strides[-2:]:
        return None
    a, b = ((v.strides[-2], v.strides[-1]) for v in (each.a, each.b))
    return Panels(m, n, k, a, b, each.c.strides[-2], each.c.dtype, each.accumulate)


def panels_function(name: str, p: Panels) -> Function:
    """``name(a, b, c, first, end)`` for some of the parts: panel by panel, band by band."""
    f = Function(name, [*((x, "ptr") for x in "abc"), ("first", "int64"), ("end", "int64")])
    columns = p.tile[1]
    packed = f.fresh("packed")
    f.top.append(f"  {packed} = alloca [{p.depth * columns * np.dtype(p.dtype).itemsize} x i8], align 64")
    with f.loop(f.param("first"), f.param("end")) as part:
        band, panel = f.op(f"udiv {part}, {p.panels}", "int64"), f.op(f"urem {part}, {p.panels}", "int64")
        first = f.op(f"mul nsw {band}, {p.height}", "int64")
        end = f.intrinsic("smin", f.binary("add", first, I64(p.height)), I64(p.m))
        writer = _Panel(f, p, Value(packed, "ptr"), first, end, f.op(f"mul nsw {panel}, {columns}", "int64"))
        rest = p.n % columns
        if not rest:
            writer.write(columns)
        else:
            last = f.compare("icmp eq", panel, I64(p.panels - 1))
            if p.panels > 1:
                with f.when(f.compare("icmp ne", panel, I64(p.panels - 1))):
                    writer.write(columns)
            with f.when(last):
                writer.write(rest)
    return f


@dataclass(frozen=True, slots=True)
class _Panel:
    """Rows `first` to below `end` of the result, from column `start`."""

    f: Function
    p: Panels
    packed: Value
    first: Value
    end: Value
    start: Value

    def write(self, columns: int) -> None:
        f, p = self.f, self.p
        with f.loop(I64(0), I64(p.k), p.depth) as k:
            count = f.intrinsic("smin", f.binary("sub", I64(p.k), k), I64(p.depth))
            self._pack(k, count, columns)
            rows = p.tile[0]
            left = f.op(f"srem {f.binary('sub', self.end, self.first)}, {rows}", "int64")
            whole = f.binary("sub", self.end, left)
            with f.loop(self.first, whole, rows) as row:
                self._tile(k, count, row, rows, columns)
            rest = p.m % p.height % rows
            if rest:
                with f.when(f.compare("icmp slt", whole, self.end)):
                    self._tile(k, count, whole, rest, columns)

    def _tile(self, k: Value, count: Value, row: Value, rows: int, columns: int) -> None:
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        a = (self._at("a", (row, p.a[0]), (k, p.a[1])), *p.a)
        c = (self._at("c", (row, p.c), (self.start, 1)), p.c)
        sums = tile(f, p.dtype, (rows, columns), width, (I64(0), count), a, (self.packed, p.tile[1]), c)

        def store() -> None:
            for total, address, which in sums:
                f.store(total, address, which)

        def add() -> None:
            for total, address, which in sums:
                f.store(f.binary("fadd", total, f.load(address, p.dtype, width, which)), address, which)

        if p.accumulate:
            add()
        elif p.depth == p.k:
            store()
        else:
            f.either(f.compare("icmp eq", k, I64(0)), store, add)

    def _pack(self, k: Value, count: Value, columns: int) -> None:
        """So many steps from `k` on of some columns of b."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        b = self._at("b", (k, p.b[0]), (self.start, p.b[1]))
        if p.b[1] == 1:
            with f.loop(I64(0), count) as step:
                source = move(f, b, p.dtype, (step, p.b[0]))
                for piece in cut(columns, width):
                    value = f.load(f.at(source, I64(piece.start), p.dtype), p.dtype, width, mask(piece.count, width))
                    put(f, value, self._place(step, piece.start), piece.count)
            return
        whole = f.binary("sub", count, f.op(f"srem {count}, {width}", "int64"))
        for piece in cut(columns, width):
            source = f.at(b, I64(piece.start * p.b[1]), p.dtype)
            with f.loop(I64(0), whole, width) as step:
                self._turn(source, step, width, piece)
            if p.k % width:  # only the last block ends in less than a vector
                with f.when(f.compare("icmp slt", whole, count)):
                    self._turn(source, whole, p.k % width, piece)

    def _turn(self, source: Value, step: Value, steps: int, piece: Piece) -> None:
        """A square of b: its columns, which are rows in memory, read for so many steps."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        here = f.at(source, step, p.dtype)
        read = [
            f.load(f.at(here, I64(i * p.b[1]), p.dtype), p.dtype, width, mask(steps, width)) for i in range(piece.count)
        ]
        place = self._place(step, piece.start)
        for i, row in enumerate(turned(f, read)[:steps]):
            put(f, row, f.at(place, I64(i * p.tile[1]), p.dtype), piece.count)

    def _place(self, step: Value, column: int) -> Value:
        return move(self.f, self.packed, self.p.dtype, (step, self.p.tile[1]), by=column)

    def _at(self, name: str, *steps: tuple[Value, int]) -> Value:
        return move(self.f, self.f.param(name), self.p.dtype, *steps)
