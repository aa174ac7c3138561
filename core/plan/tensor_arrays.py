"""Lowerings of ops on tensor arrays (`core.plan.array_memory`)."""

from __future__ import annotations

from core.ir import Op, StackType, TensorType
from core.ir.precision import is_half
from core.plan.array_elements import common_sizes, element_type, shape_of
from core.plan.array_memory import begun, change, do, index_of, moved, sum_in_place
from core.plan.array_rules import rule
from core.plan.array_runs import complete, sum_of_runs
from core.plan.flow import Elements, Flattened, Pending, Placed, Recording
from core.plan.growing import Flatten
from core.plan.lowering import Lowering
from core.plan.memory import View
from core.plan.open_arrays import join_all
from core.plan.sized import set_sizes
from core.plan.sizes import is_open
from core.plan.unsupported import Unsupported

__all__: list[str] = []

LOST = "index_out_of_range"


def _element(low: Lowering, name: str, array: str) -> View:
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


@rule("create_array", "empty_stack")
def _create(low: Lowering, op: Op) -> None:
    made = begun(low, low.types[op.outputs[0]])
    do(low, "clear", made)
    low.define(op.outputs[0], made)


@rule("assign", "stop_gradient")
def _assign(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], change(low, op, op.inputs[0]))


@rule("fill_zeros_like")
def _zeros(low: Lowering, op: Op) -> None:
    like = moved(low, op.inputs[0])
    made = begun(low, low.types[op.outputs[0]])
    do(low, "clear", made)
    do(low, "extend", made, like)
    low.define(op.outputs[0], made)


@rule("array_write")
def _write(low: Lowering, op: Op) -> None:
    x, index, array = op.inputs
    value, at = _element(low, x, op.outputs[0]), index_of(low, index)
    check = low.shared.check(LOST, "cannot write outside of a tensor array", op.location)
    made = change(low, op, array)
    do(low, "put", made, value=value, index=at, check=check)
    low.define(op.outputs[0], made)


@rule("array_read", "array_take")
def _read(low: Lowering, op: Op) -> None:
    array, index = op.inputs[:2]
    element = element_type(low, low.types[array])
    if own := common_sizes(low, array):
        low.types[op.outputs[0]], low.sizes[op.outputs[0]] = element, dict(own)
    if low.type(op.outputs[0]) != element:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    entry = low.entry(array)
    at = index_of(low, index)
    source = moved(low, array) if isinstance(entry, Pending) else entry
    shape_of(source)
    check = 0
    if op.type == "array_read":
        check = low.shared.check(LOST, "cannot read outside of a tensor array", op.location)
    out = _result(low, op)
    do(low, "get", None, source, value=out, index=at, check=check)
    low.define(op.outputs[0], out)


@rule("array_length")
def _length(low: Lowering, op: Op) -> None:
    source = moved(low, op.inputs[0])
    out = _result(low, op)
    do(low, "count", None, source, value=out)
    low.define(op.outputs[0], out)


@rule("array_place")
def _place(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    low.define(op.outputs[0], Placed(_element(low, x, op.outputs[0]), index_of(low, index)))


@rule("array_erase")
def _erase(low: Lowering, op: Op) -> None:
    at = index_of(low, op.inputs[1])
    made = change(low, op, op.inputs[0])
    do(low, "erase", made, index=at)
    low.define(op.outputs[0], made)


@rule("array_fill")
def _fill(low: Lowering, op: Op) -> None:
    like, entry = moved(low, op.inputs[1]), low.entry(op.inputs[0])
    if isinstance(entry, Elements | Recording) and like.length is not None and like.length == entry.length:
        low.define(op.outputs[0], entry)
        return
    if isinstance(low.types[op.inputs[0]].element, StackType):  # type: ignore[union-attr]
        complete(low, op)
        return
    made = change(low, op, op.inputs[0])
    do(low, "fit", made, like)
    low.define(op.outputs[0], made)


@rule("array_join")
def _join(low: Lowering, op: Op) -> None:
    array = op.inputs[0]
    entry, inside = low.entry(array), common_sizes(low, array)
    declared = low.types[op.outputs[0]]
    if inside and isinstance(declared, TensorType) and declared.shape[0] != -1:
        set_sizes(low, op, [{axis + 1: size for axis, size in inside.items()}])
    elif is_open(declared):
        join_all(low, op)
        return
    if isinstance(entry, Elements) and entry.view.shape == low.types[op.outputs[0]].shape:  # type: ignore[union-attr]
        low.define(op.outputs[0], entry.view)
        return
    element, type = element_type(low, low.types[array]), low.type(op.outputs[0])
    if type.shape[1:] != element.shape or 0 in type.shape:
        raise Unsupported("an array whose length is known only when it runs")
    if not isinstance(entry, Flattened):
        shape_of(moved(low, array))
    check = 0
    if not op.attrs["partial"]:
        message = f"a tensor array has more elements than the {type.shape[0]} that it is joined to"
        check = low.shared.check("shape_mismatch", message, op.location)
    out = _result(low, op)
    if isinstance(entry, Flattened):
        low.add(Flatten(None, entry.runs, entry.like, entry.order, out, check, location=op.location))
    else:
        do(low, "join", None, moved(low, array), value=out, check=check)
    low.define(op.outputs[0], out)


@rule("sum")
def _sum(low: Lowering, op: Op) -> None:
    """The sum of cotangents of an array, in place in the first one. An array of one element is a single addition."""
    names = list(op.inputs)
    if len(names) == 2 and isinstance(low.entry(names[0]), Placed):  # adding two numbers commutes
        names.reverse()
    runs = isinstance(low.types[names[0]].element, StackType)  # type: ignore[union-attr]
    element = element_type(low, low.types[names[0]].element if runs else low.types[names[0]])  # type: ignore[union-attr]
    if element.dtype == "bool":
        raise Unsupported("a sum of bools")
    if is_half(element) and len(names) > 2:
        raise Unsupported("a sum of several 16-bit floats, which is rounded once")
    if runs:
        sum_of_runs(low, op)
        return
    made = change(low, op, names[0])
    sum_in_place(low, made, names[1:])
    low.define(op.outputs[0], made)
