"""The columns that a stripe computes under a mask, on a device (see `core.plan.column_windows`).

Before the stripes, a block for each matrix finds out whether the numbers that enter are moderate. A stripe then
computes the columns that a band of positions shows to one of its rows, and all columns of a matrix with other numbers.
A mask that is data would have to be read by each stripe to find its columns, so such stripes compute all of them.
"""

from __future__ import annotations

from core.codegen.column_windows import columns_of
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.vector_slices import move
from core.device.blocks import Block
from core.device.device_writer import DeviceWriter
from core.device.product import ProductPlan, ProductWriter
from core.device.threads import Threads, block_number, flat_offset, split
from core.device.tiles import VECTOR_BYTES
from core.plan.instructions import Gemm, Rows
from core.plan.striped import Striped

__all__ = ["find_moderate", "hide", "takes_window", "window_columns", "window_product"]

FLAG = "int32"
"""The dtype of the word of a matrix: 1 if its numbers are moderate."""


def takes_window(each: Striped) -> bool:
    """Whether stripes compute the columns of their window only, which begins where vectors do."""
    window = each.window
    return window is not None and window.mask is None and not each.shared and window.block % (VECTOR_BYTES // 4) == 0


def find_moderate(step: DeviceWriter, each: Striped, flags: IRValue) -> None:
    """Write which matrices have moderate numbers, and a barrier behind it. flags: the address of a word for each."""
    assert each.window is not None
    guards, limit = each.window.guards, each.window.limit
    key = ("moderate", each.domain.batch, limit, *(guard.kernel for guard in guards))
    name = step.function(key, "moderate", lambda name: _moderate(name, each, step.launch))
    addresses = [*(step.address(guard.views[0]) for guard in guards), flags]
    step.f.do(f"call void @{name}({', '.join(map(str, addresses))})")
    step.launch.barrier(step.f)


def _moderate(name: str, each: Striped, launch: Threads) -> Function:
    """``name(arrays..., flags)`` for all threads: a block reads the numbers of one matrix after another."""
    assert each.window is not None
    guards, batch = each.window.guards, each.domain.batch
    f = Function(name, [*((f"p{i}", "ptr") for i in range(len(guards))), ("flags", "ptr")], noalias=False)
    block = Block(f, launch)
    with f.loop(block_number(f, launch), I64(batch), launch.blocks) as matrix:
        holds = f.slot(FLAG)
        f.write(literal(1, FLAG), holds)
        for i, guard in enumerate(guards):
            kernel, (operand,) = guard.kernel, guard.kernel.operands
            rows, full = kernel.rows // batch, kernel.code[0].full
            columns = kernel.inner if full else 1
            first = f.op(f"mul nsw {matrix}, {rows}", "int64")
            with f.loop(block.number, I64(rows * columns), block.total) as at:
                row, column = split(f, at, (rows, columns))
                place = split(f, f.binary("add", first, row), kernel.outer)
                offset = flat_offset(f, [*place, column], [*operand.outer, operand.inner])
                value = f.load(f.at(f.param(f"p{i}"), offset, operand.dtype), operand.dtype)
                size = f.intrinsic("fabs", value)
                below = f.convert(f.compare("fcmp ole", size, literal(each.window.limit, operand.dtype)), FLAG)
                f.write(f.binary("and", f.read(holds, FLAG), below), holds)
        found = block.combined("min", f.read(holds, FLAG))
        with f.when(block.first):
            f.store(found, f.at(f.param("flags"), matrix, FLAG))
    return f


def window_columns(
    step: DeviceWriter, f: Function, each: Striped, flag: IRValue, row: IRValue, height: int
) -> tuple[IRValue, IRValue]:
    """The first column that `height` rows from `row` of a matrix need, and the one after the last.

    flag: the address of the word of the matrix.
    """
    assert each.window is not None
    moderate = f.compare("icmp eq", f.load(flag, FLAG), literal(1, FLAG))
    return columns_of(step.module, f, each.window, each.domain, moderate, None, row, row, height)


def window_product(name: str, each: Gemm, threads: Threads, plan: ProductPlan, across: str) -> Function:
    """``name(a, b, c, scratch, first_column, end_column)`` for all threads of a block.

    across: the axis of the product, "m", "n" or "k", that is cut to the columns.
    """
    params = [*((p, "ptr") for p in ("a", "b", "c", "scratch")), ("first_column", "int64"), ("end_column", "int64")]
    f = Function(name, params, noalias=False)
    _Windowed(f, each, threads, plan).write_part(across)
    return f


class _Windowed(ProductWriter):
    """Writes a product of two matrices of which an axis is cut."""

    def write_part(self, across: str) -> None:
        f, form = self.f, self.form
        self.place_tiles()
        cut = f.param("first_column"), f.param("end_column")
        rows, columns, terms = (
            cut if across == axis else (I64(0), I64(size))
            for axis, size in (("m", self.m), ("n", self.n), ("k", self.k))
        )
        self.ends = rows[1], columns[1]
        bases = [self.matrix("a", self.each.a, []), self.matrix("b", self.each.b, [])]
        with f.loop(rows[0], rows[1], form.rows) as i, f.loop(columns[0], columns[1], form.columns) as j:
            form.start(f)
            self._sum(bases, (i, j), *terms)
            self._put(f.param("c"), self.each.c, [], (i, j), literal(self.each.accumulate, "bool"))


def hide(
    f: Function, team: Threads, rows: Rows, inside: list[int], given: list[IRValue], first: IRValue, height: int,
    columns: tuple[IRValue, IRValue],
) -> None:  # fmt: skip
    """Write zeros to the other columns of `height` rows, in arrays outside that others read.

    inside: operands that exist for the stripe only. given: the addresses of all operands.
    """
    kernel = rows.kernel
    for instr in kernel.code:
        operand = kernel.operands[instr.operand]
        if instr.kind != "store" or instr.operand in inside or not operand.inner:
            continue
        with f.loop(team.number(f), I64(height * kernel.inner), team.total) as at:
            row, column = split(f, at, (height, kernel.inner))
            before, behind = f.compare("icmp slt", column, columns[0]), f.compare("icmp sge", column, columns[1])
            with f.when(f.binary("or", before, behind)):
                place = split(f, f.binary("add", first, row), kernel.outer)
                steps = zip([*place, column], [*operand.outer, operand.inner], strict=True)
                f.store(literal(0, operand.dtype), move(f, given[instr.operand], operand.dtype, *steps))
