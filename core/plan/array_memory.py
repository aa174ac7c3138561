"""Tensor arrays that grow, in memory: copies, changes in place, and records of them.

A write makes a new array, as each op does. The array that it was made from is changed in place if no later op reads it,
and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Op, StackType, TensorType, Type
from core.plan.array_elements import common_sizes, element_type, held_type, shape_of, sizes_of_elements
from core.plan.entries import Uniform
from core.plan.flow import Flattened, Growing, Pending, Placed, Recording, Source, Vacant
from core.plan.growing import AddArrays, ArrayOp, Flatten, KeepArray, Kind
from core.plan.instructions import Instructions
from core.plan.lowering import Lowering
from core.plan.memory import Root, Stack, View, bytes_of, contiguous
from core.plan.sizes import element_of_all, open_axes
from core.plan.unsupported import Unsupported

__all__ = [
    "RECORD_BYTES",
    "WORD_BYTES",
    "add_array",
    "begun",
    "carry",
    "change",
    "copied",
    "do",
    "fitted",
    "index_of",
    "kept",
    "moved",
    "new_stack",
    "put_sizes",
    "recorded",
    "sum_in_place",
]

WORD_BYTES = 8
"""Bytes of a slot that holds a size."""

RECORD_BYTES = 2 * WORD_BYTES
"""Bytes of a slot that holds a recording: its first slot and its length, int64 each."""


def begun(low: Lowering, type: Type, declared: Type | None = None) -> Growing:
    """Memory for an array of `type`; its length is not set yet.

    type:     with the largest sizes of elements.
    declared: with those sizes open that only the run tells; None for none.
    """
    element = element_type(low, type)
    stack = new_stack(low, bytes_of(element.shape, element.dtype))
    axes = open_axes(element_of_all(declared)) if declared is not None else []
    sizes = tuple((axis, element.shape[axis], begun(low, StackType(TensorType((), "int64")))) for axis in axes)
    return Growing(stack, low.allocate((), "int64", "count"), element.shape, element.dtype, sizes=sizes)


def new_stack(low: Lowering, slot_bytes: int, kept: bool = False) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes, kept))
    return low.shared.stacks[-1]


def index_of(low: Lowering, name: str) -> View:
    """An index in memory, as an int64 scalar."""
    type, entry = low.type(name), low.entry(name)
    if type.dtype != "int64":
        as_int64 = {"dtype": "int64"}
        entry = low.apply("cast", as_int64, [entry], [type.dtype], TensorType(type.shape, "int64"))
    return low.dense(entry)


def change(low: Lowering, op: Op, name: str) -> Growing:
    """The array `name` as one that `op` may change: in place if `op` is the last to read it, else a copy."""
    entry = low.entry(name)
    if isinstance(entry, Growing) and entry.owned and low.uses.read_last(name, op):
        return entry
    return copied(low, name)


def moved(low: Lowering, name: str) -> Source:
    """The array `name` as one that instructions can read."""
    entry = low.entry(name)
    if not isinstance(entry, Pending):
        assert isinstance(entry, Source), entry
        return entry
    low.define(name, copied(low, name))
    found = low.entry(name)
    assert isinstance(found, Growing)
    return found


def carry(low: Lowering, pairs: Sequence[tuple[str, Growing]]) -> None:
    """At the end of a block, copy the value of each variable to the array beside it. Arrays may exchange values."""
    targets = {target.stack for _, target in pairs}
    late: list[tuple[Growing, Source | None]] = []
    for name, target in pairs:
        if isinstance(low.entry(name), Vacant):
            late.append((target, None))
            continue
        source = moved(low, name)
        if isinstance(source, Growing) and source.stack is target.stack:
            continue
        if isinstance(source, Growing) and source.stack in targets:
            source = copied(low, name)
        late.append((target, source))
    for target, made in late:
        if made is None:
            do(low, "clear", target)
        else:
            _copy(low, target, made)


def kept(low: Lowering, name: str) -> Recording:
    """The array `name` as a recording, for the record of the loop that the ops of `low` are the body of."""
    element, entry = element_type(low, held_type(low, name)), low.entry(name)
    size = bytes_of(element.shape, element.dtype)
    if not isinstance(entry, Flattened):
        return recorded(low, moved(low, name), size, kept=True)
    recording = Recording(new_stack(low, size, kept=True))
    low.add(Flatten(None, entry.runs, entry.like, entry.order, recording=recording, location=low.location))
    return recording


def recorded(low: Lowering, source: Source, slot_bytes: int, kept: bool = False) -> Recording:
    own = sizes_of_elements(source)
    sizes = tuple((axis, bound, recorded(low, each, WORD_BYTES, kept)) for axis, bound, each in own)
    recording = Recording(new_stack(low, slot_bytes, kept), sizes=sizes)
    low.add(KeepArray(None, source, recording, location=low.location))
    return recording


def copied(low: Lowering, name: str) -> Growing:
    """The array `name` in memory of its own."""
    made = begun(low, held_type(low, name), None if common_sizes(low, name) else low.block.types[name])
    entry = low.entry(name)
    if isinstance(entry, Vacant):
        do(low, "clear", made)
    elif isinstance(entry, Placed):
        do(low, "clear", made)
        do(low, "put", made, value=entry.value, index=entry.index)
        put_sizes(low, made, entry.index, _sizes_in(low, made, entry))
    elif isinstance(entry, Flattened):
        low.add(Flatten(made, entry.runs, entry.like, entry.order, location=low.location))
    else:
        _copy(low, made, entry)
    return made


def _copy(low: Lowering, target: Growing, source: Source) -> None:
    shape = shape_of(source)
    own = sizes_of_elements(source)
    if (shape is not None and shape != (target.shape, target.dtype)) or not _alike(target, own):
        raise Unsupported("tensor arrays of different elements")
    do(low, "copy", target, source)
    for (_, _, lengths), (_, _, given) in zip(target.sizes, own, strict=True):
        do(low, "copy", lengths, given)


def _alike(target: Growing, sizes: Sequence[tuple[int, int, Any]]) -> bool:
    """Whether the same sizes of the elements of `target` are known only when it runs."""
    return [each[:2] for each in target.sizes] == [each[:2] for each in sizes]


def do(
    low: Lowering,
    kind: Kind,
    target: Growing | None = None,
    source: Source | None = None,
    value: View | None = None,
    index: View | None = None,
    check: int = 0,
) -> None:
    """Append an instruction on an array, and those on the sizes of its elements that follow from it.

    The caller copies sizes, or puts them there (`put_sizes`).
    """
    low.add(ArrayOp(target, source, kind, value, index, check=check, location=low.location))
    if target is not None and kind in ("clear", "erase", "extend", "fit"):
        for _, _, lengths in target.sizes:
            do(low, kind, lengths, source, index=index)


def put_sizes(low: Lowering, array: Growing, index: View, lengths: Sequence[View]) -> None:
    """Write the sizes of an element that was put into an array."""
    for (_, _, sizes), length in zip(array.sizes, lengths, strict=True):
        do(low, "put", sizes, value=length, index=index)


def _sizes_in(low: Lowering, array: Growing, placed: Placed) -> list[View]:
    """The size of an element along each axis that is open in `array`; the element may have a known one there."""
    own = {axis: length for axis, _, length in placed.sizes}
    axes = [axis for axis, _, _ in array.sizes]
    if not own.keys() <= set(axes):
        raise Unsupported("tensor arrays of different elements")
    return [own[axis] if axis in own else low.dense(Uniform(placed.value.shape[axis], "int64", ())) for axis in axes]


def fitted(low: Lowering, value: View, shape: tuple[int, ...], dtype: str) -> View:
    """`value` in memory for an element of `shape`. Raises Unsupported if it is larger."""
    if value.shape == shape:
        return low.dense(value)
    if any(n > m for n, m in zip(value.shape, shape, strict=True)):
        raise Unsupported("tensor arrays of different elements")
    element = low.allocate(shape, dtype)
    low.copy(value, View(element.root, dtype, value.shape, element.strides, element.offset))
    return element


def sum_in_place(low: Lowering, made: Growing, names: Sequence[str]) -> None:
    """Add the cotangents of an array `names` to `made`."""
    for name in names:
        entry = low.entry(name)
        if not isinstance(entry, Placed):
            add_array(low, made, moved(low, name))
            continue
        before = low.allocate(made.shape, made.dtype)
        do(low, "get", None, made, value=before, index=entry.index)
        value = fitted(low, entry.value, made.shape, made.dtype)
        do(low, "put", made, value=low.dense(added(low, before, value)), index=entry.index)
        put_sizes(low, made, entry.index, _sizes_in(low, made, entry))


def added(low: Lowering, a: View, b: View, op: str = "add") -> Any:
    attrs: Mapping[str, Any] = {}
    return low.apply(op, attrs, [a, b], [a.dtype, b.dtype], TensorType(a.shape, a.dtype))


def add_array(low: Lowering, target: Growing, source: Source, op: str = "add") -> None:
    """Add the elements of the source to those of the target. A missing element has the size 0, so the larger one is
    the size of the sum.
    """
    shape, own = shape_of(source), sizes_of_elements(source)
    if (shape is not None and shape != (target.shape, target.dtype)) or not _alike(target, own):
        raise Unsupported("tensor arrays of different elements")
    inner = Lowering(replace(low.block, ops=()), low.shared)
    roots = [Root(target.stack.slot_bytes, "element", name) for name in ("term", "other")]
    a, b = (View(root, target.dtype, target.shape, contiguous(target.shape)) for root in roots)
    total = low.allocate(target.shape, target.dtype)
    inner.write(added(inner, a, b, op), total)
    first, second = roots
    body = Instructions(inner.instructions.finish())
    low.add(AddArrays(target, source, (first, second), total, body, location=low.location))
    for (_, _, lengths), (_, _, given) in zip(target.sizes, own, strict=True):
        add_array(low, lengths, given, "maximum")
