"""Sequences of different lengths without padding: which row goes where, and ranks.

A batch is one array of all rows and the length of each sequence; the lengths are checked before anything uses them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import Op
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.geometry import Order, Scan
from core.plan.instructions import Kernel
from core.plan.lookups import Spread
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.shapes import expanded, reshaped
from core.plan.unsupported import Unsupported

__all__ = [
    "before_the_end",
    "check_lengths",
    "ends_of_all",
    "rows_of_padded",
    "running_total",
    "spread",
]


@lowers("sequence_ids")
def lower_sequence_ids(low: Lowering, op: Op) -> None:
    lengths, rows = _lengths(low, op.inputs[0]), low.type(op.inputs[1]).shape[0]
    ends_of_all(low, op, lengths, op.inputs[1])
    low.define(op.outputs[0], spread(low, op, positions(lengths.shape), lengths, rows, 0, op.outputs[0]))


@lowers("sequence_rows")
def lower_sequence_rows(low: Lowering, op: Op) -> None:
    of, lengths, rows = Maker(low), _lengths(low, op.inputs[0]), low.type(op.inputs[1]).shape[0]
    ends = ends_of_all(low, op, lengths, op.inputs[1])
    last = of("sub", ends, of.integer(1))
    if op.attrs["order"] == "reverse":
        low.define(op.outputs[0], spread(low, op, last, lengths, rows, -1, op.outputs[0]))
        return
    wanted = last if op.attrs["order"] == "last" else of("sub", ends, lengths)
    some = of("greater_than", lengths, of.integer(0))
    low.define(op.outputs[0], of.where(some, wanted, of.integer(0)))


@lowers("sequence_slots")
def lower_sequence_slots(low: Lowering, op: Op) -> None:
    of, lengths, rows = Maker(low), _lengths(low, op.inputs[0]), low.type(op.inputs[1]).shape[0]
    ends_of_all(low, op, lengths, op.inputs[1])
    width: Entry = of.integer(op.attrs["width"])
    if op.attrs["width"] == -1:
        width = of.reduce("max", lengths, frozenset({0}))
    else:
        message = f"a sequence has more rows than the width {op.attrs['width']}"
        of.check(of("less_equal", lengths, width), "shape_mismatch", message, op.location)
    first = of.mul(positions(lengths.shape), width)
    low.define(op.outputs[0], spread(low, op, first, lengths, rows, 1, op.outputs[0]))


@lowers("interleaved_rows")
def lower_interleaved(low: Lowering, op: Op) -> None:
    """The rows of each sequence of x begin at its start, those of y after all rows of x."""
    of = Maker(low)
    more, (x, y) = [_lengths(low, n) for n in op.inputs[:2]], (low.type(n).shape[0] for n in op.inputs[2:])
    count = more[0].shape[0]
    if more[1].shape[0] != count:
        raise Unsupported("the two batches have different numbers of sequences")
    starts, lengths = (low.allocate((count, 2), "int64") for _ in range(2))
    for i, (each, before) in enumerate(((more[0], 0), (more[1], x))):
        ends = ends_of_all(low, op, each, op.inputs[2 + i])
        first = of.add(of("sub", ends, each), of.integer(before))
        for whole, part in ((starts, first), (lengths, each)):
            low.write(part, replace(whole, shape=(count,), strides=(2,), offset=i))
    both = [reshaped(low, each, (2 * count,)) for each in (starts, lengths)]
    low.define(op.outputs[0], spread(low, op, both[0], both[1], x + y, 1, op.outputs[0]))


@lowers("context_rows")
def lower_context(low: Lowering, op: Op) -> None:
    of, lengths, rows = Maker(low), _lengths(low, op.inputs[0]), low.type(op.inputs[1]).shape[0]
    ends = ends_of_all(low, op, lengths, op.inputs[1])
    edges = (spread(low, op, each, lengths, rows, 0) for each in (of("sub", ends, lengths), ends))
    first, after = (reshaped(low, each, (rows, 1)) for each in edges)
    at = positions((rows, op.attrs["length"]), (1, 1), op.attrs["start"])
    inside = of("logical_and", of("greater_equal", at, first), of("less_than", at, after))
    low.define(op.outputs[0], of.where(inside, at, low.length(op.inputs[1], 0)))


@lowers("sequence_reset_lengths")
def lower_reset_lengths(low: Lowering, op: Op) -> None:
    ends_of_all(low, op, _lengths(low, op.inputs[1]), op.inputs[0])
    for out, name in zip(op.outputs, op.inputs, strict=True):
        low.define(out, low.entry(name))


@lowers("padded_rows")
def lower_padded_rows(low: Lowering, op: Op) -> None:
    of, lengths, width = Maker(low), _lengths(low, op.inputs[0]), op.attrs["width"]
    message = f"a sequence has more rows than the width {width}"
    of.check(of("less_equal", lengths, of.integer(width)), "shape_mismatch", message, op.location)
    low.define(op.outputs[0], rows_of_padded(low, op, low.type(op.outputs[0]).shape[1]))


def rows_of_padded(low: Lowering, op: Op, width: int) -> Entry:
    """For each row of padded sequences, [n, width], its position in x, or the number of rows of x if it is padding."""
    of, lengths = Maker(low), _lengths(low, op.inputs[0])
    starts = of("sub", ends_of_all(low, op, lengths, op.inputs[1]), lengths)
    at = of.add(reshaped(low, starts, (lengths.shape[0], 1)), positions((lengths.shape[0], width), (0, 1)))
    return of.where(before_the_end(low, lengths, width), at, low.length(op.inputs[1], 0))


@lowers("padded_like")
def lower_padded_like(low: Lowering, op: Op) -> None:
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], Uniform(op.attrs["value"], type.dtype, type.shape))


@lowers("sequence_mask")
def lower_sequence_mask(low: Lowering, op: Op) -> None:
    of, type, lengths = Maker(low), low.type(op.outputs[0]), _lengths(low, op.inputs[0])
    low.define(op.outputs[0], of.cast(before_the_end(low, lengths, type.shape[1]), type.dtype))


def before_the_end(low: Lowering, lengths: Entry, width: int) -> Entry:
    """Whether each row of padded sequences, [n, width], is no padding."""
    count = lengths.shape[0]
    return Maker(low)("less_than", positions((count, width), (0, 1)), reshaped(low, lengths, (count, 1)))


@lowers("rank_table")
def lower_rank_table(low: Lowering, op: Op) -> None:
    of, lengths = Maker(low), _lengths(low, op.inputs[0])
    x, out = low.dense(of("neg", lengths)), low.destination(op.outputs[0])
    low.add(Kernel("order", Order("int64", 1, lengths.shape[0], 1), (x, out), location=op.location))
    low.define(op.outputs[0], out)


def _lengths(low: Lowering, name: str) -> Entry:
    low.type(name)
    return low.entry(name)


def ends_of_all(low: Lowering, op: Op, lengths: Entry, x: str) -> View:
    """For each sequence of rows of `x` the position after its last row; the lengths are checked."""
    of, most, rows = Maker(low), low.type(x).shape[0], low.length(x, 0)
    known = isinstance(rows, Uniform)
    limit = f"{most}, the number of rows" if known else "the number of rows"
    check_lengths(low, op, lengths, most, f"lengths must be from 0 to {limit}")
    ends = running_total(low, op, lengths)
    last = replace(ends, shape=(), strides=(), offset=lengths.shape[0] - 1)
    message = f"the lengths do not add up to {most if known else 'the number of'} rows"
    of.check(of("equal", last, rows), "shape_mismatch", message, op.location)
    return ends


def check_lengths(low: Lowering, op: Op, lengths: Entry, most: int, message: str) -> None:
    """Append a check: each length is from 0 to `most`."""
    of = Maker(low)
    least, largest = of.integer(0), of.integer(most)
    fine = of("logical_and", of("greater_equal", lengths, least), of("less_equal", lengths, largest))
    of.check(fine, "shape_mismatch", message, op.location)


def running_total(low: Lowering, op: Op, x: Entry) -> View:
    """The sums of the elements so far along the last axis."""
    given, out = low.dense(x), low.allocate(x.shape, x.dtype)
    spec = Scan("sum", x.dtype, math.prod(x.shape[:-1]), x.shape[-1], 1)
    low.add(Kernel("scan", spec, (given, out), location=op.location))
    return out


def spread(low: Lowering, op: Op, first: Entry, lengths: Entry, rows: int, step: int, name: str | None = None) -> View:
    """``first[i] + step * r`` for row r of sequence i; zeros after the last sequence.

    first: for each sequence, or one number for all. name: the variable of the result, if it is one.
    """
    out = low.destination(name) if name else low.allocate((rows,), "int64")
    spec = Spread(lengths.shape[0], rows, step)
    views = (low.dense(expanded(first, lengths.shape)), low.dense(lengths), out)
    low.add(Kernel("spread", spec, views, location=op.location))
    return out
