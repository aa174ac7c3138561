"""Operands of a row kernel that are sums of rows (see `core.plan.merged_operands`).

A sum of one row is that row, where it is. Other sums are made in a row of memory of the function's own.
"""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, storage_type
from core.codegen.merging import add_up, places_of
from core.codegen.operands import Operands
from core.plan.data import MergedOperand, RowKernel

__all__ = ["MergedOperands"]


class MergedOperands:
    """The sums of the present row of `kernel`: after `operands` has entered it, `add_up` lets it read them."""

    def __init__(self, f: Function, kernel: RowKernel, operands: Operands, lanes: int) -> None:
        self.f, self.kernel, self.operands = f, kernel, operands
        self.rows: dict[MergedOperand, IRValue] = {}
        for each in kernel.merged:
            name, one = f.fresh("merged"), storage_type(kernel.operands[each.x].dtype)
            f.top.append(f"  {name} = alloca [{-(-kernel.inner // lanes) * lanes} x {one}], align 64")
            self.rows[each] = IRValue(name, "ptr")
            operands.summed.add(each.x)

    def add_up(self, row: IRValue) -> None:
        """Find the sums of row number `row`, or make them."""
        f, inner = self.f, self.kernel.inner
        for each, own in self.rows.items():
            x, order, starts = (f.param(f"p{n}") for n in (each.x, each.order, each.starts))
            dtype = self.kernel.operands[each.x].dtype
            places = first, last = places_of(f, starts, row)
            several = f.compare("icmp ne", f.binary("sub", last, first), I64(1))
            with f.when(several):
                add_up(f, dtype, inner, x, order, places, own)
            at = f.intrinsic("smin", first, I64(each.count - 1))  # the rows after the last sum have no places
            place = f.convert(f.load(f.at(order, at, "int32"), "int32"), "int64")
            alone = f.at(x, f.op(f"mul nsw {place}, {inner}", "int64"), dtype)
            self.operands.turned[each.x] = f.op(f"select {several}, {own}, {alone}", "ptr")
