"""Rows of one number merged into their sum: an order of the row numbers, and sums along it.

Tables that are looked up at the same ids share the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.ir import HOLE, Op, TensorType, Type
from core.plan.entries import Uniform
from core.plan.instructions import Kernel
from core.plan.lowering import Lowering, lowers
from core.plan.meeting_sizes import Incomparable, sizes_of, with_equal
from core.plan.memory import View
from core.plan.merge_specs import MergedRows, RowOrder
from core.plan.shapes import expanded
from core.plan.sized import masked, new_size, of_known_sizes, rule, set_sizes
from core.plan.sizes import Given, bounds, tensor
from core.plan.slabs import flat
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@lowers("merge_rows_padded")
def lower_merge_rows(low: Lowering, op: Op) -> None:
    x, ids, like, *more = op.inputs
    rows, values, count = op.outputs
    type, table = low.type(values), low.type(like)
    if type.dtype == "bool":
        raise Unsupported("a sum of bools")
    number = math.prod(low.type(ids).shape)
    if max(number, table.shape[0]) >= 2**31:
        raise Unsupported("a table or ids of more than 2^31 elements")
    padding = op.attrs["padding_idx"]
    kept = [n for n in more if n != HOLE]
    padded = -1 if padding is None else padding % table.shape[0]
    spec = RowOrder(low.type(ids).dtype, number, table.shape[0], padded, bool(kept))
    found, order, starts, total = _ordered(low, op, spec, [low.dense(low.entry(n)) for n in (ids, *kept)])
    given, out = low.dense(low.entry(x)), low.destination(values)
    inner = math.prod(type.shape[1:])
    sums = MergedRows(type.dtype, number, spec.room, inner)
    low.add(Kernel("merge_rows", sums, (flat(given), order, starts, flat(out)), location=op.location))
    for name, view in ((rows, found), (values, out), (count, total)):
        low.define(name, view)


@bounds("merge_rows")
def _room(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """No more rows than there are ids, or rows of the table."""
    ids, like = tensor(given[1]), tensor(given[2])
    room = min(math.prod(ids.shape), like.shape[0])
    if not room:
        return None
    return TensorType((room,), "int64"), TensorType((room, *like.shape[1:]), tensor(given[0]).dtype)


@rule("merge_rows")
def _merge_rows(low: Lowering, op: Op) -> None:
    """Ids beyond the lengths of their array are not kept."""
    of_known_sizes(low, op, op.inputs[2:])
    for axis in range(low.type(op.inputs[1]).rank):
        op = with_equal(low, op, (0, axis), (1, axis))
    x, ids, like = op.inputs
    own = sizes_of(low, ids)
    if own != sizes_of(low, x):
        raise Incomparable
    rows, values = op.outputs
    count, types = f"{rows}@count", low.largest(op)
    if types is None:
        raise Unsupported("a merge of no rows")
    size = new_size(low, types[0].shape[0])
    set_sizes(low, op, [{0: size}, {0: size}])
    low.types[count] = TensorType((), "int64")
    given: tuple[str, ...] = (x, ids, like)
    if own:
        kept = f"{rows}@kept"
        shape = low.type(ids).shape
        low.types[kept] = TensorType(shape, "bool")
        low.define(kept, masked(low, expanded(Uniform(True, "bool", ()), shape), own, False))
        given = (*given, kept)
    lower_merge_rows(low, replace(op, type="merge_rows_padded", inputs=given, outputs=(rows, values, count)))
    low.copy(low.entry(count), size.length)


def _ordered(low: Lowering, op: Op, spec: RowOrder, given: list[View]) -> tuple[View, View, View, View]:
    """The distinct rows, the places of their ids, the first place of each row among them, and the number of rows."""
    key = (spec, *map(flat, given))
    if key not in low.row_orders:
        rows, count = low.destination(op.outputs[0]), low.destination(op.outputs[2])
        order, starts = low.allocate((spec.count,), "int32"), low.allocate((spec.room + 1,), "int32")
        message = f"an index is out of range for an axis of size {spec.size}"
        check = low.shared.check("index_out_of_range", message, op.location)
        views = (*map(flat, given), order, rows, starts, count)
        kind = "kept_row_order" if spec.kept else "row_order"
        low.add(Kernel(kind, spec, views, written=4, check=check, location=op.location))
        low.row_orders[key] = rows, order, starts, count
    return low.row_orders[key]
