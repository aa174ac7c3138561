"""Operands of a row kernel that are sums of rows (see `core.plan.merged_operands`).

A sum of one row is that row, where it is. Other sums are made in a row of memory of the function's own, and so are all
sums of rows that are in no memory. Short rows are on the stack of the thread.
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.merging import RowParts, add_up, places_of, rows_at_once, stored_rows
from core.codegen.operands import Operands, RowSlice
from core.codegen.row_values import RowValues
from core.plan.merge_specs import MergedRows
from core.plan.row_kernels import MadeRows, MergedOperand, RowKernel

__all__ = ["MergedOperands", "merged_scratch"]

STACK_BYTES = 1 << 18
"""Most bytes of the sums of a function that are on the stack of its thread."""


def merged_scratch(kernel: RowKernel) -> int:
    """Bytes of scratch memory for the sums of a kernel, for each range of rows that runs at the same time."""
    nbytes = sum(_row_bytes(kernel, each) for each in kernel.merged)
    return nbytes if nbytes > STACK_BYTES else 0


def _row_bytes(kernel: RowKernel, each: MergedOperand) -> int:
    """Bytes of a sum: whole cache lines, so whole vectors."""
    return -(-kernel.inner * itemsize(kernel.operands[each.x].dtype) // 64) * 64


class MergedOperands:
    """The sums of the present row of `kernel`: after `operands` has entered it, `add_up` lets it read them."""

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands) -> None:
        self.f, self.kernel, self.operands = f, kernel, operands
        self.rows: dict[MergedOperand, IRValue] = {}
        offset = 0
        for each in kernel.merged:
            nbytes = _row_bytes(kernel, each)
            if merged_scratch(kernel):
                self.rows[each] = f.at(f.param("scratch"), I64(offset), "uint8")
                offset += nbytes
            else:
                name = f.fresh("merged")
                f.top.append(f"  {name} = alloca [{nbytes} x i8], align 64")
                self.rows[each] = IRValue(name, "ptr")
            operands.summed.add(each.x)

    def add_up(self, row: IRValue) -> None:
        """Find the sums of row number `row`, or make them."""
        f, inner = self.f, self.kernel.inner
        for each, own in self.rows.items():
            order, starts = f.param(f"p{each.order}"), f.param(f"p{each.starts}")
            dtype = self.kernel.operands[each.x].dtype
            places = first, last = places_of(f, starts, row)
            at_once = rows_at_once(MergedRows(dtype, each.count, self.kernel.rows, inner))
            if each.made is not None:
                add_up(f, dtype, inner, _made_rows(f, each.made), order, places, own, at_once)
                self.operands.turned[each.x] = own
                continue
            x = f.param(f"p{each.x}")
            several = f.compare("icmp ne", f.binary("sub", last, first), I64(1))
            with f.when(several):
                add_up(f, dtype, inner, stored_rows(f, x, dtype, inner), order, places, own, at_once)
            at = f.intrinsic("smin", first, I64(each.count - 1))  # the rows after the last sum have no places
            place = f.convert(f.load(f.at(order, at, "int32"), "int32"), "int64")
            alone = f.at(x, f.op(f"mul nsw {place}, {inner}", "int64"), dtype)
            self.operands.turned[each.x] = f.op(f"select {several}, {own}, {alone}", "ptr")


def _made_rows(f: Function, made: MadeRows) -> RowParts:
    """Rows that are computed where they are used."""
    code = made.kernel.code

    def rows(number: IRValue, slices: list[RowSlice]) -> list[IRValue]:
        operands = Operands(f, made.kernel, slices[0].lanes, made.params)
        operands.enter(number)
        instructions = RowValues(f, made.kernel, operands)
        found: list[dict[int, IRValue]] = [{} for _ in slices]
        for n, instr in enumerate(code):
            if not instr.full:
                instructions.row(n)
                continue
            for each, values in zip(slices, found, strict=True):
                instructions.full(n, each, values)
        last = len(code) - 1
        same = instructions.values.get(last)
        return [
            values[last] if same is None else f.splat(same, each.lanes)
            for each, values in zip(slices, found, strict=True)
        ]

    return rows
