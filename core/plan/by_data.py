"""Ops whose data choose: an array among several, rows by a mask, a part of an array, a place in a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from core.ir import Op
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.geometry import Scan
from core.plan.indexing import in_range
from core.plan.instructions import Kernel
from core.plan.lookups import RegionBins, Search
from core.plan.lowering import Lowering, lowers
from core.plan.meeting_sizes import Incomparable
from core.plan.memory import View
from core.plan.ordered import order_of
from core.plan.plan import NOT_COVERED
from core.plan.ragged import running_total
from core.plan.selecting import first_position
from core.plan.shapes import reshaped, transposed
from core.plan.sized import masked, of_known_sizes, rule, set_sizes
from core.plan.slabs import taken
from core.plan.unsupported import Unsupported

__all__: list[str] = []


# --- one of several arrays -------------------------------------------------------------------------------------


@lowers("select_input")
def lower_select_input(low: Lowering, op: Op) -> None:
    of, index = _choice(low, op, len(op.inputs) - 1)
    out = low.entry(op.inputs[1])
    for i, name in enumerate(op.inputs[2:], start=1):
        out = of.where(of("equal", index, of.integer(i)), low.entry(name), out)
    low.define(op.outputs[0], out)


@lowers("select_output")
def lower_select_output(low: Lowering, op: Op) -> None:
    of, index = _choice(low, op, len(op.outputs))
    x = low.entry(op.inputs[1])
    for i, name in enumerate(op.outputs):
        low.type(name)
        chosen = of("equal", index, of.integer(i))
        low.define(name, of.where(chosen, x, of.number(0, x.dtype)))


def _choice(low: Lowering, op: Op, count: int) -> tuple[Maker, Entry]:
    """The index as an int64 scalar, checked to be one of `count` values."""
    of = Maker(low)
    index = of.cast(reshaped(low, low.entry(op.inputs[0]), ()), "int64")
    fine = of.is_position(index, of.integer(count))
    of.check(fine, "index_out_of_range", f"an index is out of range for {count} values", op.location)
    return of, index


@lowers("merge_by_mask")
def lower_merge(low: Lowering, op: Op) -> None:
    """A row is taken from both sides, one after the other in memory."""
    of, mask = Maker(low), low.entry(op.inputs[0])
    true, false, out = low.type(op.inputs[1]), low.type(op.inputs[2]), low.type(op.outputs[0])
    count, yes, no = out.shape[0], true.shape[0], false.shape[0]
    if yes + no != count or true.shape[1:] != false.shape[1:]:
        raise Unsupported("a mask of another length than its rows")
    before = running_total(low, op, of.cast(mask, "int64"))
    total = replace(before, shape=(), strides=(), offset=count - 1)
    message = f"there are {yes} and {no} rows, but the mask asks for others"
    of.check(of("equal", total, of.integer(yes)), "shape_mismatch", message, op.location)
    both = low.allocate(out.shape, out.dtype)
    low.write(low.entry(op.inputs[1]), replace(both, shape=true.shape))
    low.write(low.entry(op.inputs[2]), replace(both, shape=false.shape, offset=yes * both.strides[0]))
    ahead = of("sub", before, of.integer(1))
    at = of.where(mask, ahead, of("sub", positions((count,), first=yes), before))
    low.define(op.outputs[0], taken(low, op, both, at))


@lowers("assert")
def lower_assert(low: Lowering, op: Op) -> None:
    of, out = Maker(low), low.entry(op.inputs[0])
    message = "an assertion of the program does not hold"
    of.check(low.entry(op.inputs[1]), "assertion_failed", message, op.location)
    low.define(op.outputs[0], out)


@lowers("bitcast")
def lower_bitcast(low: Lowering, op: Op) -> None:
    of, x, dtype = Maker(low), low.entry(op.inputs[0]), op.attrs["dtype"]
    low.type(op.outputs[0])
    if dtype == "bool":
        low.define(op.outputs[0], of.cast(x, "bool"))
    else:
        low.define(op.outputs[0], replace(low.stored(x), dtype=dtype))


# --- places in tables ------------------------------------------------------------------------------------------


@lowers("searchsorted")
def lower_searchsorted(low: Lowering, op: Op) -> None:
    table, values = (low.entry(n) for n in op.inputs)
    low.define(op.outputs[0], _search(low, op, table, values, op.attrs["right"], low.destination(op.outputs[0])))


def _search(low: Lowering, op: Op, table: Entry, values: Entry, right: bool, out: View) -> View:
    spec = Search(table.dtype, table.shape[0], math.prod(values.shape), right)
    low.add(Kernel("search", spec, (low.dense(table), low.dense(values), out), location=op.location))
    return out


@lowers("read_rows")
def lower_read_rows(low: Lowering, op: Op) -> None:
    of, (values, rows) = Maker(low), (low.entry(n) for n in op.inputs[:2])
    table = low.type(op.inputs[3])
    if values.shape[0] != rows.shape[0] or values.shape[1:] != table.shape[1:]:
        raise Unsupported("rows of another shape than those of their table")
    index = in_range(low, op, low.entry(op.inputs[2]), table.shape[0])
    rows = low.dense(in_range(low, op, rows, table.shape[0]))
    count = rows.shape[0]
    if count > 1:
        earlier, later = (replace(rows, shape=(count - 1,), offset=rows.offset + i) for i in (0, 1))
        message = "rows must be ascending, each once"
        of.check(of("less_than", earlier, later), "rows_unordered", message, op.location)
    _looked_up(low, op, values, rows, low.dense(index))


def _looked_up(low: Lowering, op: Op, values: Entry, rows: View, index: View) -> None:
    """The values of the rows with numbers `index`; rows that are not among `rows`, which ascend, are zero."""
    of, out, count = Maker(low), low.type(op.outputs[0]), rows.shape[0]
    found = _search(low, op, rows, index, False, low.allocate(index.shape, "int64"))
    place = of("minimum", found, of.integer(count - 1))
    there = of("equal", taken(low, op, rows, place), index)
    there = reshaped(low, there, (*index.shape, *(1 for _ in values.shape[1:])))
    given = taken(low, op, values, place)
    low.define(op.outputs[0], reshaped(low, of.where(there, given, of.number(0, out.dtype)), out.shape))


@rule("read_rows")
def _read_rows(low: Lowering, op: Op) -> None:
    """As many rows as the run finds. Rows beyond them get a number that no row of the table has."""
    values, rows, ids, like = op.inputs
    of_known_sizes(low, op, (ids, like))
    size, table = low.sizes.get(rows, {}).get(0), low.type(like)
    if size is None or low.sizes.get(values, {}) != {0: size} or not low.target.expects:
        raise Incomparable
    if low.type(values).shape[1:] != table.shape[1:]:
        raise Incomparable
    set_sizes(low, op, [{}])
    of, beyond = Maker(low), Maker(low).integer(table.shape[0])
    given = of.cast(low.entry(rows), "int64")
    of.check(
        masked(low, of.is_position(given, beyond), {0: size}, True),
        NOT_COVERED,
        "a row counts from the end",
        op.location,
    )
    numbers = low.dense(masked(low, given, {0: size}, table.shape[0]))
    if size.bound > 1:
        earlier, later = (replace(numbers, shape=(size.bound - 1,), offset=numbers.offset + i) for i in (0, 1))
        ascending = of("logical_or", of("less_than", earlier, later), of("equal", later, beyond))
        of.check(ascending, "rows_unordered", "rows must be ascending, each once", op.location)
    index = low.dense(in_range(low, op, low.entry(ids), table.shape[0]))
    _looked_up(low, op, low.entry(values), numbers, index)


@lowers("mode_position")
def lower_mode_position(low: Lowering, op: Op) -> None:
    """Equal elements are neighbours once sorted; the longest run is the one whose end is farthest from its start."""
    of, out, x = Maker(low), low.type(op.outputs[0]), low.entry(op.inputs[0])
    axis, rank = op.attrs["axis"] % len(x.shape), len(x.shape)
    others = [i for i in range(rank) if i != axis]
    size, count = x.shape[axis], math.prod(x.shape[i] for i in others)
    given = low.dense(reshaped(low, transposed(x, (*others, axis)), (count, size)))
    row = positions((count, 1), (size, 0))
    last = frozenset({1})

    def at(values: View, place: Entry) -> View:
        return taken(low, op, replace(values, shape=(count * size,), strides=(1,)), of.add(place, row))

    order = order_of(low, op, given)
    ordered = at(given, order)
    start = _starts(low, op, ordered, lambda before, after: of("not_equal", after, before))
    length = of("sub", positions((count, size), (0, 1)), start)
    longest = first_position(of, of("equal", length, of.reduce("max", length, last)), last)
    kept = tuple(x.shape[i] for i in others)
    found = reshaped(low, at(order, at(start, longest)), (*kept, 1))
    back = (*range(axis), rank - 1, *range(axis, rank - 1))
    low.define(op.outputs[0], reshaped(low, transposed(found, back), out.shape))


def _starts(low: Lowering, op: Op, ordered: View, differ: Callable[[Entry, Entry], Entry]) -> View:
    """For each element of ordered rows, the position in its row of the first element that equals it.

    differ: whether an element differs from the one before it.
    """
    of, (count, size) = Maker(low), ordered.shape
    begins, start = (low.allocate((count, size), "int64") for _ in range(2))
    low.copy(Uniform(0, "int64", ()), begins)
    if size > 1:
        before, after = (replace(ordered, shape=(count, size - 1), offset=ordered.offset + i) for i in (0, 1))
        step = of.where(differ(before, after), positions((count, size - 1), (0, 1), 1), of.integer(0))
        low.copy(step, replace(begins, shape=(count, size - 1), offset=1))
    low.add(Kernel("scan", Scan("argmax", "int64", count, size, 1), (begins, start), location=op.location))
    return start


@lowers("roi_positions")
def lower_roi_positions(low: Lowering, op: Op) -> None:
    of, x, boxes = Maker(low), low.type(op.inputs[0]), low.stored(low.entry(op.inputs[1]))
    images, channels, *size = x.shape
    count = boxes.shape[0]
    out = low.type(op.outputs[0]).shape
    corners = of.mul(of.cast(boxes, "float64"), of.number(op.attrs["spatial_scale"]))
    of.check(of("isfinite", corners), "not_finite", "boxes must be finite", op.location)
    half = of("floor", of.add(of("abs", corners), of.number(0.5)))  # rounded away from 0
    edges = low.stored(of.mul(of("sign", corners), half))
    found = []
    for axis in (0, 1):
        first, last = (
            replace(edges, shape=(count, 1), strides=(edges.strides[0], 0), offset=edges.offset + k * edges.strides[1])
            for k in (1 - axis, 3 - axis)
        )
        bins = out[2 + axis]
        extent = of("maximum", of.add(of("sub", last, first), of.number(1.0)), of.number(1.0))
        extent = of("div", extent, of.number(float(bins)))
        for move, rounding in ((0, "floor"), (1, "ceil")):
            number = of.cast(positions((count, bins), (0, 1), move), "float64")
            edge = of.add(of(rounding, of.mul(number, extent)), first)
            edge = of("minimum", of("maximum", edge, of.number(0.0)), of.number(float(size[axis])))
            found.append(low.dense(of.cast(edge, "int64")))
    image = low.dense(in_range(low, op, low.entry(op.inputs[2]), images))
    target = low.destination(op.outputs[0])
    spec = RegionBins(x.dtype, count, channels, (size[0], size[1]), (out[2], out[3]))
    views = (low.dense(low.entry(op.inputs[0])), image, *found, target)
    low.add(Kernel("region_bins", spec, views, location=op.location))
    low.define(op.outputs[0], target)


# --- metrics ---------------------------------------------------------------------------------------------------


@lowers("accuracy")
def lower_accuracy(low: Lowering, op: Op) -> None:
    """The rank of a label is the number of scores above its own, and of equal ones before it; NaN is the lowest."""
    of, x = Maker(low), low.entry(op.inputs[0])
    rows, classes = x.shape
    label = of.cast(reshaped(low, low.entry(op.inputs[1]), (rows, 1)), "int64")
    along, last = positions((rows, classes), (0, 1)), frozenset({1})
    own = of.reduce("sum", of.where(of("equal", along, label), x, of.number(0, x.dtype)), last)
    earlier = of("less_than", along, label)
    tied = of("logical_and", earlier, of("equal", x, own))
    above = of("logical_or", of("greater_than", x, own), tied)
    below_all = of("logical_and", of("isnan", own), of("logical_or", earlier, of("logical_not", of("isnan", x))))
    above = of.cast(of("logical_or", above, below_all), "int64")
    rank = of.reduce("sum", above, last)
    known = of.is_position(label, of.integer(classes))
    right = of("logical_and", known, of("less_than", rank, of.integer(op.attrs["k"])))
    total = of.cast(of.reduce("sum", of.cast(right, "int64"), frozenset({0})), "float64")
    share = of.cast(of("div", total, of.number(float(rows))), x.dtype)
    low.define(op.outputs[0], reshaped(low, share, ()))


@lowers("auc")
def lower_auc(low: Lowering, op: Op) -> None:
    """A pair of a positive and a negative row counts 2 if the positive one is above, and 1 if they tie.

    All pairs together count as many as there are, plus the negative rows below each positive one, minus the positive
    rows below each negative one.
    """
    of, (x, label) = Maker(low), (low.entry(n) for n in op.inputs)
    out, rows = low.type(op.outputs[0]), x.shape[0]
    if rows == 0:
        raise Unsupported("no rows")
    given = low.stored(x)
    if len(x.shape) == 2:
        given = replace(given, shape=(rows,), strides=given.strides[:1], offset=given.offset + given.strides[1])
    score = low.dense(of.cast(given, "float64"))
    positive = of.cast(of("not_equal", reshaped(low, label, (rows,)), of.number(0, label.dtype)), "int64")
    order = order_of(low, op, score)
    score, positive = (taken(low, op, each, order) for each in (score, positive))
    negative = of("sub", of.integer(1), positive)
    row = reshaped(low, score, (1, rows))

    def differ(before: Entry, after: Entry) -> Entry:  # NaN is above all numbers
        return of("logical_and", of("not_equal", before, after), of("logical_not", of("isnan", before)))

    start = reshaped(low, _starts(low, op, low.dense(row), differ), (rows,))
    negatives_below = of("sub", running_total(low, op, negative), negative)
    negatives_below = taken(low, op, negatives_below, start)
    positives_below = of("sub", start, negatives_below)
    gain = of("sub", of.mul(positive, negatives_below), of.mul(negative, positives_below))
    gain, up, down = (of.reduce("sum", each, frozenset({0})) for each in (gain, positive, negative))
    pairs = of.mul(up, down)
    some = of("greater_than", pairs, of.integer(0))
    whole = of.cast(of.mul(of.integer(2), of.where(some, pairs, of.integer(1))), "float64")
    share = of("div", of.cast(of.add(gain, pairs), "float64"), whole)
    low.define(op.outputs[0], reshaped(low, of.cast(of.where(some, share, of.number(0.0)), out.dtype), ()))
