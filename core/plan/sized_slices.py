"""Lowerings of slices whose sizes only the run tells: their starts, ends and steps are data."""

from __future__ import annotations

from core.ir import Op, TensorType
from core.ir.precision import is_half
from core.plan.by_data import element, leaves_axis, slice_of
from core.plan.compose import Maker
from core.plan.data import Gather, ScatterAdd, View
from core.plan.entries import positions
from core.plan.halves import narrowed, widened
from core.plan.indexing import flat, slabs
from core.plan.lowering import Lowering
from core.plan.sized import masked, of_known_sizes, rule, set_sizes, whole
from core.plan.sizes import Size, in_blocks
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule("dynamic_slice")
def _slice(low: Lowering, op: Op) -> None:
    """One axis after the other."""
    of_known_sizes(low, op, op.inputs)
    x, declared = low.type(op.inputs[0]), low.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    view, shape = low.dense(low.entry(op.inputs[0])), x.shape
    sizes: dict[int, Size] = {}
    for i, axis in enumerate(a % x.rank for a in op.attrs["axes"]):
        at, size = _places(low, op, op.inputs[1:], i, x.shape[axis], declared.shape[axis])
        if size is not None:
            sizes[axis] = size
        smaller = (*shape[:axis], at.shape[0], *shape[axis + 1 :])
        target = low.allocate(smaller, x.dtype)
        check = leaves_axis(low, op, x.shape[axis])
        low.add(Gather(slabs(view, shape, axis), flat(at), slabs(target, smaller, axis), check, location=op.location))
        view, shape = target, smaller
    set_sizes(low, op, [sizes])
    low.define(op.outputs[0], masked(low, view, sizes, 0) if not x.is_float else view)


@rule("dynamic_slice_into")
def _slice_into(low: Lowering, op: Op) -> None:
    """What lies beyond the length of x adds zeros to the first position."""
    of_known_sizes(low, op, op.inputs[1:])
    given = low.sizes.get(op.inputs[0], {})
    x, out = low.type(op.inputs[0]), low.type(op.outputs[0])
    if out.dtype == "bool":
        raise Unsupported("a sum of bools")
    entry = whole(low, op.inputs[0])
    view, shape = low.dense(widened(low, entry) if is_half(out) else entry), x.shape
    axes = [a % x.rank for a in op.attrs["axes"]]
    if given.keys() - set(axes):
        raise Unsupported("sizes that only the run can compare")
    for i, axis in reversed(list(enumerate(axes))):
        at, size = _places(low, op, op.inputs[2:], i, out.shape[axis], -1 if axis in given else x.shape[axis])
        if size is not None:
            of, message = Maker(low), "the slice has another size than x"
            of.check(of("equal", size.length, given[axis].length), "shape_mismatch", message, op.location)
        larger = (*shape[:axis], out.shape[axis], *shape[axis + 1 :])
        target = low.allocate(larger, view.dtype)
        check = leaves_axis(low, op, out.shape[axis])
        low.add(
            ScatterAdd(slabs(view, shape, axis), flat(at), slabs(target, larger, axis), check, location=op.location)
        )
        view, shape = target, larger
    set_sizes(low, op, [{}])
    low.define(op.outputs[0], narrowed(low, view, out) if is_half(out) else view)


def _places(low: Lowering, op: Op, names: tuple[str, ...], i: int, size: int, length: int) -> tuple[View, Size | None]:
    """The positions of a slice along an axis, and their number if only the run tells it.

    names: starts, ends and steps. i: of the axis among those that are sliced. size: of the axis. length: of the slice,
    -1 if only the run tells it.
    """
    of, key = Maker(low), (names, i, size)
    if length == -1 and key in low.slices:  # as long as the other slice
        at, open_size = low.slices[key]
        return at, open_size
    start, step, count = slice_of(low, op, [element(low, low.entry(n), i) for n in names], size)
    if length != -1:
        message = f"a slice has another size than {length}"
        of.check(of("equal", count, of.number(length, "int64")), "shape_mismatch", message, op.location)
        return low.dense(of.add(start, of.mul(positions((length,)), step))), None
    open_size = Size(in_blocks(size), low.dense(count))
    places = of.add(start, of.mul(positions((open_size.bound,)), step))
    at = low.dense(masked(low, places, {0: open_size}, 0))
    low.slices[key] = at, open_size
    return at, open_size
