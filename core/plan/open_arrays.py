"""Tensor arrays whose number of elements only the run tells, made of tensors and joined to tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.ir import HOLE, Op, StackType, TensorType
from core.plan.array_elements import common_sizes, element_type, set_common, shape_of
from core.plan.array_memory import do, moved
from core.plan.array_rules import rule
from core.plan.compose import Maker
from core.plan.flow import Elements, Span
from core.plan.growing import OpenSpan
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Incomparable, same_size
from core.plan.memory import View, contiguous
from core.plan.shapes import reshaped
from core.plan.sized import masked, set_sizes
from core.plan.sized import rule as sized_rule
from core.plan.sizes import Size
from core.plan.unbounded import expect
from core.plan.unsupported import Unsupported

__all__ = ["join_all"]


def _joined(low: Lowering, op: Op, rows: int = 1) -> tuple[View, Size]:
    """All elements of the array that `op` joins, one after the other, in memory for more of them; and their number.

    rows: of the result for each element.
    """
    (array, *_), (out,) = op.inputs, op.outputs
    element, source = element_type(low, low.types[array]), moved(low, array)
    shape_of(source)
    count = low.allocate((), "int64", "count")
    do(low, "count", None, source, value=count)
    size = expect(low, op, 0, {0: count}, rows)[0]
    types = low.largest(op)
    assert types is not None
    whole = low.allocate(types[0].shape, types[0].dtype, out)
    shape = (size.bound, *element.shape)
    do(low, "join", None, source, value=replace(whole, shape=shape, strides=contiguous(shape)))
    return whole, size


def join_all(low: Lowering, op: Op) -> None:
    """A tensor like the result has its size. The elements have common sizes."""
    like, inside = op.inputs[1] if len(op.inputs) > 1 else HOLE, common_sizes(low, op.inputs[0])
    if like == HOLE:
        whole, size = _joined(low, op)
        set_sizes(low, op, [{0: size, **{axis + 1: each for axis, each in inside.items()}}])
        low.define(op.outputs[0], whole)
        return
    element, own, of = element_type(low, low.types[op.inputs[0]]), low.sizes.get(like, {}), Maker(low)
    if own.keys() - {0} != {axis + 1 for axis in inside} or 0 not in own or low.type(like).shape[1:] != element.shape:
        raise Unsupported("another size than the first one is known only when it runs")
    if not all(same_size(low, own[axis + 1], size) for axis, size in inside.items()):
        raise Incomparable
    set_sizes(low, op, [dict(own)])
    source = moved(low, op.inputs[0])
    shape_of(source)
    if not op.attrs["partial"]:
        count = low.allocate((), "int64", "count")
        do(low, "count", None, source, value=count)
        message = "a tensor array has more elements than the tensor that it is joined to"
        of.check(of("less_equal", count, own[0].length), "shape_mismatch", message, op.location)
    out = low.destination(op.outputs[0])
    do(low, "join", None, source, value=out)
    low.define(op.outputs[0], masked(low, out, {0: own[0]}, 0) if op.attrs["partial"] else out)


@rule("array_concat")
def _concat(low: Lowering, op: Op) -> None:
    """Elements of one size."""
    each, of = element_type(low, low.types[op.inputs[0]]).shape[0], Maker(low)
    whole, size = _joined(low, op, each)
    if all(name == HOLE for name in op.inputs[1:]):
        some = of("greater_than", size.length, of.integer(0))
        of.check(some, "shape_mismatch", "cannot concatenate an empty array without `like`", op.location)
    if each != 1:
        base, length = size, low.dense(of.mul(size.length, of.integer(each)))
        size = Size(whole.shape[0], length)
        low.derived.multiples[size] = (base, each)
    set_sizes(low, op, [{0: size}])
    low.define(op.outputs[0], whole)


@rule("array_paste")
def _paste(low: Lowering, op: Op) -> None:
    """Elements of one size."""
    array, like = op.inputs
    element, type, of, own = element_type(low, low.types[array]), low.type(like), Maker(low), low.sizes.get(like, {})
    each, rows = element.shape[0], type.shape[0]
    if own.keys() - {0} or element.shape[1:] != type.shape[1:] or rows % each:
        raise Unsupported("rows that no sections of one size have")
    source = moved(low, array)
    shape_of(source)
    count = low.allocate((), "int64", "count")
    do(low, "count", None, source, value=count)
    length: Any = own[0].length if own else of.integer(rows)
    fits = of("equal", of.mul(count, of.integer(each)), length)
    of.check(fits, "shape_mismatch", "the sections do not have as many rows as `like`", op.location)
    low.types[op.outputs[0]] = type
    if own:
        low.sizes[op.outputs[0]] = dict(own)
    out = low.destination(op.outputs[0])
    sections = (rows // each, *element.shape)
    do(low, "join", None, source, value=replace(out, shape=sections, strides=contiguous(sections)))
    low.define(op.outputs[0], out)


@rule("array_split_as")
def _split_as(low: Lowering, op: Op) -> None:
    """Sections of one size."""
    x, array = op.inputs
    element, of, own = element_type(low, low.types[array]), Maker(low), low.sizes.get(x, {})
    if own.keys() - {0} or not element.shape[0]:
        raise Incomparable
    view, each = low.dense(low.entry(x)), element.shape[0]
    if view.shape[0] % each:
        raise Unsupported("rows that no sections of one size have")
    count = low.allocate((), "int64", "count")
    do(low, "count", None, moved(low, array), value=count)
    length: Any = own[0].length if own else of.integer(view.shape[0])
    fits = of("equal", of.mul(count, of.integer(each)), length)
    of.check(fits, "shape_mismatch", "x has not as many rows as the elements of the array", op.location)
    sections = reshaped(low, view, (view.shape[0] // each, *element.shape))
    most = of.integer(sections.shape[0])
    low.define(op.outputs[0], _opened(low, low.stored(sections), low.dense(of("minimum", count, most))))


def _opened(low: Lowering, view: View, length: View) -> Span:
    """The array of the first rows of `view`, as many as `length` says."""
    span = Span(view)
    low.add(OpenSpan(None, None, span, length, location=low.location))
    return span


@sized_rule("array_unstack")
def _unstack(low: Lowering, op: Op) -> None:
    """All elements have the sizes of the tensor along its other axes."""
    (x,), (out,) = op.inputs, op.outputs
    own, view = low.sizes.get(x, {}), low.dense(low.entry(x))
    low.types[out] = StackType(TensorType(view.shape[1:], view.dtype))
    set_common(low, out, {axis - 1: size for axis, size in own.items() if axis})
    low.define(out, _opened(low, view, own[0].length) if 0 in own else Elements(view))
