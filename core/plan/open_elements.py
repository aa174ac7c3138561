"""Lowerings of ops on tensor arrays whose elements have sizes that only the run tells.

Such an array has memory for elements of the largest size. For each open axis, another array holds the sizes of the
elements. A missing element of a cotangent is zeros and has the size 0.
"""

from __future__ import annotations

from collections.abc import Callable

from core.ir import HOLE, Op, StackType, TensorType
from core.ir.precision import is_half
from core.plan.array_elements import held_type, sizes_of_elements
from core.plan.array_memory import begun, change, do, fitted, index_of, moved, put_sizes, sum_in_place
from core.plan.compose import Maker
from core.plan.element_sizes import cut_type, vacant_type
from core.plan.entries import Uniform
from core.plan.flow import Growing, Placed, Source, Span, Vacant
from core.plan.growing import CountRows, CutRows, JoinRows, OpenSpan
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import known_size
from core.plan.memory import View
from core.plan.registering import registering
from core.plan.sized import clear_integers
from core.plan.sizes import Size, element_of_all, is_open, open_axes
from core.plan.unbounded import expect
from core.plan.unsupported import Unsupported

__all__ = ["OPEN_RULES", "takes_open_elements"]

OPEN_RULES: dict[str, Callable[[Lowering, Op], None]] = {}
"""Type of an op -> the function that lowers it if it takes or returns tensor arrays of such elements."""

LOST = "index_out_of_range"


rule = registering(OPEN_RULES)
"""Decorator: the function lowers the ops of these types on tensor arrays whose elements have open sizes."""


def takes_open_elements(low: Lowering, op: Op) -> bool:
    """Whether `op` has a rule here and takes or returns tensor arrays of such elements."""
    names = (n for n in (*op.inputs, *op.outputs) if n != HOLE)
    return op.type in OPEN_RULES and any(
        isinstance(low.types[n], StackType) and is_open(element_of_all(low.types[n])) for n in names
    )


# --- single elements --------------------------------------------------------------------------------------------


def _declared_axes(low: Lowering, array: str) -> list[int]:
    return open_axes(element_of_all(low.types[array]))


def _held(low: Lowering, array: str) -> TensorType:
    """The type of the elements of an array with their largest sizes. Raises Unsupported if there are none."""
    type = held_type(low, array)
    if not isinstance(type, StackType) or not isinstance(type.element, TensorType) or not type.element.is_static:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    return type.element


def _lengths(low: Lowering, name: str, axes: list[int]) -> list[View]:
    """The sizes of a variable along some axes, int64 scalars."""
    own, type = low.sizes.get(name, {}), low.type(name)
    if own.keys() - set(axes):
        raise Unsupported(f"the size of {name} is known only when it runs")
    return [low.dense((own[axis] if axis in own else known_size(low, type.shape[axis])).length) for axis in axes]


def _array_for(low: Lowering, op: Op, name: str, element: TensorType) -> Growing:
    """The array `name`, which `op` changes, with room for an element of this type."""
    entry = low.entry(name)
    if isinstance(entry, Vacant):
        made = begun(low, StackType(element), low.types[op.outputs[0]])
        do(low, "clear", made)
        return made
    return change(low, op, name)


def _open_axes_only(array: Source, axes: list[int]) -> None:
    """Raise Unsupported unless the array holds the sizes of its elements along exactly these axes."""
    if [axis for axis, _, _ in sizes_of_elements(array)] != axes:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")


@rule("create_array", "empty_stack")
def _create(low: Lowering, op: Op) -> None:
    if not low.target.grows:
        raise Unsupported("tensor arrays that grow")
    made = vacant_type(op, low.types)
    if not isinstance(made, StackType) or not isinstance(made.element, TensorType) or 0 in made.element.shape:
        raise Unsupported("tensor arrays whose elements have unknown or no sizes")
    low.define(op.outputs[0], Vacant(made.element))


@rule("assign", "stop_gradient")
def _assign(low: Lowering, op: Op) -> None:
    entry = low.entry(op.inputs[0])
    low.define(op.outputs[0], entry if isinstance(entry, Vacant) else change(low, op, op.inputs[0]))


@rule("array_write")
def _write(low: Lowering, op: Op) -> None:
    x, index, array = op.inputs
    type, axes = low.type(x), _declared_axes(low, op.outputs[0])
    lengths, at = _lengths(low, x, axes), index_of(low, index)
    check = low.shared.check(LOST, "cannot write outside of a tensor array", op.location)
    made = _array_for(low, op, array, type)
    _open_axes_only(made, axes)
    value = fitted(low, low.dense(low.entry(x)), made.shape, made.dtype)
    do(low, "put", made, value=value, index=at, check=check)
    put_sizes(low, made, at, lengths)
    low.define(op.outputs[0], made)


@rule("array_read")
def _read(low: Lowering, op: Op) -> None:
    array, index = op.inputs
    source, at = moved(low, array), index_of(low, index)
    _open_axes_only(source, _declared_axes(low, array))
    type = _held(low, array)
    check = low.shared.check(LOST, "cannot read outside of a tensor array", op.location)
    own = {}
    for axis, bound, lengths in sizes_of_elements(source):
        length = low.allocate((), "int64", "length")
        do(low, "get", None, lengths, value=length, index=at)
        own[axis] = Size(bound, length)
    _define(low, op, type, own)
    do(low, "get", None, source, value=_result(low, op), index=at, check=check)
    clear_integers(low, op)


@rule("array_take")
def _take(low: Lowering, op: Op) -> None:
    """An element of the cotangent of an array has the sizes of the element of that array."""
    array, index, like = op.inputs
    source, at, type = moved(low, array), index_of(low, index), low.type(like)
    _open_axes_only(source, _declared_axes(low, array))
    held, own = _held(low, array), _sizes_like(low, op, like)
    _check_sizes_of(low, op, source, at, type, own)
    _define(low, op, type, own)
    if held == type:
        do(low, "get", None, source, value=_result(low, op), index=at)
        return
    shape = tuple(map(max, zip(held.shape, type.shape, strict=True)))
    most = low.allocate(shape, type.dtype)
    if any(n < m for n, m in zip(held.shape, shape, strict=True)):
        low.copy(Uniform(0, type.dtype, shape), most)
    if held.shape[1:] != type.shape[1:]:
        raise Unsupported("tensor arrays of different elements")
    do(low, "get", None, source, value=View(most.root, held.dtype, held.shape, most.strides, most.offset), index=at)
    low.define(op.outputs[0], View(most.root, type.dtype, type.shape, most.strides, most.offset))


def _check_sizes_of(low: Lowering, op: Op, source: Source, at: View, type: TensorType, own: dict[int, Size]) -> None:
    """Check that an element that is there has the sizes of a result of `type`, of which `own` are open."""
    of = Maker(low)
    for axis, _, lengths in sizes_of_elements(source):
        length = low.allocate((), "int64", "length")
        do(low, "get", None, lengths, value=length, index=at)  # 0 if it is missing
        wanted = own[axis].length if axis in own else of.integer(type.shape[axis])
        fine = of("logical_or", of("equal", length, wanted), of("equal", length, of.integer(0)))
        of.check(fine, "shape_mismatch", "an element of the array has another shape than the result", op.location)


@rule("array_place")
def _place(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    axes = _declared_axes(low, op.outputs[0])
    value, type = low.dense(low.entry(x)), low.type(x)
    sizes = zip(axes, _lengths(low, x, axes), strict=True)
    placed = tuple((axis, type.shape[axis], length) for axis, length in sizes)
    low.define(op.outputs[0], Placed(value, index_of(low, index), placed))


@rule("array_erase")
def _erase(low: Lowering, op: Op) -> None:
    at, made = index_of(low, op.inputs[1]), change(low, op, op.inputs[0])
    do(low, "erase", made, index=at)
    low.define(op.outputs[0], made)


# --- whole arrays -----------------------------------------------------------------------------------------------


@rule("fill_zeros_like")
def _zeros(low: Lowering, op: Op) -> None:
    like = moved(low, op.inputs[0])
    made = _vacant_like(low, op, op.inputs[0])
    do(low, "extend", made, like)
    _same_sizes(low, made, like)
    low.define(op.outputs[0], made)


@rule("array_fill")
def _fill(low: Lowering, op: Op) -> None:
    like = moved(low, op.inputs[1])
    if isinstance(low.entry(op.inputs[0]), Vacant):
        made = _vacant_like(low, op, op.inputs[1])
    else:
        made = change(low, op, op.inputs[0])
    do(low, "fit", made, like)
    _same_sizes(low, made, like)
    low.define(op.outputs[0], made)


def _vacant_like(low: Lowering, op: Op, like: str) -> Growing:
    """The result of `op`, an empty array, in memory for elements like those of the array `like`."""
    made = begun(low, held_type(low, like), low.types[op.outputs[0]])
    do(low, "clear", made)
    return made


def _same_sizes(low: Lowering, array: Growing, like: Source) -> None:
    """Give the elements of an array, which may lack some, the sizes of those of another one."""
    given = sizes_of_elements(like)
    if [each[:2] for each in array.sizes] != [each[:2] for each in given]:
        raise Unsupported("tensor arrays of different elements")
    for (_, _, sizes), (_, _, other) in zip(array.sizes, given, strict=True):
        do(low, "copy", sizes, other)


@rule("sum")
def _sum(low: Lowering, op: Op) -> None:
    """The sum of cotangents of an array, in place in the first one."""
    names = [n for n in op.inputs if not isinstance(low.entry(n), Vacant)]
    if not names or (len(names) == 1 and isinstance(low.entry(names[0]), Placed)):
        low.define(op.outputs[0], low.entry(names[0] if names else op.inputs[0]))
        return
    if len(names) == 2 and isinstance(low.entry(names[0]), Placed):  # adding two numbers commutes
        names.reverse()
    element = _held(low, names[0])
    if element.dtype == "bool" or (is_half(element) and len(names) > 2):
        raise Unsupported("a sum of tensor arrays of such elements")
    made = change(low, op, names[0])
    sum_in_place(low, made, names[1:])
    low.define(op.outputs[0], made)


# --- rows of a tensor -------------------------------------------------------------------------------------------


def _rows_only(low: Lowering, name: str) -> View:
    """The number of rows of a variable, whose other sizes are known."""
    return _lengths(low, name, [0])[0]


@rule("array_cut")
def _cut(low: Lowering, op: Op) -> None:
    x, counts, *within = op.inputs
    given = cut_type(op, low.types)
    if given is None:
        raise Unsupported("sections of an array without a largest size")
    rows, view = _rows_only(low, x), low.dense(low.entry(x))
    of = Maker(low)
    most = _rows_only(low, within[0]) if within and within[0] != HOLE else rows
    lengths = Span(low.dense(of.cast(low.entry(counts), "int64")))
    low.add(OpenSpan(None, None, lengths, _rows_only(low, counts), location=op.location))
    made = begun(low, given, low.types[op.outputs[0]])
    message = "the counts are not from 0 to the most rows that a section may have, or do not add up to all rows"
    _sections(low, op, made, lengths, view, rows, most, message)


@rule("array_split_as")
def _split_as(low: Lowering, op: Op) -> None:
    x, array = op.inputs
    source = moved(low, array)
    _open_axes_only(source, [0])
    rows, view = _rows_only(low, x), low.dense(low.entry(x))
    ((_, bound, lengths),) = sizes_of_elements(source)
    made = begun(low, held_type(low, array), low.types[op.outputs[0]])
    if made.shape[1:] != view.shape[1:]:
        raise Unsupported("tensor arrays of different elements")
    most = low.dense(Maker(low).integer(bound))
    message = "x has not as many rows as the elements of the array"
    _sections(low, op, made, lengths, view, rows, most, message)


def _sections(
    low: Lowering, op: Op, made: Growing, lengths: Source, view: View, rows: View, most: View, message: str
) -> None:
    ((_, _, own),) = made.sizes
    check = low.shared.check("shape_mismatch", message, op.location)
    low.add(CutRows(made, lengths, view, rows, most, check, location=op.location))
    do(low, "copy", own, lengths)
    low.define(op.outputs[0], made)


@rule("array_paste")
def _paste(low: Lowering, op: Op) -> None:
    array, like = op.inputs
    source, type, rows = moved(low, array), low.type(like), _rows_only(low, like)
    _open_axes_only(source, [0])
    if _held(low, array).shape[1:] != type.shape[1:]:
        raise Unsupported("tensor arrays of different elements")
    _define(low, op, type, _sizes_like(low, op, like))
    out = _result(low, op)
    ((_, _, lengths),) = sizes_of_elements(source)
    check = low.shared.check("shape_mismatch", "the sections do not have as many rows as `like`", op.location)
    low.add(JoinRows(None, source, lengths, out, rows, check, location=op.location))


@rule("array_concat")
def _concat(low: Lowering, op: Op) -> None:
    array, source, of = op.inputs[0], moved(low, op.inputs[0]), Maker(low)
    _open_axes_only(source, [0])
    ((_, _, lengths),) = sizes_of_elements(source)
    total = low.allocate((), "int64", "count")
    low.add(CountRows(None, lengths, total, location=op.location))
    size = expect(low, op, 0, {0: total})[0]
    if all(name == HOLE for name in op.inputs[1:]):
        count = low.allocate((), "int64", "count")
        do(low, "count", None, source, value=count)
        some = of("greater_than", count, of.integer(0))
        of.check(some, "shape_mismatch", "cannot concatenate an empty array without `like`", op.location)
    element = _held(low, array)
    _define(low, op, TensorType((size.bound, *element.shape[1:]), element.dtype), {0: size})
    out = _result(low, op)
    low.add(JoinRows(None, source, lengths, out, size.length, 0, location=op.location))
    clear_integers(low, op)


def _sizes_like(low: Lowering, op: Op, like: str) -> dict[int, Size]:
    """The sizes of a result that has those of another variable."""
    own, type = dict(low.sizes.get(like, {})), low.type(like)
    missing = [axis for axis in open_axes(low.types[op.outputs[0]]) if axis not in own]
    return own | {axis: known_size(low, type.shape[axis]) for axis in missing}


def _define(low: Lowering, op: Op, type: TensorType, own: dict[int, Size]) -> None:
    """Set the type of the result of `op` with its largest sizes, and its sizes."""
    declared = low.types[op.outputs[0]]
    if set(open_axes(declared)) - own.keys():
        raise Unsupported(f"the size of {op.outputs[0]} is known only when it runs")
    low.types[op.outputs[0]] = type
    if own:
        low.sizes[op.outputs[0]] = own


def _result(low: Lowering, op: Op) -> View:
    (out,) = op.outputs
    low.stand_alone(out)
    made = low.destination(out)
    low.define(out, made)
    return made
