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
    f, n, k, dtype = block.f, spec.n, spec.k, spec.dtype
    most = columns_of(spec)
    groups = -(-k // most)
    width = min(most, 1 << (k - 1).bit_length())
    matrix = f.op(f"udiv {unit}, {groups}", "int64")
    group = f.op(f"urem {unit}, {groups}", "int64")
    own, down = f.op(f"urem {block.number}, {width}", "int64"), f.op(f"udiv {block.number}, {width}", "int64")
    column, rows = f.binary("add", f.op(f"mul nsw {group}, {most}", "int64"), own), block.total // width
    inside = f.compare("icmp slt", column, I64(k))
    t = lambda i, j: f.load(move(f, f.param("t"), dtype, (matrix, spec.t[0]), (i, spec.t[1]), (j, spec.t[2])), dtype)
    place = lambda i: f.load(move(f, f.param("order"), "int64", (matrix, spec.order), (i, 1)), "int64")
    ordered = lambda i: f.intrinsic("umin", place(i), I64(n - 1))  # an error in a loop leaves orders unwritten

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
                    values[later] = minus_product(f, values[later], of_square(later, q), values[q])
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
                    values = [minus_product(f, v, factor, known) for v, factor in zip(values, factors, strict=True)]
                for row, value in zip(later, values, strict=True):
                    f.store(value, at(row))

            in_bundles(f, start, I64(n), rows, TOGETHER, subtract)
        block.meet()
