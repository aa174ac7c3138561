"""Tensor arrays that grow, in memory: copies, changes in place, and records of them.

A write makes a new array, as each op does. The array that it was made from is changed in place if no later op reads it,
and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Op, StackType, TensorType, Type
from core.plan.entries import Uniform
from core.plan.flow import Elements, Flattened, Growing, Pending, Placed, Recording, Source, Span, Vacant
from core.plan.growing import AddArrays, ArrayOp, Flatten, KeepArray, Kind
from core.plan.instructions import Instructions
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import same_size
from core.plan.memory import Root, Stack, View, bytes_of, contiguous
from core.plan.registering import registering
from core.plan.sizes import Size, element_of_all, open_axes
from core.plan.unsupported import Unsupported

__all__ = [
    "RECORD_BYTES",
    "RULES",
    "WORD_BYTES",
    "add_array",
    "begun",
    "carry",
    "change",
    "common_sizes",
    "copied",
    "do",
    "element_type",
    "fitted",
    "held_type",
    "index_of",
    "keep_common",
    "kept",
    "moved",
    "new_stack",
    "put_sizes",
    "recorded",
    "rule",
    "set_common",
    "shape_of",
    "sizes_of_elements",
    "sum_in_place",
    "takes_arrays",
]

RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays."""

KEEPING = frozenset({"assign", "stop_gradient", "fill_zeros_like", "array_fill", "array_erase", "sum"})
"""Ops on tensor arrays whose result has elements like those of all operands."""

DIVIDING = frozenset({"array_chunks", "array_flatten", "array_regroup"})
"""Ops whose result has the elements of the first operand, in other runs."""

COMMON = KEEPING | DIVIDING | {"array_join", "array_length", "array_read", "array_take"}
"""Ops whose rules take tensor arrays whose elements have common open sizes."""

WORD_BYTES = 8
"""Bytes of a slot that holds a size."""

RECORD_BYTES = 2 * WORD_BYTES
"""Bytes of a slot that holds a recording: its first slot and its length, int64 each."""


rule = registering(RULES)
"""Decorator: the function lowers the ops of these types on tensor arrays."""


def takes_arrays(low: Lowering, op: Op) -> bool:
    """Whether `op` has a rule here and takes or returns tensor arrays.

    Raises Unsupported for an array whose elements have common open sizes, if the rule takes none.
    """
    if op.type not in RULES:
        return False
    if op.type not in COMMON and any(
        common_sizes(low, n) for n in op.inputs if isinstance(low.types.get(n), StackType)
    ):
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    return any(isinstance(low.types.get(n), StackType) for n in (*op.inputs, *op.outputs))


def set_common(low: Lowering, array: str, sizes: Mapping[int, Size]) -> None:
    """Set the open sizes that all elements of a tensor array have; its type has the largest ones."""
    if sizes:
        low.sizes[array] = dict(sizes)


def common_sizes(low: Lowering, array: str) -> Mapping[int, Size]:
    """The open sizes that all elements of a tensor array are known to have."""
    return low.sizes.get(array, {})


def keep_common(low: Lowering, op: Op) -> None:
    """Set the common sizes of the tensor array that `op` makes of arrays with such sizes."""
    made = low.types[op.outputs[0]]
    if op.type not in KEEPING | DIVIDING or not isinstance(made, StackType):
        return
    first, *others = (n for n in op.inputs if isinstance(low.types.get(n), StackType))
    element, sizes = element_of_all(low.types[first]), common_sizes(low, first)
    for each in others if op.type in KEEPING else ():
        own = common_sizes(low, each)
        if element_of_all(low.types[each]) != element or own.keys() != sizes.keys():
            return
        if not all(same_size(low, sizes[axis], own[axis]) for axis in sizes):
            return
    if sizes:
        low.types[op.outputs[0]] = _of_elements(made, element)
        set_common(low, op.outputs[0], sizes)


def _of_elements(array: Type, element: Type) -> Type:
    """The type of a tensor array, or of one of tensor arrays, with other elements inside."""
    return StackType(_of_elements(array.element, element)) if isinstance(array, StackType) else element


def element_type(low: Lowering, type: Type) -> TensorType:
    """The type of the elements of a tensor array. Raises Unsupported unless generated code can hold them in slots."""
    if not low.target.grows:
        raise Unsupported("tensor arrays that grow")
    element = type.element if isinstance(type, StackType) else None
    if not isinstance(element, TensorType):
        raise Unsupported("tensor arrays of tensor arrays")
    if not element.is_static or 0 in element.shape:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    if element.dtype not in low.target.dtypes:
        raise Unsupported(f"no machine code for {element.dtype}")
    return element


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


def held_type(low: Lowering, name: str) -> Type:
    """The type of a variable; that of a tensor array with the largest sizes of the arrays inside, if its value tells
    them.
    """
    type = low.types[name]
    return _stack_type(type, low.entry(name)) if isinstance(type, StackType) else type


def _stack_type(type: StackType, entry: object) -> StackType:
    if isinstance(type.element, StackType):
        inside = entry.element if isinstance(entry, Recording) and isinstance(entry.element, Recording) else entry
        return StackType(_stack_type(type.element, inside))
    if isinstance(entry, Vacant):
        return StackType(entry.type)
    if isinstance(entry, Placed):
        return StackType(TensorType(entry.value.shape, entry.value.dtype))
    if not isinstance(entry, Growing | Recording) or not isinstance(type.element, TensorType):
        return type
    bounds = {axis: bound for axis, bound, _ in entry.sizes}
    shape = tuple(bounds.get(axis, n) for axis, n in enumerate(type.element.shape))
    return StackType(TensorType(shape, type.element.dtype))


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


def sizes_of_elements(source: Source) -> tuple[tuple[int, int, Any], ...]:
    """(axis, largest size, array of the sizes) for each axis of the elements whose size only the run tells."""
    return source.sizes if isinstance(source, Growing | Recording) else ()


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


def shape_of(source: Source) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of the elements; None for recordings, whose types are those of their variables."""
    if isinstance(source, Growing):
        return source.shape, source.dtype
    if isinstance(source, Elements | Span):
        return source.view.shape[1:], source.view.dtype
    if source.element is not None:
        raise Unsupported("tensor arrays of tensor arrays")
    return None


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
