"""Large products of matrices: some columns of the result at a time, for which the columns of b are packed.

A panel of b has as many columns as a tile. It is copied so that the row that a tile reads in one step along k follows
the row of the step before. In a large matrix these rows lie a page apart, and neither the caches nor the TLB keep much
of them. A b that is stored by columns is transposed in registers on the way. The packed panel lies on the stack of the
thread, in that core's cache.

A product of bfloat16 matrices takes two steps along k at once. The two numbers lie side by side in a row of a, and the
panel is packed so too; a pair is an element, as long as a float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.reductions import identity
from core.codegen.rows import row_function, rows_poll
from core.codegen.tile import tile, tile_of
from core.codegen.transpose import transposed_square
from core.codegen.vector_slices import mask, move, slices_of, store_lanes
from core.ir.errors import InternalError
from core.plan.data import Gemm, Instr, RowKernel, View

__all__ = [
    "PackedGemm",
    "has_blocks",
    "is_packed",
    "packed_gemm_function",
    "packed_gemm_of",
    "packs",
    "sums_bytes",
    "takes_pairs",
]

DEPTH = 512
"""Most steps along k in one block, whose sums are then added to the result: so much of a panel stays in the cache."""

PARTS = 16
"""Parts that a result should have, so that threads share the work evenly."""

BAND = 128
"""Rows that a band should have at least, if there are parts enough for all threads."""

NARROW = 16
"""Rows that a band should have at least in any case."""

SHARED = 1_000_000
"""Fewest floating-point operations of a product whose bands are narrow so that all threads have a part."""

LINES = 4
"""Cache lines in a row of a tile."""


@dataclass(frozen=True, slots=True)
class PackedGemm:
    """One shape of product: c [m, n] = a [m, k] b [k, n]. Strides count elements; rows of c have no gaps.

    pairs: whether an element of a, and of b along k, is a pair of bfloat16 numbers. If b is stored by rows, its strides
           count single numbers.
    then: the epilogue, a row kernel that runs on each element of the result.
    own:  operands of the epilogue that are the result itself.
    kept: whether anything else reads the result.
    band: rows that a band should have at least: each band packs the panel again.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    dtype: str
    accumulate: bool
    then: RowKernel | None
    own: tuple[int, ...]
    kept: bool
    pairs: bool = False
    band: int = BAND

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a tile."""
        rows, wide = tile_of(self.m, self.n, lanes(self.dtype))
        return rows, wide * lanes(self.dtype)

    @property
    def panels(self) -> int:
        return math.ceil(self.n / self.tile[1])

    @property
    def height(self) -> int:
        """Rows of a band: whole tiles except for the last one, and no fewer than enough parts require."""
        rows = self.tile[0]
        bands = max(1, min(math.ceil(PARTS / self.panels), self.m // self.band))
        return math.ceil(self.m / bands / rows) * rows

    @property
    def bands(self) -> int:
        return math.ceil(self.m / self.height)

    @property
    def in_tile(self) -> bool:
        """Whether no more than a tile of the result is ever stored."""
        return not self.kept and self.depth == self.k

    @property
    def parts(self) -> int:
        return self.bands * self.panels

    @property
    def depth(self) -> int:
        """Steps along k in one block: whole vectors, and the same number in all blocks but the last."""
        blocks = math.ceil(self.k / DEPTH)
        return min(self.k, math.ceil(self.k / blocks / 16) * 16)


PACKED = 64
"""Fewest rows and columns of a product whose second operand is copied panel by panel: each number is used often."""


def is_packed(rows: int, columns: int) -> bool:
    """Whether a product of so many rows and columns copies its second operand, stored in any order."""
    return min(rows, columns) >= PACKED


def packs(each: Gemm) -> bool:
    """Whether the second operand of this product is copied panel by panel; only such products take an epilogue."""
    return is_packed(*each.c.shape[-2:]) and each.c.strides[-1] == 1 and 1 in each.b.strides[-2:]


def has_blocks(each: Gemm) -> bool:
    """Whether the sums of this product are added up in several blocks along k: they are stored in between."""
    terms = each.a.shape[-1] // 2 if each.a.dtype == "bfloat16" else each.a.shape[-1]
    return terms > DEPTH


def packed_gemm_of(each: Gemm, threads: int = 1) -> PackedGemm | None:
    """The shape of a product if packing it pays and is possible, else None. threads: that share it.

    A product of pairs is packed in any case: no other function reads pairs. It may be small if it is a part of a
    product that was planned in pairs, such as the last stripe.
    """
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    pairs = each.a.dtype == "bfloat16"
    if not pairs and not packs(each):
        return None
    a, b = ((v.strides[-2], v.strides[-1]) for v in (each.a, each.b))
    if pairs:
        if not takes_pairs(each.a, each.b):
            raise InternalError(f"cannot multiply pairs of {each.a} and {each.b}")
        k, a, b = k // 2, (a[0] // 2, 1), b if b[1] == 1 else (1, b[1] // 2)
    kernel: RowKernel | None = None
    own: tuple[int, ...] = ()
    if each.then is not None:
        kernel = each.then.kernel
        own = tuple(i for i, v in enumerate(each.then.views) if v.root is each.c.root)
    shape = PackedGemm(m, n, k, a, b, each.c.strides[-2], each.c.dtype, each.accumulate, kernel, own, each.kept, pairs)
    sums = kernel is not None and any(i.kind == "accumulate" for i in kernel.code)  # by band: their bits would change
    if shape.parts < threads and not sums and m * n * k >= SHARED // 2 and each.c.shape[:-2] == ():
        return replace(shape, band=max(NARROW, m // math.ceil(threads / shape.panels)))
    return shape


def takes_pairs(a: View, b: View) -> bool:
    """Whether rows of a, and columns of b unless it is stored by rows, are pairs of numbers that follow each other."""
    (down, along), (step, across) = a.strides[-2:], b.strides[-2:]
    by_columns = step == 1 and across % 2 == 0 and across > 2
    return a.shape[-1] % 2 == 0 and along == 1 and down % 2 == 0 and (across == 1 or by_columns)


def packed_gemm_function(module: Module, name: str, p: PackedGemm) -> Function:
    """``name(a, b, c, epilogue's operands...[, stop], first, end)`` for parts `first` to `end`, numbered band by band.

    Sums over rows have one array for each band, `sums_bytes` apart.
    """
    operands = [f"p{i}" for i in range(len(p.then.operands))] if p.then else []
    polls = product_polls(p.m, p.n, 2 * p.k if p.pairs else p.k)
    pointers = [*((x, "ptr") for x in ("a", "b", "c", *operands)), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")], noalias=not operands)
    f.stop = f.param("stop") if polls else None
    columns = p.tile[1]
    packed = scratch_memory(f, p.depth * columns, p.dtype)
    result = scratch_memory(f, p.tile[0] * columns, p.dtype) if p.in_tile else None
    with f.loop(f.param("first"), f.param("end"), polls=True) as part:
        band, panel = f.op(f"udiv {part}, {p.panels}", "int64"), f.op(f"urem {part}, {p.panels}", "int64")
        first = f.op(f"mul nsw {band}, {p.height}", "int64")
        end = f.intrinsic("smin", f.binary("add", first, I64(p.height)), I64(p.m))
        start = f.op(f"mul nsw {panel}, {columns}", "int64")
        whole, rest = divmod(p.n, columns)
        writers = [
            _Panel(module, f, p, packed, result, band, first, end, start, count) for count in (columns, rest) if count
        ]
        if whole and rest:
            f.either(f.compare("icmp slt", panel, I64(whole)), *(w.write for w in writers))
        else:
            writers[0 if whole else -1].write()
    return f


def scratch_memory(f: Function, count: int, dtype: str) -> IRValue:
    """Scratch memory for `count` elements on the stack of the thread."""
    name = f.fresh("tile")
    f.top.append(f"  {name} = alloca [{count * itemsize(dtype)} x i8], align 64")
    return IRValue(name, "ptr")


def sums_bytes(n: int, dtype: str) -> int:
    """Bytes for n sums: the distance between the sums of two bands or of two chunks."""
    return math.ceil(n * itemsize(dtype) / 64) * 64


@dataclass(frozen=True, slots=True)
class _Panel:
    """Writes rows `first` to `end` of the result for `columns` columns from `start`."""

    module: Module
    f: Function
    p: PackedGemm
    packed: IRValue
    result: IRValue | None
    band: IRValue
    first: IRValue
    end: IRValue
    start: IRValue
    columns: int

    def write(self) -> None:
        f, p = self.f, self.p
        self._clear_sums()
        if p.depth < p.k and not p.accumulate:
            with f.loop(self.first, self.end) as row:
                self._fill(self._at("c", (row, p.c), (self.start, 1)), literal(0, p.dtype))
        with f.loop(I64(0), I64(p.k), p.depth, polls=True) as k:
            count = f.intrinsic("smin", f.binary("sub", I64(p.k), k), I64(p.depth))
            self._pack(k, count)
            rows = p.tile[0]
            left = f.op(f"srem {f.binary('sub', self.end, self.first)}, {rows}", "int64")
            whole = f.binary("sub", self.end, left)
            with f.loop(self.first, whole, rows, polls=True) as row:
                self._tile(k, count, row, rows)
            rest = p.m % p.height % rows
            if rest:
                with f.when(f.compare("icmp slt", whole, self.end)):
                    self._tile(k, count, whole, rest)

    def _tile(self, k: IRValue, count: IRValue, row: IRValue, rows: int) -> None:
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        a = (self._at("a", (row, p.a[0]), (k, p.a[1])), *p.a)
        if self.result is not None:
            c = (self.result, p.tile[1])
        else:
            c = (self._at("c", (row, p.c), (self.start, 1)), p.c)
        operands = self._operands(row, c[0])
        last = f.compare("icmp eq", f.binary("add", k, count), I64(p.k))
        size, packed = (rows, self.columns), (self.packed, p.tile[1])
        stretches = self._fetcher(operands, rows) if operands else None
        sums = tile(f, p.dtype, size, width, (I64(0), count), a, packed, c, stretches, p.pairs)
        for total, address, which in sums:
            if p.accumulate or p.depth < p.k:
                total = f.binary("fadd", total, f.load(address, p.dtype, width, which))
            f.store(total, address, which)
        if p.then is not None:
            with f.when(last):
                name, polls = self._then()
                given = [*operands, *([f.stop] if polls else [])]
                f.do(f"call void @{name}({', '.join(map(str, given))}, i64 0, i64 {rows})")

    def _then(self) -> tuple[str, bool]:
        """The epilogue as a function for the rows of one tile, and whether that polls."""
        kernel, p = self.p.then, self.p
        assert kernel is not None
        operands = list(kernel.operands)
        if self.result is not None:
            for i in p.own:
                operands[i] = replace(operands[i], outer=(p.tile[1],))
        rows = replace(kernel, outer=(p.tile[0],), inner=self.columns, operands=tuple(operands))
        return self.module.function(rows, "rows", lambda name: row_function(name, rows)), rows_poll(rows)

    def _operands(self, row: IRValue, c: IRValue) -> list[IRValue]:
        """The address of the first element of a tile in each operand of the epilogue."""
        found: list[IRValue] = []
        for i, operand in enumerate(self.p.then.operands if self.p.then else ()):
            if i in self.p.own:
                found.append(c)
                continue
            base = self.f.param(f"p{i}")
            if i in self._sums():
                base = move(self.f, base, "uint8", (self.band, sums_bytes(self.p.n, operand.dtype)))
            found.append(move(self.f, base, operand.dtype, (row, operand.outer[0]), (self.start, operand.inner)))
        return found

    def _sums(self) -> dict[int, Instr]:
        return {i.operand: i for i in self.p.then.code if i.kind == "accumulate"} if self.p.then else {}

    def _clear_sums(self) -> None:
        f, p = self.f, self.p
        for i, instr in self._sums().items():
            base = move(f, f.param(f"p{i}"), "uint8", (self.band, sums_bytes(p.n, instr.dtype)))
            base = f.at(base, self.start, instr.dtype)
            self._fill(base, identity(instr.op, instr.dtype))

    def _fill(self, address: IRValue, number: IRValue) -> None:
        """Write one number to all columns of a row."""
        width = lanes(number.dtype)
        for piece in slices_of(self.columns, width):
            here = self.f.at(address, I64(piece.start), number.dtype)
            store_lanes(self.f, self.f.splat(number, width), here, piece.count)

    def _fetcher(self, operands: list[IRValue], rows: int) -> tuple[int, Callable[[IRValue], None]]:
        """Stretches of steps along k; each fetches a cache line of every array that the epilogue of a tile needs."""
        f, p, kernel = self.f, self.p, self.p.then
        assert kernel is not None
        f.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        steps = max(p.depth // (rows * LINES), 1)

        def fetch(k: IRValue) -> None:
            at = f.intrinsic("smin", f.op(f"udiv {k}, {steps}", "int64"), I64(rows * LINES - 1))
            row, line = f.op(f"udiv {at}, {LINES}", "int64"), f.op(f"urem {at}, {LINES}", "int64")
            for i, (address, operand) in enumerate(zip(operands, kernel.operands, strict=True)):
                if operand.inner != 1 or not operand.outer[0] or (i in p.own and self.result is not None):
                    continue
                here = move(f, address, operand.dtype, (row, operand.outer[0]), (line, p.tile[1] // LINES))
                f.do(f"call void @llvm.prefetch.p0({here}, i32 {int(operand.written)}, i32 3, i32 1)")

        return steps, fetch

    def _pack(self, k: IRValue, count: IRValue) -> None:
        """Pack `count` steps from `k` of the columns of b."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        b = self._at("b", (k, p.b[0]), (self.start, p.b[1]))
        if p.b[1] == 1 and p.pairs:
            self._pack_pairs(k, count)
            return
        if p.b[1] == 1:
            with f.loop(I64(0), count) as step:
                source = move(f, b, p.dtype, (step, p.b[0]))
                for piece in slices_of(self.columns, width):
                    value = f.load(f.at(source, I64(piece.start), p.dtype), p.dtype, width, mask(piece.count, width))
                    place = move(f, self.packed, p.dtype, (step, p.tile[1]), by=piece.start)
                    store_lanes(f, value, place, piece.count)
            return
        whole, rest = divmod(self.columns, width)
        if whole:
            with f.loop(I64(0), I64(whole * width), width) as start:
                self._pack_columns(move(f, b, p.dtype, (start, p.b[1])), count, start, width)
        if rest:
            self._pack_columns(f.at(b, I64(whole * width * p.b[1]), p.dtype), count, I64(whole * width), rest)

    def _pack_pairs(self, k: IRValue, count: IRValue) -> None:
        """Pack `count` pairs of rows of b from pair `k`: each number next to the one below it."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        b = move(f, f.param("b"), "bfloat16", (k, 2 * p.b[0]), (self.start, 1))
        with f.loop(I64(0), count) as step:
            upper = move(f, b, "bfloat16", (step, 2 * p.b[0]))
            lower = f.at(upper, I64(p.b[0]), "bfloat16")
            for piece in slices_of(self.columns, width):
                both = [
                    f.convert(f.load(f.at(row, I64(piece.start), "uint16"), "uint16", width, mask(piece.count, width)),
                              "int32")
                    for row in (upper, lower)
                ]  # fmt: skip
                pair = f.binary("or", both[0], f.binary("shl", both[1], f.constant(16, both[1])))
                place = move(f, self.packed, p.dtype, (step, p.tile[1]), by=piece.start)
                store_lanes(f, pair, place, piece.count)

    def _pack_columns(self, source: IRValue, count: IRValue, start: IRValue, columns: int) -> None:
        """Pack up to a vector of columns from `start`, which are rows in memory."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        whole = f.binary("sub", count, f.op(f"srem {count}, {width}", "int64"))
        if p.k >= width:
            with f.loop(I64(0), whole, width) as step:
                self._pack_square(source, step, width, start, columns)
        if p.k % width:  # only the last block along k ends in less than a vector
            with f.when(f.compare("icmp slt", whole, count)):
                self._pack_square(source, whole, p.k % width, start, columns)

    def _pack_square(self, source: IRValue, step: IRValue, steps: int, start: IRValue, columns: int) -> None:
        """Pack one square: `columns` columns for `steps` steps."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        here = f.at(source, step, p.dtype)
        which = mask(steps, width)
        read = [f.load(f.at(here, I64(i * p.b[1]), p.dtype), p.dtype, width, which) for i in range(columns)]
        place = move(f, self.packed, p.dtype, (step, p.tile[1]), (start, 1))
        for i, row in enumerate(transposed_square(f, read)[:steps]):
            store_lanes(f, row, f.at(place, I64(i * p.tile[1]), p.dtype), columns)

    def _at(self, name: str, *steps: tuple[IRValue, int]) -> IRValue:
        return move(self.f, self.f.param(name), self.p.dtype, *steps)
