"""Ops on tensor arrays that grow.

A write makes a new array, as each op does. The array that it was made from is changed in place if no later op reads it,
and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import Op, StackType, TensorType, Type
from core.ir.precision import is_half
from core.plan.data import Root, Stack, View, bytes_of, contiguous
from core.plan.data import Sequence as Instructions
from core.plan.flow import Elements, Growing, Placed, Recording, Source
from core.plan.growing import AddArrays, ArrayOp, KeepArray, Kind
from core.plan.lowering import Lowering
from core.plan.unsupported import Unsupported

__all__ = ["RULES", "begun", "carry", "change", "element_type", "kept", "moved", "takes_arrays"]

RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays."""

LOST = "index_out_of_range"


def rule(*names: str) -> Callable[[Callable[[Lowering, Op], None]], Callable[[Lowering, Op], None]]:
    """Decorator: the function lowers the ops `names` on tensor arrays."""

    def register(function: Callable[[Lowering, Op], None]) -> Callable[[Lowering, Op], None]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def takes_arrays(low: Lowering, op: Op) -> bool:
    """Whether `op` has a rule here and takes or returns tensor arrays."""
    return op.type in RULES and any(isinstance(low.types.get(n), StackType) for n in (*op.inputs, *op.outputs))


# --- arrays in memory -------------------------------------------------------------------------------------------


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
    low.shared.stacks.append(Stack(bytes_of(element.shape, element.dtype)))
    return Growing(low.shared.stacks[-1], low.allocate((), "int64", "count"), element.shape, element.dtype)


def change(low: Lowering, op: Op, name: str) -> Growing:
    """The array `name` as one that `op` may change: in place if `op` is the last to read it, else a copy."""
    entry = low.entry(name)
    if isinstance(entry, Growing) and entry.owned and low.uses.read_last(name, op):
        return entry
    return _copied(low, name)


def moved(low: Lowering, name: str) -> Source:
    """The array `name` as one that instructions can read."""
    entry = low.entry(name)
    if not isinstance(entry, Placed):
        assert isinstance(entry, Source), entry
        return entry
    low.define(name, _copied(low, name))
    found = low.entry(name)
    assert isinstance(found, Growing)
    return found


def carry(low: Lowering, pairs: Sequence[tuple[str, Growing]]) -> None:
    """Give each array the value of the variable beside it, at the end of a block. Arrays may exchange their values."""
    targets = {target.stack for _, target in pairs}
    late: list[tuple[Growing, Source]] = []
    for name, target in pairs:
        source = moved(low, name)
        if isinstance(source, Growing) and source.stack is target.stack:
            continue
        if isinstance(source, Growing) and source.stack in targets:
            source = _copied(low, name)
        late.append((target, source))
    for target, source in late:
        _copy(low, target, source)


def kept(low: Lowering, name: str) -> Recording:
    """The array `name` as a recording, for the record of the loop that the ops of `low` are the body of."""
    element = element_type(low, low.types[name])
    low.shared.stacks.append(Stack(bytes_of(element.shape, element.dtype), kept=True))
    recording = Recording(low.shared.stacks[-1])
    low.add(KeepArray(None, moved(low, name), recording, location=low.location))
    return recording


def _copied(low: Lowering, name: str) -> Growing:
    """The array `name` in memory of its own."""
    made = begun(low, low.types[name])
    entry = low.entry(name)
    if isinstance(entry, Placed):
        _do(low, "clear", made)
        _do(low, "put", made, value=entry.value, index=entry.index)
    else:
        _copy(low, made, entry)
    return made


def _copy(low: Lowering, target: Growing, source: Source) -> None:
    shape = _shape(source)
    if shape is not None and shape != (target.shape, target.dtype):
        raise Unsupported("tensor arrays of different elements")
    _do(low, "copy", target, source)


def _shape(source: Source) -> tuple[tuple[int, ...], str] | None:
    """The shape and dtype of the elements; None for recordings, whose types are those of their variables."""
    if isinstance(source, Growing):
        return source.shape, source.dtype
    if isinstance(source, Elements):
        return source.view.shape[1:], source.view.dtype
    if source.element is not None:
        raise Unsupported("tensor arrays of tensor arrays")
    return None


def _do(
    low: Lowering,
    kind: Kind,
    target: Growing | None = None,
    source: Source | None = None,
    value: View | None = None,
    index: View | None = None,
    check: int = 0,
) -> None:
    low.add(ArrayOp(target, source, kind, value, index, check=check, location=low.location))


def _index(low: Lowering, name: str) -> View:
    """An index in memory, as an int64 scalar."""
    type, entry = low.type(name), low.entry(name)
    if type.dtype != "int64":
        as_int64 = {"dtype": "int64"}
        entry = low.apply("cast", as_int64, [entry], [type.dtype], TensorType(type.shape, "int64"))
    return low.dense(entry)


def _element(low: Lowering, op: Op, name: str, array: str) -> View:
    """The value of `name` in memory, as an element of the array of the variable `array`."""
    type = low.type(name)
    if type != element_type(low, low.types[array]):
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    return low.dense(low.entry(name))


def _result(low: Lowering, op: Op) -> View:
    (out,) = op.outputs
    low.type(out)
    low.stand_alone(out)
    return low.destination(out)


# --- the rules --------------------------------------------------------------------------------------------------


@rule("create_array", "empty_stack")
def _create(low: Lowering, op: Op) -> None:
    made = begun(low, low.types[op.outputs[0]])
    _do(low, "clear", made)
    low.define(op.outputs[0], made)


@rule("assign", "stop_gradient")
def _assign(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], change(low, op, op.inputs[0]))


@rule("fill_zeros_like")
def _zeros(low: Lowering, op: Op) -> None:
    like = moved(low, op.inputs[0])
    made = begun(low, low.types[op.outputs[0]])
    _do(low, "clear", made)
    _do(low, "extend", made, like)
    low.define(op.outputs[0], made)


@rule("array_write")
def _write(low: Lowering, op: Op) -> None:
    x, index, array = op.inputs
    value, at = _element(low, op, x, op.outputs[0]), _index(low, index)
    check = low.shared.check(LOST, "cannot write beyond the end of a tensor array", op.location)
    made = change(low, op, array)
    _do(low, "put", made, value=value, index=at, check=check)
    low.define(op.outputs[0], made)


@rule("array_read", "array_take")
def _read(low: Lowering, op: Op) -> None:
    array, index = op.inputs[:2]
    element = element_type(low, low.types[array])
    if low.type(op.outputs[0]) != element:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    entry = low.entry(array)
    at = _index(low, index)
    source = moved(low, array) if isinstance(entry, Placed) else entry
    _shape(source)
    check = 0
    if op.type == "array_read":
        check = low.shared.check(LOST, "cannot read beyond the end of a tensor array", op.location)
    out = _result(low, op)
    _do(low, "get", None, source, value=out, index=at, check=check)
    low.define(op.outputs[0], out)


@rule("array_length")
def _length(low: Lowering, op: Op) -> None:
    source = moved(low, op.inputs[0])
    out = _result(low, op)
    _do(low, "count", None, source, value=out)
    low.define(op.outputs[0], out)


@rule("array_place")
def _place(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    low.define(op.outputs[0], Placed(_element(low, op, x, op.outputs[0]), _index(low, index)))


@rule("array_erase")
def _erase(low: Lowering, op: Op) -> None:
    at = _index(low, op.inputs[1])
    made = change(low, op, op.inputs[0])
    _do(low, "erase", made, index=at)
    low.define(op.outputs[0], made)


@rule("array_fill")
def _fill(low: Lowering, op: Op) -> None:
    like, entry = moved(low, op.inputs[1]), low.entry(op.inputs[0])
    if isinstance(entry, Elements | Recording) and like.length is not None and like.length == entry.length:
        low.define(op.outputs[0], entry)
        return
    made = change(low, op, op.inputs[0])
    _do(low, "fit", made, like)
    low.define(op.outputs[0], made)


@rule("array_join")
def _join(low: Lowering, op: Op) -> None:
    array = op.inputs[0]
    entry = low.entry(array)
    if isinstance(entry, Elements) and entry.view.shape == low.types[op.outputs[0]].shape:  # type: ignore[union-attr]
        low.define(op.outputs[0], entry.view)
        return
    element, type = element_type(low, low.types[array]), low.type(op.outputs[0])
    if type.shape[1:] != element.shape or 0 in type.shape:
        raise Unsupported("an array whose length is known only when it runs")
    source = moved(low, array)
    _shape(source)
    check = 0
    if not op.attrs["partial"]:
        message = f"a tensor array has more elements than the {type.shape[0]} that it is joined to"
        check = low.shared.check("shape_mismatch", message, op.location)
    out = _result(low, op)
    _do(low, "join", None, source, value=out, check=check)
    low.define(op.outputs[0], out)


@rule("sum")
def _sum(low: Lowering, op: Op) -> None:
    """The sum of cotangents of an array, in place in the first one. An array of one element is a single addition."""
    names = list(op.inputs)
    if len(names) == 2 and isinstance(low.entry(names[0]), Placed):  # adding two numbers commutes
        names.reverse()
    element = element_type(low, low.types[names[0]])
    if element.dtype == "bool":
        raise Unsupported("a sum of bools")
    if is_half(element) and len(names) > 2:
        raise Unsupported("a sum of several 16-bit floats, which is rounded once")
    made = change(low, op, names[0])
    for name in names[1:]:
        entry = low.entry(name)
        if isinstance(entry, Placed):
            before = low.allocate(made.shape, made.dtype)
            _do(low, "get", None, made, value=before, index=entry.index)
            _do(low, "put", made, value=low.dense(_added(low, before, entry.value)), index=entry.index)
        else:
            _add(low, made, entry)
    low.define(op.outputs[0], made)


def _added(low: Lowering, a: View, b: View) -> Any:
    attrs: Mapping[str, Any] = {}
    return low.apply("add", attrs, [a, b], [a.dtype, b.dtype], TensorType(a.shape, a.dtype))


def _add(low: Lowering, target: Growing, source: Source) -> None:
    shape = _shape(source)
    if shape is not None and shape != (target.shape, target.dtype):
        raise Unsupported("tensor arrays of different elements")
    inner = Lowering(replace(low.block, ops=()), low.shared)
    roots = [Root(target.stack.slot_bytes, "element", name) for name in ("term", "other")]
    a, b = (View(root, target.dtype, target.shape, contiguous(target.shape)) for root in roots)
    total = low.allocate(target.shape, target.dtype)
    inner.write(_added(inner, a, b), total)
    first, second = roots
    body = Instructions(inner.instructions.finish())
    low.add(AddArrays(target, source, (first, second), total, body, location=low.location))
