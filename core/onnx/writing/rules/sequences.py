"""Sequences of different lengths: rows, positions and masks."""

from __future__ import annotations

import math

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import cannot, writes
from core.onnx.writing.rules.indexing import ordered, repeated

cannot("its path is traced back step by step, which no ONNX operator does", "crf_decoding")


def _zero(w):
    return w.const(0, "int64")


def _checked(w: OpSite, lengths: Tensor, rows=None) -> Tensor:
    """`lengths`. The run ends with an error if one is negative, or if they do not add up to `rows`."""
    lengths = w.cast(lengths, "int64")
    holds = [w.node("GreaterOrEqual", lengths, _zero(w))]
    if rows is not None:
        holds.append(w.node("Equal", w.reduce("ReduceSum", lengths, [0], True), w.vector([rows])))
    return w.guarded(lengths, *holds)


def _ends(w, lengths):
    return w.node("CumSum", lengths, _zero(w))


def _starts(w, lengths):
    return w.node("CumSum", lengths, _zero(w), exclusive=1)


def _longest(w, lengths):
    """The largest length, as [1]; 0 without lengths."""
    return w.reduce("ReduceMax", w.concat([lengths, w.ints([0])]), [0], True)


@writes("sequence_ids")
def sequence_ids(w, lengths, x):
    return repeated(w, _checked(w, lengths, w.size(x, 0)))


@writes("sequence_rows")
def sequence_rows(w, lengths, x, *, order):
    lengths = _checked(w, lengths, w.size(x, 0))
    ends, starts = _ends(w, lengths), _starts(w, lengths)
    if order == "reverse":
        ids = repeated(w, lengths)
        both = w.gather(w.sub(w.add(starts, ends), w.const(1, "int64")), ids)
        return w.sub(both, w.arange(w.size(x, 0)))
    at = starts if order == "first" else w.sub(ends, w.const(1, "int64"))
    return w.where(w.node("Greater", lengths, _zero(w)), at, _zero(w))


@writes("sequence_slots")
def sequence_slots(w, lengths, x, *, width):
    lengths = _checked(w, lengths, w.size(x, 0))
    longest = _longest(w, lengths)
    size = longest if width == -1 else w.ints([width])
    ids = repeated(w, lengths)
    if width != -1:
        ids = w.guarded(ids, w.node("LessOrEqual", longest, size))
    inside = w.sub(w.arange(w.size(x, 0)), w.gather(_starts(w, lengths), ids))
    return w.add(w.mul(ids, size), inside)


@writes("padded_rows")
def padded_rows(w, lengths, x, *, width):
    lengths = _checked(w, lengths, w.size(x, 0))
    longest = _longest(w, lengths)
    size = longest if width == -1 else w.ints([width])
    if width != -1:
        lengths = w.guarded(lengths, w.node("LessOrEqual", longest, size))
    steps = w.arange(longest if width == -1 else width)
    at = w.add(w.unsqueeze(_starts(w, lengths), [1]), steps)
    return w.where(w.node("Less", steps, w.unsqueeze(lengths, [1])), at, w.scalar(w.size(x, 0)))


@writes("padded_like")
def padded_like(w, lengths, *, shape, width, value, dtype):
    longest = _longest(w, w.cast(lengths, "int64")) if width == -1 else width
    return w.full([w.size(lengths, 0), longest, *shape], value, dtype)


@writes("sequence_mask")
def sequence_mask(w, lengths, *, maxlen, dtype):
    lengths = w.cast(lengths, "int64")
    width = _longest(w, lengths) if maxlen == -1 else maxlen
    return w.cast(w.node("Less", w.arange(width), w.unsqueeze(lengths, [1])), dtype)


@writes("unpadded_positions")
def unpadded_positions(w, lengths, x):
    lengths = w.cast(lengths, "int64")
    width = w.size(x, 1)
    fits = w.node("LessOrEqual", lengths, w.scalar(width))
    same = w.node("Equal", w.vector([w.size(lengths, 0)]), w.vector([w.size(x, 0)]))
    lengths = w.guarded(lengths, fits, w.node("GreaterOrEqual", lengths, _zero(w)), same)
    real = w.node("Less", w.arange(width), w.unsqueeze(lengths, [1]))
    found = w.node("NonZero", w.flat(real), shape=(1, -1))
    return w.node("Reshape", found, w.ints([-1]), shape=(-1,))


@writes("steps_within")
def steps_within(w, x, lengths=None):
    batch, time = w.size(x, 0), w.size(x, 1)
    if lengths is None:
        return w.full([batch, time], True, "bool")
    lengths = _within(w, lengths, batch, time)
    return w.node("Less", w.arange(time), w.unsqueeze(lengths, [1]))


def _within(w, counts, batch, most):
    """`counts` as int64, after a check that they are from 0 to `most`, one for each sequence."""
    counts = w.cast(counts, "int64")
    holds = w.node("And", w.node("GreaterOrEqual", counts, _zero(w)), w.node("LessOrEqual", counts, w.scalar(most)))
    same = w.node("Equal", w.vector([w.size(counts, 0)]), w.vector([batch]))
    return w.guarded(counts, holds, same)


@writes("expanded_rows")
def expanded_rows(w, times, lengths, x):
    lengths = _checked(w, lengths, w.size(x, 0))
    times = _checked(w, times)
    ids = repeated(w, times)
    each = w.gather(lengths, ids)
    first = w.sub(w.gather(_starts(w, lengths), ids), _starts(w, each))
    rows = w.gather(first, repeated(w, each))
    return w.add(rows, w.arange(w.size(rows, 0)))


@writes("sequence_slice_rows")
def sequence_slice_rows(w, lengths, offsets, counts, x):
    given = counts
    lengths = _checked(w, lengths, w.size(x, 0))
    offsets, counts = _checked(w, offsets), _checked(w, counts)
    fits = w.node("LessOrEqual", w.add(offsets, counts), lengths)
    counts = w.guarded(counts, fits)
    ids = repeated(w, counts)
    inside = w.sub(w.arange(w.size(ids, 0)), w.gather(_starts(w, counts), ids))
    rows = w.add(w.gather(w.add(_starts(w, lengths), offsets), ids), inside)
    return rows, w.cast(counts, given.dtype)


@writes("interleaved_rows")
def interleaved_rows(w, lengths, more, x, y):
    a, b = _checked(w, lengths, w.size(x, 0)), _checked(w, more, w.size(y, 0))
    rows = w.vector([w.size(x, 0)])
    pairs = [
        w.flat(w.concat([w.unsqueeze(p, [1]), w.unsqueeze(q, [1])], 1))
        for p, q in ((_starts(w, a), w.add(_starts(w, b), rows)), (a, b))
    ]
    starts, counts = pairs
    ids = repeated(w, counts)
    first = w.sub(starts, _starts(w, counts))
    return w.add(w.gather(first, ids), w.arange(w.size(ids, 0)))


@writes("context_rows")
def context_rows(w, lengths, x, *, length, start):
    n = w.size(x, 0)
    lengths = _checked(w, lengths, n)
    ids = repeated(w, lengths)
    steps = w.ints(range(start, start + length))
    at = w.add(w.unsqueeze(w.arange(n), [1]), steps)
    first = w.unsqueeze(w.gather(_starts(w, lengths), ids), [1])
    last = w.unsqueeze(w.gather(_ends(w, lengths), ids), [1])
    inside = w.node("And", w.node("GreaterOrEqual", at, first), w.node("Less", at, last))
    return w.where(inside, at, w.scalar(n))


@writes("sequence_reset_lengths")
def sequence_reset_lengths(w, x, lengths):
    return x, w.cast(_checked(w, lengths, w.size(x, 0)), lengths.dtype)


@writes("rank_table")
def rank_table(w, lengths):
    return ordered(w, w.cast(lengths, "int64"), 0, True)[1]


@writes("step_rows")
def step_rows(w, lengths, x):
    """The pairs (step, rank) of sequences that have the step, in row-major order."""
    lengths = _checked(w, lengths, w.size(x, 0))
    long, order = ordered(w, lengths, 0, True)
    steps = w.arange(_longest(w, lengths))
    there = w.node("Greater", w.unsqueeze(long, [0]), w.unsqueeze(steps, [1]))
    pairs = w.node("NonZero", there, shape=(2, -1))
    step, place = (w.gather(pairs, w.const(i, "int64")) for i in (0, 1))
    starts = w.gather(_starts(w, lengths), order)
    counts = w.reduce("ReduceSum", w.cast(there, "int64"), [1], False)
    return w.add(w.gather(starts, place), step), counts


@writes("active_rows")
def active_rows(w, lengths, step):
    longer = w.node("Greater", lengths, w.reshape(w.cast(step, lengths.dtype), [1]))
    return w.arange(w.reduce("ReduceSum", w.cast(longer, "int64"), [0], True))


@writes("crf_moves")
def crf_moves(w, label, emission, lengths=None):
    """The kernel's arithmetic on positions."""
    batch, time, labels = w.sizes(emission)
    counts = (
        w.expand(w.cast(w.vector([time]), "int64"), [batch]) if lengths is None else _within(w, lengths, batch, time)
    )
    counts = w.unsqueeze(counts, [1])
    label = w.cast(label, "int64")
    live = w.node("Less", w.arange(time), counts)
    path = w.where(live, label, _zero(w))
    classes = w.scalar(labels)
    fine = w.node("And", w.node("GreaterOrEqual", path, _zero(w)), w.node("Less", path, classes))
    path = w.guarded(path, fine)
    none = w.full([batch, 1], 0, "int64")
    before, after = w.concat([none, path], 1), w.concat([path, none], 1)
    steps = w.arange(w.arith("Add", time, 1))
    two = w.const(2, "int64")
    moves = w.where(w.node("Equal", steps, _zero(w)), after, w.add(w.mul(w.add(before, two), classes), after))
    moves = w.where(w.node("Equal", steps, counts), w.add(before, classes), moves)
    taken = w.node("And", w.node("LessOrEqual", steps, counts), w.node("Greater", counts, _zero(w)))
    return path, w.where(taken, moves, _zero(w)), taken


@writes("ctc_lattice")
def ctc_lattice(w, label, input_lengths, label_lengths, log_probs, *, blank):
    """The kernel's lattice, with blanks between the labels."""
    time, batch, classes = w.sizes(log_probs)
    width = w.size(label, 1)
    label = w.cast(label, "int64")
    times = _within(w, input_lengths, batch, time)
    counts = w.unsqueeze(_within(w, label_lengths, batch, width), [1])
    nothing = w.const(blank, "int64")
    there = w.node("Less", w.arange(width), counts)
    known = w.node("And", w.node("GreaterOrEqual", label, _zero(w)), w.node("Less", label, w.scalar(classes)))
    known = w.node("And", known, w.node("Not", w.node("Equal", label, nothing)))
    label = w.guarded(label, w.node("Or", known, w.node("Not", there)))
    real = w.unsqueeze(w.where(there, label, nothing), [2])
    blanks = w.full([batch, width, 1], blank, "int64")
    pairs = w.reshape(w.concat([blanks, real], 2), [batch, w.arith("Mul", width, 2)])
    states = w.concat([pairs, w.full([batch, 1], blank, "int64")], 1)
    size = w.arith("Add", w.arith("Mul", width, 2), 1)
    numbers = w.arange(size)
    column = w.unsqueeze(numbers, [1])
    origin = w.node("Max", w.sub(column, w.ints([0, 1, 2])), _zero(w))
    earlier = w.gather(states, w.node("Max", w.sub(numbers, w.const(2, "int64")), _zero(w)), 1)
    odd = w.node("Equal", w.node("Mod", numbers, w.const(2, "int64")), w.const(1, "int64"))
    far = w.node("And", odd, w.node("Greater", numbers, w.const(1, "int64")))
    skip = w.node("And", w.node("Not", w.node("Equal", states, earlier)), far)
    step = w.expand(w.node("Greater", numbers, _zero(w)), [batch, size])
    stay = w.full([batch, size], True, "bool")
    opened = w.concat([w.unsqueeze(v, [2]) for v in (stay, step, skip)], 2)
    live = w.unsqueeze(w.node("Less", w.unsqueeze(w.arange(time), [1]), w.unsqueeze(times, [0])), [2])
    end = w.mul(counts, w.const(2, "int64"))
    last = w.node("Equal", numbers, w.sub(end, w.const(1, "int64")))
    final = w.node("Or", w.node("Equal", numbers, end), last)
    begin = w.node("Equal", numbers, _zero(w))
    zero, never = w.number(0, log_probs), w.number(-math.inf, log_probs)
    start = w.expand(w.where(begin, zero, never), [batch, size])
    return w.expand(states, [time, batch, size]), origin, opened, live, final, start
