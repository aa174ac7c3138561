"""Ops that read or add at positions that are data. Every position is checked before it is used.

Picking one element of each row, as a cross entropy does with its labels, needs no positions: the row is compared with
the wanted position instead, inside a fusion.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from core.ir import Op, TensorType
from core.plan.added_rows import added_rows
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.fusion import Fusion, Member
from core.plan.gathered_products import reads_rows
from core.plan.lowering import Lowering, lowers
from core.plan.memory import contiguous
from core.plan.ranges import even_places, taken_evenly
from core.plan.reduce import reduced
from core.plan.rows_at import read_by_fusions, rows_at
from core.plan.shapes import reshaped
from core.plan.slabs import add_gather, gather_slabs
from core.plan.unsupported import Unsupported

__all__ = ["check_range", "computed_positions", "in_range"]


@lowers("class_index")
def lower_class_index(low: Lowering, op: Op) -> None:
    """Labels as positions: three comparisons and a check.

    A number outside of the labels' dtype is no label, so all labels count.
    """
    index, counted = op.outputs
    label, x = (low.type(n) for n in op.inputs)
    type = low.type(index)
    flag = TensorType(type.shape, "bool")
    axis = op.attrs["axis"] % len(low.types[op.inputs[1]].shape)  # type: ignore[union-attr]
    column = reshaped(low, low.entry(op.inputs[0]), type.shape)

    def number(value: int) -> Uniform:
        return Uniform(value, label.dtype, ())

    two, ignored, size = [label.dtype] * 2, op.attrs["ignore_index"], x.shape[axis]
    counts: Entry = Uniform(True, "bool", type.shape)
    if has_number(label.dtype, ignored):
        counts = low.apply("not_equal", {}, [column, number(ignored)], two, flag)
    at = low.apply("where", {}, [counts, column, number(0)], ["bool", *two], type)
    if size == 0:
        none = low.apply("logical_not", {}, [counts], ["bool"], flag)
        Maker(low).check(none, "index_out_of_range", "a label is given, but there are no classes", op.location)
    else:
        check_range(low, op, at, type, size, f"a label is outside 0 to {size - 1}")
    low.define(index, at)
    low.define(counted, counts)


def check_range(low: Lowering, op: Op, at: Entry, type: TensorType, size: int, message: str, below: int = 0) -> None:
    """Append the check that `at` is at least -`below` and less than `size` everywhere."""
    of = Maker(low)
    limits: list[Entry] = []  # without those that every number of the dtype keeps
    if has_number(type.dtype, -below):
        limits.append(of("greater_equal", at, of.number(-below, type.dtype)))
    if has_number(type.dtype, size):
        limits.append(of("less_than", at, of.number(size, type.dtype)))
    if not limits:
        return
    fine = limits[0] if len(limits) == 1 else of("logical_and", *limits)
    if isinstance(fine, Uniform):
        if fine.number:
            return
        raise Unsupported("a constant position that is out of range")
    fusion, axes = low.join(type.shape, [fine])
    number = low.shared.check("index_out_of_range", message, op.location)
    fusion.check(low.argument(fusion, fine, type.shape, axes), low.shared.error, number)


def has_number(dtype: str, number: int) -> bool:
    """Whether an integer is a number of an integer dtype."""
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


@lowers("positions_along")
def lower_positions(low: Lowering, op: Op) -> None:
    """Nothing is computed if all readers pick one element of each row: they read the op's operands instead."""
    name = op.outputs[0]
    low.type(name)
    low.define(name, _Positions() if _only_picks(low, name) else computed_positions(low, op))


def _only_picks(low: Lowering, name: str) -> bool:
    """Whether all readers of the positions `name` pick one element of each row."""
    for reader in low.uses.readers(name):
        if reader is None or reader.type not in PICKING or reader.attrs["axis"] != 0:
            return False
        if reader.inputs[1] != name or _picked(low, reader.inputs[PICKING[reader.type]], name) is None:
            return False
    return True


def computed_positions(low: Lowering, op: Op) -> Entry:
    """The positions of a `positions_along`, in row-major order."""
    of, index, shape = Maker(low), low.entry(op.inputs[0]), low.type(op.inputs[1]).shape
    axis, steps = op.attrs["axis"] % len(shape), contiguous(shape)
    if any(i != axis and m > n for i, (m, n) in enumerate(zip(index.shape, shape, strict=True))):
        raise Unsupported("an index that is larger than its array")
    others = positions(index.shape, tuple(0 if i == axis else n for i, n in enumerate(steps)))
    at = in_range(low, op, index, shape[axis])
    return of.add(others, of.mul(at, of.integer(steps[axis])))


def in_range(low: Lowering, op: Op, index: Entry, size: int) -> Entry:
    """`index` counted from the front of an axis of `size` elements, as int64, with a check.

    A check that fails does not end the step, and kernels use the result as an address: it is never out of range.
    """
    of, type = Maker(low), TensorType(index.shape, index.dtype)
    check_range(low, op, index, type, size, f"an index is out of range for an axis of size {size}", below=size)
    at, zero = of.cast(index, "int64"), of.integer(0)
    at = of.where(of("less_than", at, zero), of.add(at, of.integer(size)), at)
    return of("maximum", of("minimum", at, of.integer(size - 1)), zero)


@lowers("wrapped_index")
def lower_wrapped_index(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], in_range(low, op, low.entry(op.inputs[0]), low.type(op.inputs[1]).shape[0]))


@lowers("label_rows")
def lower_label_rows(low: Lowering, op: Op) -> None:
    of, label, type = Maker(low), low.entry(op.inputs[0]), low.type(op.outputs[0])
    size = low.type(op.inputs[1]).shape[0]
    message = f"a label is outside 0 to {size - 1}"
    check_range(low, op, label, TensorType(label.shape, label.dtype), size, message)
    low.define(op.outputs[0], of.cast(reshaped(low, label, type.shape), "int64"))


@lowers("is_padding")
def lower_is_padding(low: Lowering, op: Op) -> None:
    size = low.type(op.inputs[1]).shape[0]
    at = in_range(low, op, low.entry(op.inputs[0]), size)
    of = Maker(low)
    low.define(op.outputs[0], of("equal", at, of.integer(op.attrs["padding_idx"] % size)))


@lowers("positions_nd")
def lower_positions_nd(low: Lowering, op: Op) -> None:
    of, shape, type = Maker(low), low.type(op.inputs[1]).shape, low.type(op.outputs[0])
    index = low.stored(low.entry(op.inputs[0]))
    total: Entry = Uniform(0, "int64", type.shape)
    for i in range(index.shape[-1]):
        offset = index.offset + i * index.strides[-1]
        column = replace(index, shape=index.shape[:-1], strides=index.strides[:-1], offset=offset)
        at = in_range(low, op, column, shape[i])
        total = at if i == 0 else of.add(of.mul(total, of.integer(shape[i])), at)
    low.define(op.outputs[0], total)


PICKING = {"gather": 0, "scatter_add_like": 2}
"""Ops that may pick one element of each row -> the slot of the flattened rows."""


class _Positions:
    """Positions that are not computed."""


def _picked(low: Lowering, source: str, index: str) -> tuple[Op, tuple[int, ...], int] | None:
    """The op of `index`, the shape of the rows and their axis, if `index` has one position in each row of flattened
    `source`.
    """
    positions, flat = low.uses.producers.get(index), low.uses.producers.get(source)
    if positions is None or positions.type != "positions_along" or flat is None or flat.type != "reshape":
        return None
    shape = low.type(positions.inputs[1]).shape
    column = low.type(positions.inputs[0]).shape
    axis = positions.attrs["axis"] % len(shape)
    if column != (*shape[:axis], 1, *shape[axis + 1 :]) or low.type(flat.inputs[0]).shape != shape:
        return None
    return positions, shape, axis


def _hits(low: Lowering, op: Op, picked: tuple[Op, tuple[int, ...], int], other: Entry, index: str) -> Member | None:
    """A bool of the shape of the rows: whether the position along the row is the wanted one. The position is checked.

    None if no fusion can compute it; then the positions `index` have been computed.
    """
    maker, shape, axis = picked
    try:
        return _compared(low, op, maker, shape, axis, other)
    except Unsupported:
        if isinstance(low.entry(index), _Positions):
            low.define(index, computed_positions(low, maker))
        return None


def _compared(low: Lowering, op: Op, positions: Op, shape: tuple[int, ...], axis: int, other: Entry) -> Member:
    """As `_hits`. Raises Unsupported if no fusion can compute it."""
    if not Fusion(shape, 0, low.target.rows).can_reduce(frozenset({axis}), across=True):
        raise Unsupported(f"picking from rows of {shape[axis]} elements")
    type = low.type(positions.inputs[0])
    at = low.entry(positions.inputs[0])
    size = shape[axis]
    maker = low.uses.producers.get(positions.inputs[0])
    if maker is None or maker.type != "class_index":  # class_index has checked its labels
        check_range(low, op, at, type, size, f"an index is out of range for an axis of size {size}", below=size)
        of = Maker(low)
        at = of.cast(at, "int64")
        at = of.where(of("less_than", at, of.integer(0)), of.add(at, of.integer(size)), at)
    flag = TensorType(shape, "bool")
    fusion, axes = low.join(shape, [at, other])
    along = axes[axis]
    if along is None or not fusion.can_reduce(frozenset({along}), across=True):
        fusion = low.new_fusion(shape)
        axes = tuple(range(len(shape)))
        along = axis
    fusion.take_row(frozenset({along}))
    position = fusion.iota(along)
    wanted = low.argument(fusion, at, shape, axes)
    if at.dtype != "int64":
        wanted = fusion.apply("cast", [("dtype", "int64")], [wanted], "int64")
    hit = fusion.apply("equal", [], [position, wanted], "bool")
    return Member(fusion, hit, "bool", flag.shape, axes)


@lowers("gather", "index_select")
def lower_gather(low: Lowering, op: Op) -> None:
    out = low.type(op.outputs[0])
    source, index = op.inputs
    picked = _picked(low, source, index) if op.attrs["axis"] == 0 else None
    if picked:
        values = low.entry(low.uses.producers[source].inputs[0])
        hit = _hits(low, op, picked, values, index)
        if hit:
            (_, shape, along) = picked
            type = TensorType(shape, out.dtype)
            zero = Uniform(0, out.dtype, ())
            only = low.apply("where", {}, [hit, values, zero], ["bool", out.dtype, out.dtype], type)
            one = TensorType((*shape[:along], 1, *shape[along + 1 :]), out.dtype)
            result = reduced(low, "sum", only, frozenset({along}), one)
            low.define(op.outputs[0], reshaped(low, result, out.shape))
            return
    if isinstance(low.entry(index), _Positions):
        raise Unsupported("positions of several elements of a row")
    x = low.type(source)
    axis = op.attrs["axis"] % x.rank
    places = even_places(low.entry(index))
    even = None if places is None else taken_evenly(low.stored(low.entry(source)), places, axis)
    if even is not None:
        low.define(op.outputs[0], even)
        return
    number = low.shared.check(
        "index_out_of_range", f"an index is out of range for an axis of size {x.shape[axis]}", op.location
    )
    readers = low.uses.readers(op.outputs[0])
    if read_by_fusions(readers) or any(reads_rows(low, reader, op.outputs[0]) for reader in readers):
        found = rows_at(low.stored(low.entry(source)), low.stored(low.entry(index)), axis, number, low.shared.error)
        if found is not None:
            low.define(op.outputs[0], low.looked_up(found, op.type))
            return
    view, at = low.dense(low.entry(source)), low.dense(low.entry(index))
    is_new = low.destinations.open(op.outputs[0]) is None
    target = low.destination(op.outputs[0])
    gather = gather_slabs(view, axis, at, target, number, op.location)
    add_gather(low, gather, early=is_new and read_by_fusions(readers))
    low.define(op.outputs[0], target)


@lowers("scatter_add_like")
def lower_scatter(low: Lowering, op: Op) -> None:
    out = low.type(op.outputs[0])
    given, index, like = op.inputs
    picked = _picked(low, like, index) if op.attrs["axis"] == 0 else None
    if picked:
        _, shape, along = picked
        value = reshaped(low, low.entry(given), (*shape[:along], 1, *shape[along + 1 :]))
        hit = _hits(low, op, picked, value, index)
        if hit:
            zero = Uniform(0, out.dtype, ())
            type = TensorType(shape, out.dtype)
            whole = low.apply("where", {}, [hit, value, zero], ["bool", out.dtype, out.dtype], type)
            only_reshaped = all(reader and reader.type == "reshape" for reader in low.uses.readers(op.outputs[0]))
            low.define(op.outputs[0], whole if only_reshaped else reshaped(low, whole, out.shape))
            return
    if isinstance(low.entry(index), _Positions) or out.dtype == "bool":
        raise Unsupported("a sum of bools")
    axis = op.attrs["axis"] % len(out.shape)
    number = low.shared.check(
        "index_out_of_range", f"an index is out of range for an axis of size {out.shape[axis]}", op.location
    )
    low.define(op.outputs[0], added_rows(low, op, low.entry(given), low.entry(index), axis, number))


def _with(shape: tuple[int, ...], axis: int, index: TensorType) -> tuple[int, ...]:
    """`shape` with the number of elements of `index` along `axis`."""
    return (*shape[:axis], math.prod(index.shape), *shape[axis + 1 :])
