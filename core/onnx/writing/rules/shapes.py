"""Reshapes, broadcasts, joins and cuts."""

from __future__ import annotations

import math

from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import Refused, writes


@writes("reshape")
def reshape(w, x, *, shape):
    out = w.types[0].shape
    if out.count(-1) <= 1 and 0 not in out:
        return w.node("Reshape", x, w.ints(out), shape=out) if x.shape != out or -1 in out else x
    if -1 not in out:
        return w.reshape(x, out)
    known = math.prod(n for n in shape if n != -1)
    if known == 0:
        raise Refused("a reshape to an open size next to a size of 0 has no one result")
    return w.node("Reshape", x, w.ints(shape), shape=out)


@writes("reshape_as")
def reshape_as(w, x, like):
    return w.reshape_like(x, like)


@writes("merge_axes")
def merge_axes(w, x, *, start, end):
    sizes = w.sizes(x)
    return w.reshape(x, [*sizes[:start], w.product(sizes[start:end]), *sizes[end:]])


@writes("unflatten")
def unflatten(w, x, *, axis, sizes):
    at = axis % x.rank
    around = w.sizes(x)
    known = math.prod(n for n in sizes if n != -1)
    inner = list(sizes)
    if -1 in inner:
        if known == 0:
            raise Refused("an axis is divided into an open size and a size of 0")
        inner[inner.index(-1)] = w.arith("Div", around[at], known)
    return w.reshape(x, [*around[:at], *inner, *around[at + 1 :]])


@writes("unsqueeze")
def unsqueeze(w, x, *, axes):
    return w.unsqueeze(x, axes)


@writes("squeeze")
def squeeze(w, x, *, axes):
    if axes is None:
        axes = [i for i, n in enumerate(x.shape) if n == 1]
    return w.squeeze(x, axes)


@writes("transpose")
def transpose(w, x, *, axes):
    return w.transpose(x, list(reversed(range(x.rank))) if axes is None else [a % x.rank for a in axes])


@writes("expand")
def expand(w, x, *, shape):
    own = [1] * (len(shape) - x.rank) + w.sizes(x)
    return w.expand(x, [have if n == -1 else n for n, have in zip(shape, own, strict=True)])


@writes("expand_as")
def expand_as(w, x, like):
    return w.expand_like(x, like)


def sum_to(w: OpSite, x: Tensor, like: Tensor) -> Tensor:
    """x summed to the shape of `like`. Axes that are 1 in `like` only at run time are found by the run."""
    assert like.shape is not None and x.shape is not None
    extra = x.rank - like.rank
    pairs = list(enumerate(zip(x.shape[extra:], like.shape, strict=True), start=extra))
    axes = [*range(extra), *(i for i, (m, n) in pairs if n == 1 and m != 1)]
    unsure = any(n == -1 and m != 1 for _, (m, n) in pairs)
    v = w.wide(x)
    if v.dtype in ("uint8", "int8", "int16", "bool"):
        v = w.cast(v, "int32")
    if not unsure:
        v = w.reduce("ReduceSum", v, axes, True) if axes else v
        return w.cast(w.reshape_like(v, like), x.dtype)
    full = w.shape_of(like)
    if extra:
        full = w.concat([w.ints([1] * extra), full])
    differ = w.node("Not", w.node("Equal", full, w.shape_of(x)))
    ones = w.node("And", w.node("Equal", full, w.ints([1])), differ)
    first = w.const([i < extra for i in range(x.rank)], "bool")
    which = w.node("NonZero", w.node("Or", ones, first), shape=(1, -1))
    which = w.node("Reshape", which, w.ints([-1]), shape=(-1,))
    summed = w.node("ReduceSum", v, which, keepdims=1, noop_with_empty_axes=1, shape=(-1,) * x.rank)
    return w.cast(w.reshape_like(summed, like), x.dtype)


@writes("sum_to")
def sum_to_(w, x, *, shape):
    return sum_to(w, x, Tensor("", x.dtype, tuple(shape)))


@writes("sum_to_like")
def sum_to_like(w, x, like):
    return sum_to(w, x, like)


@writes("concat")
def concat(w, *x, axis):
    return w.concat(x, axis)


@writes("split")
def split(w, x, *, num, sections, axis):
    at = axis % x.rank
    parts = num if sections is None else len(sections)
    if parts == 1:
        return (x,)
    n = x.shape[at]
    if sections is None and n >= 0:
        sections = (n // num,) * num
    if sections is None:
        size = w.arith("Div", w.size(x, at), num)
        lengths = w.expand(w.vector([size]), [num])
    else:
        lengths = w.ints(sections)
    outputs = [(None, t.shape) for t in w.types]
    return tuple(w.nodes("Split", x, lengths, axis=at, outputs=outputs))


@writes("split_like")
def split_like(w, x, *like, axis):
    at = axis % x.rank
    if len(like) == 1:
        return (x,)
    lengths = w.vector([w.size(each, at) for each in like])
    return tuple(w.nodes("Split", x, lengths, axis=at, outputs=[(None, t.shape) for t in w.types]))


@writes("unstack")
def unstack(w, x, *, axis):
    return tuple(w.gather(x, w.const(i, "int64"), axis) for i in range(len(w.types)))


@writes("tile")
def tile(w, x, *, repeats):
    rank = max(x.rank, len(repeats))
    x = w.unsqueeze(x, range(rank - x.rank))
    repeats = (1,) * (rank - len(repeats)) + tuple(repeats)
    return w.node("Tile", x, w.ints(repeats), shape=w.types[0].shape)


@writes("sum_tiles_like")
def sum_tiles_like(w, x, like, *, repeats):
    rank = max(like.rank, len(repeats))
    counts = [1] * (rank - len(repeats)) + list(repeats)
    sizes = [1] * (rank - like.rank) + w.sizes(like)
    split_ = w.reshape(x, [n for pair in zip(counts, sizes, strict=True) for n in pair])
    return w.reshape_like(w.reduce("ReduceSum", split_, range(0, 2 * rank, 2), False), like)


@writes("meshgrid")
def meshgrid(w, *x):
    sizes = [w.size(v, 0) for v in x]
    grids = (w.unsqueeze(v, [k for k in range(len(x)) if k != i]) for i, v in enumerate(x))
    return tuple(w.expand(g, sizes) for g in grids)


@writes("pad_constant")
def pad_constant(w, x, *, paddings, value):
    if not any(paddings):
        return x
    pads = w.ints([*paddings[::2], *paddings[1::2]])
    return w.node("Pad", x, pads, w.number(value, x), shape=w.types[0].shape)


@writes("check_shape")
def check_shape(w, x, like=None, *, shape, axes):
    wanted = w.ints(shape)
    actual = w.node("Shape", x, shape=(x.rank,))
    fits = w.node("Or", w.node("Equal", actual, wanted), w.node("Equal", wanted, w.ints([-1])))
    if like is None:
        return w.guarded(x, fits) if -1 in x.shape else x
    own, others = (
        w.node("Gather", sizes, w.ints([axis % sizes.shape[0] for axis in chosen]), shape=(len(chosen),))
        for sizes, chosen in (
            (actual, axes[::2]),
            (w.node("Shape", like, shape=(like.rank,)), axes[1::2]),
        )
    )
    return w.guarded(x, fits, w.node("Equal", own, others)) if -1 in (*x.shape, *like.shape) else x


# --- diagonals --------------------------------------------------------------------------------------------------------


def _clipped(offset: int, x: Tensor) -> int:
    most = max((n for n in x.shape or () if n >= 0), default=2**31)
    return max(min(offset, max(most, 2**31)), -max(most, 2**31))


@writes("diagonal")
def diagonal(w, x, *, offset, axis1, axis2):
    """A gather from the last two axes, merged."""
    offset = _clipped(offset, x)
    last = _axes_last(w, x, axis1, axis2)
    sizes = w.sizes(last)
    rows, columns = sizes[-2:]
    down, right = max(-offset, 0), max(offset, 0)
    count = w.arith("Max", w.arith("Min", w.arith("Sub", rows, down), w.arith("Sub", columns, right)), 0)
    at = w.arange(count)
    step = w.vector([w.arith("Add", columns, 1)])
    first = w.vector([w.arith("Add", w.arith("Mul", columns, down), right)])
    flat = w.reshape(last, [*sizes[:-2], w.product([rows, columns])])
    return w.gather(flat, w.add(w.mul(at, step), first), -1)


def _axes_last(w: OpSite, x: Tensor, axis1: int, axis2: int) -> Tensor:
    a, b = axis1 % x.rank, axis2 % x.rank
    return w.transpose(x, [*(i for i in range(x.rank) if i not in (a, b)), a, b])


@writes("diagonal_into")
def diagonal_into(w, x, like, *, offset, axis1, axis2):
    """A selection between x, repeated along the columns, and zeros."""
    a, b = axis1 % like.rank, axis2 % like.rank
    order = [*(i for i in range(like.rank) if i not in (a, b)), a, b]
    offset = _clipped(offset, like)
    rows, columns = w.size(like, a), w.size(like, b)
    down = max(-offset, 0)
    short = w.arith("Sub", w.arith("Sub", rows, w.size(x, -1)), min(down, 2**31))
    if isinstance(rows, int):
        down = min(down, rows)
        short = w.arith("Sub", w.arith("Sub", rows, w.size(x, -1)), down)
    pads = w.vector([*[0] * (x.rank - 1), down, *[0] * (x.rank - 1), short])
    column = w.node("Pad", x, pads, w.number(0, x), shape=(*x.shape[:-1], rows if isinstance(rows, int) else -1))
    across = w.sub(w.arange(columns), w.const(offset, "int64"))
    mask = w.node("Equal", w.unsqueeze(w.arange(rows), [1]), across)
    found = w.where(mask, w.unsqueeze(column, [x.rank]), w.number(0, x))
    return w.transpose(found, [order.index(i) for i in range(like.rank)])


@writes("diagonals_into")
def diagonals_into(w, x, like, *, letters):
    """A selection between x, repeated along the axes of repeated letters, and zeros."""
    unique = "".join(dict.fromkeys(letters))
    spread = w.unsqueeze(x, [i for i, c in enumerate(letters) if letters.index(c) != i])
    mask = None
    for i, c in enumerate(letters):
        first = letters.index(c)
        if first == i:
            continue
        at = [w.unsqueeze(w.arange(w.size(like, k)), [j for j in range(like.rank) if j != k]) for k in (first, i)]
        same = w.node("Equal", *at)
        mask = same if mask is None else w.node("And", mask, same)
    assert len(unique) == x.rank
    return spread if mask is None else w.where(mask, spread, w.number(0, x))
