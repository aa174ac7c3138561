"""Gathers, scatters, sorts and segments."""

from __future__ import annotations

import math

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import cannot, writes


def wrapped(w: OpSite, index: Tensor, size) -> Tensor:
    """`index` as int64, counted from the front. The run ends with an error for one out of range."""
    index = w.cast(index, "int64")
    n = w.scalar(size)
    below = w.node("Less", index, w.const(0, "int64"))
    found = w.where(below, w.add(index, n), index)
    inside = w.node("And", w.node("GreaterOrEqual", found, w.const(0, "int64")), w.node("Less", found, n))
    return w.guarded(found, inside)


@writes("gather", "index_select")
def gather(w, x, index, *, axis):
    return w.gather(x, index, axis)


@writes("scatter_add_like")
def scatter_add_like(w, x, index, like, *, axis):
    """A `ScatterND` that adds, along the first axis; other axes are moved there and back."""
    at = axis % like.rank
    count = w.size(like, at)
    sizes = w.sizes(x)
    merged = w.product(sizes[at : at + index.rank])
    flat = w.reshape(x, [*sizes[:at], merged, *sizes[at + index.rank :]])
    rows = w.moved(flat, at, 0)
    out = w.scatter_add(count, w.flat(w.cast(index, "int64")), rows)
    return w.moved(out, 0, at)


@writes("one_hot")
def one_hot(w, x, *, depth, dtype):
    x = w.cast(x, "int64")
    zero, end = w.const(0, "int64"), w.const(depth, "int64")
    inside = w.node("And", w.node("GreaterOrEqual", x, zero), w.node("Less", x, end))
    index = w.unsqueeze(w.guarded(x, inside), [x.rank])
    return w.cast(w.node("Equal", index, w.arange(depth)), dtype)


def _steps(starts, ends, steps):
    return list(starts), list(ends), list(steps) if steps else [1] * len(starts)


@writes("slice")
def slice_(w, x, *, axes, starts, ends, steps):
    if not axes:
        return x
    starts, ends, steps = _steps(starts, ends, steps)
    at = [a % x.rank for a in axes]
    for i, axis in enumerate(at):
        x, starts[i], ends[i] = from_inside(w, x, axis, starts[i], ends[i], steps[i])
    how = (w.ints(v) for v in (starts, ends, at, steps))
    return w.node("Slice", x, *how, shape=w.types[0].shape)


def from_inside(w, x: Tensor, axis: int, start: int, end: int, step: int):
    """x, and start and end of its slice along `axis`, where the slice of a program and the one of ONNX agree.

    They differ for a slice towards the front that starts before the first element: in a program it is empty, in ONNX
    it starts at the first element. So x is first cut behind the start, which is its last element then.
    """
    if step > 0 or start >= -1 or (x.shape is not None and x.shape[axis] >= -start):
        return x, start, end
    if -1 >= end >= start:
        return x, 0, 0
    return w.slice_axis(x, axis, 0, start + 1), -1, end if end >= 0 else max(end - start - 1, -(2**62))


@writes("slice_into")
def slice_into(w, x, like, *, axes, starts, ends, steps):
    """A `Pad` where all steps are 1; otherwise one `ScatterND` for each axis."""
    if not axes:
        return x
    starts, ends, steps = _steps(starts, ends, steps)
    cuts = {a % like.rank: cut for a, *cut in zip(axes, starts, ends, steps, strict=True)}
    if all(step == 1 for _, _, step in cuts.values()):
        before = [0] * like.rank
        after = [0] * like.rank
        for a, (start, _, _) in cuts.items():
            n = w.size(like, a)
            if isinstance(n, int):
                first = min(start, n) if start >= 0 else max(n + start, 0)
            elif start >= 0:
                first = w.arith("Min", n, start)
            else:
                first = w.arith("Max", w.arith("Add", n, max(start, -(2**40))), 0)
            before[a] = first
            after[a] = w.arith("Sub", w.arith("Sub", n, first), w.size(x, a))
        return w.node("Pad", x, w.vector([*before, *after]), w.number(0, x), shape=like.shape)
    out = x
    for a, (start, end, step) in cuts.items():
        n = w.size(like, a)
        whole, start, end = from_inside(w, w.arange(n), 0, start, end, step)
        places = w.slice_axis(whole, 0, start, end, step)
        out = w.moved(w.scatter_add(n, places, w.moved(out, a, 0)), 0, a)
    return out


@writes("positions_along")
def positions_along(w, index, x, *, axis):
    """The sum over all axes of position times stride."""
    at = axis % x.rank
    sizes = w.sizes(x)
    stride = 1
    total = None
    for i in reversed(range(x.rank)):
        if i == at:
            each = wrapped(w, index, sizes[i])
        else:
            own = w.arange(w.size(index, i))
            each = w.unsqueeze(own, [k for k in range(x.rank) if k != i])
        if stride != 1:
            each = w.mul(each, w.scalar(stride))
        total = each if total is None else w.add(total, each)
        stride = w.arith("Mul", stride, sizes[i])
    return w.expand_like(total, index)


@writes("positions_nd")
def positions_nd(w, index, x):
    out = w.full(w.sizes(index)[:-1], 0, "int64")
    for i in range(index.shape[-1]):
        n = w.size(x, i)
        part = w.gather(index, w.const(i, "int64"), -1)
        out = w.add(w.mul(out, w.scalar(n)), wrapped(w, part, n))
    return out


@writes("wrapped_index")
def wrapped_index(w, index, x):
    return wrapped(w, index, w.size(x, 0))


@writes("is_last")
def is_last(w, index):
    """The position is the largest one that its value has."""
    flat = w.cast(w.flat(index), "int64")
    n = w.size(flat, 0)
    _, _, inverse, _ = unique(w, flat)
    at = w.arange(n)
    last = w.scatter_add(n, inverse, at, "max", -1)
    return w.reshape_like(w.node("Equal", w.gather(last, inverse), at), index)


def unique(w: OpSite, flat: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The distinct elements of a vector, ascending; their first positions; for each element its number; counts."""
    outs = w.nodes(
        "Unique",
        flat,
        sorted=1,
        outputs=[(None, (-1,)), ("int64", (-1,)), ("int64", (flat.shape or (-1,))), ("int64", (-1,))],
    )
    return tuple(outs)  # type: ignore[return-value]


def ordered(w: OpSite, x: Tensor, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """x in order along `axis`, and the positions. Equal elements keep their order."""
    at = axis % x.rank
    found = w.nodes(
        "TopK",
        x,
        w.vector([w.size(x, at)]),
        axis=at,
        largest=int(descending),
        sorted=1,
        outputs=[(None, x.shape), ("int64", x.shape)],
    )
    return found[0], found[1]


@writes("argsort")
def argsort(w, x, *, axis, descending):
    return ordered(w, x, axis, descending)[1]


@writes("mode_position")
def mode_position(w, x, *, axis):
    """Counts of equal elements, pairwise; of the most frequent ones the smallest, and its first position."""
    v = w.wide(w.moved(x, axis, -1))
    same = w.node("Equal", w.unsqueeze(v, [v.rank]), w.unsqueeze(v, [v.rank - 1]))
    counts = w.reduce("ReduceSum", w.cast(same, "int64"), [-1], False)
    often = w.node("Equal", counts, w.reduce("ReduceMax", counts, [-1], True))
    _, order = ordered(w, v, -1, False)
    ranks = ordered(w, order, -1, False)[1]
    n = w.scalar(w.size(v, -1))
    place = w.where(often, ranks, w.expand_like(n, ranks))
    best = w.node("ArgMin", place, axis=v.rank - 1, keepdims=1, shape=(*v.shape[:-1], 1))
    return w.moved(best, -1, axis)


@writes("nonzero")
def nonzero(w, x):
    if x.rank == 0:
        found = w.node("NonZero", w.cast(w.reshape(x, [1]), "bool"), shape=(1, -1))
        return w.slice_axis(w.transpose(found, [1, 0]), 1, 0, 0)
    return w.transpose(w.node("NonZero", w.cast(x, "bool"), shape=(x.rank, -1)), [1, 0])


@writes("unique_positions")
def unique_positions(w, x):
    _, first, inverse, counts = unique(w, w.flat(x))
    return first, w.reshape_like(inverse, x), counts


@writes("unique_slices")
def unique_slices(w, x, *, axis):
    """Pairwise comparisons of the slices: `Unique` along an axis ends the process of onnxruntime for some shapes."""
    v = w.wide(w.moved(x, axis, 0))
    n = w.size(v, 0)
    if v.dtype == "bool":
        v = w.cast(v, "int32")
    rows = w.reshape(v, [n, w.product(w.sizes(v)[1:])])
    if rows.shape[1] == 0:  # all slices are equal
        rows = w.full([n, 1], 0, "int32")
    mine, other = w.unsqueeze(rows, [1]), w.unsqueeze(rows, [0])
    differ = w.cast(w.node("Not", w.node("Equal", mine, other)), "int32")
    place = w.node("ArgMax", differ, axis=2, keepdims=1, shape=(*differ.shape[:2], 1))
    width = w.size(rows, 1)
    here, there = (
        w.node("GatherElements", w.expand(each, [n, n, width]), place, axis=2, shape=place.shape)
        for each in (mine, other)
    )
    less = w.squeeze(w.node("Less", here, there), [2])  # [i, j]: slice i comes before slice j
    same = w.squeeze(w.node("Equal", here, there), [2])
    at = w.arange(n)
    earlier = w.node("And", same, w.node("Less", at, w.unsqueeze(at, [1])))
    begins = w.node("Equal", w.reduce("ReduceSum", w.cast(earlier, "int64"), [1], False), w.const(0, "int64"))
    before = w.node("And", less, w.unsqueeze(begins, [1]))
    inverse = w.reduce("ReduceSum", w.cast(before, "int64"), [0], False)
    count = w.reduce("ReduceSum", w.cast(begins, "int64"), [0], True)
    firsts = w.node("Compress", at, begins, axis=0, shape=(-1,))
    first = w.scatter_add(count, w.gather(inverse, firsts), firsts)
    counts = w.scatter_add(count, inverse, w.expand(w.const(1, "int64"), [n]))
    return first, inverse, counts


@writes("searchsorted")
def searchsorted(w, sorted_sequence, values, *, right):
    return count_below(w, sorted_sequence, values, right)


def count_below(w: OpSite, ascending: Tensor, values: Tensor, right: bool) -> Tensor:
    """For each value the number of elements of a vector below it, or with `right` at most as large."""
    column = w.unsqueeze(values, [values.rank])
    below = w.node("LessOrEqual" if right else "Less", ascending, column)
    return w.reduce("ReduceSum", w.cast(below, "int64"), [-1], False)


# --- tables -----------------------------------------------------------------------------------------------------------


@writes("is_padding")
def is_padding(w, ids, like, *, padding_idx):
    n = w.size(like, 0)
    return w.node("Equal", wrapped(w, ids, n), _row(w, padding_idx, n))


def _row(w, index, n):
    return w.scalar(index if index >= 0 else w.arith("Add", n, index))


cannot("merge_rows says the same without unused rows", "merge_rows_padded")


@writes("merge_rows")
def merge_rows(w, x, ids, like, *, padding_idx):
    n = w.size(like, 0)
    index = w.flat(wrapped(w, ids, n))
    sizes = w.sizes(like)[1:]
    flat = w.reshape(x, [w.size(index, 0), *sizes])
    if padding_idx is not None:
        kept = w.node("Not", w.node("Equal", index, _row(w, padding_idx, n)))
        index = w.node("Compress", index, kept, axis=0, shape=(-1,))
        flat = w.node("Compress", flat, kept, axis=0, shape=(-1, *flat.shape[1:]))
    rows, _, inverse, _ = unique(w, index)
    return rows, w.scatter_add(w.size(rows, 0), inverse, flat)


@writes("read_rows")
def read_rows(w, values, rows, ids, like):
    """Each id's place among the rows, and zeros where it is not there. A row of zeros follows the values."""
    index = wrapped(w, ids, w.size(like, 0))
    rows = w.cast(rows, "int64")
    place = count_below(w, rows, index, False)
    end = w.full([1], 2**62, "int64")
    found = w.node("Equal", w.gather(w.concat([rows, end]), place), index)
    sizes = w.sizes(like)[1:]
    zeros = w.full([1, *sizes], 0, values.dtype)
    there = w.gather(w.concat([values, zeros]), place)
    mask = w.unsqueeze(found, list(range(index.rank, index.rank + len(sizes))))
    return w.where(mask, there, w.number(0, values))


@writes("split_by_mask")
def split_by_mask(w, x, mask):
    fits = w.node("Equal", w.vector([w.size(x, 0)]), w.vector([w.size(mask, 0)]))
    mask = mask if x.shape[0] == mask.shape[0] != -1 else w.guarded(mask, fits)
    rest = w.node("Not", mask)
    return tuple(w.node("Compress", x, m, axis=0, shape=(-1, *x.shape[1:])) for m in (mask, rest))


@writes("merge_by_mask")
def merge_by_mask(w, mask, true, false):
    """A gather from both: the place of a row is its number among the true or the false ones."""
    number = w.cast(mask, "int64")
    trues = w.node("CumSum", number, w.const(0, "int64"), exclusive=1)
    falses = w.node("CumSum", w.cast(w.node("Not", mask), "int64"), w.const(0, "int64"), exclusive=1)
    count = w.vector([w.size(true, 0)])
    total = w.reduce("ReduceSum", number, [0], True)
    place = w.where(mask, trues, w.add(falses, count))
    right = w.node("Equal", total, count)
    return w.gather(w.concat([true, false]), w.guarded(place, right))


# --- segments ---------------------------------------------------------------------------------------------------------


def _count(w, like, num_segments):
    return num_segments if num_segments >= 0 else w.size(like, 0)


@writes("segment_sum")
def segment_sum(w, x, ids, like=None, *, num_segments):
    count = _count(w, like, num_segments)
    return w.scatter_add(count, _segments(w, ids, count), x)


def _segments(w, ids, count):
    ids = w.cast(ids, "int64")
    inside = w.node("GreaterOrEqual", ids, w.const(0, "int64"))
    below = w.node("Less", ids, w.scalar(count))
    return w.guarded(ids, w.node("And", inside, below))


@writes("segment_prod")
def segment_prod(w, x, ids, like=None, *, num_segments):
    count = _count(w, like, num_segments)
    return w.scatter_add(count, _segments(w, ids, count), x, "mul", 1)


@writes("segment_max")
def segment_max(w, x, ids, like=None, *, num_segments):
    count = _count(w, like, num_segments)
    ids = _segments(w, ids, count)
    v = w.wide(x)
    most = w.scatter_add(count, ids, v, "max", -math.inf)
    rows = w.scatter_add(count, ids, w.expand(w.const(1, "int64"), [w.size(ids, 0)]))
    has = w.unsqueeze(w.node("Greater", rows, w.const(0, "int64")), list(range(1, x.rank)))
    return w.cast(w.where(has, most, w.number(0, most)), x.dtype)


@writes("repeat_positions")
def repeat_positions(w, counts, x=None, *, axis):
    """For each place the number of sums of counts that end before it."""
    counts = w.cast(counts, "int64")
    holds = [w.node("GreaterOrEqual", counts, w.const(0, "int64"))]
    if x is not None:
        holds.append(w.node("Equal", w.vector([w.size(counts, 0)]), w.vector([w.size(x, axis)])))
    return repeated(w, w.guarded(counts, *holds))


def repeated(w: OpSite, counts: Tensor) -> Tensor:
    """The numbers 0, 1, 2, ... of the counts, each as often as its count, which is not negative."""
    ends = w.node("CumSum", counts, w.const(0, "int64"))
    total = w.reduce("ReduceSum", counts, [0], True)
    return count_below(w, ends, w.arange(total), True)
