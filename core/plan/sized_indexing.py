"""Lowerings of ops that gather, scatter and choose elements along axes of sizes that only the run tells.

See `core.plan.sized`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from core.ir import Op
from core.plan.compose import Maker
from core.plan.entries import Entry, positions
from core.plan.geometry import Selection
from core.plan.indexing import computed_positions, in_range
from core.plan.instructions import Kernel, Limited
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.meeting_sizes import Axes, Incomparable, matched, sizes_of, with_equal
from core.plan.memory import View
from core.plan.ragged import running_total
from core.plan.row_major import row_major
from core.plan.shapes import reshaped
from core.plan.sized import clear_integers, masked, new_size, rule, run, set_sizes, under, whole
from core.plan.sizes import Size, in_blocks
from core.plan.slabs import OUT_OF_RANGE, gather_slabs
from core.plan.unsupported import Unsupported

__all__ = ["selected"]


@rule("nonzero")
def _nonzero(low: Lowering, op: Op) -> None:
    x, of = op.inputs[0], Maker(low)
    type = low.type(x)
    entry = low.entry(x)
    flags = entry if entry.dtype == "bool" else of("not_equal", entry, of.number(0, entry.dtype))
    flags = low.dense(masked(low, flags, sizes_of(low, x), False))
    size = new_size(low, in_blocks(math.prod(type.shape)))
    set_sizes(low, op, [{0: size}])
    out = low.allocate(low.type(op.outputs[0]).shape, "int64", op.outputs[0])
    low.add(
        Kernel(
            "selection", Selection(type.shape, size.bound), (flags, out, size.length), written=2, location=op.location
        )
    )
    low.define(op.outputs[0], out)


def _from_front(low: Lowering, op: Op, index: Entry, own: Axes, size: Size) -> Entry:
    """Positions in an array of an open size, counted from its front and checked."""
    of = Maker(low)
    at = of.cast(index, "int64")
    zero = of.integer(0)
    at = of.where(of("less_than", at, zero), of.add(at, size.length), at)
    fine = of.is_position(at, size.length)
    checked = masked(low, fine, own, True)
    of.check(checked, "index_out_of_range", "an index is out of range for its axis", op.location)
    return of.where(fine, at, zero)


@rule("gather", "index_select")
def _gather(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    own, at, axis = sizes_of(low, x), sizes_of(low, index), op.attrs["axis"] % low.type(x).rank
    rank = low.type(index).rank if op.type == "gather" else 1
    sizes = {i + (rank - 1) * (i > axis): s for i, s in own.items() if i != axis}
    sizes |= {axis + i: s for i, s in at.items()}
    set_sizes(low, op, [sizes])
    picked = _picks(low, x, index)
    if axis in own and not picked:
        op = under(low, op, {index: _from_front(low, op, low.entry(index), at, own[axis])})
    if axis == 0 and at.keys() == {0} and rank == 1 and not picked:
        message = f"an index is out of range for an axis of size {low.type(x).shape[0]}"
        rows, places = low.dense(low.entry(x)), low.dense(low.entry(op.inputs[1]))
        out = low.destination(op.outputs[0])
        _rows_at(low, op, rows, places, out, at[0], message)
        low.define(op.outputs[0], out)
        clear_integers(low, op)
        return
    run(low, op)


def _picks(low: Lowering, source: str, index: str) -> bool:
    """Whether the positions `index` are those of one element in each row of flattened `source` (`indexing`)."""
    maker, flat = low.uses.producers.get(index), low.uses.producers.get(source)
    if maker is None or flat is None or maker.type != "positions_along" or flat.type not in ("reshape", "merge_axes"):
        return False
    x = maker.inputs[1]
    return bool(maker.attrs["axis"] % low.type(x).rank not in sizes_of(low, x))


def _has_gaps(low: Lowering, index: str) -> bool:
    """Whether the rows that the positions `index` belong to have unused memory between them: a flat array has none."""
    return bool(sizes_of(low, low.uses.producers[index].inputs[1]).keys() - {0})


@rule("scatter_add_like")
def _scatter(low: Lowering, op: Op) -> None:
    x, index, like = op.inputs
    axis = op.attrs["axis"] % low.type(like).rank
    for i in range(low.type(index).rank):
        x, index = matched(low, (x, axis + i), (index, i))
    if (x, index) != op.inputs[:2]:
        op = replace(op, inputs=(x, index, like))
    rank = low.type(index).rank
    for j in (j for j in range(low.type(like).rank) if j != axis):
        i = j if j < axis else j - 1 + rank
        if sizes_of(low, x).get(i) is not sizes_of(low, like).get(j):
            x, like = matched(low, (x, i), (like, j))
            op = replace(op, inputs=(x, index, like))
    own, at = sizes_of(low, like), sizes_of(low, index)
    set_sizes(low, op, [dict(own)])
    picked = _picks(low, like, index) and not _has_gaps(low, index)
    entries = {x: whole(low, x)} if sizes_of(low, x) else {}
    if picked:  # positions beyond the length are 0: `whole` makes the addends there 0, too
        run(low, under(low, op, entries))
        return
    if axis in own:
        entries[index] = _from_front(low, op, low.entry(index), at, own[axis])
    run(low, under(low, op, entries))


@rule("class_index")
def _class_index(low: Lowering, op: Op) -> None:
    axis = op.attrs["axis"] % low.type(op.inputs[1]).rank
    op = with_equal(low, op, (1, 0), (0, 0)) if axis else op
    label, x = op.inputs
    if axis in sizes_of(low, x):
        raise Unsupported("classes whose number only the run tells")
    sizes = dict(sizes_of(low, x))
    given = sizes_of(low, label)
    shift = low.type(label).rank < low.type(x).rank
    if {i + (shift and i >= axis): s for i, s in given.items()} != sizes:
        raise Incomparable
    set_sizes(low, op, [dict(sizes), dict(sizes)])
    run(low, op)


@rule("positions_along")
def _positions_along(low: Lowering, op: Op) -> None:
    """The number of rows does not matter if the first axis alone is open, unless the positions are those of rows: then
    their readers count from the front and check.
    """
    rank = low.type(op.inputs[1]).rank
    axis = op.attrs["axis"] % rank
    for i in range(rank):
        op = op if i == axis else with_equal(low, op, (1, i), (0, i))
    index, x = op.inputs
    own, at = sizes_of(low, x), sizes_of(low, index)
    if any(own.get(i) is not at.get(i) for i in range(rank) if i != axis):
        raise Unsupported("positions along sizes that only the run can compare")
    if own.keys() - {0}:
        set_sizes(low, op, [dict(at)])
        low.define(op.outputs[0], masked(low, _positions_in_all(low, op, axis), at, 0))
        return
    set_sizes(low, op, [dict(at)])
    if axis in own:
        op = under(low, op, {index: _from_front(low, op, low.entry(index), at, own[axis])})
        low.define(op.outputs[0], computed_positions(low, op))
    else:
        lowering = LOWERINGS[op.type]
        lowering(low, op)
    if hasattr(low.entry(op.outputs[0]), "shape"):
        clear_integers(low, op)


def _positions_in_all(low: Lowering, op: Op, axis: int) -> Entry:
    """Positions in all elements of an array without gaps, in row-major order."""
    of, (index, x) = Maker(low), op.inputs
    shape, own, at = low.type(x).shape, sizes_of(low, x), sizes_of(low, index)
    given = low.type(index).shape

    def axes() -> Iterator[tuple[Entry, Entry]]:
        for i in reversed(range(len(shape))):
            if i != axis:
                along: Entry = positions(given, tuple(int(i == j) for j in range(len(shape))))
            elif axis in own:
                along = _from_front(low, op, low.entry(index), at, own[axis])
            else:
                along = in_range(low, op, low.entry(index), shape[axis])
            yield along, own[i].length if i in own else of.integer(shape[i])

    return row_major(low, axes())[0]


@rule("wrapped_index", "label_rows", "is_padding", "positions_nd")
def _positions(low: Lowering, op: Op) -> None:
    index, x = op.inputs
    if 0 in sizes_of(low, x) or (op.type == "positions_nd" and sizes_of(low, x)):
        raise Unsupported("positions in rows whose number only the run tells")
    rank = low.type(op.inputs[0]).rank - (op.type == "positions_nd")
    set_sizes(low, op, [{axis: size for axis, size in sizes_of(low, index).items() if axis < rank}])
    run(low, op)


def _chosen(low: Lowering, op: Op, mask: str, value: bool) -> tuple[View, Size]:
    """The positions at which a mask has this value, and their number."""
    key = (mask, value)
    if key not in low.derived.masks:
        entry = low.entry(mask)
        flags = masked(low, entry if value else Maker(low)("logical_not", entry), sizes_of(low, mask), False)
        at, size = selected(low, op, flags)
        low.derived.masks[key] = at, size
    return low.derived.masks[key]


def selected(low: Lowering, op: Op, flags: Entry) -> tuple[View, Size]:
    """The positions of the true elements of a vector, and their number."""
    given = low.dense(flags)
    size = new_size(low, in_blocks(given.shape[0]))
    at = low.allocate((size.bound,), "int64")
    spec = Selection(given.shape, size.bound)
    low.add(Kernel("selection", spec, (given, at, size.length), written=2, location=op.location))
    return at, size


def _rows_at(low: Lowering, op: Op, x: View, at: View, out: View, size: Size | None = None, message: str = "") -> None:
    """``out[i] = x[at[i]]``. size: of the positions, if only the run tells it. `out` may have memory for more rows."""
    check = low.shared.check("index_out_of_range", message or OUT_OF_RANGE, op.location)
    each = gather_slabs(x, 0, at, out, check, op.location)
    low.add(each if size is None else Limited(each, size.bound, size.length, location=op.location))


@rule("split_by_mask")
def _split_by_mask(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    x, mask = op.inputs
    if sizes_of(low, x) != sizes_of(low, mask) or sizes_of(low, x).keys() - {0}:
        raise Incomparable
    rows = low.dense(low.entry(x))
    parts = [_chosen(low, op, mask, value) for value in (True, False)]
    set_sizes(low, op, [{0: size} for _, size in parts])
    for name, (at, size) in zip(op.outputs, parts, strict=True):
        out = low.destination(name)
        _rows_at(low, op, rows, at, out, size)
        low.define(name, out)
    clear_integers(low, op)


@rule("merge_by_mask")
def _merge_by_mask(low: Lowering, op: Op) -> None:
    """The rows of both parts at their places, and a choice between them."""
    mask, yes, no = op.inputs
    of = Maker(low)
    own = sizes_of(low, mask)
    if any(sizes_of(low, n).keys() - {0} for n in (yes, no)) or low.type(yes).shape[1:] != low.type(no).shape[1:]:
        raise Incomparable
    set_sizes(low, op, [dict(own)])
    flags = low.entry(mask)
    out = low.type(op.outputs[0])
    made = []
    for name, part in ((yes, flags), (no, of("logical_not", flags))):
        ones = of.cast(masked(low, part, own, False), "int64")
        count = reshaped(low, of.reduce("sum", ones, frozenset({0})), ())
        message = "the rows are not as many as the mask asks for"
        of.check(of("equal", count, low.length(name, 0)), "shape_mismatch", message, op.location)
        before = of("maximum", of("sub", running_total(low, op, ones), of.integer(1)), of.integer(0))
        at = of("minimum", before, of.integer(low.type(name).shape[0] - 1))
        rows = low.allocate(out.shape, out.dtype)
        _rows_at(low, op, low.dense(low.entry(name)), low.dense(at), rows)
        made.append(rows)
    column = reshaped(low, flags, (out.shape[0], *(1 for _ in out.shape[1:])))
    low.define(op.outputs[0], of.where(column, *made))
    clear_integers(low, op)
