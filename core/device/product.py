"""Products of matrices on many threads: tiles of both operands in shared memory, results in registers.

A block computes a tile of the result. While it multiplies the terms in one half of its shared memory, it reads the next
ones from memory to registers, and stores them to the other half: one barrier for each step along the sum. Operands have
any strides. Sums run along k in order. If the result has fewer tiles than the launch has blocks, the sums are split:
each part is added up by itself, and then the parts in their order, so that the bits depend on the shapes and the launch
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.device.tensor_cores import TensorCores
from core.device.threads import Threads, flat_offset, split
from core.device.tiles import VECTOR_BYTES, Tile, load_vector, store_vector, vector_of
from core.ir.precision import HALVES
from core.plan.instructions import Gemm
from core.plan.memory import View

__all__ = ["ProductPlan", "ProductWriter", "Stage", "product_kernel", "product_plan"]

Stage = Literal["whole", "parts", "sums"]
"""The part of a product that a kernel computes: "whole"; "parts", the parts of its sums; or "sums", the sums of these
parts. With a launch for each of the last two, no block waits for others, so that several products can share them.
"""

DEPTH = 16
"""Terms of the sums whose operands lie in shared memory at a time, if the tiles are large."""

DEEP = 64
"""Most of them, if tiles are small: their threads wait for memory longer than they multiply."""

SHARED_BYTES = 48 * 1024
"""Shared memory that every block can have."""

LEAST_PART = 128
"""Fewest terms of a part of split sums."""

MOST_PARTS = 64


@dataclass(slots=True)
class Registers:
    """The results of the threads of a block, `side` rows and columns of each thread, in registers.

    depth: terms whose operands lie in shared memory at a time.
    """

    threads: Threads
    side: int
    dtype: str
    depth: int = DEPTH
    _sums: dict[tuple[int, int], IRValue] = field(default_factory=dict)
    rounds = False

    @staticmethod
    def options(each: Gemm, threads: Threads) -> Iterator[Registers]:
        terms = -(-each.a.shape[-1] // DEPTH) * DEPTH
        for side in (8, 4, 2, 1):
            most = min(DEEP, DEPTH * 8 // side) * 4 // itemsize(each.c.dtype)
            yield Registers(threads, side, each.c.dtype, max(DEPTH, min(most, terms)))

    @property
    def _across(self) -> tuple[int, int]:
        """Threads of a block below and beside each other."""
        right = 16 if self.threads.block >= 256 else 8
        return self.threads.block // right, right

    @property
    def lanes(self) -> int:
        """Numbers of a row, or of a column, that a thread reads from shared memory at once."""
        return min(self.side, VECTOR_BYTES // itemsize(self.dtype))

    @property
    def rows(self) -> int:
        return self._across[0] * self.side

    @property
    def columns(self) -> int:
        return self._across[1] * self.side

    @property
    def cost(self) -> float:
        """Time of a result, compared with that of the largest side: a small one reads more of shared memory."""
        return 0.5 + 0.5 * 8 / self.side

    def tiles(self, each: Gemm) -> tuple[Tile, Tile]:
        gap = VECTOR_BYTES // itemsize(self.dtype)
        first = Tile(each.a, -2, -1, self.rows, self.depth, self.rows + gap, by_term=True)
        return first, Tile(each.b, -1, -2, self.columns, self.depth, self.columns + gap, by_term=True)

    def start(self, f: Function) -> None:
        for i in range(self.side):
            for j in range(self.side // self.lanes):
                if (i, j) not in self._sums:
                    self._sums[i, j] = f.slot(self.dtype, self.lanes)
                f.do(f"store {IRValue('', self.dtype, self.lanes).type} zeroinitializer, {self._sums[i, j]}")

    def multiply(self, f: Function, local: IRValue, tiles: tuple[Tile, Tile], copies: tuple[IRValue, IRValue]) -> None:
        """Add the products of the terms in shared memory."""
        places = self._places(f, local)
        with f.loop(I64(0), I64(self.depth)) as term:
            lines = [
                [load_vector(f, tile.address(f, copy, at, term), self.dtype, self.lanes) for at in own]
                for tile, copy, own in zip(tiles, copies, places, strict=True)
            ]
            for i in range(self.side):
                row = lines[0][i // self.lanes]
                if self.lanes > 1:
                    row = f.op(f"extractelement {row}, i64 {i % self.lanes}", self.dtype)
                for j, column in enumerate(lines[1]):
                    total = f.read(self._sums[i, j], self.dtype, self.lanes)
                    f.write(_multiplied(f, row, column, total), self._sums[i, j])

    def results(self, f: Function, local: IRValue) -> Iterator[tuple[IRValue, IRValue, IRValue]]:
        """Row, column and value of the results of this thread: vectors of numbers side by side."""
        rows, columns = self._places(f, local)
        for (i, j), slot in self._sums.items():
            row = f.binary("add", rows[i // self.lanes], I64(i % self.lanes))
            yield row, columns[j], f.read(slot, self.dtype, self.lanes)

    def _places(self, f: Function, local: IRValue) -> tuple[list[IRValue], list[IRValue]]:
        """The rows and columns of this thread in the tile: the first of each group that lies side by side."""
        found = []
        for own, count in zip(split(f, local, self._across), self._across, strict=True):
            first = f.op(f"mul nsw {own}, {self.lanes}", "int64")
            found.append([f.binary("add", first, I64(i * count * self.lanes)) for i in range(self.side // self.lanes)])
        return found[0], found[1]


def _multiplied(f: Function, a: IRValue, b: IRValue, total: IRValue) -> IRValue:
    return f.fma(a, b, total) if total.is_float else f.binary("add", f.binary("mul", a, b), total)


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """How the threads of a launch compute a product. parts: how many parts the sums are split into."""

    form: Registers | TensorCores
    parts: int

    def units(self, each: Gemm) -> int:
        """Blocks that have something to do: one for each part of each tile of the result."""
        *batch, m, n = each.c.shape
        return self.parts * math.prod(batch) * -(-m // self.form.rows) * -(-n // self.form.columns)

    def scratch(self, each: Gemm) -> int:
        """Bytes of scratch memory."""
        return self.parts * math.prod(each.c.shape) * itemsize(_sums_dtype(each)) if self.parts > 1 else 0


def _sums_dtype(each: Gemm) -> str:
    """The dtype of sums before they are rounded to the dtype of the result."""
    return "float32" if each.c.dtype in HALVES else each.c.dtype


def product_plan(each: Gemm, threads: Threads, tf32: bool) -> ProductPlan:
    """The form with the least time, by the steps that the busiest block makes."""
    k = each.a.shape[-1]
    on_tensor_cores = each.a.dtype in HALVES or (tf32 and each.a.dtype == "float32")
    kind = TensorCores if on_tensor_cores else Registers
    best: tuple[float, ProductPlan] | None = None
    for form in kind.options(each, threads):
        if sum(tile.nbytes for tile in form.tiles(each)) > SHARED_BYTES:
            continue
        count = ProductPlan(form, 1).units(each)
        parts = max(1, min(threads.blocks // max(count, 1), k // LEAST_PART, MOST_PARTS))
        steps = -(-count * parts // threads.blocks) * -(-k // parts)
        time = steps * form.rows * form.columns * form.cost
        if parts > 1:  # the parts are written and read, behind a barrier
            time = 1.2 * time + 4 * parts * math.prod(each.c.shape) / threads.blocks
        if best is None or time < best[0]:
            best = time, ProductPlan(form, parts)
    assert best is not None, "the smallest tiles fit into shared memory"
    return best[1]


def product_kernel(name: str, each: Gemm, threads: Threads, plan: ProductPlan, stage: Stage = "whole") -> Function:
    """``name(a, b, c, scratch)`` for all threads. scratch: `plan.scratch` bytes."""
    f = Function(name, [(p, "ptr") for p in ("a", "b", "c", "scratch")], noalias=False)
    ProductWriter(f, each, threads, plan).write(stage)
    return f


class ProductWriter:
    """Writes one product.

    A subclass may read operands that are no matrices in memory (`operands`, `begin`), and store the result elsewhere
    than the strides of c say (`matrix`, `result`).

    ends:    rows and columns of c behind them are not stored.
    longest: most terms that are added to one register, a multiple of 64; longer sums continue in memory, since small
             terms would get lost in a large sum.
    """

    longest = 1 << 62

    def __init__(self, f: Function, each: Gemm, threads: Threads, plan: ProductPlan) -> None:
        self.f, self.each, self.threads = f, each, threads
        self.form, self.parts = plan.form, plan.parts
        (self.m, self.k), self.n = each.a.shape[-2:], each.b.shape[-1]
        adds = each.accumulate or self.k > self.longest
        assert not (adds and each.c.dtype in HALVES), "sums in 16 bits would be rounded often"
        number = threads.number(f)
        self.local = f.op(f"urem {number}, {threads.block}", "int64")
        self.block = f.op(f"udiv {number}, {threads.block}", "int64")
        self.ends: tuple[IRValue, IRValue] = I64(self.m), I64(self.n)
        self.tiles = self.operands(self.form.tiles(each))

    def write(self, stage: Stage = "whole") -> None:
        if stage != "sums":
            self._multiply()
        if stage == "whole" and self.parts > 1:
            self.threads.barrier(self.f)
        if stage != "parts" and self.parts > 1:
            self._add_parts()

    def place_tiles(self) -> None:
        """Give both tiles their shared memory."""
        first = self.threads.shared(self.f, sum(tile.nbytes for tile in self.tiles))
        self.tiles[0].base = first
        self.tiles[1].base = self.f.at(first, I64(self.tiles[0].nbytes), "uint8")

    def _multiply(self) -> None:
        """Write the results, or the parts of their sums."""
        f, form = self.f, self.form
        self.place_tiles()
        rows, columns = -(-self.m // form.rows), -(-self.n // form.columns)
        batch = self.each.c.shape[:-2]
        length = -(-self.k // (self.parts * form.depth)) * form.depth
        with f.loop(self.block, I64(self.parts * math.prod(batch) * rows * columns), self.threads.blocks) as tile:
            part, *at, i, j = split(f, tile, [self.parts, *batch, rows, columns])
            places = (f.op(f"mul nsw {i}, {form.rows}", "int64"), f.op(f"mul nsw {j}, {form.columns}", "int64"))
            first = f.op(f"mul nsw {part}, {length}", "int64")
            end = f.intrinsic("smin", f.binary("add", first, I64(length)), I64(self.k))
            self.begin(at, places)
            bases = [self.matrix(p, v, at) for p, v in (("a", self.each.a), ("b", self.each.b))]
            view, target, adds = self.each.c, self.matrix("c", self.each.c, at), self.each.accumulate
            if self.parts > 1:
                view, adds = self._part_view(), False
                target = self.matrix("scratch", view, [part, *at])
            if length <= self.longest:
                form.start(f)
                self._sum(bases, places, first, end)
                self._put(target, view, at, places, literal(adds, "bool"))
            else:
                with f.loop(first, end, self.longest) as start:
                    form.start(f)
                    stop = f.intrinsic("smin", f.binary("add", start, I64(self.longest)), end)
                    self._sum(bases, places, start, stop)
                    later = f.compare("icmp sgt", start, first)
                    self._put(target, view, at, places, literal(True, "bool") if adds else later)

    def operands(self, tiles: tuple[Tile, Tile]) -> tuple[Tile, Tile]:
        """The tiles to use, given those of the form for two matrices."""
        return tiles

    def begin(self, at: list[IRValue], places: tuple[IRValue, IRValue]) -> None:
        """Write what is the same for all terms of a tile of the result, which begins at `places`."""

    def matrix(self, name: str, view: View, at: list[IRValue]) -> IRValue:
        """The address of this matrix of the batch; an operand with fewer axes is the same for several."""
        strides = view.strides[:-2]
        index = at[len(at) - len(strides) :]
        return self.f.at(self.f.param(name), flat_offset(self.f, index, strides), view.dtype)

    def _sum(self, bases: list[IRValue], places: tuple[IRValue, IRValue], first: IRValue, end: IRValue) -> None:
        """Add the products of the terms from `first` to `end` to the results."""
        f, depth = self.f, self.form.depth

        def fetch(term: IRValue) -> None:
            for tile, base, place in zip(self.tiles, bases, places, strict=True):
                tile.fetch(f, self.threads, self.local, base, place, term, end)

        def put(half: IRValue) -> None:
            for tile in self.tiles:
                tile.put(f, self.threads, self.local, self._copy(tile, half), self.form.rounds)

        fetch(first)
        put(I64(0))
        self.threads.block_barrier(f)
        with f.loop(first, end, depth) as term:
            steps = f.op(f"udiv i64 {f.binary('sub', term, first).name}, {depth}", "int64")
            half = f.op(f"and {steps}, 1", "int64")
            following = f.binary("add", term, I64(depth))
            more = f.compare("icmp slt", following, end)
            with f.when(more):
                fetch(following)
            self.form.multiply(f, self.local, self.tiles, tuple(self._copy(tile, half) for tile in self.tiles))  # type: ignore[arg-type]
            with f.when(more):
                put(f.op(f"xor {half}, 1", "int64"))
            self.threads.block_barrier(f)

    def _copy(self, tile: Tile, half: IRValue) -> IRValue:
        """The position of the first element of one of the two copies of a tile."""
        return self.f.op(f"mul nsw {half}, {tile.elements}", "int64")

    def result(self, at: list[IRValue], row: IRValue, column: IRValue) -> tuple[IRValue, IRValue | None]:
        """The offset of an element from the address of its matrix c, and whether it is stored, if that is not sure.

        at: the position of the matrix in the batch.
        """
        return flat_offset(self.f, (row, column), self.each.c.strides[-2:]), None

    def _put(
        self, c: IRValue, view: View, batch: list[IRValue], places: tuple[IRValue, IRValue], adds: IRValue
    ) -> None:
        """Store the results of this thread, or add them to what is there if `adds`. view: c, or its parts."""
        f, dtype = self.f, view.dtype
        for row, column, value in self.form.results(f, self.local):
            value = f.convert(value, dtype)
            row, column = f.binary("add", places[0], row), f.binary("add", places[1], column)
            below = f.compare("icmp slt", row, self.ends[0])
            lanes = value.lanes
            whole = lanes > 1 and vector_of(view, -1) % lanes == 0
            for i in range(1 if whole else lanes):
                at = f.binary("add", column, I64(i)) if i else column
                one = value if whole or lanes == 1 else f.op(f"extractelement {value}, i64 {i}", dtype)
                inside = f.binary("and", below, f.compare("icmp slt", at, self.ends[1]))
                if view is self.each.c:
                    offset, stored = self.result(batch, row, at)
                    inside = inside if stored is None else f.binary("and", inside, stored)
                else:
                    offset = flat_offset(f, (row, at), view.strides[-2:])
                with f.when(inside):
                    here = f.at(c, offset, dtype)
                    if adds.name != "false":
                        one = self._added(here, one, adds)
                    store_vector(f, one, here)

    def _added(self, here: IRValue, value: IRValue, adds: IRValue) -> IRValue:
        """The value, or its sum with what is there."""
        f, found = self.f, self.f.slot(value.dtype, value.lanes)
        f.write(value, found)
        with f.when(adds):
            old = load_vector(f, here, value.dtype, value.lanes)
            f.write(f.binary("fadd" if value.is_float else "add", old, value), found)
        return f.read(found, value.dtype, value.lanes)

    def _part_view(self) -> View:
        """The parts of all sums in scratch memory."""
        shape = (self.parts, *self.each.c.shape)
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return View(self.each.c.root, _sums_dtype(self.each), shape, tuple(strides))

    def _add_parts(self) -> None:
        """Add the parts of each sum in their order."""
        f, c, dtype = self.f, self.each.c, _sums_dtype(self.each)
        size = math.prod(c.shape)
        with f.loop(self.threads.number(f), I64(size), self.threads.total) as at:
            place = f.at(f.param("scratch"), at, dtype)
            total = f.load(place, dtype)
            for part in range(1, self.parts):
                more = f.load(f.at(place, I64(part * size), dtype), dtype)
                total = f.binary("fadd" if total.is_float else "add", total, more)
            *batch, row, column = split(f, at, c.shape)
            offset, stored = self.result(batch, row, column)
            with f.when(literal(True, "bool") if stored is None else stored):
                here = f.at(self.matrix("c", c, batch), offset, c.dtype)
                if self.each.accumulate:
                    total = f.binary("fadd" if total.is_float else "add", f.load(here, c.dtype), total)
                f.store(f.convert(total, c.dtype), here)
