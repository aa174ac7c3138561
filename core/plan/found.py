"""Lowerings of ops that find positions: of the rows that are no padding, of the distinct elements. Only the run tells
how many they find.
"""

from __future__ import annotations

import math

from core.ir import Op
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.entries import Uniform, positions
from core.plan.lowering import Lowering
from core.plan.movement import part_of
from core.plan.ordered import order_of
from core.plan.ragged import before_the_end, check_lengths, running_total
from core.plan.shapes import reshaped
from core.plan.sized import masked, of_known_sizes, rule, set_sizes
from core.plan.sized_indexing import selected
from core.plan.sizes import Size, in_blocks
from core.plan.slabs import taken
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule("unpadded_positions")
def _unpadded(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, op.inputs)
    lengths = low.entry(op.inputs[0])
    n, width = low.type(op.inputs[1]).shape[:2]
    if lengths.shape[0] != n:  # an error of the run
        raise Unsupported("the number of lengths differs from that of the sequences")
    message = f"x has {n} sequences of {width} rows, which do not fit the lengths"
    check_lengths(low, op, lengths, width, message)
    at, size = selected(low, op, reshaped(low, before_the_end(low, lengths, width), (n * width,)))
    set_sizes(low, op, [{0: size}])
    low.define(op.outputs[0], at)


@rule("active_rows")
def _active(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, op.inputs)
    of, lengths = Maker(low), low.entry(op.inputs[0])
    step = reshaped(low, of.cast(low.entry(op.inputs[1]), "int64"), ())
    longer = of.cast(of("greater_than", lengths, step), "int64")
    count = reshaped(low, of.reduce("sum", longer, frozenset({0})), ())
    size = Size(in_blocks(lengths.shape[0]), low.dense(count))
    set_sizes(low, op, [{0: size}])
    low.define(op.outputs[0], masked(low, positions((size.bound,)), {0: size}, 0))


@rule("unique_positions")
def _unique(low: Lowering, op: Op) -> None:
    """Equal elements are neighbours once sorted; the order is stable, so that the first of them is the first of all."""
    of_known_sizes(low, op, op.inputs)
    type, of = low.type(op.inputs[0]), Maker(low)
    count = math.prod(type.shape)
    dtype = "int64" if not type.is_float else "float32" if is_half(type) else type.dtype
    x = low.dense(of.cast(reshaped(low, low.entry(op.inputs[0]), (count,)), dtype))
    order = order_of(low, op, x)
    ordered = taken(low, op, x, order)
    begins = low.allocate((count,), "bool")
    low.copy(Uniform(True, "bool", ()), begins)
    if count > 1:
        both = [part_of(ordered, 0, i, count - 1) for i in (1, 0)]
        other = of("not_equal", *both)
        if type.is_float:  # all NaN are one element
            known = of("logical_not", of("logical_and", *(of("isnan", each) for each in both)))
            other = of("logical_and", other, known)
        low.copy(other, part_of(begins, 0, 1, count - 1))
    at, size = selected(low, op, begins)
    set_sizes(low, op, [{0: size}, {}, {0: size}])
    low.define(op.outputs[0], masked(low, taken(low, op, order, at), {0: size}, 0))
    number = of("sub", running_total(low, op, of.cast(begins, "int64")), of.integer(1))
    inverse = taken(low, op, number, order_of(low, op, order))
    low.define(op.outputs[1], reshaped(low, inverse, type.shape))
    ends = low.allocate((size.bound + 1,), "int64")
    low.copy(Uniform(count, "int64", ()), ends)
    low.copy(masked(low, at, {0: size}, count), part_of(ends, 0, 0, size.bound))
    low.define(op.outputs[2], of("sub", *(part_of(ends, 0, i, size.bound) for i in (1, 0))))
