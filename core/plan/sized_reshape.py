"""Lowerings of reshapes of arrays whose sizes only the run tells (`core.plan.sized`).

An array has memory for its largest sizes, with unused elements between the used ones unless the first axis alone is
open. If the open axes stay as they are, so does the memory. Otherwise the run computes where each element comes from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op, TensorType
from core.plan.compose import Maker
from core.plan.entries import Entry, positions
from core.plan.instructions import Gather
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes, Incomparable, first_of, same_size, sizes_of
from core.plan.memory import View
from core.plan.plan import NOT_COVERED
from core.plan.row_major import row_major
from core.plan.shapes import reshaped
from core.plan.size_multiples import factors, scaled, total
from core.plan.sized import clear_integers, masked, rule, set_sizes
from core.plan.sizes import Size
from core.plan.slabs import OUT_OF_RANGE, flat, slabs
from core.plan.unsupported import Unsupported

__all__: list[str] = []


@rule("reshape", "reshape_as", "unsqueeze", "squeeze", "merge_axes", "unflatten")
def _reshape(low: Lowering, op: Op) -> None:
    if op.type == "squeeze":
        op = _with_ones(low, op)
    x = op.inputs[0]
    own, declared = sizes_of(low, x), low.block.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    if not own:
        raise Unsupported("a known size that is declared open")
    if declared.is_static and op.type in ("reshape", "reshape_as"):
        _as_known(low, op, declared.shape)
        return
    wanted = _wanted(low, op, declared)
    set_sizes(low, op, [wanted])
    shape = low.type(op.outputs[0]).shape
    kept = _between(low.type(x).shape, own) == _between(shape, wanted) and _in_order(own) == _in_order(wanted)
    of_rows = own.keys() | wanted.keys() == {0} and math.prod(low.type(x).shape) == math.prod(shape)
    if kept or of_rows:
        low.define(op.outputs[0], reshaped(low, low.entry(x), shape))
    else:
        _move(low, op, own, wanted)


def _with_ones(low: Lowering, op: Op) -> Op:
    """A `squeeze` of an operand whose squeezed sizes are known to be 1: the code covers the runs in which they are."""
    x = op.inputs[0]
    for axis in op.attrs["axes"] or ():
        at = axis % low.type(x).rank
        if at in sizes_of(low, x):
            if not low.target.expects:
                raise Incomparable
            x = first_of(low, x, at, 1, True)
    return replace(op, inputs=(x,))


def _wanted(low: Lowering, op: Op, declared: TensorType) -> Axes:
    """The open sizes of the result."""
    x = op.inputs[0]
    own, shape = sizes_of(low, x), low.type(x).shape
    opened = [i for i, n in enumerate(declared.shape) if n == -1]
    if op.type == "reshape_as":
        return _fitting(low, op, dict(sizes_of(low, op.inputs[1])))
    if _between(shape, own) == _between(declared.shape, opened):
        return dict(zip(opened, _in_order(own), strict=True))
    if op.type == "merge_axes":
        start, end = op.attrs["start"], op.attrs["end"]
        kept = {i if i < start else i - (end - start) + 1: size for i, size in own.items() if not start <= i < end}
        inside = {i - start: own[i] for i in own if start <= i < end}
        return kept | ({start: total(low, inside, shape[start:end])} if inside else {})
    if op.type == "unflatten":
        axis, more = op.attrs["axis"] % len(shape), len(op.attrs["sizes"]) - 1
        kept = {i if i < axis else i + more: size for i, size in own.items() if i != axis}
        if axis not in own or -1 not in op.attrs["sizes"]:
            raise Unsupported("an axis of a size that only the run tells, in parts of known sizes")
        at = axis + op.attrs["sizes"].index(-1)
        parts = math.prod(n for n in op.attrs["sizes"] if n != -1)
        return kept | {at: scaled(low, own[axis], 1, parts)}
    if len(opened) != 1:
        raise Unsupported("several sizes that are known only when it runs")
    known = math.prod(n for n in declared.shape if n != -1)
    return {opened[0]: total(low, own, shape, known)}


def _fitting(low: Lowering, op: Op, wanted: Axes) -> Axes:
    """The open sizes of the second operand. The code covers runs in which the first has as many elements."""
    own = [sizes_of(low, name) for name in op.inputs]
    shapes = [low.type(name).shape for name in op.inputs]
    found = [factors(low, *each) for each in zip(own, shapes, strict=True)]
    (one, known), (other, also) = found
    if known == also and sorted(map(id, one)) == sorted(map(id, other)):
        return wanted
    if not low.target.expects:
        raise Incomparable
    if len(own[0]) == len(own[1]) == 1 and math.prod(shapes[0]) == math.prod(shapes[1]):
        (a,), (b,) = (each.values() for each in own)
        if a.bound == b.bound and same_size(low, a, b):
            return wanted
    of = Maker(low)
    counts: list[Entry] = []
    for sizes, number in found:
        count: Entry = of.integer(number)
        for size in sizes:
            count = of.mul(count, size.length)
        counts.append(count)
    of.check(of("equal", *counts), NOT_COVERED, "another number of elements", op.location)
    return wanted


def _as_known(low: Lowering, op: Op, shape: tuple[int, ...]) -> None:
    """An array of one open size that the program takes for an array of a known shape."""
    own, of, given = sizes_of(low, op.inputs[0]), Maker(low), low.type(op.inputs[0]).shape
    if len(own) != 1:
        raise Unsupported("several sizes that are known only when it runs")
    ((axis, size),) = own.items()
    rest, count = math.prod(given) // size.bound, math.prod(shape)
    if not count or not rest or count % rest or count > size.bound * rest or not low.target.expects:
        raise Unsupported("sizes that do not fit")
    number = count // rest
    fits = of("equal", size.length, of.integer(number))
    of.check(fits, NOT_COVERED, "another number of elements", op.location)
    view = low.stored(low.entry(op.inputs[0]))
    set_sizes(low, op, [{}])
    part = replace(view, shape=(*given[:axis], number, *given[axis + 1 :]))
    low.define(op.outputs[0], reshaped(low, part, shape))


# --- sizes ------------------------------------------------------------------------------------------------------


def _in_order(own: Axes) -> list[Size]:
    return [size for _, size in sorted(own.items())]


def _between(shape: Sequence[int], opened: Sequence[int] | Axes) -> list[int]:
    """The elements before, between and behind the open axes."""
    found = [1]
    for i, n in enumerate(shape):
        if i in opened:
            found.append(1)
        else:
            found[-1] *= n
    return found


# --- elements that move -----------------------------------------------------------------------------------------


def _move(low: Lowering, op: Op, own: Axes, wanted: Axes) -> None:
    """Copy rows of adjacent elements to where they belong."""
    view, type = low.dense(low.entry(op.inputs[0])), low.type(op.outputs[0])
    given, given_sizes = _in_rows(low, _between(view.shape, own), _in_order(own))
    made, sizes = _in_rows(low, _between(type.shape, wanted), _in_order(wanted))
    row = math.gcd(given[-1], made[-1])
    bounds = [n for known, size in zip(made, sizes, strict=False) for n in (known, size.bound)]
    shape = (*bounds, made[-1] // row)
    at = _place(low, _numbers(low, shape, sizes), given, given_sizes, row)
    last = Maker(low).integer(math.prod(view.shape) // row - 1)  # for runs that the code does not cover
    at = Maker(low)("minimum", at, last)
    places = low.dense(masked(low, at, {2 * i + 1: size for i, size in enumerate(sizes)}, 0))
    out = low.allocate(type.shape, type.dtype, op.outputs[0])
    check = low.shared.check("index_out_of_range", OUT_OF_RANGE, op.location)
    low.add(Gather(_by_rows(view, row), flat(places), _by_rows(out, row), check, location=op.location))
    low.define(op.outputs[0], out)
    clear_integers(low, op)


def _in_rows(low: Lowering, between: Sequence[int], sizes: Sequence[Size]) -> tuple[list[int], list[Size]]:
    """`between` and `sizes`, with the known factor of the last size among the elements behind that axis."""
    base, times = low.derived.multiples.get(sizes[-1], (sizes[-1], 1))
    return [*between[:-1], between[-1] * times], [*sizes[:-1], base]


def _numbers(low: Lowering, shape: Sequence[int], sizes: Sequence[Size]) -> Entry:
    """The number of each row of the result in row-major order. shape: of the rows, every second axis an open one."""
    axes = [
        (
            positions(tuple(shape), tuple(int(i == axis) for i in range(len(shape)))),
            sizes[axis // 2].length if axis % 2 else Maker(low).integer(shape[axis]),
        )
        for axis in reversed(range(len(shape)))
    ]
    return row_major(low, axes)[0]


def _place(low: Lowering, number: Entry, between: Sequence[int], sizes: Sequence[Size], row: int) -> Entry:
    """The place of the row `number` in an array with memory for the largest sizes.

    between: as of `_between`, of the array. row: the elements of a row.
    """
    of = Maker(low)
    inner = between[-1] // row
    if not sizes or (len(sizes) == 1 and between[0] == 1):
        return number
    *others, last = sizes
    used = of("maximum", of.mul(last.length, of.integer(inner)), of.integer(1))
    outer = of("floor_div", number, used)
    within = of("sub", number, of.mul(outer, used))
    before = _place(low, outer, between[:-1], others, 1)
    return of.add(of.mul(before, of.integer(last.bound * inner)), within)


def _by_rows(view: View, row: int) -> View:
    """A dense array as [1, rows, row]."""
    return slabs(view, (math.prod(view.shape) // row, row), 0)
