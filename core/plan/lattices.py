"""Positions in the lattices of `ctc_loss` and of conditional random fields, and in trees of classes."""

from __future__ import annotations

import math
from dataclasses import replace

from core.ir import HOLE, Op
from core.plan.compose import Maker
from core.plan.entries import Uniform, positions
from core.plan.instructions import Kernel
from core.plan.lookups import BestPath
from core.plan.lowering import Lowering, lowers
from core.plan.selecting import counts_within
from core.plan.shapes import expanded, reshaped

__all__: list[str] = []


@lowers("ctc_lattice")
def lower_ctc_lattice(low: Lowering, op: Op) -> None:
    of, blank = Maker(low), op.attrs["blank"]
    (batch, longest), (time, _, classes) = low.type(op.inputs[0]).shape, low.type(op.inputs[3]).shape
    label = low.entry(op.inputs[0])
    states, origin, open, live, final, start = op.outputs
    size = 2 * longest + 1
    times = counts_within(low, op, op.inputs[1], op.inputs[3], 0)
    counts = counts_within(low, op, op.inputs[2], op.inputs[0], 1)

    there = of("less_than", positions((batch, longest), (0, 1)), counts)
    given = of.cast(label, "int64")
    fine = of("logical_and", of.is_position(given, of.integer(classes)), of("not_equal", given, of.integer(blank)))
    message = f"labels must be from 0 to {classes - 1} and not the blank {blank}"
    of.check(of("logical_or", fine, of("logical_not", there)), "index_out_of_range", message, op.location)
    classes_of = low.allocate((batch, size), "int64")
    low.copy(Uniform(blank, "int64", ()), classes_of)
    labels = replace(classes_of, shape=(batch, longest), strides=(size, 2), offset=1)
    low.copy(of.where(there, given, of.integer(blank)), labels)
    low.define(states, expanded(classes_of, (time, batch, size)))

    low.define(origin, positions((size, 3), (1, -1)).then("maximum", 0))

    # a label follows the label before the blank if they differ
    number = positions((1, size), (0, 1))
    skips = low.allocate((batch, size), "bool")
    low.copy(Uniform(False, "bool", ()), skips)
    if longest > 1:
        later, earlier = (replace(labels, shape=(batch, longest - 1), offset=n) for n in (3, 1))
        target = replace(skips, shape=(batch, longest - 1), strides=(size, 2), offset=3)
        low.copy(of("not_equal", later, earlier), target)
    ways = low.destination(open)
    steps = replace(ways, shape=(batch, size), strides=ways.strides[:2])
    low.copy(Uniform(True, "bool", ()), steps)
    low.copy(of("greater_than", number, of.integer(0)), replace(steps, offset=steps.offset + ways.strides[2]))
    low.copy(skips, replace(steps, offset=steps.offset + 2 * ways.strides[2]))
    low.define(open, ways)

    at = positions((time, batch, 1), (1, 0, 0))
    low.define(live, of("less_than", at, reshaped(low, times, (1, batch, 1))))

    twice = of.mul(counts, of.integer(2))
    ends = [of("equal", number, each) for each in (twice, of("sub", twice, of.integer(1)))]
    low.define(final, of("logical_or", *ends))
    dtype = low.type(start).dtype
    first = of("equal", positions((batch, size), (0, 1)), of.integer(0))
    low.define(start, of.where(first, of.number(0.0, dtype), of.number(-math.inf, dtype)))


@lowers("crf_moves")
def lower_crf_moves(low: Lowering, op: Op) -> None:
    of, label = Maker(low), low.entry(op.inputs[0])
    batch, time, labels = low.type(op.inputs[1]).shape
    if len(op.inputs) > 2 and op.inputs[2] != HOLE:
        counts = counts_within(low, op, op.inputs[2], op.inputs[1], 1)
    else:
        counts = low.length(op.inputs[1], 1)
    live = of("less_than", positions((batch, time), (0, 1)), counts)
    given = of.cast(label, "int64")
    message = f"labels must be from 0 to {labels - 1}"
    fine = of("logical_or", of.is_position(given, of.integer(labels)), of("logical_not", live))
    of.check(fine, "index_out_of_range", message, op.location)
    path, moves, taken = op.outputs

    around = low.allocate((batch, time + 2), "int64")  # the path between two zeros
    low.copy(Uniform(0, "int64", ()), around)
    inside = replace(around, shape=(batch, time), offset=1)
    low.copy(of.where(live, given, of.integer(0)), inside)
    low.define(path, inside)
    before, after = (replace(around, shape=(batch, time + 1), offset=n) for n in (0, 1))
    step = positions((batch, time + 1), (0, 1))
    between = of.add(of.mul(of.add(before, of.integer(2)), of.integer(labels)), after)
    found = of.where(of("equal", step, of.integer(0)), after, between)
    found = of.where(of("equal", step, counts), of.add(before, of.integer(labels)), found)
    there = of("logical_and", of("less_equal", step, counts), of("greater_than", counts, of.integer(0)))
    low.define(taken, expanded(there, (batch, time + 1)))
    low.define(moves, of.where(there, found, of.integer(0)))


@lowers("crf_decoding")
def lower_crf_decoding(low: Lowering, op: Op) -> None:
    emission, transition = (low.dense(low.entry(n)) for n in op.inputs[:2])
    batch, time, labels = emission.shape
    if len(op.inputs) > 2 and op.inputs[2] != HOLE:
        counts = reshaped(low, counts_within(low, op, op.inputs[2], op.inputs[0], 1), (batch,))
    else:
        counts = expanded(low.length(op.inputs[0], 1), (batch,))
    out, spec = low.destination(op.outputs[0]), BestPath(emission.dtype, batch, time, labels)
    low.add(Kernel("best_path", spec, (emission, transition, low.dense(counts), out), location=op.location))
    low.define(op.outputs[0], out)


@lowers("tree_path")
def lower_tree_path(low: Lowering, op: Op) -> None:
    """Nodes by shifting: only the bits of a class number matter, so the quotients by powers of 2 are shifts."""
    of, classes = Maker(low), op.attrs["num_classes"]
    rows, depth = low.type(op.outputs[0]).shape
    label = of.cast(reshaped(low, low.entry(op.inputs[0]), (rows, 1)), "int64")
    message = f"a label is outside 0 to {classes - 1}"
    of.check(of.is_position(label, of.integer(classes)), "index_out_of_range", message, op.location)
    code = of.add(label, of.integer(classes))
    bit, one = positions((rows, depth), (0, 1)), of.integer(1)
    shifted = of("bitwise_right_shift", code, bit)
    node = of("bitwise_right_shift", shifted, one)
    on_path = of("greater_than", node, of.integer(0))
    table, branch = op.outputs
    low.define(table, of.where(on_path, of("sub", node, one), of.integer(-1)))
    low.define(branch, of.where(on_path, of("bitwise_and", shifted, one), of.integer(0)))
