"""Ops that change views: reshape, transpose, slice and others. They copy only if strides cannot describe the result."""

from __future__ import annotations

from dataclasses import replace

from core.ir import Op
from core.ir.errors import InternalError
from core.ops.indexing.gather import cut
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.fusion import Member
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View

__all__ = [
    "expanded",
    "inverse",
    "order_of_axes",
    "reshaped",
    "reshaped_view",
    "sole_transposition",
    "transposed",
    "with_ones",
]


@lowers("assign", "stop_gradient")
def lower_alias(low: Lowering, op: Op) -> None:
    low.type(op.outputs[0])
    low.define(op.outputs[0], low.entry(op.inputs[0]))


@lowers("barrier")
def lower_barrier(low: Lowering, op: Op) -> None:
    for out, name in zip(op.outputs, op.inputs, strict=True):
        low.type(out)
        low.define(out, low.entry(name))


@lowers("reshape", "reshape_as", "unsqueeze", "squeeze", "merge_axes", "unflatten")
def lower_reshape(low: Lowering, op: Op) -> None:
    out = op.outputs[0]
    low.define(out, reshaped(low, low.entry(op.inputs[0]), low.type(out).shape))


def reshaped(low: Lowering, entry: Entry, shape: tuple[int, ...]) -> Entry:
    """`entry` with another shape of the same number of elements; a copy if strides cannot describe it."""
    if isinstance(entry, Uniform):
        return replace(entry, shape=shape)
    if isinstance(entry, Pattern):
        places = reshaped_view(entry.places, shape)
        if places is not None:
            return replace(entry, places=places)
        entry = low.stored(entry)
    if [n for n in entry.shape if n != 1] == [n for n in shape if n != 1]:
        return with_ones(entry, shape)
    view = low.stored(entry)
    found = reshaped_view(view, shape) or reshaped_view(low.dense(view), shape)
    if found is None:
        raise InternalError(f"cannot view a dense array of shape {list(view.shape)} as {list(shape)}")
    return found


def with_ones(entry: Entry, shape: tuple[int, ...]) -> Entry:
    """`entry` with another shape that differs only in axes of size 1."""
    if isinstance(entry, Uniform):
        return replace(entry, shape=shape)
    if isinstance(entry, Pattern):
        places = with_ones(entry.places, shape)
        assert isinstance(places, View)
        return replace(entry, places=places)
    if isinstance(entry, Member):
        axes = iter([a for a, n in zip(entry.axes, entry.shape, strict=True) if n != 1])
        return replace(entry, shape=shape, axes=tuple(None if n == 1 else next(axes) for n in shape))
    steps = iter([s for s, n in zip(entry.strides, entry.shape, strict=True) if n != 1])
    return replace(entry, shape=shape, strides=tuple(0 if n == 1 else next(steps) for n in shape))


def reshaped_view(view: View, shape: tuple[int, ...]) -> View | None:
    """`view` with another shape; None if no strides describe it."""
    old = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if n != 1]
    strides: list[int] = []
    at = 0
    left, step = (1, 0)
    sizes = list(shape)
    for i, size in enumerate(sizes):
        if size == 1:
            strides.append(0)
            continue
        while left % size or left == 1:  # merge axes of the old shape until this size divides them
            if at == len(old):
                return None
            n, s = old[at]
            if left == 1:
                left, step = n, s
            elif step == n * s:
                left, step = left * n, s
            else:
                return None
            at += 1
        left //= size
        strides.append(step * left)
        if i == len(sizes) - 1 and left != 1:
            return None
    return replace(view, shape=shape, strides=tuple(strides)) if left == 1 and at == len(old) else None


@lowers("transpose")
def lower_transpose(low: Lowering, op: Op) -> None:
    entry = low.entry(op.inputs[0])
    low.type(op.outputs[0])
    low.define(op.outputs[0], transposed(entry, order_of_axes(op, len(entry.shape))))


def sole_transposition(low: Lowering, op: Op) -> tuple[str, tuple[int, ...]] | None:
    """The transposition that alone reads the result of `op`: its result, and the order of its axes; else None.

    Then `op` may compute the transposed result, in the memory that this one needs.
    """
    (name,) = op.outputs
    readers = low.uses.readers(name)
    reader = readers[0] if len(readers) == 1 else None
    if reader is None or reader.type != "transpose" or low.sizes.get(name):
        return None
    rank = len(low.type(name).shape)
    if rank < 2 or name in low.destinations.sums or low.destinations.open(name) is not None:
        return None
    return reader.outputs[0], order_of_axes(reader, rank)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order that undoes `order`."""
    return tuple(order.index(i) for i in range(len(order)))


def order_of_axes(op: Op, rank: int) -> tuple[int, ...]:
    """For each axis of the result of a `transpose`, the axis of its operand."""
    axes = op.attrs["axes"]
    return tuple(reversed(range(rank))) if axes is None else tuple(a % rank for a in axes)


def transposed(entry: Entry, order: tuple[int, ...]) -> Entry:
    shape = tuple(entry.shape[i] for i in order)
    if isinstance(entry, Uniform):
        return replace(entry, shape=shape)
    if isinstance(entry, Pattern):
        places = replace(entry.places, shape=shape, strides=tuple(entry.places.strides[i] for i in order))
        return replace(entry, places=places)
    if isinstance(entry, Member):
        return replace(entry, shape=shape, axes=tuple(entry.axes[i] for i in order))
    return replace(entry, shape=shape, strides=tuple(entry.strides[i] for i in order))


@lowers("expand", "expand_as")
def lower_expand(low: Lowering, op: Op) -> None:
    shape = low.type(op.outputs[0]).shape
    entry = low.entry(op.inputs[0])
    low.define(op.outputs[0], expanded(entry, shape))


def expanded(entry: Entry, shape: tuple[int, ...]) -> Entry:
    """`entry` broadcast to `shape`."""
    if isinstance(entry, Uniform):
        return replace(entry, shape=shape)
    if isinstance(entry, Pattern):
        places = expanded(entry.places, shape)
        assert isinstance(places, View)
        return replace(entry, places=places)
    extra = len(shape) - len(entry.shape)
    kept = [n == m for n, m in zip(entry.shape, shape[extra:], strict=True)]
    if isinstance(entry, Member):
        own = tuple(a if k else None for a, k in zip(entry.axes, kept, strict=True))
        return replace(entry, shape=shape, axes=(None,) * extra + own)
    steps = tuple(s if k else 0 for s, k in zip(entry.strides, kept, strict=True))
    return replace(entry, shape=shape, strides=(0,) * extra + steps)


@lowers("concat")
def lower_concat(low: Lowering, op: Op) -> None:
    axis = op.attrs["axis"] % len(low.type(op.outputs[0]).shape)
    whole = low.destination(op.outputs[0])
    offset = whole.offset
    for name in op.inputs:
        shape = low.type(name).shape
        low.write(low.entry(name), View(whole.root, whole.dtype, shape, whole.strides, offset))
        offset += shape[axis] * whole.strides[axis]
    low.define(op.outputs[0], whole)


@lowers("pad_constant", "slice_into")
def lower_pad(low: Lowering, op: Op) -> None:
    """Fill the whole array, then write the operand into its middle."""
    whole = low.destination(op.outputs[0])
    entry = low.entry(op.inputs[0])
    low.copy(Uniform(op.attrs.get("value", 0), whole.dtype, whole.shape), whole)
    offset, strides = whole.offset, list(whole.strides)
    if op.type == "pad_constant":
        for before, stride in zip(op.attrs["paddings"][::2], whole.strides, strict=True):
            offset += before * stride
    else:
        for axis, part in cut(len(whole.shape), **op.attrs):
            start, _, step = part.indices(whole.shape[axis])
            offset += start * strides[axis]
            strides[axis] *= step
    low.copy(entry, View(whole.root, whole.dtype, entry.shape, tuple(strides), offset))
    low.define(op.outputs[0], whole)


@lowers("fill_constant", "fill_constant_batch_size_like")
def lower_fill(low: Lowering, op: Op) -> None:
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], Uniform(op.attrs["value"], type.dtype, type.shape))


@lowers("fill_zeros_like", "full_like")
def lower_fill_like(low: Lowering, op: Op) -> None:
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], Uniform(op.attrs.get("value", 0), type.dtype, type.shape))
