"""Slices, borders and concatenation along an axis whose size only the run tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from core.ir import Op, TensorType, Type
from core.ops.indexing.gather import cut
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.halves import narrowed, widened_array
from core.plan.instructions import ScatterAdd
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Incomparable, first_of, same_size
from core.plan.memory import View, contiguous
from core.plan.sized import clear_integers, masked, rule, set_sizes, under, whole
from core.plan.sized import run as run_known
from core.plan.sized_shapes import parts_of_known, sliced_known
from core.plan.sizes import Given, Size, bounds, in_blocks, tensor
from core.plan.slabs import OUT_OF_RANGE, flat, slabs, taken
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@bounds("slice")
def _sizes_of_slice(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    whole, out = tensor(given[0]), declared[0]
    if not isinstance(out, TensorType):
        return None
    shape = list(out.shape)
    parts = dict(cut(whole.rank, **op.attrs))
    for axis, n in enumerate(out.shape):
        if n == -1:
            shape[axis] = _most(parts[axis], whole.shape[axis]) if axis in parts else whole.shape[axis]
    return None if 0 in shape else (TensorType(tuple(shape), whole.dtype),)


def _most(part: slice, size: int) -> int:
    """The largest size of a slice of an axis of at most `size`."""
    if part.step != 1 or part.stop is None:
        return size
    if part.start >= 0:
        return in_blocks(max(min(part.stop, size) - part.start, 1)) if part.stop >= 0 else size
    most = -part.start if part.stop >= 0 else part.stop - part.start
    return in_blocks(max(min(most, size), 1))


@rule("slice")
def _slice(low: Lowering, op: Op) -> None:
    """One axis after the other."""
    x = op.inputs[0]
    own, type = dict(low.sizes.get(x, {})), low.type(x)
    parts = cut(type.rank, **op.attrs)
    if not any(axis in own for axis, _ in parts):
        sliced_known(low, op)
        return
    entry = whole(low, x, 0) if not type.is_float else low.entry(x)
    view = _cut_known(low.dense(entry), [(axis, part) for axis, part in parts if axis not in own])
    for axis, part in parts:
        if axis in own:
            at, own[axis] = _places(low, part, own[axis])
            if (part.start, part.step) == (0, 1) and own[axis].bound == view.shape[axis]:  # only the size is new
                low.shared.sliced.add(view.root)
            else:
                view = taken(low, op, view, at, axis)
    set_sizes(low, op, [own])
    low.define(op.outputs[0], view)
    clear_integers(low, op)


def _cut_known(view: View, parts: Sequence[tuple[int, slice]]) -> View:
    shape, strides, offset = list(view.shape), list(view.strides), view.offset
    for axis, part in parts:
        start, stop, step = part.indices(shape[axis])
        shape[axis] = len(range(start, stop, step))
        if not shape[axis]:
            raise Unsupported("an empty slice of an array whose size only the run tells")
        offset += start * strides[axis]
        strides[axis] *= step
    return View(view.root, view.dtype, tuple(shape), tuple(strides), offset)


def _places(low: Lowering, part: slice, size: Size) -> tuple[Entry, Size]:
    """The positions of a slice of an axis of this size, and their number; beyond it they are 0."""
    key, parts = (part.start, part.stop, part.step, size), low.derived.parts
    if key not in parts:
        parts[key] = _new_places(low, part, size)
    return parts[key]


def _new_places(low: Lowering, part: slice, size: Size) -> tuple[Entry, Size]:
    of = Maker(low)
    number = of.integer
    ahead = part.step > 0
    first, last = (number(0), size.length) if ahead else (number(-1), of("sub", size.length, number(1)))

    def end(at: int) -> Entry:
        counted = of.add(size.length, number(at)) if at < 0 else number(at)
        return of("minimum", of("maximum", counted, first), last)

    start = end(part.start)
    stop = first if part.stop is None else end(part.stop)
    count = of("maximum", of("neg", of("floor_div", of("sub", start, stop), number(part.step))), number(0))
    found = Size(_most(part, size.bound), low.dense(count))
    places = of.add(start, of.mul(positions((found.bound,)), number(part.step)))
    return masked(low, places, {0: found}, 0), found


@bounds("slice_into", "split_like")
def _sizes_of_others(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    dtype = tensor(given[0]).dtype
    return tuple(TensorType(tensor(like).shape, dtype) for like in given[1:])


@rule("slice_into")
def _slice_into(low: Lowering, op: Op) -> None:
    """Positions beyond the length of x add zeros to the first position."""
    x, like = op.inputs
    own, given, out = low.sizes.get(like, {}), low.sizes.get(x, {}), low.type(like)
    parts = cut(out.rank, **op.attrs)
    touched = [(axis, part) for axis, part in parts if axis in own]
    if not touched:
        sliced_known(low, op)
        return
    if low.type(x).dtype == "bool":
        raise Unsupported("a sum of bools")
    for axis, size in own.items():
        other = _places(low, dict(touched)[axis], size)[1] if axis in dict(touched) else size
        if not same_size(low, given.get(axis), other):
            raise Incomparable
    set_sizes(low, op, [dict(own)])
    made = low.type(op.outputs[0])
    half = made.dtype in ("float16", "bfloat16")
    entry = whole(low, x)
    view = low.dense(widened_array(low, entry) if half else entry)
    for axis, part in parts:
        target = low.allocate(_resized(view.shape, axis, out.shape[axis]), view.dtype)
        if axis not in own:
            low.copy(Uniform(0, target.dtype, target.shape), target)
            low.copy(view, _cut_known(target, [(axis, part)]))
            view = target
            continue
        at, _ = _places(low, part, own[axis])
        shape = target.shape
        check = low.shared.check("index_out_of_range", OUT_OF_RANGE, op.location)
        slices = slabs(view, view.shape, axis), flat(low.dense(at)), slabs(target, shape, axis)
        low.add(ScatterAdd(*slices, check, location=op.location))
        view = target
    low.define(op.outputs[0], narrowed(low, view, made) if half else view)


# --- borders, and parts one after the other ---------------------------------------------------------------------


@bounds("pad_constant")
def _sizes_of_padded(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    x, out, pads = tensor(given[0]), declared[0], op.attrs["paddings"]
    if not isinstance(out, TensorType):
        return None
    sizes = [n + a + b for n, a, b in zip(x.shape, pads[::2], pads[1::2], strict=True)]
    shape = tuple(in_blocks(n) if m == -1 else n for n, m in zip(sizes, out.shape, strict=True))
    return None if 0 in shape else (TensorType(shape, x.dtype),)


@rule("pad_constant")
def _pad(low: Lowering, op: Op) -> None:
    """Fill the positions beyond the length with the value of the border."""
    x, of = op.inputs[0], Maker(low)
    own, pads = low.sizes.get(x, {}), list(op.attrs["paddings"])
    wanted = low.largest(op)
    if not any(pads[2 * axis] or pads[2 * axis + 1] for axis in own):
        parts_of_known(low, op)
        return
    if wanted is None:
        raise Unsupported("a border of unknown size")
    sizes = {}
    for axis, size in own.items():
        more = pads[2 * axis] + pads[2 * axis + 1]
        pads[2 * axis + 1] = wanted[0].shape[axis] - size.bound - pads[2 * axis]
        length = low.dense(of.add(size.length, of.integer(more))) if more else size.length
        sizes[axis] = Size(wanted[0].shape[axis], length) if more else size
    set_sizes(low, op, [sizes])
    op = replace(op, attrs={**op.attrs, "paddings": tuple(pads)})
    run_known(low, under(low, op, {x: whole(low, x, op.attrs["value"])}))


@bounds("concat")
def _sizes_of_all(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    out, parts = declared[0], [tensor(each) for each in given]
    if not isinstance(out, TensorType):
        return None
    axis = op.attrs["axis"] % out.rank
    shape = [max(each.shape[i] for each in parts) if n == -1 else n for i, n in enumerate(out.shape)]
    if out.shape[axis] == -1:
        shape[axis] = in_blocks(sum(each.shape[axis] for each in parts))
    return None if 0 in shape else (TensorType(tuple(shape), parts[0].dtype),)


@rule("concat")
def _concat(low: Lowering, op: Op) -> None:
    """Copy the parts into one array by their largest sizes, then gather the positions within their lengths."""
    axis, of = op.attrs["axis"] % low.type(op.inputs[0]).rank, Maker(low)
    if not any(axis in low.sizes.get(n, {}) for n in op.inputs):
        parts_of_known(low, op)
        return
    others = _other_sizes(low, op.inputs, axis)
    types = low.largest(op)
    if types is None:
        raise Unsupported("parts of unknown size")
    shapes = [low.type(n).shape for n in op.inputs]
    room = low.allocate(_resized(types[0].shape, axis, sum(shape[axis] for shape in shapes)), types[0].dtype)
    bound, offset = types[0].shape[axis], 0
    place = positions((bound,))
    at: Entry = place
    before: Entry = of.integer(0)
    for name, shape in zip(op.inputs, shapes, strict=True):
        low.write(low.entry(name), _part(room, axis, offset, shape[axis]))
        own = of("sub", of.add(place, of.integer(offset)), before)
        at = own if not offset else of.where(of("less_than", place, before), at, own)
        before = of.add(before, low.length(name, axis))
        offset += shape[axis]
    size = Size(bound, low.dense(before))
    places = low.dense(masked(low, at, {0: size}, 0))
    set_sizes(low, op, [{**others, axis: size}])
    low.define(op.outputs[0], taken(low, op, room, places, axis))
    clear_integers(low, op)


@rule("split")
def _split(low: Lowering, op: Op) -> None:
    """Parts of known sizes: the code covers runs in which they add up."""
    x, sections = op.inputs[0], op.attrs["sections"]
    axis = op.attrs["axis"] % low.type(x).rank
    size = low.sizes.get(x, {}).get(axis)
    if size is None:
        parts_of_known(low, op)
        return
    if sections is None or sum(sections) > size.bound or not low.target.expects:
        raise Unsupported("parts of an array whose size only the run tells")
    parts_of_known(low, replace(op, inputs=(first_of(low, x, axis, sum(sections), True),)))


@rule("split_like")
def _split_like(low: Lowering, op: Op) -> None:
    x, *likes = op.inputs
    type, of = low.type(x), Maker(low)
    axis = op.attrs["axis"] % type.rank
    if not any(axis in low.sizes.get(n, {}) for n in op.inputs):
        parts_of_known(low, op)
        return
    others = _other_sizes(low, op.inputs, axis)
    sizes = [low.sizes.get(n, {}).get(axis) for n in likes]
    set_sizes(low, op, [others if size is None else {**others, axis: size} for size in sizes])
    view, last = low.dense(low.entry(x)), of.integer(type.shape[axis] - 1)
    before: Entry = of.integer(0)
    for name, like in zip(op.outputs, likes, strict=True):
        at = of("minimum", of.add(positions((low.type(like).shape[axis],)), before), last)
        low.define(name, taken(low, op, view, at, axis))
        before = of.add(before, low.length(like, axis))
    fits = of("equal", before, low.length(x, axis))
    of.check(fits, "shape_mismatch", "the pieces do not add up to the array", op.location)
    clear_integers(low, op)


def _other_sizes(low: Lowering, names: Sequence[str], axis: int) -> dict[int, Size]:
    """The open sizes along the other axes, which all arrays share."""
    sizes: list[Mapping[int, Size]] = [low.sizes.get(n, {}) for n in names]
    found = {i: size for i, size in sizes[0].items() if i != axis}
    for each in sizes:
        if each.keys() - {axis} != found.keys() or not all(same_size(low, each[i], found[i]) for i in found):
            raise Incomparable
    return found


def _resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _part(view: View, axis: int, start: int, size: int) -> View:
    strides = contiguous(view.shape)
    shape = _resized(view.shape, axis, size)
    return View(view.root, view.dtype, shape, strides, view.offset + start * strides[axis])
