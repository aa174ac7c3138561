"""Ops on tensor arrays that grow.

A write makes a new array, as each op does. The array that it was made from is changed in place if no later op reads it,
and copied otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.ir import HOLE, Op, StackType, TensorType, Type
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.data import Root, Stack, View, bytes_of, contiguous
from core.plan.data import Sequence as Instructions
from core.plan.flow import Elements, Flattened, Growing, Pending, Placed, Recording, Source, Span
from core.plan.growing import AddArrays, ArrayOp, Flatten, KeepArray, Kind, MakeRuns, OpenSpan
from core.plan.lowering import Lowering
from core.plan.plan import NOT_COVERED
from core.plan.shapes import reshaped
from core.plan.sized import masked, set_sizes
from core.plan.sized import rule as sized_rule
from core.plan.sizes import Size, is_open
from core.plan.unbounded import expect
from core.plan.unsupported import Unsupported

__all__ = [
    "RECORD_BYTES",
    "RULES",
    "begun",
    "carry",
    "change",
    "element_type",
    "kept",
    "kept_runs",
    "moved",
    "takes_arrays",
]

RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays."""

RECORD_BYTES = 16
"""Bytes of a slot that holds a recording: its first slot and its length, int64 each."""

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
    stack = _stack(low, bytes_of(element.shape, element.dtype))
    return Growing(stack, low.allocate((), "int64", "count"), element.shape, element.dtype)


def _stack(low: Lowering, slot_bytes: int, kept: bool = False) -> Stack:
    low.shared.stacks.append(Stack(slot_bytes, kept))
    return low.shared.stacks[-1]


def change(low: Lowering, op: Op, name: str) -> Growing:
    """The array `name` as one that `op` may change: in place if `op` is the last to read it, else a copy."""
    entry = low.entry(name)
    if isinstance(entry, Growing) and entry.owned and low.uses.read_last(name, op):
        return entry
    return _copied(low, name)


def moved(low: Lowering, name: str) -> Source:
    """The array `name` as one that instructions can read."""
    entry = low.entry(name)
    if not isinstance(entry, Pending):
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
    element, entry = element_type(low, low.types[name]), low.entry(name)
    size = bytes_of(element.shape, element.dtype)
    if not isinstance(entry, Flattened):
        return _recorded(low, moved(low, name), size, kept=True)
    recording = Recording(_stack(low, size, kept=True))
    low.add(Flatten(None, entry.runs, entry.like, entry.order, recording=recording, location=low.location))
    return recording


def _recorded(low: Lowering, source: Source, slot_bytes: int, kept: bool = False) -> Recording:
    recording = Recording(_stack(low, slot_bytes, kept))
    low.add(KeepArray(None, source, recording, location=low.location))
    return recording


def kept_runs(low: Lowering, runs: Recording) -> Recording:
    """An array of runs with a copy of their elements, for the same purpose. Raises Unsupported for runs of runs."""
    assert runs.source is not None
    shape = _shape(runs.source)
    size = runs.element.stack.slot_bytes if isinstance(runs.element, Recording) else 0
    copy = _recorded(low, runs.source, size if shape is None else bytes_of(*shape), kept=True)
    return _divided(low, copy, runs, lent=False)


def _copied(low: Lowering, name: str) -> Growing:
    """The array `name` in memory of its own."""
    made = begun(low, low.types[name])
    entry = low.entry(name)
    if isinstance(entry, Placed):
        _do(low, "clear", made)
        _do(low, "put", made, value=entry.value, index=entry.index)
    elif isinstance(entry, Flattened):
        low.add(Flatten(made, entry.runs, entry.like, entry.order, location=low.location))
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
    if isinstance(source, Elements | Span):
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
    source = moved(low, array) if isinstance(entry, Pending) else entry
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
    if isinstance(low.types[op.inputs[0]].element, StackType):  # type: ignore[union-attr]
        _complete(low, op)
        return
    made = change(low, op, op.inputs[0])
    _do(low, "fit", made, like)
    low.define(op.outputs[0], made)


@rule("array_join")
def _join(low: Lowering, op: Op) -> None:
    array = op.inputs[0]
    entry = low.entry(array)
    if is_open(low.types[op.outputs[0]]):
        _join_all(low, op)
        return
    if isinstance(entry, Elements) and entry.view.shape == low.types[op.outputs[0]].shape:  # type: ignore[union-attr]
        low.define(op.outputs[0], entry.view)
        return
    element, type = element_type(low, low.types[array]), low.type(op.outputs[0])
    if type.shape[1:] != element.shape or 0 in type.shape:
        raise Unsupported("an array whose length is known only when it runs")
    if not isinstance(entry, Flattened):
        _shape(moved(low, array))
    check = 0
    if not op.attrs["partial"]:
        message = f"a tensor array has more elements than the {type.shape[0]} that it is joined to"
        check = low.shared.check("shape_mismatch", message, op.location)
    out = _result(low, op)
    if isinstance(entry, Flattened):
        low.add(Flatten(None, entry.runs, entry.like, entry.order, out, check, location=op.location))
    else:
        _do(low, "join", None, moved(low, array), value=out, check=check)
    low.define(op.outputs[0], out)


# --- arrays and tensors of sizes that only the run tells ---------------------------------------------------------


def _joined(low: Lowering, op: Op, rows: int = 1) -> tuple[View, Size]:
    """All elements of the array that `op` joins, one after the other, in memory for more of them; and their number.

    rows: of the result for each element.
    """
    (array, *_), (out,) = op.inputs, op.outputs
    element, source = element_type(low, low.types[array]), moved(low, array)
    _shape(source)
    count = low.allocate((), "int64", "count")
    _do(low, "count", None, source, value=count)
    size = expect(low, op, 0, {0: count}, rows)[0]
    types = low.largest(op)
    assert types is not None
    whole = low.allocate(types[0].shape, types[0].dtype, out)
    shape = (size.bound, *element.shape)
    _do(low, "join", None, source, value=replace(whole, shape=shape, strides=contiguous(shape)))
    return whole, size


def _join_all(low: Lowering, op: Op) -> None:
    """A tensor like the result has its size."""
    like = op.inputs[1] if len(op.inputs) > 1 else HOLE
    if like == HOLE:
        whole, size = _joined(low, op)
        set_sizes(low, op, [{0: size}])
        low.define(op.outputs[0], whole)
        return
    element, own, of = element_type(low, low.types[op.inputs[0]]), low.sizes.get(like, {}), Maker(low)
    if own.keys() != {0} or low.type(like).shape[1:] != element.shape:
        raise Unsupported("another size than the first one is known only when it runs")
    set_sizes(low, op, [dict(own)])
    source = moved(low, op.inputs[0])
    _shape(source)
    if not op.attrs["partial"]:
        count = low.allocate((), "int64", "count")
        _do(low, "count", None, source, value=count)
        message = "a tensor array has more elements than the tensor that it is joined to"
        of.check(of("less_equal", count, own[0].length), "shape_mismatch", message, op.location)
    out = low.destination(op.outputs[0])
    _do(low, "join", None, source, value=out)
    low.define(op.outputs[0], masked(low, out, own, 0) if op.attrs["partial"] else out)


@rule("array_concat")
def _concat(low: Lowering, op: Op) -> None:
    """Elements of one size."""
    each, of = element_type(low, low.types[op.inputs[0]]).shape[0], Maker(low)
    whole, size = _joined(low, op, each)
    if all(name == HOLE for name in op.inputs[1:]):
        some = of("greater_than", size.length, of.number(0, "int64"))
        of.check(some, "shape_mismatch", "cannot concatenate an empty array without `like`", op.location)
    if each != 1:
        base, length = size, low.dense(of.mul(size.length, of.number(each, "int64")))
        size = Size(whole.shape[0], length)
        low.multiples[size] = (base, each)
    set_sizes(low, op, [{0: size}])
    low.define(op.outputs[0], whole)


@rule("array_split_as")
def _split_as(low: Lowering, op: Op) -> None:
    """Sections of one size."""
    x, array = op.inputs
    element, of, own = element_type(low, low.types[array]), Maker(low), low.sizes.get(x, {})
    if own.keys() - {0} or not element.shape[0]:
        raise Unsupported("sizes that only the run can compare")
    view, each = low.dense(low.entry(x)), element.shape[0]
    if view.shape[0] % each:
        raise Unsupported("rows that no sections of one size have")
    count = low.allocate((), "int64", "count")
    _do(low, "count", None, moved(low, array), value=count)
    length: Any = own[0].length if own else of.number(view.shape[0], "int64")
    fits = of("equal", of.mul(count, of.number(each, "int64")), length)
    of.check(fits, "shape_mismatch", "x has not as many rows as the elements of the array", op.location)
    sections = reshaped(low, view, (view.shape[0] // each, *element.shape))
    most = of.number(sections.shape[0], "int64")
    low.define(op.outputs[0], _opened(low, low.stored(sections), low.dense(of("minimum", count, most))))


def _opened(low: Lowering, view: View, length: View) -> Span:
    """The array of the first rows of `view`, as many as `length` says."""
    span = Span(view)
    low.add(OpenSpan(None, None, span, length, location=low.location))
    return span


@sized_rule("array_unstack")
def _unstack(low: Lowering, op: Op) -> None:
    own = low.sizes.get(op.inputs[0], {})
    if own.keys() != {0}:
        raise Unsupported("another size than the first one is known only when it runs")
    low.define(op.outputs[0], _opened(low, low.dense(low.entry(op.inputs[0])), own[0].length))


# --- arrays of runs ---------------------------------------------------------------------------------------------


def _divided(
    low: Lowering,
    source: Source,
    like: Recording | None,
    order: int = 0,
    exact: bool = False,
    check: int = 0,
    lent: bool = True,
) -> Recording:
    """An array of runs of the elements of `source`, which nothing changes from now on; see `MakeRuns`, `Recording`."""
    element: Recording | Span
    if isinstance(source, Elements | Span):
        element = Span(source.view)
    elif isinstance(source, Growing):
        element = Recording(source.stack, loose=True)
    else:
        element = replace(source, length=None, loose=True, source=None, order=0)
    runs = Recording(_stack(low, RECORD_BYTES), element, loose=True, lent=lent, source=source, order=order)
    low.add(MakeRuns(None, source, runs, like, order, exact, check, location=low.location))
    return runs


def _lasting(low: Lowering, op: Op, name: str) -> Source:
    """The array `name`, which `op` reads, in memory that nothing changes until a loop around it makes the next trip."""
    element_type(low, low.types[name])
    source = moved(low, name)
    if not isinstance(source, Growing):
        return source
    made = change(low, op, name)
    return made if made.stack in low.shared.stacks[low.first_stack :] else _copied(low, name)


def _runs(low: Lowering, name: str) -> Recording:
    """The array of runs `name`. Raises Unsupported unless its elements lie one by one in memory."""
    entry = low.entry(name)
    if not isinstance(entry, Recording) or not isinstance(entry.element, Recording | Span):
        raise Unsupported("tensor arrays of tensor arrays")
    if isinstance(entry.element, Recording) and entry.element.element is not None:
        raise Unsupported("tensor arrays of tensor arrays")
    return entry


@rule("array_chunks")
def _chunks(low: Lowering, op: Op) -> None:
    low.define(op.outputs[0], _divided(low, _lasting(low, op, op.inputs[0]), None, op.attrs["order"]))


@rule("array_regroup")
def _regroup(low: Lowering, op: Op) -> None:
    """A cotangent may have fewer elements than the runs if a program ends in the middle of them."""
    like, partial = _runs(low, op.inputs[1]), op.attrs["partial"]
    code = NOT_COVERED if partial else "shape_mismatch"
    message = "a tensor array does not have as many elements as the runs that it is divided into"
    check = low.shared.check(code, message, op.location)
    low.define(op.outputs[0], _divided(low, _lasting(low, op, op.inputs[0]), like, 0, not partial, check))


@rule("array_flatten")
def _flatten(low: Lowering, op: Op) -> None:
    element_type(low, low.types[op.outputs[0]])
    like = _runs(low, op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] != HOLE else None
    order, runs = 0 if like is not None else op.attrs["order"], _runs(low, op.inputs[0])
    whole = runs.source is not None and like is None and order in (0, runs.order)
    low.define(op.outputs[0], runs.source if whole else Flattened(runs, like, order))


def _alike(low: Lowering, op: Op, runs: Recording, other: Recording) -> None:
    """The code covers only runs that are as long as those of another array: others are rare."""
    check = low.shared.check(NOT_COVERED, "runs of different lengths", op.location)
    low.add(ArrayOp(None, runs, "alike", other=other, check=check, location=op.location))


def _complete(low: Lowering, op: Op) -> None:
    """An array of runs as the cotangent of another one."""
    runs = _runs(low, op.inputs[0])
    _alike(low, op, runs, _runs(low, op.inputs[1]))
    low.define(op.outputs[0], runs)


def _sum_of_runs(low: Lowering, op: Op) -> None:
    """The sum of all elements in a row, divided again."""
    first, *others = (_runs(low, name) for name in op.inputs)
    element = low.types[op.inputs[0]].element  # type: ignore[union-attr]
    made = begun(low, element)
    low.add(Flatten(made, first, None, 0, location=op.location))
    for each in others:
        _alike(low, op, first, each)
        term = begun(low, element)
        low.add(Flatten(term, each, None, 0, location=op.location))
        _add(low, made, term)
    low.define(op.outputs[0], _divided(low, made, first))


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
        _sum_of_runs(low, op)
        return
    made = change(low, op, names[0])
    for name in names[1:]:
        entry = low.entry(name)
        if isinstance(entry, Placed):
            before = low.allocate(made.shape, made.dtype)
            _do(low, "get", None, made, value=before, index=entry.index)
            _do(low, "put", made, value=low.dense(_added(low, before, entry.value)), index=entry.index)
        else:
            _add(low, made, moved(low, name))
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
