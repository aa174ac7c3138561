"""Elementwise ops of integers that fail for some operands: these are checked, and the rest is elementwise."""

from __future__ import annotations

from core.ir import Op
from core.plan.compose import Maker
from core.plan.lowering import Lowering, lowers

__all__: list[str] = []


@lowers("mod", "fmod", "floor_div")
def lower_division(low: Lowering, op: Op) -> None:
    of, divisor = Maker(low), low.entry(op.inputs[1])
    if not low.type(op.inputs[1]).is_float:
        fine = of("not_equal", divisor, of.number(0, divisor.dtype))
        of.check(fine, "division_by_zero", "integer division by zero", op.location)
    low.elementwise(op)


@lowers("bitwise_left_shift", "bitwise_right_shift")
def lower_shift(low: Lowering, op: Op) -> None:
    of, count = Maker(low), low.entry(op.inputs[1])
    if count.dtype.startswith("int"):
        fine = of("greater_equal", count, of.number(0, count.dtype))
        of.check(fine, "index_out_of_range", "cannot shift by a negative number of bits", op.location)
    low.elementwise(op)
