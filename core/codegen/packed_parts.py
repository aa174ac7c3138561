"""Large products of matrices: some columns of the result at a time, for which the operands are packed.

A panel of b has as many columns as a tile. It is copied so that the row that a tile reads in one step along k follows
the row of the step before. In a large matrix these rows lie a page apart, and neither the caches nor the TLB keep much
of them. A b that is stored by columns is transposed in registers on the way. The rows of a are packed for the same
reason, a block of tiles at a time, if enough panels use them (Goto and van de Geijn 2008); else tiles read them in
place. The packed numbers lie on the stack of the thread, in that core's cache.

A product of bfloat16 matrices takes two steps along k at once. The two numbers lie side by side in a row of a, and the
panel is packed so too; a pair is an element, as long as a float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from core.codegen import amx
from core.codegen.amx import SIDE
from core.codegen.denormals import keeping, vanishing
from core.codegen.image_panels import pack_panels
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.module import Module
from core.codegen.packed_gemm import PackedGemm, sums_bytes
from core.codegen.packed_rows import pack_rows
from core.codegen.packed_squares import PackedLines, pack_lines
from core.codegen.packed_tile import Fetched, PackedTile, run_tile
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.reductions import identity
from core.codegen.rows import row_function, rows_poll
from core.codegen.tile import STEPS
from core.codegen.tiled_product import set_block
from core.codegen.vector_slices import VectorSlice, mask, move, slices_of, store_lanes
from core.plan.row_kernels import RowInstruction

__all__ = ["packed_gemm_function"]


def packed_gemm_function(module: Module, name: str, p: PackedGemm) -> Function:
    """``name(a, b, c, epilogue's operands...[, stop], first, end)`` for parts `first` to `end`, numbered band by band.

    Sums over rows have one array for each band, `sums_bytes` apart.
    """
    operands = [f"p{i}" for i in range(len(p.then.operands))] if p.then else []
    polls = product_polls(p.m, p.n, 2 * p.k if p.pairs else p.k)
    pointers = [*((x, "ptr") for x in ("a", "b", "c", *operands)), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")], noalias=not operands)
    f.stop = f.param("stop") if polls else None
    with vanishing(f, p.vanishes) as found:
        part = _Part(module, f, p, found)
        if p.tiled:
            set_block(module, f, *p.tile)
        with f.loop(f.param("first"), f.param("end"), polls=True) as number:
            part.write(number)
        if p.tiled:
            amx.release(f)
    return f


def scratch_memory(f: Function, count: int, dtype: str) -> IRValue:
    """Scratch memory for `count` elements on the stack of the thread."""
    name = f.fresh("tile")
    f.top.append(f"  {name} = alloca [{count * itemsize(dtype)} x i8], align 64")
    return IRValue(name, "ptr")


class _Part:
    """Writes the parts of a product: the rows of a band by the columns of a group of panels.

    packed, rows: memory for the panels of the group, and for the rows of a block, if they are packed.
    result:       memory for a tile of the result, if no more of it is ever stored.
    found:        of `denormals.vanishing`; the epilogue keeps denormals.
    """

    def __init__(self, module: Module, f: Function, p: PackedGemm, found: IRValue | None) -> None:
        self.module, self.f, self.p, self.found = module, f, p, found
        rows, columns = p.tile
        spilled = lanes(p.dtype) if p.columns else 0
        self.packed = scratch_memory(f, p.group * p.packed_depth * columns + spilled, p.dtype)
        self.rows = scratch_memory(f, p.block * p.row_steps, p.dtype) if p.packs_rows else None
        self.result = scratch_memory(f, rows * columns, p.dtype) if p.in_tile else None

    def write(self, number: IRValue) -> None:
        f, p = self.f, self.p
        self.band, group = f.op(f"udiv {number}, {p.groups}", "int64"), f.op(f"urem {number}, {p.groups}", "int64")
        self.first = f.op(f"mul nsw {self.band}, {p.height}", "int64")
        self.end = f.intrinsic("smin", f.binary("add", self.first, I64(p.height)), I64(p.m))
        self.panel = f.op(f"mul nsw {group}, {p.group}", "int64")
        self._each_panel(lambda panel: panel.clear_sums())
        with f.loop(I64(0), I64(p.k), p.depth, polls=True) as k:
            count = f.intrinsic("smin", f.binary("sub", I64(p.k), k), I64(p.depth))
            self._pack(k, count)
            with f.loop(self.first, self.end, p.block, polls=True) as first:
                end = f.intrinsic("smin", f.binary("add", first, I64(p.block)), self.end)
                if self.rows is not None:
                    pack_rows(self.module, f, p, self.rows, (k, count), (first, end))
                self._each_panel(lambda panel: panel.tiles(k, count, first, end))

    def _pack(self, k: IRValue, count: IRValue) -> None:
        """Pack `count` steps from `k` of the columns of b, and zeros up to the end of the last tile."""
        self._pack_steps(k, count)
        if self.p.tiled and self.p.k % SIDE:
            self._each_panel(lambda panel: panel.clear_rest(count))

    def _pack_steps(self, k: IRValue, count: IRValue) -> None:
        """Pack `count` steps from `k` of the columns of b. Rows of b are read from end to end, for all panels."""
        image = self.p.image_panels
        if image is not None:
            panels = self.panel, self._end()
            pack_panels(self.module, self.f, image, self.f.param("b"), self.packed, (k, count), panels)
            return
        if self.p.b[1] != 1:
            self._each_panel(lambda panel: panel.pack_columns(k, count))
            return
        with self.f.loop(I64(0), count) as step:
            self._each_panel(lambda panel: panel.pack_row(k, step))

    def _each_panel(self, write: Callable[[_Panel], None]) -> None:
        """Write instructions for each panel of the group. Those of panels with different widths differ."""
        f, p = self.f, self.p
        with f.loop(self.panel, self._end()) as number:
            start = p.widths.write_start(f, number)
            inside = f.op(f"mul nsw {f.binary('sub', number, self.panel)}, {p.packed_depth}", "int64")
            packed = move(f, self.packed, p.dtype, (inside, p.tile[1]))

            def choose(kinds: list[tuple[int, int]]) -> None:
                (_, columns), *others = kinds
                one = partial(write, _Panel(self, start, packed, columns))
                if others:
                    f.either(f.compare("icmp slt", number, I64(others[0][0])), one, partial(choose, others))
                else:
                    one()

            choose(p.widths.kinds)

    def _end(self) -> IRValue:
        """The panel after the last one of the group."""
        return self.f.intrinsic("smin", self.f.binary("add", self.panel, I64(self.p.group)), I64(self.p.panels))


class _Panel:
    """Writes the rows of a part for `columns` columns from `start`. packed: memory for the columns of b."""

    def __init__(self, part: _Part, start: IRValue, packed: IRValue, columns: int) -> None:
        self.part, self.start, self.packed, self.columns = part, start, packed, columns
        self.module, self.f, self.p = part.module, part.f, part.p

    def tiles(self, k: IRValue, count: IRValue, first: IRValue, end: IRValue) -> None:
        """Write the tiles of rows `first` to `end` for `count` steps from `k`."""
        f, p = self.f, self.p
        rows = p.tile[0]
        left = f.op(f"srem {f.binary('sub', end, first)}, {rows}", "int64")
        whole = f.binary("sub", end, left)
        with self._sizes(rows), f.loop(first, whole, rows, polls=True) as row:
            self._tile(k, count, first, row, rows)
        rest = p.m % p.height % rows
        if rest:
            with f.when(f.compare("icmp slt", whole, end)), self._sizes(rest):
                self._tile(k, count, first, whole, rest)

    @contextmanager
    def _sizes(self, rows: int) -> Iterator[None]:
        """Inside, the CPU's own tiles have the sizes for so many rows. Those of whole tiles are set outside."""
        other = self.p.tiled and (rows, self.columns) != self.p.tile
        if other:
            set_block(self.module, self.f, rows, self.columns)
        yield
        if other:
            set_block(self.module, self.f, *self.p.tile)

    def _tile(self, k: IRValue, count: IRValue, first: IRValue, row: IRValue, rows: int) -> None:
        f, p, packed_rows, result = self.f, self.p, self.part.rows, self.part.result
        if packed_rows is None:
            a = (self._at("a", (row, p.a[0]), (k, p.a[1])), *p.a)
        else:
            apart = SIDE if p.tiled else 1
            a = (move(f, packed_rows, p.dtype, (f.binary("sub", row, first), p.row_steps)), apart, p.tile[0])
        if result is not None:
            c = (result, p.tile[1])
        else:
            c = (self._at("c", (row, p.c), (self.start, 1)), p.c)
        operands = self._operands(row, c[0])
        last = f.compare("icmp eq", f.binary("add", k, count), I64(p.k))
        adds = literal(p.accumulate, "bool")
        if p.depth < p.k and not p.accumulate:
            adds = f.compare("icmp ne", k, I64(0))
        form = PackedTile(rows, self.columns, a[1:], p.tile[1], p.dtype, p.pairs, p.k % STEPS == 0, p.tiled)
        run_tile(self.module, f, form, (a[0], self.packed), count, c, adds, self._fetched(operands), p.depth)
        if p.then is not None:
            with f.when(last):
                name, polls = self._then()
                given = [*operands, *([f.stop] if polls else [])]
                with keeping(f, self.part.found):
                    f.do(f"call void @{name}({', '.join(map(str, given))}, i64 0, i64 {rows})")

    def _then(self) -> tuple[str, bool]:
        """The epilogue as a function for the rows of one tile, and whether that polls."""
        kernel, p = self.p.then, self.p
        assert kernel is not None
        operands = list(kernel.operands)
        if self.part.result is not None:
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
                base = move(self.f, base, "uint8", (self.part.band, sums_bytes(self.p.n, operand.dtype)))
            found.append(move(self.f, base, operand.dtype, (row, operand.outer[0]), (self.start, operand.inner)))
        return found

    def _sums(self) -> dict[int, RowInstruction]:
        return {i.operand: i for i in self.p.then.code if i.kind == "accumulate"} if self.p.then else {}

    def clear_sums(self) -> None:
        f, p = self.f, self.p
        for i, instr in self._sums().items():
            base = move(f, f.param(f"p{i}"), "uint8", (self.part.band, sums_bytes(p.n, instr.dtype)))
            base = f.at(base, self.start, instr.dtype)
            self._fill(base, identity(instr.op, instr.dtype))

    def _fill(self, address: IRValue, number: IRValue) -> None:
        """Write one number to all columns of a row."""
        width = lanes(number.dtype)
        for piece in slices_of(self.columns, width):
            here = self.f.at(address, I64(piece.start), number.dtype)
            store_lanes(self.f, self.f.splat(number, width), here, piece.count)

    def _fetched(self, operands: list[IRValue]) -> list[Fetched]:
        """The operands of the epilogue that lie in memory as rows. operands: their addresses under the tile."""
        p = self.p
        return [
            Fetched(address, each.dtype, each.outer[0])
            for i, (each, address) in enumerate(zip(p.then.operands if p.then else (), operands, strict=True))
            if each.inner == 1 and each.outer[0] and not (i in p.own and self.part.result is not None)
        ]

    def clear_rest(self, count: IRValue) -> None:
        """Write zeros behind `count` steps, up to the end of a tile."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        last = f.op(f"and {f.binary('add', count, I64(SIDE - 1))}, {-SIDE}", "int64")
        with f.loop(count, last) as step:
            for at in range(0, p.tile[1], width):
                zero = f.splat(literal(0, p.dtype), width)
                f.store(zero, move(f, self.packed, p.dtype, (step, p.tile[1]), by=at))

    def pack_row(self, k: IRValue, step: IRValue) -> None:
        """Pack step `step` from `k`; b is stored by rows."""
        f, p, width = self.f, self.p, lanes(self.p.dtype)
        for piece in slices_of(self.columns, width):
            if p.pairs:
                value = self._pair(k, step, piece)
            else:
                here = self._at("b", (k, p.b[0]), (step, p.b[0]), (self.start, 1))
                value = f.load(f.at(here, I64(piece.start), p.dtype), p.dtype, width, mask(piece.count, width))
            store_lanes(f, value, move(f, self.packed, p.dtype, (step, p.tile[1]), by=piece.start), piece.count)

    def _pair(self, k: IRValue, step: IRValue, piece: VectorSlice) -> IRValue:
        """Some columns of two rows of b: each number next to the one below it."""
        f, p = self.f, self.p
        upper = move(f, f.param("b"), "bfloat16", (k, 2 * p.b[0]), (step, 2 * p.b[0]), (self.start, 1), by=piece.start)
        which = mask(piece.count, piece.lanes)
        upper, lower = (
            f.convert(f.load(row, "uint16", piece.lanes, which), "int32")
            for row in (upper, f.at(upper, I64(p.b[0]), "bfloat16"))
        )
        return f.binary("or", upper, f.binary("shl", lower, f.constant(16, lower)))

    def pack_columns(self, k: IRValue, count: IRValue) -> None:
        """Pack `count` steps from `k`; b is stored by columns."""
        p, width = self.p, lanes(self.p.dtype)
        form = PackedLines(p.dtype, self.columns, p.tile[1], p.k >= width, p.k % width, spills=False)
        source = self._at("b", (k, 1), (self.start, p.b[1]))
        pack_lines(self.module, self.f, form, source, p.b[1], count, self.packed)

    def _at(self, name: str, *steps: tuple[IRValue, int]) -> IRValue:
        return move(self.f, self.f.param(name), self.p.dtype, *steps)
