"""Row kernels: one function for each kernel, which runs all instructions for a range of rows.

A short row is straight code whose values stay in registers; rows of a few elements are computed in blocks of several
(`row_blocks`), and those of transposed arrays too (`squares`, `turned_rows`). A long row is processed in sweeps: one,
and one more for each reduction that later instructions need (`sweeps`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from core.codegen.cpus import cpu
from core.codegen.draws import DRAWS
from core.codegen.lane_sums import summed_in_lanes
from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.merged_operands import MergedOperands, merged_scratch
from core.codegen.operands import Operands, RowSlice
from core.codegen.polling import STOP_PARAM, is_long
from core.codegen.prefetch import fetch_lookups
from core.codegen.reductions import combine, identity, reduce_lanes
from core.codegen.row_blocks import RowBlock, block_sizes, rows_together
from core.codegen.row_values import RowValues
from core.codegen.squares import Squares, rows_in_squares
from core.codegen.sweeps import EXPENSIVE, STRAIGHT, STRAIGHT_ONCE, Sweep, kept_values, sweeps
from core.codegen.turned_rows import TurnedRows, rows_turned
from core.plan.row_kernels import RowInstruction, RowKernel

__all__ = ["row_cost", "row_function", "rows_poll", "window_function"]

STRETCH = 1 << 16
"""Slices of a row between two reads of the stop word."""


def row_function(name: str, kernel: RowKernel) -> Function:
    """``name(operands...[, stop][, scratch], first row, end row)``; `stop` is the address of the stop word, if
    `rows_poll`; `scratch` that of `merged_scratch` bytes, if there are any.

    Arrays that the kernel accumulates into hold their start values.
    """
    params = [(f"p{i}", "ptr") for i in range(len(kernel.operands))]
    polls = rows_poll(kernel)
    more = [*([STOP_PARAM] if polls else []), *([("scratch", "ptr")] if merged_scratch(kernel) else [])]
    f = Function(name, [*params, *more, ("first", "int64"), ("end", "int64")], noalias=False)
    f.stop = f.param("stop") if polls else None
    _Writer(f, kernel).write()
    return f


def window_function(name: str, kernel: RowKernel, block: int) -> Function:
    """``name(operands...[, stop], first row, end row, first column, end column)``, for some columns of each row.

    The first column is a multiple of `block`; the end is one too, or the end of the row. Reductions are those of the
    columns.
    """
    params = [(f"p{i}", "ptr") for i in range(len(kernel.operands))]
    stop = [STOP_PARAM] if rows_poll(kernel) else []
    ends = [(n, "int64") for n in ("first", "end", "first_column", "end_column")]
    f = Function(name, [*params, *stop, *ends], noalias=False)
    f.stop = f.param("stop") if stop else None
    _Writer(f, kernel, block).write()
    return f


def rows_poll(kernel: RowKernel) -> bool:
    """Whether the function of a kernel polls: all its rows together are much work."""
    return is_long(kernel.rows * kernel.inner * row_cost(kernel))


def row_cost(kernel: RowKernel) -> int:
    """The work for one element of a row, in operations of one cycle or so."""
    code = [*kernel.code, *(instr for each in kernel.merged if each.made for instr in each.made.kernel.code)]
    return sum(10 if i.op in EXPENSIVE else 2 if i.kind in ("load", "lookup", "store") else 1 for i in code if i.full)


def _lanes(kernel: RowKernel) -> int:
    """Lanes of a vector: as many of the narrowest numbers in use as a register holds, but not twice the row or more."""
    sizes = [itemsize(i.dtype) for i in kernel.code if i.full and i.dtype not in ("", "bool")]
    width = cpu().vector_bytes // max(min(sizes, default=4), 4)
    while width // 2 >= kernel.inner:
        width //= 2
    return width


MOST_APART = 2
"""Most vectors of a row that is straight code, if it is stored element by element. LLVM compares each of these stores
with all that are before it: 16 vectors took half a second."""


class _Writer:
    """Writes one row kernel.

    instructions: writes them, one at a time.
    scratch:      a row of memory for each value that a later sweep reads again.
    block:        columns of a block, if the function takes a range of columns; else 0.
    """

    def __init__(self, f: Function, kernel: RowKernel, block: int = 0) -> None:
        self.f, self.kernel, self.code, self.block = f, kernel, kernel.code, block
        self.lanes = _lanes(kernel)
        while block % self.lanes:
            self.lanes //= 2
        self.steps, self.rest = divmod(kernel.inner, self.lanes)
        self.operands = Operands(f, kernel, self.lanes)
        self.instructions = RowValues(f, kernel, self.operands)
        self.scratch: dict[int, IRValue] = {}

    def write(self) -> None:
        f = self.f
        self.operands.open()
        vectors = self.steps + bool(self.rest)
        most = STRAIGHT if self.kernel.outer or any(i.kind == "reduce" for i in self.code) else STRAIGHT_ONCE
        short = vectors <= (MOST_APART if self._stores_apart() else 16) and vectors * len(self.code) <= most
        straight = not self.block and (vectors == 1 or short)
        kept = () if straight else kept_values(self.code, vectors * self.lanes)
        for number in kept:
            slot = f.fresh("row")
            one = IRValue("", self.code[number].dtype).type
            f.top.append(f"  {slot} = alloca [{vectors * self.lanes} x {one}], align 64")
            self.scratch[number] = IRValue(slot, "ptr")
        together = rows_together(self.kernel) if straight else 1
        summed = summed_in_lanes(self.kernel, together) if together > 1 else []
        if straight:
            self.operands.hold(self._pieces(), summed)

        merged = MergedOperands(f, self.kernel, self.operands)

        def alone(row: IRValue) -> None:
            self.instructions.values.clear()
            self.operands.enter(row)
            fetch_lookups(f, self.kernel, row)
            merged.add_up(row)
            if straight:
                self._straight()
            else:
                for sweep in sweeps(self.code, kept, self.steps):
                    self._sweep(sweep)
            self.operands.leave(row)

        if self.kernel.merged:
            with f.loop(f.param("first"), f.param("end"), polls=True) as row:
                alone(row)
        elif together > 1:
            single = self.lanes, self.steps + bool(self.rest)
            pieces, sizes = self._pieces(), block_sizes(self.kernel)
            made = [RowBlock(f, self.kernel, self.operands, single, pieces, size, summed) for size in sizes]
            self._in_blocks({each.rows: each.run for each in made}, alone)
        elif not self.block and (square := rows_in_squares(self.kernel, self.lanes)) > 1:
            self._in_blocks({square: lambda start, end: self._squares(start, end, square)}, alone)
        elif not self.block and rows_turned(self.kernel, self.lanes):
            self._turned(alone)
        else:
            with f.loop(f.param("first"), f.param("end"), polls=True) as row:
                alone(row)
        self.operands.close()

    def _stores_apart(self) -> bool:
        """Whether a row without sums is stored element by element."""
        stores = [i for i in self.code if i.kind in ("store", "accumulate") and i.full]
        apart = any(self.kernel.operands[i.operand].inner > 1 for i in stores)
        return apart and not any(i.kind == "reduce" for i in self.code) and not rows_turned(self.kernel, self.lanes)

    # --- several rows together -------------------------------------------------------------------------------------

    def _turned(self, alone: Callable[[IRValue], None]) -> None:
        """All rows, of which `alone` writes one, from transposed copies of some at a time."""
        f = self.f
        rows = TurnedRows(f, self.kernel, self.operands, self.lanes)
        with self._runs() as (start, stop), f.loop(start, stop, rows.together, polls=True) as first:
            self.operands.enter(first)
            count = f.intrinsic("smin", I64(rows.together), f.binary("sub", stop, first))
            rows.read(count)
            with f.loop(I64(0), count) as number:
                rows.use(number)
                alone(f.binary("add", first, number))
            rows.write(count)

    def _in_blocks(
        self, blocks: Mapping[int, Callable[[IRValue, IRValue], None]], alone: Callable[[IRValue], None]
    ) -> None:
        """Blocks of rows along the last outer axis, and the rows after the last block one by one.

        blocks: sizes of blocks, the largest first; each writes the rows from one to another, which are whole blocks.
        alone: writes one row.
        """
        f = self.f
        with self._runs() as (start, stop):
            for together, run in blocks.items():
                rest = f.op(f"srem {f.binary('sub', stop, start)}, {together}", "int64")
                whole = f.binary("sub", stop, rest)
                run(start, whole)
                start = whole
            with f.loop(start, stop) as row:
                alone(row)

    @contextmanager
    def _runs(self) -> Iterator[tuple[IRValue, IRValue]]:
        """A loop over the rows of the function, as far as they are on one line along the last outer axis."""
        f, axis = self.f, self.kernel.outer[-1]
        first, end = f.param("first"), f.param("end")
        run = f.op(f"sdiv {first}, {axis}", "int64")
        last = f.op(f"sdiv {f.binary('add', end, I64(axis - 1))}, {axis}", "int64")
        with f.loop(run, last, polls=True) as run:
            start = f.op(f"mul nsw {run}, {axis}", "int64")
            stop = f.intrinsic("smin", end, f.binary("add", start, I64(axis)))
            yield f.intrinsic("smax", first, start), stop

    def _squares(self, start: IRValue, end: IRValue, together: int) -> None:
        """Rows from `start` to `end` in blocks of squares."""
        squares = Squares(self.f, self.kernel, self.operands, self.lanes)
        whole = self.steps * self.lanes
        with self.f.loop(start, end, together, polls=True) as row:
            self.operands.enter(row)
            squares.begin()
            with self._stretch(0, whole, self.lanes) as at:
                squares.write(at, self.lanes)
            if self.rest:
                squares.write(I64(whole), self.rest)

    # --- a row as straight code ------------------------------------------------------------------------------------

    def _straight(self) -> None:
        """Every instruction once, for all slices of the row."""
        pieces = self._pieces()
        made: list[dict[int, IRValue]] = [{} for _ in pieces]
        for number, instr in enumerate(self.code):
            if instr.kind == "reduce" and self.code[instr.args[0]].full:
                found = [each[instr.args[0]] for each in made]
                self.instructions.values[number] = self._reduced(instr.op, found, pieces)
            elif instr.full:
                for piece, each in zip(pieces, made, strict=True):
                    self.instructions.full(number, piece, each)
            else:
                self.instructions.row(number)

    def _reduced(self, op: str, values: list[IRValue], pieces: list[RowSlice]) -> IRValue:
        kept = [self.operands.whole(op, v, p) for v, p in zip(values, pieces, strict=True)]
        return reduce_lanes(self.f, op, self._paired(op, kept))

    def _paired(self, op: str, values: list[IRValue]) -> IRValue:
        """All `values` combined, in pairs: shorter chains, smaller errors."""
        while len(values) > 1:
            pairs = [combine(self.f, op, a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]

    def _pieces(self) -> list[RowSlice]:
        """The slices of a row."""
        whole = [RowSlice(I64(i * self.lanes), self.lanes, self.lanes) for i in range(self.steps)]
        return [*whole, self._tail()] if self.rest else whole

    def _tail(self) -> RowSlice:
        """The slice after the whole vectors: a shorter vector where that has no empty lanes, because masks are slow."""
        shorter = not self.rest & (self.rest - 1) and not any(i.op in DRAWS for i in self.code)
        return RowSlice(I64(self.steps * self.lanes), self.rest if shorter else self.lanes, self.rest)

    # --- a row in sweeps -------------------------------------------------------------------------------------------

    def _sweep(self, sweep: Sweep) -> None:
        f, code = self.f, self.code
        for n in sweep.before:
            self.instructions.row(n)
        totals = {  # a total for each of the slices that are computed together: none waits for another one
            n: [f.slot(code[n].dtype, self.lanes) for _ in range(sweep.unroll)]
            for n in sweep.along
            if code[n].kind == "reduce"
        }
        for n, slots in totals.items():
            for slot in slots:
                f.write(f.splat(identity(code[n].op, code[n].dtype), self.lanes), slot)

        def one(n: int, piece: RowSlice, made: dict[int, IRValue], which: int) -> None:
            instr = code[n]
            if n in totals:
                slot = totals[n][which]
                value = self.operands.whole(instr.op, made[instr.args[0]], piece)
                f.write(combine(f, instr.op, f.read(slot, instr.dtype, self.lanes), value), slot)
            elif n in sweep.read:
                kept = f.load(f.at(self.scratch[n], piece.start, _in_scratch(instr)), _in_scratch(instr), piece.lanes)
                made[n] = kept if instr.rounds else f.exact(kept, instr.dtype)
            else:
                self.instructions.full(n, piece, made)
                if n in self.scratch:
                    value = made[n] if instr.rounds else f.convert(made[n], _in_scratch(instr))
                    f.store(value, f.at(self.scratch[n], piece.start, value.dtype))

        def body(*pieces: RowSlice) -> None:
            made: list[dict[int, IRValue]] = [{} for _ in pieces]
            for n in sweep.along:
                uses = f.uses
                for which, (piece, each) in enumerate(zip(pieces, made, strict=True)):
                    f.uses = uses.copy()  # unrolled copies count as one use
                    one(n, piece, each, which)

        if sweep.along:
            self._along(body, sweep.unroll)
        for n, slots in totals.items():
            parts = [f.read(slot, code[n].dtype, self.lanes) for slot in slots]
            self.instructions.values[n] = reduce_lanes(f, code[n].op, self._paired(code[n].op, parts))

    def _along(self, body: Callable[..., None], unroll: int) -> None:
        """``body(*slices)`` for all slices of the row in order, `unroll` of them at a time."""
        f, done, whole = self.f, 0, self.steps * self.lanes
        if self.block:
            self._along_window(body, unroll)
            return
        for together in sorted({unroll, 1}, reverse=True):
            stride = together * self.lanes
            end = done + (whole - done) // stride * stride
            if end > done:
                with self._stretch(done, end, stride) as at:
                    starts = [at, *(f.binary("add", at, I64(i * self.lanes)) for i in range(1, together))]
                    body(*(RowSlice(start, self.lanes, self.lanes) for start in starts))
                    if together == unroll:
                        self.operands.along(at, stride, together)
            done = end
        if self.rest:
            body(self._tail())

    def _along_window(self, body: Callable[..., None], unroll: int) -> None:
        """``body(*slices)`` for the slices of the range of columns that the function takes."""
        f, start, end, whole = self.f, self.f.param("first_column"), self.f.param("end_column"), self.steps * self.lanes
        while self.block % (unroll * self.lanes):
            unroll -= 1
        stride = unroll * self.lanes
        done = whole // stride * stride  # the range begins before: at a multiple of the block, and so of the stride
        with f.loop(start, f.intrinsic("smin", end, I64(done)), stride) as at:
            starts = [at, *(f.binary("add", at, I64(i * self.lanes)) for i in range(1, unroll))]
            body(*(RowSlice(each, self.lanes, self.lanes) for each in starts))
            self.operands.along(at, stride, unroll)
        if done < whole:
            with f.loop(I64(done), f.intrinsic("smin", end, I64(whole)), self.lanes) as at:
                body(RowSlice(at, self.lanes, self.lanes))
        if self.rest:
            with f.when(f.compare("icmp sgt", end, I64(whole))):
                body(self._tail())

    @contextmanager
    def _stretch(self, start: int, end: int, step: int) -> Iterator[IRValue]:
        """A loop from `start` to `end` that polls, but not in each of its steps."""
        f, most = self.f, STRETCH * step
        if f.stop is None or end - start <= most:
            with f.loop(I64(start), I64(end), step) as at:
                yield at
            return
        with f.loop(I64(start), I64(end), most, polls=True) as first:
            last = f.intrinsic("smin", f.binary("add", first, I64(most)), I64(end))
            with f.loop(first, last, step) as at:
                yield at


def _in_scratch(instr: RowInstruction) -> str:
    """The dtype of a row of scratch memory that holds the values of `instr`: one that does not round them."""
    return instr.dtype if instr.rounds else "float32"
