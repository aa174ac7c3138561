"""Lowerings of ops whose results have sizes without a largest value: counts and ends that are data.

Code has memory for the sizes that the plan expects (`core.plan.sizes.expected_outputs`). If a run wants a larger one,
a check fails that makes the runtime plan again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from core.ir import HOLE, Op, TensorType, Type
from core.plan.compose import Maker
from core.plan.entries import Entry, Uniform, positions
from core.plan.lowering import Lowering, lowers
from core.plan.meeting_sizes import Axes, sizes_of
from core.plan.memory import View
from core.plan.ordered import order_of
from core.plan.plan import OUTGROWN
from core.plan.ragged import before_the_end, ends_of_all, rows_of_padded, spread
from core.plan.shapes import expanded, reshaped
from core.plan.sized import clear_integers, masked, of_known_sizes, rule, run, set_sizes
from core.plan.sizes import Given, Size, bounds, in_blocks, tensor
from core.plan.slabs import taken
from core.plan.unsupported import Unsupported

__all__ = ["expect"]

MOST_COMPARISONS = 1 << 22
"""Steps times sequences for which all lengths are compared with all steps."""

FAR, MANY = 1 << 40, 1 << 31
"""No size is larger, and no count of copies: their sums and products stay below 2^63."""


def expect(low: Lowering, op: Op, number: int, wanted: Mapping[int, Entry], rows: int = 1) -> Axes:
    """The open sizes of result `number` of `op`: the `wanted` ones, int64 scalars, by axis.

    rows: of the result for one of the wanted first size.
    A size that the result cannot have is 0, and the run leaves the code. Raises Unsupported if no size is expected.
    """
    types, of = low.largest(op), Maker(low)
    if types is None:
        raise Unsupported(f"the size of {op.outputs[number]} is known only when it runs")
    own: Axes = {}
    for axis, entry in wanted.items():
        size = low.dense(entry)  # a constant that is too large is found out by the run, as other sizes are
        bound = types[number].shape[axis] // (rows if axis == 0 else 1)
        fits = of("less_equal", size, of.integer(bound))
        of.check(fits, OUTGROWN, f"{op.type} gave more elements than expected", op.location)
        some = of("maximum", size, of.integer(0))
        own[axis] = Size(bound, low.dense(of.where(fits, some, of.integer(0))))
    return own


def _vector(low: Lowering, name: str, index: int) -> Entry:
    """Element `index` of a vector of integers, as an int64 scalar."""
    view = low.dense(low.entry(name))
    return Maker(low).cast(View(view.root, view.dtype, (), (), view.offset + index), "int64")


def _total(low: Lowering, counts: Entry) -> Entry:
    return reshaped(low, Maker(low).reduce("sum", counts, frozenset({0})), ())


def _checked(low: Lowering, op: Op, counts: Entry, what: str) -> Entry:
    """Counts of at least 0, as int64; those above `FAR`, which no memory has room for, become that."""
    of = Maker(low)
    counts = of.cast(counts, "int64")
    fine = of("greater_equal", counts, of.integer(0))
    of.check(fine, "index_out_of_range", f"{what} must be at least 0", op.location)
    return of("minimum", counts, of.integer(FAR // max(1, counts.shape[0])))


@rule("repeat_positions")
def _repeat_positions(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, [n for n in op.inputs if n != HOLE])
    counts = low.entry(op.inputs[0])
    if len(op.inputs) > 1 and op.inputs[1] != HOLE:
        x = low.type(op.inputs[1])
        if x.shape[op.attrs["axis"]] != counts.shape[0]:
            raise Unsupported("another number of counts than of slices")
    counts = _checked(low, op, counts, "counts")
    own = expect(low, op, 0, {0: _total(low, counts)})
    set_sizes(low, op, [own])
    rows = low.type(op.outputs[0]).shape[0]
    low.define(op.outputs[0], spread(low, op, positions(counts.shape), counts, rows, 0))


@rule("expanded_rows")
def _expanded_rows(low: Lowering, op: Op) -> None:
    """Row r of the copies of a sequence is row ``r % length`` of it."""
    of_known_sizes(low, op, op.inputs)
    of = Maker(low)
    times, lengths = (low.entry(n) for n in op.inputs[:2])
    if times.shape != lengths.shape:
        raise Unsupported("another number of counts than of sequences")
    ends = ends_of_all(low, op, lengths, op.inputs[2])
    times = _checked(low, op, times, "repeat counts")
    most = of.integer(FAR // max(1, times.shape[0]))
    all_rows = of("minimum", of.mul(of("minimum", times, of.integer(MANY)), lengths), most)
    many = of("greater_than", _total(low, times), of.integer(MANY))  # an error, even of empty sequences
    own = expect(low, op, 0, {0: of.where(many, of.integer(FAR), _total(low, all_rows))})
    set_sizes(low, op, [own])
    rows = low.type(op.outputs[0]).shape[0]
    number = spread(low, op, of.integer(0), all_rows, rows, 1)
    first = spread(low, op, of("sub", ends, lengths), all_rows, rows, 0)
    length = of("maximum", spread(low, op, lengths, all_rows, rows, 0), of.integer(1))
    low.define(op.outputs[0], of.add(first, of("sub", number, of.mul(_quotient(of, number, length), length))))
    clear_integers(low, op)


def _quotient(of: Maker, x: Entry, y: Entry) -> Entry:
    """``x // y`` of numbers from 0 and from 1 on, exact below 2^52."""
    return of.cast(of("floor", of("div", of.cast(x, "float64"), of.cast(y, "float64"))), "int64")


@rule("dynamic_range")
def _dynamic_range(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, op.inputs)
    low.no_halves(op)
    of = Maker(low)
    start, end, step = (low.entry(n) for n in op.inputs)
    dtype = low.type(op.inputs[0]).dtype
    zero = of.number(0, "float64")
    exact = [of.cast(each, "float64") for each in (start, end, step)]
    moves = of("not_equal", exact[2], zero)
    of.check(moves, "division_by_zero", "the step of a range must not be 0", op.location)
    length = of("ceil", of("div", of("sub", exact[1], exact[0]), of.where(moves, exact[2], of.number(1.0))))
    known = of("less_than", of("abs", length), of.number(float(FAR)))  # NaN is not
    wanted = of.where(known, of.cast(of.where(known, length, zero), "int64"), of.integer(FAR))
    own = expect(low, op, 0, {0: wanted})
    set_sizes(low, op, [own])
    numbers = of.cast(positions(low.type(op.outputs[0]).shape), dtype)
    low.define(op.outputs[0], of.add(start, of.mul(numbers, step)))
    clear_integers(low, op)


# --- shapes that are data ---------------------------------------------------------------------------------------


def _sizes(low: Lowering, op: Op, name: str, declared: Sequence[int]) -> list[Entry]:
    """The sizes in a vector of int64, checked to be at least 0 and as declared."""
    of = Maker(low)
    found = [_vector(low, name, i) for i in range(len(declared))]
    for size, n in zip(found, declared, strict=True):
        how, limit = ("greater_equal", 0) if n == -1 else ("equal", n)
        message = "the sizes must not be negative, and those that are declared must be so"
        of.check(of(how, size, of.integer(limit)), "shape_mismatch", message, op.location)
    return found


@lowers("dynamic_fill")
@rule("dynamic_fill")
def _dynamic_fill(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, op.inputs)
    declared = op.attrs["shape"]
    wanted = _sizes(low, op, op.inputs[0], declared)
    set_sizes(low, op, [expect(low, op, 0, {i: wanted[i] for i, n in enumerate(declared) if n == -1})])
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], Uniform(op.attrs["value"], type.dtype, type.shape))
    clear_integers(low, op)


@lowers("dynamic_expand")
@rule("dynamic_expand")
def _dynamic_expand(low: Lowering, op: Op) -> None:
    """Axes of size 1 get a size that is data. A size of 1 keeps that of x."""
    of_known_sizes(low, op, op.inputs)
    of, x, declared = Maker(low), low.type(op.inputs[0]), op.attrs["shape"]
    own = (1,) * (len(declared) - x.rank) + x.shape
    wanted: dict[int, Entry] = {}
    for axis, (m, n) in enumerate(zip(own, declared, strict=True)):
        size = _vector(low, op.inputs[1], axis)
        if m != 1 and n == -1:
            raise Unsupported("a known size that is declared open")
        if n == -1:
            fine = of("greater_equal", size, of.integer(0))
            wanted[axis] = size
        else:  # the result has size n if either is n and the other is n or 1
            fine = of("equal", size, of.integer(n))
            fine = of("logical_or", fine, of("equal", size, of.integer(1))) if m == n else fine
        of.check(fine, "shape_mismatch", f"cannot broadcast {list(x.shape)} with the sizes", op.location)
    set_sizes(low, op, [expect(low, op, 0, wanted)])
    low.define(op.outputs[0], expanded(low.entry(op.inputs[0]), low.type(op.outputs[0]).shape))
    clear_integers(low, op)


@bounds("dynamic_reshape")
def _rest(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """One open size is known from the others, but the type does not say so."""
    x, shape = tensor(given[0]), op.attrs["shape"]
    known = 1
    for n in shape:
        known *= n if n != -1 else 1
    if shape.count(-1) != 1 or not known or math.prod(x.shape) % known or not math.prod(x.shape):
        return None
    return (TensorType(tuple(in_blocks(math.prod(x.shape) // known) if n == -1 else n for n in shape), x.dtype),)


@lowers("dynamic_reshape")
@rule("dynamic_reshape")
def _dynamic_reshape(low: Lowering, op: Op) -> None:
    """With one open size at most, all sizes are known: the run only compares."""
    of_known_sizes(low, op, op.inputs)
    of, x, declared = Maker(low), low.type(op.inputs[0]), op.attrs["shape"]
    if declared.count(-1) > 1 or not math.prod(x.shape):
        raise Unsupported("several sizes that are known only when it runs")
    rest = 1
    for n in declared:
        rest *= n if n != -1 else 1
    if math.prod(x.shape) % rest or (declared.count(-1) == 0 and math.prod(x.shape) != rest):
        raise Unsupported("sizes that do not fit")
    shape = tuple(math.prod(x.shape) // rest if n == -1 else n for n in declared)
    given = [_vector(low, op.inputs[1], i) for i in range(len(shape))]
    open_ones: Entry = of.integer(0)
    for size, n in zip(given, shape, strict=True):
        asked = of("equal", size, of.integer(-1))
        fine = of("logical_or", asked, of("equal", size, of.integer(n)))
        of.check(fine, "shape_mismatch", f"cannot reshape {list(x.shape)} to the sizes", op.location)
        open_ones = of.add(open_ones, of.cast(asked, "int64"))
    few = of("less_equal", open_ones, of.integer(1))
    of.check(few, "shape_mismatch", "only one size may be -1", op.location)
    entry = reshaped(low, low.entry(op.inputs[0]), shape)
    if declared.count(-1) == 0:
        set_sizes(low, op, [{}])
        low.define(op.outputs[0], entry)
        return
    types, axis = low.largest(op), declared.index(-1)
    assert types is not None
    own = {axis: Size(types[0].shape[axis], low.dense(of.integer(shape[axis])))}
    set_sizes(low, op, [own])
    out = low.destination(op.outputs[0])
    low.write(entry, View(out.root, out.dtype, shape, out.strides, out.offset))
    low.define(op.outputs[0], masked(low, out, own, 0) if not x.is_float else out)


# --- sequences --------------------------------------------------------------------------------------------------


@rule("padded_like", "padded_rows", "sequence_mask")
def _padded(low: Lowering, op: Op) -> None:
    """The result is as wide as the longest sequence, if the program gives no width."""
    number = sizes_of(low, op.inputs[0])
    if op.attrs["maxlen" if op.type == "sequence_mask" else "width"] != -1:
        set_sizes(low, op, [dict(number)])
        run(low, op)
        return
    of, lengths = Maker(low), low.entry(op.inputs[0])
    longest = reshaped(low, of.reduce("max", of.cast(lengths, "int64"), frozenset({0})), ())
    set_sizes(low, op, [number | expect(low, op, 0, {1: longest})])
    type = low.type(op.outputs[0])
    if op.type == "padded_rows":
        low.define(op.outputs[0], rows_of_padded(low, op, type.shape[1]))
    elif op.type == "padded_like":
        low.define(op.outputs[0], Uniform(op.attrs["value"], type.dtype, type.shape))
    else:
        low.define(op.outputs[0], of.cast(before_the_end(low, lengths, type.shape[1]), type.dtype))
    clear_integers(low, op)


@bounds("sequence_slice_rows")
def _some_rows(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    rows = tensor(given[3]).shape[0]
    return (TensorType((in_blocks(rows),), "int64"), tensor(given[2])) if rows else None


@rule("sequence_slice_rows")
def _sequence_slice_rows(low: Lowering, op: Op) -> None:
    of_known_sizes(low, op, op.inputs)
    of, zero = Maker(low), Maker(low).integer(0)
    lengths, offsets, counts = (low.entry(n) for n in op.inputs[:3])
    if not lengths.shape == offsets.shape == counts.shape:
        raise Unsupported("offsets and counts of another number than the lengths")
    ends = ends_of_all(low, op, lengths, op.inputs[3])
    inside = of("less_equal", counts, of("sub", lengths, offsets))
    for fine in (of("greater_equal", offsets, zero), of("greater_equal", counts, zero), inside):
        message = "a slice ends after its sequence, or starts before it"
        of.check(fine, "index_out_of_range", message, op.location)
    counts = of("minimum", of("maximum", counts, zero), of("maximum", lengths, zero))
    bound = in_blocks(low.type(op.inputs[3]).shape[0])
    total = of("minimum", _total(low, counts), of.integer(bound))
    set_sizes(low, op, [{0: Size(bound, low.dense(total))}, {}])
    first = of.add(of("sub", ends, lengths), offsets)
    low.define(op.outputs[0], spread(low, op, first, counts, bound, 1))
    low.define(op.outputs[1], low.entry(op.inputs[2]))


@bounds("step_rows")
def _steps(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """No sequence has more steps than there are rows."""
    rows = tensor(given[1]).shape[0]
    return (TensorType((rows,), "int64"), TensorType((in_blocks(rows),), "int64")) if rows else None


@rule("step_rows")
def _step_rows(low: Lowering, op: Op) -> None:
    """The sequences of a step are the first ones in the order of their ranks, the longest first."""
    of_known_sizes(low, op, op.inputs)
    of, zero = Maker(low), Maker(low).integer(0)
    lengths, rows = low.entry(op.inputs[0]), low.type(op.inputs[1]).shape[0]
    ends = ends_of_all(low, op, lengths, op.inputs[1])
    bound = in_blocks(rows)
    longest = reshaped(low, of.reduce("max", lengths, frozenset({0})), ())
    longest = of("minimum", of("maximum", longest, zero), of.integer(bound))
    set_sizes(low, op, [{}, {0: Size(bound, low.dense(longest))}])
    order = order_of(low, op, low.dense(of("neg", lengths)))
    n = lengths.shape[0]
    if bound * n > MOST_COMPARISONS:
        raise Unsupported("steps of too many sequences")
    longer = of("greater_than", reshaped(low, lengths, (1, n)), reshaped(low, positions((bound,)), (bound, 1)))
    counts = low.dense(reshaped(low, of.reduce("sum", of.cast(longer, "int64"), frozenset({1})), (bound,)))
    step = spread(low, op, positions((bound,)), counts, rows, 0)
    rank = of("minimum", spread(low, op, zero, counts, rows, 1), of.integer(n - 1))
    starts = taken(low, op, of("sub", ends, lengths), taken(low, op, order, rank))
    fine = of("minimum", of("maximum", of.add(starts, step), zero), of.integer(rows - 1))
    low.define(op.outputs[0], fine)
    low.define(op.outputs[1], counts)
