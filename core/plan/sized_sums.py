"""Lowerings of sums and products over axes whose sizes only the run tells (`core.plan.sized`)."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from core.ir import Op, TensorType
from core.ir.precision import is_half
from core.ops.common.types import as_dtype
from core.ops.reduction.sums import identity_of_extreme
from core.plan.compose import Maker
from core.plan.entries import Entry
from core.plan.halves import narrowed, wide, widened
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import Axes, sizes_of
from core.plan.moments import lower_moments
from core.plan.reduce import KINDS, reduced, reduced_axes
from core.plan.shapes import reshaped
from core.plan.sized import clear_integers, limited, rule, run, set_sizes, under, whole
from core.plan.unsupported import Unsupported

__all__ = ["count_elements", "summed"]

NEUTRAL = {"sum": 0, "prod": 1, "and": True, "or": False}
"""Reduction -> the element that does not change its result."""


@rule("reduce_sum", "reduce_prod", "reduce_all", "reduce_any", "reduce_max", "reduce_min", "reduce_mean")
def _reduce(low: Lowering, op: Op) -> None:
    x = op.inputs[0]
    own, type, over = sizes_of(low, x), low.type(x), reduced_axes(low, op)
    set_sizes(low, op, [_left(low, op, over)])
    if not over & own.keys():
        run(low, op, own.get(0))
        return
    kind, out = KINDS[op.type], low.type(op.outputs[0])
    if kind in ("max", "min"):
        _extreme(low, op, over)
    elif op.type == "reduce_mean":
        if not type.is_float:
            raise Unsupported(f"reduce_mean of {type.dtype}")
        _lower_mean(low, op, over)
    elif is_half(type) or type.dtype != out.dtype:
        run(low, under(low, op, {x: whole(low, x, NEUTRAL[kind], over)}))
    else:
        low.define(op.outputs[0], summed(low, kind, x, over, out))
        clear_integers(low, op)  # the product of no elements is 1


def _extreme(low: Lowering, op: Op, over: frozenset[int]) -> None:
    x, kind, type, out = op.inputs[0], KINDS[op.type], low.type(op.inputs[0]), low.type(op.outputs[0])
    if op.attrs["empty"] == "error":
        _check_some(low, op, over)
    entry = whole(low, x, identity_of_extreme(as_dtype(type.dtype), -1 if kind == "max" else 1), over)
    low.define(op.outputs[0], reshaped(low, reduced(low, kind, entry, over, out), out.shape))
    clear_integers(low, op)  # behind other open sizes, an extreme of no elements is not 0


@rule("argmax", "argmin")
def _position(low: Lowering, op: Op) -> None:
    """Fill the positions beyond the length with the neutral number. Of equal elements the first one is found."""
    x, type = op.inputs[0], low.type(op.inputs[0])
    over = frozenset({op.attrs["axis"] % type.rank})
    set_sizes(low, op, [_left(low, op, over)])
    if over & sizes_of(low, x).keys():
        _check_some(low, op, over)
        fill = identity_of_extreme(as_dtype(type.dtype), -1 if op.type == "argmax" else 1)
        op = under(low, op, {x: whole(low, x, fill, over)})
    run(low, op)


def _check_some(low: Lowering, op: Op, over: frozenset[int]) -> None:
    """Check that the operand has elements along these axes."""
    of, x = Maker(low), op.inputs[0]
    for axis in over & sizes_of(low, x).keys():
        some = of("greater_than", sizes_of(low, x)[axis].length, of.integer(0))
        of.check(some, "shape_mismatch", f"cannot reduce {x} over an axis of size 0", op.location)


def summed(low: Lowering, kind: str, x: str, over: frozenset[int], type: TensorType) -> Entry:
    """The sum or the product of a variable over some axes, one of them of an open size at least.

    type: of the result. One of a 16-bit dtype is computed, and returned, in float32.
    """
    half, own = is_half(low.type(x)), sizes_of(low, x)
    open_axes = over & own.keys()
    if open_axes == {0} and not half:
        with suppress(Unsupported), limited(low, own[0]):  # the last row may end beyond the length
            return reduced(low, kind, whole(low, x, NEUTRAL[kind], open_axes), over, type)
    entry = whole(low, x, NEUTRAL[kind], open_axes)
    return reduced(low, kind, widened(low, entry) if half else entry, over, wide(type))


def _lower_mean(low: Lowering, op: Op, over: frozenset[int]) -> None:
    of, x, out = Maker(low), op.inputs[0], low.type(op.outputs[0])
    own = sizes_of(low, x)
    if own.keys() == {0}:
        with suppress(Unsupported):
            if lower_moments(low, op, own[0]):
                return
    count = of("maximum", count_elements(low, x, over), of.integer(1))
    mean = of("div", summed(low, "sum", x, over, out), of.cast(count, wide(out).dtype))
    low.define(op.outputs[0], narrowed(low, mean, out) if is_half(out) else mean)


@rule("logsumexp")
def _logsumexp(low: Lowering, op: Op) -> None:
    x, over = op.inputs[0], reduced_axes(low, op)
    set_sizes(low, op, [_left(low, op, over)])
    run(low, under(low, op, {x: whole(low, x, -math.inf, over)}) if over & sizes_of(low, x).keys() else op)


def _left(low: Lowering, op: Op, over: frozenset[int]) -> Axes:
    """The open sizes of the result of a reduction over these axes."""
    left = [i for i in range(low.type(op.inputs[0]).rank) if op.attrs["keepdims"] or i not in over]
    return {left.index(i): size for i, size in sizes_of(low, op.inputs[0]).items() if i not in over}


def count_elements(low: Lowering, x: str, over: frozenset[int]) -> Entry:
    """The number of elements of a variable over some axes, an int64 scalar."""
    of, own = Maker(low), sizes_of(low, x)
    known = math.prod(n for i, n in enumerate(low.type(x).shape) if i in over and i not in own)
    total: Entry = of.integer(known)
    for axis in sorted(over & own.keys()):
        total = of.mul(total, own[axis].length)
    return total


@rule("inverse_count")
def _inverse_count(low: Lowering, op: Op) -> None:
    x, of = op.inputs[0], Maker(low)
    count = of("sub", count_elements(low, x, reduced_axes(low, op)), of.integer(op.attrs["ddof"]))
    some = of("greater_than", count, of.integer(0))
    inverse = of("div", of.number(1.0), of.cast(count, "float64"))
    low.define(op.outputs[0], of.cast(of.where(some, inverse, of.number(np.inf)), low.type(x).dtype))


@rule("check_finite")
def _check_finite(low: Lowering, op: Op) -> None:
    set_sizes(low, op, [dict(sizes_of(low, op.inputs[0]))])
    run(low, under(low, op, {op.inputs[0]: whole(low, op.inputs[0])}))
