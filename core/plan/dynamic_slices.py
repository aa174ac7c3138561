"""Lowerings of slices whose starts, ends and steps are data; only the run may tell their sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.ir import Op, TensorType
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.halves import narrowed, widened_array
from core.plan.instructions import ScatterAdd
from core.plan.lowering import Lowering, lowers
from core.plan.meeting_sizes import sizes_of, with_equal
from core.plan.sized import is_sized, masked, of_known_sizes, rule, set_sizes, whole
from core.plan.sizes import Size, in_blocks
from core.plan.slabs import flat, gather_slabs, slabs
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@lowers("dynamic_slice")
@rule("dynamic_slice")
def lower_dynamic_slice(low: Lowering, op: Op) -> None:
    """One axis after the other. What begins where its axis does is no copy."""
    of_known_sizes(low, op, op.inputs[1:])
    x, declared = low.type(op.inputs[0]), low.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    view, shape = low.dense(low.entry(op.inputs[0])), x.shape
    given = sizes_of(low, op.inputs[0])
    sizes = dict(given)
    for i, axis in enumerate(a % x.rank for a in op.attrs["axes"]):
        cut = _Axis(x.shape[axis], given.get(axis), declared.shape[axis])
        at, size, check = _places(low, op, op.inputs[1:], i, cut)
        sizes.pop(axis, None)
        if size is not None:
            sizes[axis] = size
            if size.bound == x.shape[axis] and _is_beginning(low, op):
                low.shared.sliced.add(view.root)
                continue
        smaller = (*shape[:axis], at.shape[0], *shape[axis + 1 :])
        target = low.allocate(smaller, x.dtype)
        low.add(gather_slabs(view, axis, low.dense(at), target, check, op.location))
        view, shape = target, smaller
    if is_sized(low, op):
        set_sizes(low, op, [sizes])
    low.define(op.outputs[0], view if x.is_float else masked(low, view, sizes, 0))


@lowers("dynamic_slice_into")
@rule("dynamic_slice_into")
def lower_dynamic_slice_into(low: Lowering, op: Op) -> None:
    """Elements beyond the length of x add zeros to the first position."""
    of_known_sizes(low, op, op.inputs[2:])
    axes = [a % low.type(op.inputs[0]).rank for a in op.attrs["axes"]]
    for axis in (sizes_of(low, op.inputs[0]).keys() | sizes_of(low, op.inputs[1]).keys()) - set(axes):
        op = with_equal(low, op, (0, axis), (1, axis))
    given, own = sizes_of(low, op.inputs[0]), sizes_of(low, op.inputs[1])
    x = low.type(op.inputs[0])
    out = TensorType(low.type(op.inputs[1]).shape, x.dtype)
    if out.dtype == "bool":
        raise Unsupported("a sum of bools")
    entry = whole(low, op.inputs[0])
    view, shape = low.dense(widened_array(low, entry) if is_half(out) else entry), x.shape
    parts = [
        _places(low, op, op.inputs[2:], i, _Axis(out.shape[axis], own.get(axis), -1 if axis in given else shape[axis]))
        for i, axis in enumerate(axes)
    ]
    for axis, (at, size, check) in reversed(list(zip(axes, parts, strict=True))):
        if size is not None:
            of, message = Maker(low), "the slice has another size than x"
            of.check(of("equal", size.length, given[axis].length), "shape_mismatch", message, op.location)
        larger = (*shape[:axis], out.shape[axis], *shape[axis + 1 :])
        target = low.allocate(larger, view.dtype)
        given_slabs, made = slabs(view, shape, axis), slabs(target, larger, axis)
        count = min(at.shape[0], shape[axis])  # the largest sizes of x and of the slice can differ, their sizes cannot
        given_slabs = replace(given_slabs, shape=(given_slabs.shape[0], count, given_slabs.shape[2]))
        low.add(
            ScatterAdd(given_slabs, replace(flat(low.dense(at)), shape=(count,)), made, check, location=op.location)
        )
        view, shape = target, larger
    if is_sized(low, op):
        set_sizes(low, op, [dict(own)])
    low.define(op.outputs[0], narrowed(low, view, out) if is_half(out) else view)


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis that is sliced.

    bound, size: its largest size, and its size if only the run tells it.
    length:      of the slice, -1 if only the run tells it.
    """

    bound: int
    size: Size | None
    length: int


def _places(low: Lowering, op: Op, names: tuple[str, ...], i: int, axis: _Axis) -> tuple[Entry, Size | None, int]:
    """(the positions of a slice along an axis, their number if only the run tells it, the check of their range).

    names: starts, ends and steps. i: of the axis among those that are sliced.
    """
    key = (names, i, axis)
    slices = low.derived.slices
    if key not in slices:  # slices with the same ends have the same size
        slices[key] = _new_places(low, op, names, i, axis)
    check = low.shared.check("index_out_of_range", f"a slice leaves its axis of size {axis.bound}", op.location)
    return *slices[key], check


def _new_places(low: Lowering, op: Op, names: tuple[str, ...], i: int, axis: _Axis) -> tuple[Entry, Size | None]:
    of = Maker(low)
    number = of.integer
    whole: Entry = number(axis.bound) if axis.size is None else axis.size.length
    last = of("sub", whole, number(1))
    start, end, step = (_element(low, low.entry(n), i) for n in names)
    of.check(of("not_equal", step, number(0)), "division_by_zero", "a step must not be 0", op.location)
    ahead = of("greater_than", step, number(0))
    start, end = (of.where(of("less_than", v, number(0)), of.add(v, whole), v) for v in (start, end))
    start = of("minimum", of("maximum", start, number(0)), of.where(ahead, whole, last))
    end = of("minimum", of("maximum", end, of.where(ahead, number(0), number(-1))), whole)
    count = of("maximum", of("neg", of("floor_div", of("sub", start, end), step)), number(0))
    if axis.length != -1:
        message = f"a slice has another size than {axis.length}"
        of.check(of("equal", count, number(axis.length)), "shape_mismatch", message, op.location)
        return of.add(start, of.mul(positions((axis.length,)), step)), None
    open_size = Size(in_blocks(axis.bound), low.dense(count))
    places = of.add(start, of.mul(positions((open_size.bound,)), step))
    return masked(low, places, {0: open_size}, 0), open_size


def _is_beginning(low: Lowering, op: Op) -> bool:
    """Whether a slice takes each element from the first one on, up to ends that only the run may tell."""
    start, step = (low.entry(op.inputs[n]) for n in (1, 3))
    return isinstance(start, Uniform) and isinstance(step, Uniform) and start.number == 0 and step.number == 1


def _element(low: Lowering, entry: Entry, i: int) -> Entry:
    """Element i of a vector."""
    if isinstance(entry, Uniform):
        return replace(entry, shape=())
    view = low.stored(entry)
    return replace(view, shape=(), strides=(), offset=view.offset + i * view.strides[0])
