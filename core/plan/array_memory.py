"""Tensor arrays that grow, in memory: copies, changes in place, and records of them.

A write makes a new array, as each op does. The array that it was made from is changed in place if no later op reads it,
and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Op, StackType, TensorType, Type
from core.plan.data import Root, Stack, View, bytes_of, contiguous
from core.plan.data import Sequence as Instructions
from core.plan.flow import Elements, Flattened, Growing, Pending, Placed, Recording, Source, Span
from core.plan.growing import AddArrays, ArrayOp, Flatten, KeepArray, Kind
from core.plan.lowering import Lowering
from core.plan.unsupported import Unsupported

__all__ = [
    "RECORD_BYTES",
    "RULES",
    "add_array",
    "added",
    "begun",
    "carry",
    "change",
    "copied",
    "do",
    "element_type",
    "kept",
    "moved",
    "new_stack",
    "recorded",
    "rule",
    "shape_of",
    "takes_arrays",
]

RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays."""

RECORD_BYTES = 16
"""Bytes of a slot that holds a recording: its first slot and its length, int64 each."""


def rule(*names: str) -> Callable[[Callable[[Lowering, Op], None]], Callable[[Lowering, Op], None]]:
    """Decorator: the function lowers the ops `names` on tensor arrays."""

    def register(function: Callable[[Lowering, Op], None]) -> Callable[[Lowering, Op], None]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def takes_arrays(low: Lowering, op: Op) -> bool:
    """Whether `op` has a rule here and takes or returns tensor arrays."""
    return op.type in RULES and any(isinstance(low.types.get(n), StackType) for n in (*op.inputs, *op.outputs))


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


def begun(low: Lowering, type: Type) -> Growing:
    """Memory for an array of `type`; its length is not set yet."""
    element = element_type(low, type)
    stack = new_stack(low, bytes_of(element.shape, element.dtype))
    return Growing(stack, low.allocate((), "int64", "count"), element.shape, element.dtype)


def new_stack(low: Lowering, slot_bytes: int, kept: bool = False) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes, kept))
    return low.shared.stacks[-1]


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
    late: list[tuple[Growing, Source]] = []
    for name, target in pairs:
        source = moved(low, name)
        if isinstance(source, Growing) and source.stack is target.stack:
            continue
        if isinstance(source, Growing) and source.stack in targets:
            source = copied(low, name)
        late.append((target, source))
    for target, source in late:
        _copy(low, target, source)


def kept(low: Lowering, name: str) -> Recording:
    """The array `name` as a recording, for the record of the loop that the ops of `low` are the body of."""
    element, entry = element_type(low, low.types[name]), low.entry(name)
    size = bytes_of(element.shape, element.dtype)
    if not isinstance(entry, Flattened):
        return recorded(low, moved(low, name), size, kept=True)
    recording = Recording(new_stack(low, size, kept=True))
    low.add(Flatten(None, entry.runs, entry.like, entry.order, recording=recording, location=low.location))
    return recording


def recorded(low: Lowering, source: Source, slot_bytes: int, kept: bool = False) -> Recording:
    recording = Recording(new_stack(low, slot_bytes, kept))
    low.add(KeepArray(None, source, recording, location=low.location))
    return recording


def copied(low: Lowering, name: str) -> Growing:
    """The array `name` in memory of its own."""
    made = begun(low, low.types[name])
    entry = low.entry(name)
    if isinstance(entry, Placed):
        do(low, "clear", made)
        do(low, "put", made, value=entry.value, index=entry.index)
    elif isinstance(entry, Flattened):
        low.add(Flatten(made, entry.runs, entry.like, entry.order, location=low.location))
    else:
        _copy(low, made, entry)
    return made


def _copy(low: Lowering, target: Growing, source: Source) -> None:
    shape = shape_of(source)
    if shape is not None and shape != (target.shape, target.dtype):
        raise Unsupported("tensor arrays of different elements")
    do(low, "copy", target, source)


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
    low.add(ArrayOp(target, source, kind, value, index, check=check, location=low.location))


def added(low: Lowering, a: View, b: View) -> Any:
    attrs: Mapping[str, Any] = {}
    return low.apply("add", attrs, [a, b], [a.dtype, b.dtype], TensorType(a.shape, a.dtype))


def add_array(low: Lowering, target: Growing, source: Source) -> None:
    shape = shape_of(source)
    if shape is not None and shape != (target.shape, target.dtype):
        raise Unsupported("tensor arrays of different elements")
    inner = Lowering(replace(low.block, ops=()), low.shared)
    roots = [Root(target.stack.slot_bytes, "element", name) for name in ("term", "other")]
    a, b = (View(root, target.dtype, target.shape, contiguous(target.shape)) for root in roots)
    total = low.allocate(target.shape, target.dtype)
    inner.write(added(inner, a, b), total)
    first, second = roots
    body = Instructions(inner.instructions.finish())
    low.add(AddArrays(target, source, (first, second), total, body, location=low.location))
