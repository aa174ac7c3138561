"""Triangular systems on a device: a block of threads for some columns of the right-hand side of each."""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, IRValue, itemsize, literal
from core.codegen.vector_slices import move
from core.device.blocks import PANEL, Block, minus_product
from core.device.threads import in_bundles
from core.plan.systems import Triangle

__all__ = ["columns_of", "write_substitution"]

COLUMNS = (8, 32)
"""Right-hand sides of a system that a block solves at a time: few if all blocks then work at the same time."""

UNITS = 128
"""Blocks that surely work at the same time."""

TOGETHER = 4
"""Rows of a solution from which a thread subtracts products together."""


def columns_of(spec: Triangle) -> int:
    """Right-hand sides of a system that a block solves at a time."""
    few, most = COLUMNS
    return few if spec.batch * -(-spec.k // few) <= UNITS else most


def write_substitution(block: Block, spec: Triangle, unit: IRValue) -> None:
    """``(t[, y][, order], out)``: each row of the solution is subtracted from those that follow.

    A thread has one column of the right-hand side and some of its rows, which lie in the result. One of the threads of
    a column solves a panel of them, whose triangle is in shared memory.
    """
    f, n = block.f, spec.n
    code = _Substitution(block, spec, unit)
    if not spec.unit:
        code.check_diagonal()
    code.copy_right_side()
    block.meet()
    code.read_square(I64(0))
    block.meet()
    with f.loop(I64(0), I64(n), PANEL) as first:
        numbers = [f.binary("add", first, I64(q)) for q in range(PANEL)]
        panel = [code.safe(number) for number in numbers]
        code.solve(numbers, panel)
        block.meet()
        code.read_square(f.binary("add", first, I64(PANEL)))
        code.subtract(first, panel)
        block.meet()


class _Substitution:
    """The code of one unit: some columns of the right-hand side of one system.

    column: of this thread; `inside` is whether there is such a column. It has every `rows`-th row from `down` on.
    square: the shared memory with the triangle of the present panel.
    """

    def __init__(self, block: Block, spec: Triangle, unit: IRValue) -> None:
        self.block, self.f, self.spec = block, block.f, spec
        f, k = block.f, spec.k
        most = columns_of(spec)
        groups = -(-k // most)
        width = min(most, 1 << (k - 1).bit_length())
        self.matrix = f.op(f"udiv {unit}, {groups}", "int64")
        group = f.op(f"urem {unit}, {groups}", "int64")
        own = f.op(f"urem {block.number}, {width}", "int64")
        self.down = f.op(f"udiv {block.number}, {width}", "int64")
        self.column = f.binary("add", f.op(f"mul nsw {group}, {most}", "int64"), own)
        self.rows = block.total // width
        self.inside = f.compare("icmp slt", self.column, I64(k))
        self.square = block.team.shared(f, PANEL * PANEL * itemsize(spec.dtype))

    # --- places --------------------------------------------------------------------------------------------------

    def t(self, i: IRValue, j: IRValue) -> IRValue:
        """An element of the triangle."""
        steps = ((self.matrix, self.spec.t[0]), (i, self.spec.t[1]), (j, self.spec.t[2]))
        return self.f.load(move(self.f, self.f.param("t"), self.spec.dtype, *steps), self.spec.dtype)

    def at(self, row: IRValue) -> IRValue:
        """The address of a row of the solution."""
        n, k = self.spec.n, self.spec.k
        row = self._ordered(row) if self.spec.ordered == "z" else row
        return move(self.f, self.f.param("out"), self.spec.dtype, (self.matrix, n * k), (row, k), (self.column, 1))

    def _ordered(self, i: IRValue) -> IRValue:
        steps = ((self.matrix, self.spec.order), (i, 1))
        place = self.f.load(move(self.f, self.f.param("order"), "int64", *steps), "int64")
        return self.f.intrinsic("umin", place, I64(self.spec.n - 1))  # an error in a loop leaves orders unwritten

    def row_of(self, number: IRValue) -> IRValue:
        """The row that is solved as the one with this number."""
        return self.f.binary("sub", I64(self.spec.n - 1), number) if self.spec.upper else number

    def safe(self, number: IRValue) -> IRValue:
        """As `row_of`. Rows after the last one are read as the last one, and not written."""
        return self.row_of(self.f.intrinsic("smin", number, I64(self.spec.n - 1)))

    # --- steps ---------------------------------------------------------------------------------------------------

    def check_diagonal(self) -> None:
        """Fail if an element of the diagonal is 0."""
        f, block = self.f, self.block
        zero = literal(0, self.spec.dtype)
        with (
            f.loop(block.number, I64(self.spec.n), block.total) as i,
            f.when(f.compare("fcmp oeq", self.t(i, i), zero)),
        ):
            fail(f, f.param("error"), f.param("check"))

    def copy_right_side(self) -> None:
        """Write the rows of this thread of the right-hand side to the result."""
        f, spec, dtype = self.f, self.spec, self.spec.dtype
        with f.when(self.inside), f.loop(self.down, I64(spec.n), self.rows) as i:
            source = self._ordered(i) if spec.ordered == "y" else i
            if spec.identity:
                value = f.select(f.compare("icmp eq", source, self.column), literal(1, dtype), literal(0, dtype))
            else:
                steps = ((self.matrix, spec.y[0]), (source, spec.y[1]), (self.column, spec.y[2]))
                value = f.load(move(f, f.param("y"), dtype, *steps), dtype)
            f.store(value, self.at(i))

    def read_square(self, first: IRValue) -> None:
        """Copy the triangle of a panel to shared memory, with the inverses of its diagonal."""
        f, block, dtype = self.f, self.block, self.spec.dtype
        with f.loop(block.number, I64(PANEL * PANEL), block.total) as at:
            row, column = f.op(f"udiv {at}, {PANEL}", "int64"), f.op(f"urem {at}, {PANEL}", "int64")
            with f.when(f.compare("icmp sle", column, row)):
                value = self.t(self.safe(f.binary("add", first, row)), self.safe(f.binary("add", first, column)))
                is_pivot = f.compare("icmp eq", row, column)
                one = literal(1, dtype)
                inverse = one if self.spec.unit else f.binary("fdiv", one, value)
                f.store(f.select(is_pivot, inverse, value), f.at(self.square, at, dtype))

    def solve(self, numbers: list[IRValue], panel: list[IRValue]) -> None:
        """Solve the rows of a panel, for each column on one thread."""
        f, dtype = self.f, self.spec.dtype
        of_square = lambda row, column: f.load(f.at(self.square, I64(row * PANEL + column), dtype), dtype)
        with f.when(f.binary("and", self.inside, f.compare("icmp eq", self.down, I64(0)))):
            values = [f.load(self.at(i), dtype) for i in panel]
            for q in range(PANEL):
                values[q] = f.binary("fmul", values[q], of_square(q, q))
                for later in range(q + 1, PANEL):
                    values[later] = minus_product(f, values[later], of_square(later, q), values[q])
            for number, i, value in zip(numbers, panel, values, strict=True):
                with f.when(f.compare("icmp slt", number, I64(self.spec.n))):
                    f.store(value, self.at(i))

    def subtract(self, first: IRValue, panel: list[IRValue]) -> None:
        """Subtract the products of a solved panel, whose first row has the number `first`, from the later rows."""
        f, dtype = self.f, self.spec.dtype
        with f.when(self.inside):
            solved = [f.load(self.at(i), dtype) for i in panel]
            start = f.binary("add", f.binary("add", first, I64(PANEL)), self.down)

            def together(numbers: list[IRValue]) -> None:
                later = [self.row_of(number) for number in numbers]
                values = [f.load(self.at(row), dtype) for row in later]  # all loads first
                for i, known in zip(panel, solved, strict=True):
                    factors = [self.t(row, i) for row in later]
                    values = [minus_product(f, v, factor, known) for v, factor in zip(values, factors, strict=True)]
                for row, value in zip(later, values, strict=True):
                    f.store(value, self.at(row))

            in_bundles(f, start, I64(self.spec.n), self.rows, TOGETHER, together)
