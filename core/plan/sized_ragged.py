"""Lowerings of ragged sequences whose number, or number of rows, only the run tells (`core.plan.sized`).

Lengths are 0 beyond the number of sequences, so sequences there have no rows.
"""

from __future__ import annotations

from core.ir import Op
from core.plan.compose import Maker
from core.plan.entries import positions
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes, Incomparable, sizes_of, with_equal
from core.plan.sized import rule, run, set_sizes, under, whole

__all__: list[str] = []

NEUTRAL = {"segment_sum": 0, "segment_prod": 1}
"""Reduction of segments -> the number that rows beyond their number have; a maximum finds its own."""


@rule("sequence_ids", "sequence_rows", "context_rows", "sequence_reset_lengths")
def _positions_of_rows(low: Lowering, op: Op) -> None:
    """Results along the rows, but for the ends of sequences, which are along the lengths."""
    rows, lengths = op.inputs if op.type == "sequence_reset_lengths" else op.inputs[::-1]
    if op.type == "sequence_reset_lengths":
        set_sizes(low, op, [sizes_of(low, rows), sizes_of(low, lengths)])
    else:
        ends = op.type == "sequence_rows" and op.attrs["order"] != "reverse"
        set_sizes(low, op, [sizes_of(low, lengths) if ends else _first(low, rows)])
    run(low, op)


@rule("segment_sum", "segment_prod", "segment_max")
def _segments(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    x, ids = op.inputs[:2]
    if sizes_of(low, x) != sizes_of(low, ids):
        raise Incomparable
    own = _first(low, op.inputs[2]) if len(op.inputs) > 2 else {}
    set_sizes(low, op, [own])
    if own:
        of, count = Maker(low), low.type(ids).shape[0]
        within = of("less_than", of.cast(low.entry(ids), "int64"), own[0].length)
        absent = of("greater_equal", positions((count,)), low.length(ids, 0))
        fine = of("logical_or", within, absent)
        of.check(fine, "index_out_of_range", "a segment id is not below the number of segments", op.location)
    if sizes_of(low, x) and op.type in NEUTRAL:
        op = under(low, op, {x: whole(low, x, NEUTRAL[op.type])})
    run(low, op)


def _first(low: Lowering, name: str) -> Axes:
    """The size of the first axis of a variable, if it is open."""
    return {axis: size for axis, size in sizes_of(low, name).items() if axis == 0}
