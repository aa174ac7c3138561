"""Positions of extremes, masks of chosen elements, and stable sums of exponentials, from reductions and comparisons."""

from __future__ import annotations

import math

import numpy as np

from core.ir import FLOATS, Op
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.lowering import Lowering, lowers
from core.plan.memory import contiguous
from core.plan.reduce import reduced_axes
from core.plan.shapes import reshaped

__all__ = ["counts_within", "first_position"]


@lowers("argmax", "argmin")
def lower_argmax(low: Lowering, op: Op) -> None:
    """The first position of the extreme. A NaN is the extreme, but equals nothing."""
    of, x = Maker(low), low.entry(op.inputs[0])
    axis = op.attrs["axis"] % len(x.shape)
    top = of.reduce(op.type.removeprefix("arg"), x, frozenset({axis}))
    hit = of("equal", x, top)
    if x.dtype in FLOATS:
        hit = of("logical_or", hit, of("isnan", x))
    low.define(op.outputs[0], reshaped(low, first_position(of, hit, frozenset({axis})), low.type(op.outputs[0]).shape))


@lowers("first_true")
def lower_first_true(low: Lowering, op: Op) -> None:
    of, x, over = Maker(low), low.entry(op.inputs[0]), reduced_axes(low, op)
    at = _along(x.shape, over)
    low.define(op.outputs[0], of("logical_and", x, of("equal", at, first_position(of, x, over))))


def _along(shape: tuple[int, ...], over: frozenset[int]) -> Entry:
    """The position of each element among those along the axes `over`, in row-major order."""
    steps = iter(contiguous(tuple(shape[i] for i in sorted(over))))
    return positions(shape, tuple(next(steps) if i in over else 0 for i in range(len(shape))))


def first_position(of: Maker, hit: Entry, over: frozenset[int]) -> Entry:
    """The first position along the axes `over` where `hit` holds; their number of elements if it never does."""
    count = math.prod(hit.shape[i] for i in over)
    return of.reduce("min", of.where(hit, _along(hit.shape, over), of.integer(count)), over)


@lowers("one_hot")
def lower_one_hot(low: Lowering, op: Op) -> None:
    of, type = Maker(low), low.type(op.outputs[0])
    x, depth = of.cast(low.entry(op.inputs[0]), "int64"), op.attrs["depth"]
    above, below = of("greater_equal", x, of.number(0, x.dtype)), of("less_than", x, of.number(depth, x.dtype))
    message = f"an index is outside 0 to {depth - 1}"
    of.check(of("logical_and", above, below), "index_out_of_range", message, op.location)
    column = reshaped(low, x, (*x.shape, 1))
    along = positions(type.shape, (*(0 for _ in x.shape), 1))
    low.define(op.outputs[0], of.cast(of("equal", column, along), type.dtype))


@lowers("logsumexp")
def lower_logsumexp(low: Lowering, op: Op) -> None:
    low.no_halves(op)
    of, x, type = Maker(low), low.entry(op.inputs[0]), low.type(op.outputs[0])
    over = reduced_axes(low, op)
    top = of.reduce("max", x, over)
    top = of.where(of("isfinite", top), top, of.number(0.0, x.dtype))
    total = of.reduce("sum", of("exp", of("sub", x, top)), over)
    low.define(op.outputs[0], reshaped(low, of.add(of("log", total), top), type.shape))


@lowers("steps_within")
def lower_steps_within(low: Lowering, op: Op) -> None:
    of, type = Maker(low), low.type(op.outputs[0])
    if len(op.inputs) < 2 or not op.inputs[1]:
        low.define(op.outputs[0], Uniform(True, "bool", type.shape))
        return
    counts = counts_within(low, op, op.inputs[1], op.inputs[0], 1)
    low.define(op.outputs[0], of("less_than", positions(type.shape, (0, 1)), counts))


def counts_within(low: Lowering, op: Op, lengths: str, x: str, axis: int) -> Entry:
    """The lengths as a column of int64, checked to be from 0 to the size of `x` along an axis."""
    of, given, size = Maker(low), low.entry(lengths), low.sizes.get(x, {}).get(axis)
    if size is None:
        most = low.type(x).shape[axis]
        limit: Entry = of.number(min(most, np.iinfo(given.dtype).max), given.dtype)
        message = f"lengths must be from 0 to {most}"
    else:
        given, limit, message = of.cast(given, "int64"), size.length, "lengths must be from 0 to the number of steps"
    fine = of("logical_and", of("greater_equal", given, of.number(0, given.dtype)), of("less_equal", given, limit))
    of.check(fine, "shape_mismatch", message, op.location)
    return of.cast(reshaped(low, given, (*given.shape, 1)), "int64")
