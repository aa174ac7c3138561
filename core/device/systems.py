"""Factorisations and triangular systems on a device: a block of threads for each matrix.

A block works on a panel of 16 columns, or of 16 rows of a solution, at a time. It computes the panel first, and then
subtracts the products of the panel from the rest of the matrix, which it reads and writes once for each panel. One
thread computes each number of a result from the columns, or rows, before it, in their order; sums over a column are
those of lanes, then of warps. So the bits depend on the number of threads of a block, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.reductions import combine, identity
from core.codegen.vector_slices import move
from core.device.threads import WARP, Threads, block_number, in_bundles, one_block
from core.plan.systems import Cholesky, Elimination, Triangle

if TYPE_CHECKING:
    from core.plan.data import Kernel

__all__ = ["SYSTEMS", "Block", "system_kernel", "system_units", "system_waits"]

COLUMNS = (8, 32)
"""Right-hand sides of a system that a block solves at a time: few if all blocks then work at the same time."""

UNITS = 128
"""Blocks that surely work at the same time."""

TOGETHER = 4
"""Rows of a solution from which a thread subtracts products together."""

PANEL = 16
"""Columns of a panel, or rows of a solution, whose numbers a thread has in registers."""

TILE_BYTES = 40_000
"""Most bytes of the rows of a panel in shared memory: they are all of them unless a matrix is large."""

ROWS_BYTES = 16
"""Bytes of the numbers of one column, from which a warp subtracts products together."""

AHEAD = 2
"""Columns of a thread whose numbers are loaded together."""


class Block:
    """The threads of one block, while a function for them is written. warp, lane: of this thread in the block."""

    def __init__(self, f: Function, launch: Threads) -> None:
        self.f, self.launch, self.team = f, launch, one_block(launch)
        self.number, self.total = self.team.number(f), launch.block
        self.first = f.compare("icmp eq", self.number, I64(0))
        self.warp, self.lane = f.op(f"udiv {self.number}, {WARP}", "int64"), self.team.lane(f)
        self.warps = launch.block // WARP

    def meet(self) -> None:
        self.team.barrier(self.f)

    def combined(self, op: str, value: IRValue) -> IRValue:
        """The reduction of the values of all threads, in each of them."""
        f, dtype, total = self.f, value.dtype, identity(op, value.dtype)
        one = self.team.reduce_warp(f, op, value)
        room = self.team.shared(f, self.warps * itemsize(dtype))
        with f.when(f.compare("icmp eq", self.lane, I64(0))):
            f.store(one, f.at(room, self.warp, dtype))
        self.meet()
        for each in [f.load(f.at(room, I64(warp), dtype), dtype) for warp in range(self.warps)]:  # all loads first
            total = combine(f, op, total, each)
        self.meet()
        return total


def system_kernel(name: str, each: Kernel, launch: Threads) -> Function:
    """``name(arrays..., error, check)`` for all threads."""
    names, write = SYSTEMS[each.kind]
    f = Function(name, [*((n, "ptr") for n in (*names, "error")), ("check", "int64")], noalias=False)
    block = Block(f, launch)
    with f.loop(block_number(f, launch), I64(system_units(each)), launch.blocks) as unit:
        write(block, each.spec, unit)
        block.meet()
    return f


def system_units(each: Kernel) -> int:
    """How many blocks can work at a time: on a matrix, or some columns of its right-hand side, each."""
    groups = -(-each.spec.k // _columns(each.spec)) if isinstance(each.spec, Triangle) else 1
    return each.spec.batch * groups


def _columns(spec: Triangle) -> int:
    """Right-hand sides of a system that a block solves at a time."""
    few, most = COLUMNS
    return few if spec.batch * -(-spec.k // few) <= UNITS else most


def system_waits(each: Kernel) -> int:
    """Barriers of a block for one unit: most of them once for each row, or for each panel."""
    panels = -(-each.spec.n // PANEL)
    return {"cholesky": 8 * panels + 3 * each.spec.n, "eliminate": 7 * each.spec.n + 2 * panels}.get(
        each.kind, 2 * panels
    )


def _minus_product(f: Function, value: IRValue, a: IRValue, b: IRValue) -> IRValue:
    return f.fma(f.op(f"fneg {a}", a.dtype), b, value)


# --- Cholesky factors ----------------------------------------------------------------------------------------------


def _cholesky(block: Block, spec: Cholesky, matrix: IRValue) -> None:
    """``(x, out)``: see `_Factor`."""
    _Factor(block, spec, matrix).write()


class _Factor:
    """Writes a Cholesky factor, a panel of columns after the other.

    One warp factors the square of the panel on the diagonal: a thread has a row of it. Then a thread has a row of the
    panel below, and all threads subtract its products from the columns to its right, some rows of a warp at a time.
    What they share is in shared memory: the pivots, the inverses of the diagonal, the square by columns, and a tile of
    rows of the panel.

    rows: of a tile. whole: whether that is the panel.
    """

    def __init__(self, block: Block, spec: Cholesky, matrix: IRValue) -> None:
        self.block, self.spec, self.f, self.n, self.dtype = block, spec, block.f, spec.n, spec.dtype
        f, n, dtype = block.f, spec.n, spec.dtype
        self.x = move(f, f.param("x"), dtype, (matrix, spec.x[0]))
        self.out = move(f, f.param("out"), dtype, (matrix, n * n))
        self.rows = min(-(-n // PANEL) * PANEL, TILE_BYTES // ((PANEL + 1) * itemsize(dtype)))
        self.whole = n <= self.rows
        sizes = (PANEL, PANEL, PANEL * PANEL, self.rows * (PANEL + 1))
        shared = block.team.shared(f, sum(sizes) * itemsize(dtype))
        starts = list(accumulate(sizes, initial=0))[: len(sizes)]
        self.pivots, self.inverses, self.square, self.tile = (f.at(shared, I64(at), dtype) for at in starts)

    def at(self, row: IRValue, column: IRValue) -> IRValue:
        return move(self.f, self.out, self.dtype, (row, self.n), (column, 1))

    def of_square(self, row: int | IRValue, column: int) -> IRValue:
        row = I64(row) if isinstance(row, int) else row
        return self.f.at(self.square, self._plus(row, column * PANEL), self.dtype)

    def of_tile(self, row: IRValue, column: IRValue | int) -> IRValue:
        """Rows begin in different banks of shared memory."""
        column = I64(column) if isinstance(column, int) else column
        return move(self.f, self.tile, self.dtype, (row, PANEL + 1), (column, 1))

    def write(self) -> None:
        block, f, n = self.block, self.f, self.n
        self._copy()
        block.meet()
        with f.loop(I64(0), I64(n), PANEL) as first:
            end = f.intrinsic("smin", self._plus(first, PANEL), I64(n))
            with f.when(f.compare("icmp eq", block.warp, I64(0))):
                self._factor_square(first, end)
            block.meet()
            with f.loop(end, I64(n), self.rows) as start:
                self._load_tile(first, start)
                block.meet()
                self._solve_tile(start)
                block.meet()
                self._store_tile(first, start)
                block.meet()
            rows = f.binary("sub", I64(n), end)
            tiles = f.op(f"udiv {self._plus(rows, self.rows - 1)}, {self.rows}", "int64")
            with f.loop(I64(0), tiles) as number:  # the last one first, which is there
                back = f.binary("sub", tiles, self._plus(number, 1))
                start = f.binary("add", end, f.op(f"mul nsw {back}, {self.rows}", "int64"))
                with f.when(f.compare("icmp sgt", number, I64(0))):
                    block.meet()
                    self._load_tile(first, start)
                    block.meet()
                self._subtract_tile(first, start)
            block.meet()

    def _plus(self, value: IRValue, more: int) -> IRValue:
        return self.f.binary("add", value, I64(more)) if more else value

    def _copy(self) -> None:
        """The lower triangle; the other one of x is not read, and the result has zeros there."""
        block, f, dtype = self.block, self.f, self.dtype
        with f.loop(block.warp, I64(self.n), block.warps) as row, f.loop(block.lane, I64(self.n), WARP) as column:
            lower = f.compare("icmp sle", column, row)
            place = f.select(lower, column, row)
            steps = (row, self.spec.x[1]), (place, self.spec.x[2])
            value = f.load(move(f, self.x, dtype, *steps), dtype)
            f.store(f.select(lower, value, literal(0, dtype)), self.at(row, column))

    def _factor_square(self, first: IRValue, end: IRValue) -> None:
        """A thread has a row, with the numbers behind the diagonal for the sake of equal code. Behind the last row of
        the matrix there are rows of the identity."""
        block, f, dtype = self.block, self.f, self.dtype
        own = f.op(f"and {block.lane}, {PANEL - 1}", "int64")
        row = f.binary("add", first, own)
        exists = f.compare("icmp slt", row, end)
        values = []
        for k in range(PANEL):
            lower = f.binary("and", exists, f.compare("icmp sge", own, I64(k)))
            given = f.load(self.at(f.select(lower, row, first), f.select(lower, self._plus(first, k), first)), dtype)
            other = f.select(f.compare("icmp eq", own, I64(k)), literal(1, dtype), literal(0, dtype))
            values.append(f.select(lower, given, other))
        wrong, in_square = literal(False, "bool"), f.compare("icmp slt", block.lane, I64(PANEL))
        for j in range(PANEL):
            here = [f.at(array, I64(j), dtype) for array in (self.pivots, self.inverses)]
            with f.when(f.compare("icmp eq", block.lane, I64(j))):
                f.store(values[j], here[0])
            block.team.warp_barrier(f)
            pivot = f.load(here[0], dtype)
            wrong = f.binary("or", wrong, f.op(f"xor {f.compare('fcmp ogt', pivot, literal(0, dtype))}, true", "bool"))
            root = f.intrinsic("sqrt", pivot)
            inverse = f.binary("fdiv", literal(1, dtype), root)
            is_pivot = f.compare("icmp eq", own, I64(j))
            values[j] = f.select(is_pivot, root, f.binary("fmul", values[j], inverse))
            with f.when(in_square):
                f.store(values[j], self.of_square(own, j))
                with f.when(is_pivot):
                    f.store(inverse, here[1])
            block.team.warp_barrier(f)
            for k in range(j + 1, PANEL):
                values[k] = _minus_product(f, values[k], values[j], f.load(self.of_square(k, j), dtype))
        with f.when(f.binary("and", wrong, f.compare("icmp eq", block.lane, I64(0)))):
            fail(f, f.param("error"), f.param("check"))
        with f.when(f.binary("and", exists, in_square)):
            for k in range(PANEL):
                with f.when(f.compare("icmp sge", own, I64(k))):
                    f.store(values[k], self.at(row, self._plus(first, k)))

    @contextmanager
    def _each_of_tile(self, first: IRValue, start: IRValue) -> Iterator[tuple[IRValue, IRValue]]:
        """(address in the matrix, address in the tile) of the numbers of the panel from row `start` on."""
        block, f = self.block, self.f
        column = f.op(f"urem {block.number}, {PANEL}", "int64")
        above = f.op(f"udiv {block.number}, {PANEL}", "int64")
        count = f.intrinsic("smin", f.binary("sub", I64(self.n), start), I64(self.rows))
        with f.loop(above, count, block.total // PANEL) as row:
            yield self.at(f.binary("add", start, row), f.binary("add", first, column)), self.of_tile(row, column)

    def _load_tile(self, first: IRValue, start: IRValue) -> None:
        with self._each_of_tile(first, start) as (there, here):
            self.f.store(self.f.load(there, self.dtype), here)

    def _store_tile(self, first: IRValue, start: IRValue) -> None:
        with self._each_of_tile(first, start) as (there, here):
            self.f.store(self.f.load(here, self.dtype), there)

    def _solve_tile(self, start: IRValue) -> None:
        """Only whole panels have rows below them."""
        block, f, dtype = self.block, self.f, self.dtype
        count = f.intrinsic("smin", f.binary("sub", I64(self.n), start), I64(self.rows))
        with f.loop(block.number, count, block.total) as row:
            values = [f.load(self.of_tile(row, k), dtype) for k in range(PANEL)]
            for j in range(PANEL):
                values[j] = f.binary("fmul", values[j], f.load(f.at(self.inverses, I64(j), dtype), dtype))
                for k in range(j + 1, PANEL):
                    values[k] = _minus_product(f, values[k], values[j], f.load(self.of_square(k, j), dtype))
            for k, value in enumerate(values):
                f.store(value, self.of_tile(row, k))

    def _subtract_tile(self, first: IRValue, start: IRValue) -> None:
        """Subtract products from the columns whose rows of the panel are in the tile."""
        block, f, dtype, last = self.block, self.f, self.dtype, I64(self.n - 1)
        together = ROWS_BYTES // itemsize(dtype)
        own = f.binary("add", start, f.op(f"mul nsw {block.warp}, {together}", "int64"))
        with f.loop(own, I64(self.n), block.warps * together) as top:
            rows = [self._plus(top, r) for r in range(together)]
            exist = [f.compare("icmp slt", row, I64(self.n)) for row in rows]
            read = [f.select(one, row, top) for one, row in zip(exist, rows, strict=True)]  # not those of other warps
            if self.whole:
                inside = [f.binary("sub", row, start) for row in read]
                factors = [[f.load(self.of_tile(row, k), dtype) for k in range(PANEL)] for row in inside]
            else:
                factors = [[f.load(self.at(row, self._plus(first, k)), dtype) for k in range(PANEL)] for row in read]
            right = f.intrinsic("smin", self._plus(start, self.rows - 1), f.intrinsic("smin", rows[-1], last))

            def subtract(
                columns: list[IRValue], rows: Any = rows, exist: Any = exist, read: Any = read, factors: Any = factors
            ) -> None:
                values = [[f.load(self.at(row, column), dtype) for row in read] for column in columns]
                places = [f.binary("sub", column, start) for column in columns]
                others = [[f.load(self.of_tile(place, k), dtype) for k in range(PANEL)] for place in places]
                for column, given, right in zip(columns, values, others, strict=True):
                    for row, one, factor, value in zip(rows, exist, factors, given, strict=True):
                        for a, b in zip(factor, right, strict=True):
                            value = _minus_product(f, value, a, b)
                        with f.when(f.binary("and", one, f.compare("icmp sle", column, row))):
                            f.store(value, self.at(row, column))

            in_bundles(f, f.binary("add", start, block.lane), self._plus(right, 1), WARP, AHEAD, subtract)


@contextmanager
def _of_panel(block: Block, first: IRValue, after: IRValue, end: IRValue, n: int) -> Iterator[tuple[IRValue, IRValue]]:
    """The rows and the columns from `after` on of the panel `first` to `end`, shared by the threads of a block."""
    f = block.f
    column = f.binary("add", first, f.op(f"urem {block.number}, {PANEL}", "int64"))
    start = f.binary("add", after, f.op(f"udiv {block.number}, {PANEL}", "int64"))
    inside = f.binary("and", f.compare("icmp sge", column, after), f.compare("icmp slt", column, end))
    with f.when(inside), f.loop(start, I64(n), block.total // PANEL) as row:
        yield row, column


def _subtract_panel(
    block: Block, dtype: str, n: int, first: IRValue, end: IRValue, at: Callable[[IRValue, IRValue], IRValue]
) -> None:
    """Subtract the products of a whole panel from what follows its rows and columns.

    at: the address of a row and a column.
    """
    f = block.f
    panel = [f.binary("add", first, I64(k)) for k in range(PANEL)]
    with f.loop(f.binary("add", end, block.warp), I64(n), block.warps) as row:
        factors = [f.load(at(row, k), dtype) for k in panel]
        with f.loop(f.binary("add", end, block.lane), I64(n), WARP) as column:
            value = f.load(at(row, column), dtype)
            for k, factor in zip(panel, factors, strict=True):
                value = _minus_product(f, value, factor, f.load(at(k, column), dtype))
            f.store(value, at(row, column))
    block.meet()


# --- LU factors ----------------------------------------------------------------------------------------------------


def _eliminate(block: Block, spec: Elimination, matrix: IRValue) -> None:
    """``(x, out, order, sign)``: the columns one after another, each with the search for its pivot."""
    f, n, dtype = block.f, spec.n, spec.dtype
    integer = f"int{8 * itemsize(dtype)}"
    x, out = move(f, f.param("x"), dtype, (matrix, spec.x[0])), move(f, f.param("out"), dtype, (matrix, n * n))
    order = move(f, f.param("order"), "int64", (matrix, n))
    at = lambda row, column: move(f, out, dtype, (row, n), (column, 1))
    with f.loop(block.warp, I64(n), block.warps) as row, f.loop(block.lane, I64(n), WARP) as column:
        f.store(f.load(move(f, x, dtype, (row, spec.x[1]), (column, spec.x[2])), dtype), at(row, column))
    with f.loop(block.number, I64(n), block.total) as row:
        f.store(row, f.at(order, row, "int64"))
    sign = f.slot(dtype)
    f.write(literal(1, dtype), sign)
    block.meet()
    with f.loop(I64(0), I64(n), PANEL) as first:
        end = f.intrinsic("smin", f.binary("add", first, I64(PANEL)), I64(n))
        with f.loop(first, end) as j:
            best = _pivot(block, j, n, integer, lambda row, j=j: f.load(at(row, j), dtype))  # type: ignore[misc]
            moved = f.compare("icmp ne", best, j)
            with f.when(moved):
                with f.loop(block.number, I64(n), block.total) as column:
                    _exchange(f, at(j, column), at(best, column), dtype)
                with f.when(block.first):
                    _exchange(f, f.at(order, j, "int64"), f.at(order, best, "int64"), "int64")
            now = f.read(sign, dtype)
            f.write(f.select(moved, f.op(f"fneg {now}", dtype), now), sign)
            block.meet()
            pivot, after = f.load(at(j, j), dtype), f.binary("add", j, I64(1))
            zero = f.compare("fcmp oeq", pivot, literal(0, dtype))
            pivot = f.select(zero, literal(1, dtype), pivot)  # all numbers below it are 0 too
            with f.loop(f.binary("add", after, block.number), I64(n), block.total) as row:
                f.store(f.binary("fdiv", f.load(at(row, j), dtype), pivot), at(row, j))
            block.meet()
            with _of_panel(block, first, after, end, n) as (row, column):
                place = at(row, column)
                product = f.load(at(row, j), dtype), f.load(at(j, column), dtype)
                f.store(_minus_product(f, f.load(place, dtype), *product), place)
            block.meet()
        panel = [f.binary("add", first, I64(k)) for k in range(PANEL)]
        with f.loop(f.binary("add", end, block.number), I64(n), block.total) as column:
            known: list[IRValue] = []
            for row in panel:
                value = f.load(at(row, column), dtype)
                for k, above in zip(panel, known, strict=False):
                    value = _minus_product(f, value, f.load(at(row, k), dtype), above)
                known.append(value)
                f.store(value, at(row, column))
        block.meet()
        _subtract_panel(block, dtype, n, first, end, at)
    with f.when(block.first):
        f.store(f.read(sign, dtype), f.at(f.param("sign"), matrix, dtype))


def _pivot(block: Block, first: IRValue, n: int, integer: str, number: Callable[[IRValue], IRValue]) -> IRValue:
    """The row of the first largest number of a column, from row `first` on. NaN counts as the largest."""
    f, most, place = block.f, block.f.slot(integer), block.f.slot("int64")
    f.write(IRValue("-1", integer), most)
    f.write(I64(n), place)
    with f.loop(f.binary("add", first, block.number), I64(n), block.total) as row:
        bits = f.bitcast(f.intrinsic("fabs", number(row)), integer)  # ordered as the sizes are
        larger = f.compare("icmp sgt", bits, f.read(most, integer))
        f.write(f.select(larger, bits, f.read(most, integer)), most)
        f.write(f.select(larger, row, f.read(place, "int64")), place)
    own = f.read(most, integer)
    largest = block.combined("max", own)
    mine = f.select(f.compare("icmp eq", own, largest), f.read(place, "int64"), I64(n))
    return block.combined("min", mine)


def _exchange(f: Function, one: IRValue, other: IRValue, dtype: str) -> None:
    a, b = f.load(one, dtype), f.load(other, dtype)
    f.store(b, one)
    f.store(a, other)


# --- triangular systems --------------------------------------------------------------------------------------------


def _substitute(block: Block, spec: Triangle, unit: IRValue) -> None:
    """``(t[, y][, order], out)``: each row of the solution is subtracted from those that follow.

    A thread has one column of the right-hand side and some of its rows, which lie in the result. One of the threads of
    a column solves a panel of them, whose triangle is in shared memory.
    """
    f, n, k, dtype = block.f, spec.n, spec.k, spec.dtype
    most = _columns(spec)
    groups = -(-k // most)
    width = min(most, 1 << (k - 1).bit_length())
    matrix = f.op(f"udiv {unit}, {groups}", "int64")
    group = f.op(f"urem {unit}, {groups}", "int64")
    own, down = f.op(f"urem {block.number}, {width}", "int64"), f.op(f"udiv {block.number}, {width}", "int64")
    column, rows = f.binary("add", f.op(f"mul nsw {group}, {most}", "int64"), own), block.total // width
    inside = f.compare("icmp slt", column, I64(k))
    t = lambda i, j: f.load(move(f, f.param("t"), dtype, (matrix, spec.t[0]), (i, spec.t[1]), (j, spec.t[2])), dtype)
    ordered = lambda i: f.load(move(f, f.param("order"), "int64", (matrix, spec.order), (i, 1)), "int64")

    def at(row: IRValue) -> IRValue:
        row = ordered(row) if spec.ordered == "z" else row
        return move(f, f.param("out"), dtype, (matrix, n * k), (row, k), (column, 1))

    if not spec.unit:
        with f.loop(block.number, I64(n), block.total) as i, f.when(f.compare("fcmp oeq", t(i, i), literal(0, dtype))):
            fail(f, f.param("error"), f.param("check"))
    with f.when(inside), f.loop(down, I64(n), rows) as i:
        source = ordered(i) if spec.ordered == "y" else i
        if spec.identity:
            value = f.select(f.compare("icmp eq", source, column), literal(1, dtype), literal(0, dtype))
        else:
            steps = ((matrix, spec.y[0]), (source, spec.y[1]), (column, spec.y[2]))
            value = f.load(move(f, f.param("y"), dtype, *steps), dtype)
        f.store(value, at(i))
    block.meet()
    row_of = lambda number: f.binary("sub", I64(n - 1), number) if spec.upper else number
    # Rows after the last one are read as the last one, and not written.
    safe = lambda number: row_of(f.intrinsic("smin", number, I64(n - 1)))
    square = block.team.shared(f, PANEL * PANEL * itemsize(dtype))
    of_square = lambda row, column: f.load(f.at(square, I64(row * PANEL + column), dtype), dtype)

    def read_square(first: IRValue) -> None:
        """The triangle of a panel, with the inverses of its diagonal."""
        with f.loop(block.number, I64(PANEL * PANEL), block.total) as at:
            row, column = f.op(f"udiv {at}, {PANEL}", "int64"), f.op(f"urem {at}, {PANEL}", "int64")
            with f.when(f.compare("icmp sle", column, row)):
                value = t(safe(f.binary("add", first, row)), safe(f.binary("add", first, column)))
                is_pivot = f.compare("icmp eq", row, column)
                one = literal(1, dtype)
                inverse = one if spec.unit else f.binary("fdiv", one, value)
                f.store(f.select(is_pivot, inverse, value), f.at(square, at, dtype))

    read_square(I64(0))
    block.meet()
    with f.loop(I64(0), I64(n), PANEL) as first:
        numbers = [f.binary("add", first, I64(q)) for q in range(PANEL)]
        panel = [safe(number) for number in numbers]
        with f.when(f.binary("and", inside, f.compare("icmp eq", down, I64(0)))):
            values = [f.load(at(i), dtype) for i in panel]
            for q in range(PANEL):
                values[q] = f.binary("fmul", values[q], of_square(q, q))
                for later in range(q + 1, PANEL):
                    values[later] = _minus_product(f, values[later], of_square(later, q), values[q])
            for number, i, value in zip(numbers, panel, values, strict=True):
                with f.when(f.compare("icmp slt", number, I64(n))):
                    f.store(value, at(i))
        block.meet()
        read_square(f.binary("add", first, I64(PANEL)))
        with f.when(inside):
            solved = [f.load(at(i), dtype) for i in panel]
            start = f.binary("add", f.binary("add", first, I64(PANEL)), down)

            def subtract(numbers: list[IRValue], panel: list[IRValue] = panel, solved: list[IRValue] = solved) -> None:
                later = [row_of(number) for number in numbers]
                values = [f.load(at(row), dtype) for row in later]  # all loads first
                for i, known in zip(panel, solved, strict=True):
                    factors = [t(row, i) for row in later]
                    values = [_minus_product(f, v, factor, known) for v, factor in zip(values, factors, strict=True)]
                for row, value in zip(later, values, strict=True):
                    f.store(value, at(row))

            in_bundles(f, start, I64(n), rows, TOGETHER, subtract)
        block.meet()


SYSTEMS: dict[str, tuple[tuple[str, ...], Callable[[Block, Any, IRValue], None]]] = {
    "cholesky": (("x", "out"), _cholesky),
    "eliminate": (("x", "out", "order", "sign"), _eliminate),
    "substitute": (("t", "y", "out"), _substitute),
    "substitute_ordered": (("t", "y", "order", "out"), _substitute),
    "substitute_identity": (("t", "order", "out"), _substitute),
}
"""For each kind of kernel the names of its arrays, and what writes it for one unit: a matrix, or some columns of it."""
