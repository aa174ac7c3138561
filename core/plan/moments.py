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
from dataclasses import dataclass, replace

from core.ir import Op
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.entries import Entry, Pattern, Uniform
from core.plan.halves import WIDE, narrowed
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.reduce import lower_reduce, reduced_axes
from core.plan.shapes import reshaped, reshaped_view
from core.plan.sized import limited, masked
from core.plan.sizes import Size

__all__ = ["lower_moments"]

SHORTEST, LONGEST = 16, 4096
"""Elements of a row: shorter ones leave too many numbers to add, longer ones leave the nearest cache."""


@lowers("reduce_mean")
def lower_mean(low: Lowering, op: Op) -> None:
    if low.sizes.get(op.inputs[0]) or not lower_moments(low, op):
        lower_reduce(low, op)


def lower_moments(low: Lowering, op: Op, size: Size | None = None) -> bool:
    """Lower a mean together with the variance that follows it; False if there is none, or no pass for both.

    size: of the first axis of the operand, which is reduced, if only the run tells it.
    """
    found = _variance(low, op)
    if found is None:
        return False
    with limited(low, size):
        rows = _in_rows(low, op)
        numbers = _numbers(low, op, *rows) if rows else None
    if numbers is None:
        return False
    centred, square, variance = found
    type = low.type(op.outputs[0])
    mean, of_squares, total = _moments(low, op, numbers, size)
    low.define(op.outputs[0], mean)
    low.ahead[variance.outputs[0]] = reshaped(low, of_squares, low.type(variance.outputs[0]).shape)
    if len(low.uses.readers(square.outputs[0])) == 1:
        low.unneeded.add(square.outputs[0])
    for each in low.uses.readers(centred.outputs[0]):
        if each is not None and each.type in ("sum_to", "reduce_sum") and low.types[each.outputs[0]] == type:
            low.ahead[each.outputs[0]] = total
    return True


def _variance(low: Lowering, op: Op) -> tuple[Op, Op, Op] | None:
    """The ops that compute the deviations from the mean of `op`, their squares, and the mean of the squares."""
    over = reduced_axes(low, op)
    for centred in low.uses.readers(op.outputs[0]):
        if centred is None or centred.type != "sub" or centred.inputs != (op.inputs[0], op.outputs[0]):
            continue
        for square in low.uses.readers(centred.outputs[0]):
            if square is None or not (square.type == "square" or (square.type == "mul" and len({*square.inputs}) == 1)):
                continue
            for mean in low.uses.readers(square.outputs[0]):
                if mean is not None and mean.type == "reduce_mean" and reduced_axes(low, mean) == over:
                    return centred, square, mean
    return None


def _in_rows(low: Lowering, op: Op) -> tuple[Entry, frozenset[int], tuple[int, ...]] | None:
    """The operand of `op`, its last axes, and the axes before these that are reduced too.

    The last axes are rows of adjacent elements, each a part of one reduction. An operand with long rows has another
    shape, with an axis that counts the parts of a row. None if rows are too short, or if each of them is a whole
    reduction, whose result the same pass can use.
    """
    entry, over = low.entry(op.inputs[0]), reduced_axes(low, op)
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
    if low.limit is not None and first == 0:  # only the run tells where the last row ends
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


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Two numbers of each row, in arrays whose last axes are those that are left to reduce.

    mean, spread: the mean of a row, and the mean of the squared distances from it.
    images: the axis that the first axis of the operand has become; None if it is not reduced.
    left: the number of axes to reduce. row: elements of a row.
    """

    mean: Entry
    spread: Entry
    images: int | None
    left: int
    row: int


def _numbers(low: Lowering, op: Op, x: Entry, rows: frozenset[int], left: Sequence[int]) -> _Numbers:
    """rows: the axes of a row. left: the axes before these that are reduced too."""
    of, type = Maker(low), low.type(op.outputs[0])
    exact = WIDE if is_half(type) else type.dtype
    length = math.prod(x.shape[i] for i in rows)
    x = of.cast(x, exact)
    mean = of("div", of.reduce("sum", x, rows), of.number(length, exact))
    spread = of("div", of.reduce("sum", of("square", of("sub", x, mean)), rows), of.number(length, exact))
    order = [*(i for i in range(min(rows)) if i not in left), *left]
    mean, spread = (_by_channel(low, each, order) for each in (mean, spread))
    return _Numbers(mean, spread, order.index(0) if 0 in left else None, len(left), length)


def _moments(low: Lowering, op: Op, rows: _Numbers, size: Size | None) -> tuple[Entry, Entry, Entry]:
    """The mean over the axes of `op`, the mean of the squared distances from it, and the sum of the distances."""
    of, type = Maker(low), low.type(op.outputs[0])
    exact, shape = rows.mean.dtype, rows.mean.shape
    open_axes = {} if size is None or rows.images is None else {rows.images: size}
    over = frozenset(range(len(shape) - rows.left, len(shape)))
    count: Entry = of.number(math.prod(shape[i] for i in over - open_axes.keys()), exact)
    if size is not None:
        count = of.mul(count, of.cast(of("maximum", size.length, of.integer(1)), exact))

    def mean_of(each: Entry) -> Entry:
        return of("div", of.reduce("sum", masked(low, each, open_axes, 0), over), count)

    whole = result = mean_of(rows.mean)
    if exact != type.dtype:
        result = narrowed(low, whole, replace(type, shape=whole.shape))
        whole = of.cast(result, exact)
    apart = of("sub", rows.mean, whole)
    variance = mean_of(of.add(rows.spread, of("square", apart)))
    total = of.mul(of.reduce("sum", masked(low, apart, open_axes, 0), over), of.number(rows.row, exact))
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
