"""Positions drawn with given probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import Op
from core.plan.compose import Maker
from core.plan.draws import drawn
from core.plan.entries import Entry, Uniform, positions
from core.plan.lowering import Lowering, lowers
from core.plan.memory import View
from core.plan.ordered import order_of
from core.plan.ragged import running_total
from core.plan.shapes import reshaped
from core.plan.slabs import taken
from core.plan.unsupported import Unsupported

__all__: list[str] = []

LAST = frozenset({1})


@lowers("multinomial")
def lower_multinomial(low: Lowering, op: Op) -> None:
    of, p, count = Maker(low), low.entry(op.inputs[0]), op.attrs["num_samples"]
    rows, n = math.prod(p.shape[:-1]), p.shape[-1]
    if 0 in (rows, n, count):
        raise Unsupported("no positions, or none to draw")
    weights = of.cast(reshaped(low, p, (rows, n)), "float64")
    zero = of.number(0.0)
    fine = of("logical_and", of("greater_equal", weights, zero), of("isfinite", weights))
    of.check(fine, "bad_probability", "probabilities must be finite and not negative", op.location)
    possible = of("greater_than", weights, zero)
    enough = of.integer(1 if op.attrs["replacement"] else count)
    usable = of.reduce("sum", of.cast(possible, "int64"), LAST)
    message = f"cannot draw {count} positions: too few in a row have a probability above 0"
    of.check(of("greater_equal", usable, enough), "bad_probability", message, op.location)
    if op.attrs["replacement"]:
        found = _inverted(low, op, weights, drawn(low, op, (rows, count), "float64"))
    else:
        found = _first(low, op, weights, possible, drawn(low, op, (rows, n), "float64"))
    low.define(op.outputs[0], reshaped(low, found, low.type(op.outputs[0]).shape))


def _inverted(low: Lowering, op: Op, weights: Entry, unit: Entry) -> Entry:
    """The position of each number in [0, 1) of `unit` [rows, count] in the running sums of `weights` [rows, n]."""
    of, (rows, n) = Maker(low), weights.shape
    total = running_total(low, op, of("div", weights, of.reduce("max", weights, LAST)))
    end = replace(total, shape=(rows, 1), strides=(n, 1), offset=total.offset + n - 1)
    # rounding may give the end of the row, which lies in the share of no position
    number = of("minimum", of.mul(unit, end), of.mul(end, of.number(1.0 - 2.0**-53)))
    flat, row = replace(total, shape=(rows * n,), strides=(1,)), positions((rows, 1), (n, 0))
    place: Entry = Uniform(0, "int64", unit.shape)  # how many sums are not above `number`, bit by bit from the highest
    for bit in reversed(range((n - 1).bit_length())):
        further = of.add(place, of.integer(2**bit))
        before = of("minimum", of("sub", further, of.integer(1)), of.integer(n - 1))
        sums = taken(low, op, flat, of.add(before, row))
        place = of.where(of("less_equal", sums, number), further, place)
    return place


def _first(low: Lowering, op: Op, weights: Entry, possible: Entry, unit: Entry) -> View:
    """The positions in each row with the largest logarithms of weights plus Gumbel noise, all different."""
    of = Maker(low)
    exponential = of("neg", of("log1p", of("neg", unit)))
    noise = of("neg", of("log", of.add(exponential, of.number(2.0**-60))))
    score = of.add(of("log", of.where(possible, weights, of.number(1.0))), noise)
    order = order_of(low, op, low.dense(of.where(possible, of("neg", score), of.number(math.inf))))
    return replace(order, shape=(order.shape[0], op.attrs["num_samples"]))
