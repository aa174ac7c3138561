"""Mean and variance of channels in one pass over memory, as batch normalisation needs them.

    m = reduce_mean(x)
    v = reduce_mean(square(x - m))

As written, v needs a second pass after m. Here one pass computes two numbers for each row of adjacent elements, while
the row is in cache: its mean, and the mean of the squared distances from it (its spread). Both results follow from
these alone, without cancellation (Chan, Golub and LeVeque 1983): for any m,

    v = mean over rows of spread + (mean of the row - m)^2

Neither the rows nor the order in which their numbers are added depends on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.ir import Op
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.data import View
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.halves import WIDE, narrowed
from core.plan.lowering import Lowering, lowers
from core.plan.reduce import lower_reduce
from core.plan.shapes import reshaped, reshaped_view

__all__: list[str] = []

SHORTEST, LONGEST = 16, 4096
"""Elements of a row: shorter ones leave too many numbers to add, longer ones leave the nearest cache."""


@lowers("reduce_mean")
def lower_mean(low: Lowering, op: Op) -> None:
    found = None if low.sizes.get(op.inputs[0]) else _variance(low, op)
    rows = _in_rows(low, op) if found else None
    if found is None or rows is None:
        lower_reduce(low, op)
        return
    centred, square, variance = found
    type = low.type(op.outputs[0])
    mean, of_squares, total = _moments(low, op, *rows)
    low.define(op.outputs[0], mean)
    low.ahead[variance.outputs[0]] = reshaped(low, of_squares, low.type(variance.outputs[0]).shape)
    if len(low.uses.readers(square.outputs[0])) == 1:
        low.unneeded.add(square.outputs[0])
    for each in low.uses.readers(centred.outputs[0]):
        if each is not None and each.type in ("sum_to", "reduce_sum") and low.type(each.outputs[0]) == type:
            low.ahead[each.outputs[0]] = total


def _variance(low: Lowering, op: Op) -> tuple[Op, Op, Op] | None:
    """The ops that compute the deviations from the mean of `op`, their squares, and the mean of the squares."""
    over = _axes(low, op)
    for centred in low.uses.readers(op.outputs[0]):
        if centred is None or centred.type != "sub" or centred.inputs != (op.inputs[0], op.outputs[0]):
            continue
        for square in low.uses.readers(centred.outputs[0]):
            if square is None or not (square.type == "square" or (square.type == "mul" and len({*square.inputs}) == 1)):
                continue
            for mean in low.uses.readers(square.outputs[0]):
                if mean is not None and mean.type == "reduce_mean" and _axes(low, mean) == over:
                    return centred, square, mean
    return None


def _axes(low: Lowering, op: Op) -> frozenset[int]:
    rank, axes = low.type(op.inputs[0]).rank, op.attrs["axes"]
    return frozenset(range(rank) if axes is None else (a % rank for a in axes))


def _in_rows(low: Lowering, op: Op) -> tuple[Entry, frozenset[int], tuple[int, ...]] | None:
    """The operand of `op`, its last axes, and the axes before these that are reduced too.

    The last axes are rows of adjacent elements, each a part of one reduction. An operand with long rows has another
    shape, with an axis that counts the parts of a row. None if rows are too short, or if each of them is a whole
    reduction, whose result the same pass can use.
    """
    entry, over = low.entry(op.inputs[0]), _axes(low, op)
    shape = low.type(op.inputs[0]).shape
    if isinstance(entry, Uniform | Pattern) or not op.attrs["keepdims"] or 0 in shape:
        return None
    first = len(shape)
    while first > 0 and (first - 1 in over or shape[first - 1] == 1):
        first -= 1
    row = math.prod(shape[first:])
    others = math.prod(n for i, n in enumerate(shape[:first]) if i in over)
    if row < SHORTEST or (others == 1 and row <= low.target.rows.longest_row):
        return None
    rows, left = frozenset(range(first, len(shape))), tuple(i for i in range(first) if i in over)
    if row > LONGEST:
        length = next((n for n in range(LONGEST, SHORTEST - 1, -1) if row % n == 0), 0)
        found = reshaped_view(low.stored(entry), (*shape[:first], row // length, length)) if length else None
        if found is None:
            return None
        entry, rows, left = found, frozenset((first + 1,)), (*left, first)
    fusion, axes = low.join(entry.shape, [entry])
    gone = frozenset(a for i, a in enumerate(axes) if i in rows and a is not None)
    if isinstance(entry, View) and (not fusion.can_load(fusion.strides(entry, axes)) or 1 not in _steps(entry, rows)):
        return None
    return (entry, rows, left) if fusion.can_reduce(gone) else None


def _steps(view: View, axes: frozenset[int]) -> set[int]:
    return {view.strides[i] for i in axes if view.shape[i] > 1}


def _moments(low: Lowering, op: Op, x: Entry, rows: frozenset[int], left: Sequence[int]) -> tuple[Entry, Entry, Entry]:
    """The mean over the axes of `op`, the mean of the squared distances from it, and the sum of the distances.

    rows: the axes of a row. left: the axes before these that are reduced too.
    """
    of, type = Maker(low), low.type(op.outputs[0])
    exact = WIDE if is_half(type) else type.dtype
    length = math.prod(x.shape[i] for i in rows)
    x = of.cast(x, exact)
    mean = of("div", of.reduce("sum", x, rows), of.number(length, exact))
    spread = of("div", of.reduce("sum", of("square", of("sub", x, mean)), rows), of.number(length, exact))
    order = [*(i for i in range(min(rows)) if i not in left), *left]
    mean, spread = (_by_channel(low, each, order) for each in (mean, spread))
    over = frozenset(range(len(order) - len(left), len(order)))
    count = of.number(math.prod(mean.shape[i] for i in over), exact)
    whole = result = of("div", of.reduce("sum", mean, over), count)
    if exact != type.dtype:
        result = narrowed(low, whole, replace(type, shape=whole.shape))
        whole = of.cast(result, exact)
    apart = of("sub", mean, whole)
    variance = of("div", of.reduce("sum", of.add(spread, of("square", apart)), over), count)
    total = of.mul(of.reduce("sum", apart, over), of.number(length, exact))
    found = []
    for each in (result, variance, total):
        if each.dtype != type.dtype:
            each = narrowed(low, each, replace(type, shape=each.shape))
        found.append(reshaped(low, each, type.shape))
    return found[0], found[1], found[2]


def _by_channel(low: Lowering, numbers: Entry, order: Sequence[int]) -> View:
    """The numbers of rows in memory with their axes in `order`: those of one result are adjacent, and no others.

    So one row of a later pass adds them up, in an order that does not depend on the threads.
    """
    sizes = tuple(numbers.shape[i] for i in order)
    target = low.allocate(sizes, numbers.dtype)
    strides = [0] * len(numbers.shape)
    for axis, stride in zip(order, target.strides, strict=True):
        strides[axis] = stride
    low.write(numbers, replace(target, shape=numbers.shape, strides=tuple(strides)))
    return target
