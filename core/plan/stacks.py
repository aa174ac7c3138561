"""Stacks: the values that loops record and run over, and the ops that convert between stacks and arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op, StackType
from core.plan.data import Root, Stack, View, bytes_of, contiguous
from core.plan.entries import Pattern, Uniform
from core.plan.flow import Elements, Growing, Placed, Recording, Source
from core.plan.growing import ArrayOp
from core.plan.lowering import Lowering, lowers
from core.plan.tensor_arrays import element_type, kept, moved
from core.plan.unsupported import Unsupported

__all__ = ["captured", "common_length", "element_of", "record", "slot_of"]

RECORD_BYTES = 16
"""Bytes of a slot that holds a recording: its first slot and its length, int64 each."""


def captured(low: Lowering, name: str) -> Uniform | Pattern | View | Source:
    """The value of a variable for an inner block, which cannot extend the fusions of this one or change its arrays."""
    entry = low.entry(name)
    if isinstance(entry, Growing | Placed):
        source = moved(low, name)
        return replace(source, owned=False) if isinstance(source, Growing) else source
    if isinstance(entry, Uniform | Pattern | Recording | Elements):
        return entry
    return low.stored(entry)


def element_of(low: Lowering, inner: Lowering, stack: str, param: str) -> tuple[Source, Root | Recording]:
    """A stack that a loop runs over, and its element in the body, which becomes `param`."""
    entry = low.entry(stack)
    if isinstance(entry, Growing | Placed):
        element = element_type(low, low.types[stack])
        if inner.type(param) != element:
            raise Unsupported("tensor arrays whose elements have unknown or no sizes")
        return moved(low, stack), _open(inner, param, element.shape, element.dtype)
    if isinstance(entry, Elements):
        view = entry.view
        return entry, _open(inner, param, view.shape[1:], view.dtype)
    assert isinstance(entry, Recording), entry
    if isinstance(entry.element, Recording):
        inside = Recording(entry.element.stack, entry.element.element, entry.element.length)
        inner.define(param, inside)
        return entry, inside
    if isinstance(entry.element, Elements):
        return entry, _open(inner, param, entry.element.view.shape, entry.element.view.dtype)
    type = inner.type(param)
    return entry, _open(inner, param, type.shape, type.dtype)


def record(
    low: Lowering, inner: Lowering, output: str, name: str, root: Root | None, length: int | None
) -> tuple[Recording | Elements, Root | Recording]:
    """The stack that the loop makes of `name`, a result of its body, and the element that a trip writes.

    output: the variable of the stack.
    root:   from `slot_of`.
    length: number of trips, if known.
    """
    if root is not None:
        type = inner.type(name)
        shape, dtype, element = type.shape, type.dtype, None
    else:
        element = inner.entry(name)
        if isinstance(element, Growing | Placed):
            element = kept(inner, name)
        if isinstance(element, Recording):
            element.stack.kept = True
            return Recording(_stack(low, RECORD_BYTES), element, length), element
        shape, dtype = element.view.shape, element.view.dtype
        root = Root(bytes_of(shape, dtype), "element", name)
        inner.write(element.view, View(root, dtype, shape, contiguous(shape)))
    if length is None or output in low.block.results:
        return Recording(_stack(low, root.nbytes), element, length), root
    return Elements(low.allocate((length, *shape), dtype, output)), root


def slot_of(inner: Lowering, name: str) -> Root | None:
    """The slot that a trip writes the recorded value `name` to; None for a value that is a stack itself."""
    if isinstance(inner.types[name], StackType):
        return None
    type = inner.type(name)
    root = Root(bytes_of(type.shape, type.dtype), "element", name)
    inner.destinations.want(name, View(root, type.dtype, type.shape, contiguous(type.shape)))
    return root


def common_length(low: Lowering, stacks: Sequence[Source]) -> int | None:
    """The length of the stacks that a loop runs over; None if it is known only at run time.

    A tensor array that grows is compared with another stack when the code runs.
    """
    lengths = {stack.length for stack in stacks if not isinstance(stack, Growing)}
    for stack in stacks:
        other = next((each for each in stacks if each is not stack), None)
        if isinstance(stack, Growing) and other is not None:
            message = "the stacks of a loop must have the same length"
            check = low.shared.check("shape_mismatch", message, low.location)
            low.add(ArrayOp(None, stack, "same", other=other, check=check, location=low.location))
    if len(lengths) > 1:
        raise Unsupported("stacks of different lengths")
    return next(iter(lengths), None)


def _open(inner: Lowering, param: str, shape: tuple[int, ...], dtype: str) -> Root:
    """A root for `param` in the body: an array, or the elements of one if `param` is a stack."""
    root = Root(bytes_of(shape, dtype), "element", param)
    view = View(root, dtype, shape, contiguous(shape))
    inner.define(param, Elements(view) if isinstance(inner.types[param], StackType) else view)
    return root


def _stack(low: Lowering, slot_bytes: int) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes))
    return low.shared.stacks[-1]


@lowers("array_unstack")
def lower_unstack(low: Lowering, op: Op) -> None:
    low.type(op.inputs[0])
    low.define(op.outputs[0], Elements(low.dense(low.entry(op.inputs[0]))))
