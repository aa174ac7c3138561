"""Slices, as views of the same memory.

A slice of rows at positions that are data is looked up by itself inside the fusion that reads it, or gathered if its
rows are short, unless the whole rows are in memory in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from core.ir import Op
from core.ops.indexing.gather import cut
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.fusion import Member
from core.plan.instructions import Gather
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.rows_at import Lookup, cut_rows, read_by_fusions
from core.plan.slabs import add_gather, flat, slabs

__all__: list[str] = []

SLICING = frozenset({"slice", "split", "split_like", "unstack"})

Part = Callable[[View], View]
"""One result of an op of `SLICING`, from a view of the shape of its operand."""


@lowers(*SLICING)
def lower_slices(low: Lowering, op: Op) -> None:
    entry = low.entry(op.inputs[0])
    for name, part in zip(op.outputs, _parts(low, op), strict=True):
        if isinstance(entry, Uniform):
            low.define(name, replace(entry, shape=low.type(name).shape))
        else:
            low.define(name, _sliced(low, op, entry, part))


def _parts(low: Lowering, op: Op) -> list[Part]:
    """The results of an op of `SLICING`."""
    rank = len(low.entry(op.inputs[0]).shape)
    shapes = [low.type(name).shape for name in op.outputs]
    if op.type == "slice":
        return [partial(_cut, parts=list(cut(rank, **op.attrs)), shape=shapes[0])]
    axis, start = op.attrs["axis"] % rank, 0
    if op.type == "unstack":
        return [partial(_element, axis=axis, at=at) for at in range(len(shapes))]
    parts: list[Part] = []
    for shape in shapes:
        parts.append(partial(_cut, parts=[(axis, slice(start, start + shape[axis]))], shape=shape))
        start += shape[axis]
    return parts


def _cut(view: View, parts: Sequence[tuple[int, slice]], shape: tuple[int, ...]) -> View:
    """A slice of `view` along some axes, as an array of `shape`."""
    offset, strides = view.offset, list(view.strides)
    for axis, part in parts:
        start, _, step = part.indices(view.shape[axis])
        offset += start * strides[axis]
        strides[axis] *= step
    return View(view.root, view.dtype, shape, tuple(strides), offset)


def _element(view: View, axis: int, at: int) -> View:
    """The part of `view` at one position along an axis."""
    shape, strides = (each[:axis] + each[axis + 1 :] for each in (view.shape, view.strides))
    return View(view.root, view.dtype, shape, strides, view.offset + at * view.strides[axis])


def _sliced(low: Lowering, op: Op, entry: Member | Pattern | View, part: Part) -> Entry:
    """A slice of `entry`, the operand of `op`."""
    found = cut_rows(entry, part) if not low.is_stored(entry) else None
    if found is None or not _read_in_parts(low, op.inputs[0]):
        return part(low.stored(entry))
    return low.looked_up(found) if found.is_long else _gathered(low, op, found)


def _read_in_parts(low: Lowering, rows: str) -> bool:
    """Whether no reader of `rows`, which are at positions that are data, needs them whole in memory."""
    if rows not in low.in_parts:
        low.in_parts[rows] = all(_needs_parts(low, each, rows) for each in low.uses.readers(rows))
    return low.in_parts[rows]


def _needs_parts(low: Lowering, reader: Op | None, rows: str) -> bool:
    """Whether a reader of `rows`, which are at positions that are data, needs no whole rows in memory."""
    if reader is not None and reader.type in SLICING:
        cuts = [cut_rows(low.entry(rows), part) for part in _parts(low, reader)]
        return all(each is not None and (each.is_long or each.slabs is not None) for each in cuts)
    if reader is not None and reader.type == "slice_into" and reader.inputs[0] != rows:
        return True  # it reads only their shape
    return read_by_fusions([reader])


def _gathered(low: Lowering, op: Op, found: Lookup) -> View:
    """Short rows in memory. found: their lookup, which has slabs."""
    assert found.slabs is not None
    x, index = found.slabs
    at, out = flat(low.dense(index)), low.allocate(found.source.shape, x.dtype, op.outputs[0])
    made = slabs(out, (at.shape[0], x.shape[2]), 0)
    add_gather(low, Gather(x, at, made, found.check, location=op.location), early=True)
    return out
