"""Reductions over segments: rows that are added to, multiplied into, or compared with the row of their id."""

from __future__ import annotations

import math

from core.ir import Op, TensorType
from core.plan.added_rows import added_rows
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform
from core.plan.indexing import check_range
from core.plan.instructions import ScatterAdd
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.shapes import expanded, reshaped
from core.plan.sized import masked
from core.plan.slabs import flat, slabs

__all__: list[str] = []


@lowers("segment_sum", "segment_prod")
def lower_segment_sum(low: Lowering, op: Op) -> None:
    count = _checked(low, op)
    if op.type == "segment_sum":
        ids, number = low.entry(op.inputs[1]), _check(low, op, count)
        low.define(op.outputs[0], added_rows(low, op, low.entry(op.inputs[0]), ids, 0, number))
        return
    out = low.destination(op.outputs[0])
    _reduce(low, op, op.type.removeprefix("segment_"), low.entry(op.inputs[0]), count, out)
    low.define(op.outputs[0], out)


@lowers("segment_max")
def lower_segment_max(low: Lowering, op: Op) -> None:
    """The maximum, and 0 for segments without rows."""
    of, type, count = Maker(low), low.type(op.outputs[0]), _checked(low, op)
    most = low.allocate(type.shape, type.dtype)
    x = op.inputs[0]
    _reduce(low, op, "max", masked(low, low.entry(x), low.sizes.get(x, {}), -math.inf), count, most)
    rows = low.allocate((count,), "int32")
    ones = expanded(Uniform(1, "int32", ()), low.type(op.inputs[1]).shape)
    _reduce(low, op, "sum", masked(low, ones, low.sizes.get(op.inputs[1], {}), 0), count, rows)
    column = reshaped(low, rows, (count, *(1 for _ in type.shape[1:])))
    some = of("greater_than", column, of.number(0, "int32"))
    low.define(op.outputs[0], of.where(some, most, of.number(0.0, type.dtype)))


def _checked(low: Lowering, op: Op) -> int:
    """The number of segments; the ids are checked."""
    if op.type != "segment_sum" or not low.target.scatters_halves:
        low.no_halves(op)
    count = low.type(op.outputs[0]).shape[0]
    ids = low.entry(op.inputs[1])
    type = TensorType(ids.shape, ids.dtype)
    check_range(low, op, ids, type, count, f"a segment id is outside 0 to {count - 1}")
    return count


def _reduce(low: Lowering, op: Op, kind: str, entry: Entry, count: int, out: View) -> None:
    """Reduce the rows of `entry` into `out`."""
    x, ids = low.dense(entry), low.dense(low.entry(op.inputs[1]))
    given, made = slabs(x, x.shape, 0), slabs(out, (count, *x.shape[1:]), 0)
    low.add(ScatterAdd(given, flat(ids), made, _check(low, op, count), kind, location=op.location))


def _check(low: Lowering, op: Op, count: int) -> int:
    return low.shared.check("index_out_of_range", f"a segment id is outside 0 to {count - 1}", op.location)
