"""Products of matrices on many threads: tiles of both operands in shared memory, some results for each thread.

Operands have any strides. A block computes a square tile of the result; each of its threads has SIDE by SIDE results in
registers, whose sums run along k in order.
"""

from __future__ import annotations

import math

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.device.threads import Threads, flat_offset, split
from core.plan.data import Gemm, View

__all__ = ["product_kernel"]

SIDE = 4
"""Rows and columns of the results of one thread."""

DEPTH = 16
"""Steps along k whose operands lie in shared memory at a time."""


def product_kernel(name: str, each: Gemm, threads: Threads) -> Function:
    """``name(a, b, c)`` for all threads."""
    f = Function(name, [("a", "ptr"), ("b", "ptr"), ("c", "ptr")], noalias=False)
    _Writer(f, each, threads).write()
    return f


class _Writer:
    """Writes one product. across: threads along a side of the tile of a block; pitch: elements between its rows."""

    def __init__(self, f: Function, each: Gemm, threads: Threads) -> None:
        self.f, self.each, self.threads = f, each, threads
        self.dtype = each.c.dtype
        self.across = math.isqrt(threads.block)
        self.edge = SIDE * self.across
        self.pitch = self.edge + 1
        (self.m, self.k), self.n = each.a.shape[-2:], each.b.shape[-1]
        number = threads.number(f)
        self.local = f.op(f"urem {number}, {threads.block}", "int64")
        self.block = f.op(f"udiv {number}, {threads.block}", "int64")
        taking = f.compare("icmp ult", self.local, I64(self.across**2))
        self.down, self.right = split(f, self.local, (self.across, self.across))
        self.takes = taking
        room = DEPTH * self.pitch
        self.tile_a = threads.shared(f, 2 * room * itemsize(self.dtype))
        self.tile_b = f.at(self.tile_a, I64(room), self.dtype)

    def write(self) -> None:
        f = self.f
        rows, columns = -(-self.m // self.edge), -(-self.n // self.edge)
        batch = self.each.c.shape[:-2]
        sums = {(i, j): f.slot(self.dtype) for i in range(SIDE) for j in range(SIDE)}
        with f.loop(self.block, I64(math.prod(batch) * rows * columns), self.threads.blocks) as tile:
            *at, i, j = split(f, tile, [*batch, rows, columns])
            i, j = (f.op(f"mul nsw {one}, {self.edge}", "int64") for one in (i, j))
            a, b, c = (self._matrix(p, v, at) for p, v in (("a", self.each.a), ("b", self.each.b), ("c", self.each.c)))
            for total in sums.values():
                f.write(literal(0, self.dtype), total)
            with f.loop(I64(0), I64(self.k), DEPTH) as first:
                self._fetch(self.tile_a, a, i, self.m, first, self.each.a.strides[-2:])
                self._fetch(self.tile_b, b, j, self.n, first, self.each.b.strides[:-3:-1])
                self.threads.block_barrier(f)
                with f.loop(I64(0), I64(DEPTH)) as step:
                    self._multiply(sums, step)
                self.threads.block_barrier(f)
            self._put(sums, c, i, j)

    def _matrix(self, name: str, view: View, at: list[IRValue]) -> IRValue:
        """The address of this matrix of the batch; an operand with fewer axes is the same for several."""
        strides = view.strides[:-2]
        index = at[len(at) - len(strides) :]
        return self.f.at(self.f.param(name), flat_offset(self.f, index, strides), self.dtype)

    def _fetch(
        self, tile: IRValue, base: IRValue, first: IRValue, limit: int, k: IRValue, strides: tuple[int, ...]
    ) -> None:
        """Copy DEPTH steps of `edge` rows of an operand; outside of it are zeros. strides: from row to row, along k."""
        f = self.f
        with f.loop(self.local, I64(self.edge * DEPTH), self.threads.block) as e:
            if strides[1] == 1:  # threads side by side read numbers side by side
                row, step = split(f, e, (self.edge, DEPTH))
            else:
                step, row = split(f, e, (DEPTH, self.edge))
            at, along = f.binary("add", first, row), f.binary("add", k, step)
            inside = f.binary("and", f.compare("icmp slt", at, I64(limit)), f.compare("icmp slt", along, I64(self.k)))
            value = f.slot(self.dtype)
            f.write(literal(0, self.dtype), value)
            with f.when(inside):
                f.write(f.load(f.at(base, flat_offset(f, (at, along), strides), self.dtype), self.dtype), value)
            f.store(f.read(value, self.dtype), f.at(tile, flat_offset(f, (step, row), (self.pitch, 1)), self.dtype))

    def _multiply(self, sums: dict[tuple[int, int], IRValue], step: IRValue) -> None:
        """One step along k. The results of a thread lie `across` rows and columns apart."""
        f = self.f

        def line(tile: IRValue, own: IRValue) -> list[IRValue]:
            places = (f.binary("add", own, I64(i * self.across)) for i in range(SIDE))
            return [
                f.load(f.at(tile, flat_offset(f, (step, p), (self.pitch, 1)), self.dtype), self.dtype) for p in places
            ]

        with f.when(self.takes):
            rows, columns = line(self.tile_a, self.down), line(self.tile_b, self.right)
            for (i, j), total in sums.items():
                f.write(self._added(rows[i], columns[j], f.read(total, self.dtype)), total)

    def _added(self, a: IRValue, b: IRValue, total: IRValue) -> IRValue:
        f = self.f
        return f.fma(a, b, total) if total.is_float else f.binary("add", f.binary("mul", a, b), total)

    def _put(self, sums: dict[tuple[int, int], IRValue], c: IRValue, i: IRValue, j: IRValue) -> None:
        f = self.f
        for (down, right), total in sums.items():
            row = f.binary("add", i, f.binary("add", self.down, I64(down * self.across)))
            column = f.binary("add", j, f.binary("add", self.right, I64(right * self.across)))
            below, beside = f.compare("icmp slt", row, I64(self.m)), f.compare("icmp slt", column, I64(self.n))
            with f.when(f.binary("and", f.binary("and", below, beside), self.takes)):
                here = f.at(c, flat_offset(f, (row, column), self.each.c.strides[-2:]), self.dtype)
                value = f.read(total, self.dtype)
                if self.each.accumulate:
                    value = f.binary("fadd" if value.is_float else "add", f.load(here, self.dtype), value)
                f.store(value, here)
