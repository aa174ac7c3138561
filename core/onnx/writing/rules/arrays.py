"""Tensor arrays and stacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from core.ir import StackType, TensorType
from core.onnx.writing.arrays import (
    Stack,
    append,
    at,
    drop,
    empty,
    flattened,
    join,
    laid_out,
    length,
    missing,
    numels,
    padded,
    zeros,
)
from core.onnx.writing.blocks import OpSite
from core.onnx.writing.graph import Tensor
from core.onnx.writing.registry import Refused, writes
from core.onnx.writing.rules.control import branches, inner_graph
from core.onnx.writing.rules.indexing import repeated
from core.onnx.writing.site import Size


def _element(w: OpSite) -> TensorType:
    type = w.types[0]
    assert isinstance(type, StackType)
    return type.array


def _uniform(w: OpSite) -> bool:
    return _element(w).is_static or w.uniform()


def _position(w: OpSite, index: Tensor) -> Tensor:
    return w.reshape(w.cast(index, "int64"), [1])


@writes("create_array")
def create_array(w, *, shape, dtype):
    return empty(w, TensorType(shape, dtype), 1, _uniform(w))


@writes("empty_stack")
def empty_stack(w, *, depth, shape, dtype):
    return empty(w, TensorType(tuple(shape), dtype), depth, _uniform(w))


@writes("array_write")
def array_write(w, x, index, array):
    """The elements before the index, x, and the elements after it."""
    i = _position(w, index)
    count = w.vector([length(w, array)])
    zero = w.ints([0])
    inside = w.node("And", w.node("GreaterOrEqual", i, zero), w.node("LessOrEqual", i, count))
    i = w.guarded(i, inside)
    before = drop(w, array, zero, i)
    after = drop(w, array, w.node("Min", w.add(i, w.ints([1])), count, shape=(1,)), count)
    return join(w, append(w, before, x), _like(w, after, x))


def _like(w: OpSite, stack: Stack, x: Tensor) -> Stack:
    """`stack` with the sizes of x, if its own are open: an empty one has none."""
    if stack.shapes is not None or -1 not in stack.element.shape:
        return stack
    return replace(stack, data=w.reshape(stack.data, [w.size(stack.data, 0), *w.sizes(x)]))


@writes("array_read")
def array_read(w, array, index):
    i = _position(w, index)
    count = w.vector([length(w, array)])
    inside = w.node("And", w.node("GreaterOrEqual", i, w.ints([0])), w.node("Less", i, count))
    return at(w, array, w.guarded(i, inside))


@writes("array_length")
def array_length(w, array):
    return w.scalar(length(w, array))


@writes("array_place")
def array_place(w, x, index):
    """Missing elements, then x."""
    if isinstance(x, Stack):
        raise Refused("an element of a stack of stacks is placed")
    i = _position(w, index)
    if _uniform(w):
        before = w.full([i, *w.sizes(x)], 0, x.dtype)
        return Stack(_element(w), w.concat([before, w.unsqueeze(x, [0])]))
    shape = w.reshape(w.shape_of(x), [1, x.rank])
    absent = w.full([i, x.rank], -1, "int64")
    return Stack(_element(w), w.flat(x), w.concat([absent, shape]))


@writes("array_take")
def array_take(w, array, index, like):
    """An `If`: the element, or zeros."""
    i = _position(w, index)
    here, inside = inner_graph(w)
    there, absent = inner_graph(w)
    if array.shapes is None or array.counts:
        inside_it = w.node("Less", i, w.vector([length(w, array)]))
        condition = w.node("And", inside_it, w.node("GreaterOrEqual", i, w.ints([0])))
    else:
        _, shapes = padded(w, array, w.arith("Add", i, 1)).tensors
        condition = w.node("Not", w.gather(missing(w, shapes), i))
    found = at(inside, array, i)
    return branches(w, condition, [(here, inside, [found]), (there, absent, [absent.zeros_like(like)])])[0]


@writes("array_erase")
def array_erase(w, array, index):
    """A selection, so that NaN and infinity are dropped too. The last element is left out."""
    if array.counts:
        raise Refused("an element of a stack of stacks is erased")
    n, at = w.size(array.tensors[-1], 0), _position(w, index)
    is_last = w.node("Equal", at, w.vector([w.arith("Sub", n, 1)]), shape=(1,))
    array = drop(w, array, w.ints([0]), w.sub(w.vector([n]), w.cast(is_last, "int64")))
    erased = w.node("Equal", w.arange(w.size(array.tensors[-1], 0)), at, shape=(-1,))
    if array.shapes is None:
        mask = w.unsqueeze(erased, list(range(1, array.data.rank)))
        return replace(array, data=w.where(mask, w.number(0, array.data), array.data))
    shapes = w.where(w.unsqueeze(erased, [1]), w.const(-1, "int64"), array.shapes)
    lengths = numels(w, array.shapes)
    kept = w.node("Not", w.gather(erased, repeated(w, lengths)))
    data = w.node("Compress", array.data, kept, axis=0, shape=(-1,))
    return replace(array, data=data, shapes=shapes)


@writes("array_fill")
def array_fill(w, array, like):
    """The elements, and zeros for the missing ones."""
    if array.counts:
        return _filled_nested(w, array, like)
    if array.shapes is None and like.shapes is None and _uniform(w):
        have, want = w.size(array.data, 0), w.size(like.data, 0)
        absent = drop(w, zeros(w, like), w.arith("Min", have, want), want)
        return join(w, _like_stack(w, _first(w, array, want), like), absent)
    like = flattened(w, like)
    want = w.size(like.shapes, 0)
    array = padded(w, _first(w, flattened(w, array), want), want)
    return replace(array, data=laid_out(w, array, like.shapes), shapes=like.shapes)


def _first(w: OpSite, array: Stack, count: Size) -> Stack:
    """At most `count` elements of an array."""
    return drop(w, array, w.ints([0]), w.arith("Min", w.size(array.tensors[-1], 0), count))


def _filled_nested(w: OpSite, array: Stack, like: Stack) -> Stack:
    """As `array_fill`, of stacks of stacks: each place of `like` takes the array of `array` there, if there is one."""
    have = w.size(array.counts[0], 0)
    at = w.arange(w.size(like.counts[0], 0))
    source = w.where(w.node("Less", at, w.vector([have]), shape=(-1,)), at, w.ints([-1]))
    for own, new in zip(array.counts, like.counts, strict=True):
        source = _sources(w, source, own, new)
    if array.shapes is None and like.shapes is None and _uniform(w):
        data = _like_stack(w, array, like).data
        sizes = w.sizes(data)
        rows = w.concat([data, w.full([1, *sizes[1:]], 0, data.dtype)])
        return replace(like, data=w.gather(rows, _or_last(w, source, sizes[0])))
    array, like = flattened(w, array), flattened(w, like)
    assert array.shapes is not None and like.shapes is not None
    count = w.size(array.shapes, 0)
    absent = w.full([1, array.element.rank], -1, "int64")
    taken = _or_last(w, source, count)
    found = w.scatter_add(w.arith("Add", count, 1), taken, w.full([w.size(taken, 0)], 1, "int64"))
    kept = w.gather(w.cast(found, "bool"), repeated(w, numels(w, array.shapes)))
    data = w.node("Compress", array.data, kept, axis=0, shape=(-1,))
    present = replace(array, data=data, shapes=w.gather(w.concat([array.shapes, absent]), taken), counts=())
    return replace(like, data=laid_out(w, present, like.shapes))


def _sources(w: OpSite, stacks: Tensor, own: Tensor, new: Tensor) -> Tensor:
    """Where each element of the new stacks comes from: its number among the elements of the own stacks, or -1.

    stacks:   the number of the own stack from which each new stack comes, or -1.
    own, new: the lengths of the stacks. An element comes from the same position of its stack, if that is so long.
    """
    zero = w.const(0, "int64")
    stack = repeated(w, new)
    total = w.reduce("ReduceSum", new, [0], True)
    within = w.sub(w.arange(total), w.gather(w.node("CumSum", new, zero, exclusive=1), stack))
    other = _or_last(w, w.gather(stacks, stack), w.size(own, 0))
    lengths = w.concat([own, w.ints([0])])
    starts = w.gather(w.node("CumSum", lengths, zero, exclusive=1), other)
    inside = w.node("Less", within, w.gather(lengths, other), shape=(-1,))
    return w.where(inside, w.add(starts, within), w.ints([-1]))


def _or_last(w: OpSite, numbers: Tensor, last: Size) -> Tensor:
    """`numbers`, and `last` in place of -1."""
    return w.where(w.node("Less", numbers, w.ints([0]), shape=(-1,)), w.vector([last]), numbers)


def _of_lengths(w: OpSite, array: Stack, counts: Sequence[Tensor]) -> Stack:
    """A stack of stacks whose lengths must be `counts`; else the run ends with an error.

    The reference executor adds and leaves out elements. No gradient of a program without stacks of stacks needs that.
    """
    alike = [w.node("Equal", w.vector([w.size(a, 0)]), w.vector([w.size(b, 0)]), shape=(1,)) for a, b in
             zip(array.counts, counts, strict=True)]  # fmt: skip
    own = [w.guarded(a, same) for a, same in zip(array.counts, alike, strict=True)]
    own = [w.guarded(a, w.node("Equal", a, b, shape=(-1,))) for a, b in zip(own, counts, strict=True)]
    return replace(array, counts=tuple(own), data=_after(w, array.data, own))


def _after(w: OpSite, x: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """x, once `vectors` are computed, so that their checks run."""
    return w.guarded(x, *(w.node("GreaterOrEqual", each, w.ints([0]), shape=(-1,)) for each in vectors))


def _like_stack(w: OpSite, stack: Stack, like: Stack) -> Stack:
    if stack.shapes is not None or -1 not in stack.element.shape:
        return stack
    return replace(stack, data=w.reshape(stack.data, [w.size(stack.data, 0), *w.sizes(like.data)[1:]]))


@writes("array_unstack")
def array_unstack(w, x):
    return Stack(_element(w), x)


@writes("array_join")
def array_join(w, array, like=None, *, shape, dtype, count, partial):
    """The tensor of the elements, with zeros for missing ones at the end."""
    if partial:
        array = _first(w, array, w.size(like, 0) if like is not None else count)
    if array.shapes is not None:
        n = w.size(array.shapes, 0)
        first = w.slice_axis(array.shapes, 0, 0, 1)  # the elements of a joined array have one shape
        sizes = w.concat([w.vector([n]), w.reduce("ReduceSum", first, [0], False)])
        data = w.node("Reshape", array.data, sizes, shape=(-1, *shape), allowzero=1)
        if isinstance(n, int):
            data = replace(data, shape=(n, *shape))
    else:
        data = array.data
    have = w.size(data, 0)
    want = w.size(like, 0) if like is not None else count if count >= 0 else have
    if want is have or (isinstance(want, int) and want == have):
        return replace(data, shape=(data.shape[0], *shape)) if data.shape else data
    if -1 in shape:
        sizes = w.sizes(like)[1:] if like is not None else [max(n, 0) for n in shape]
        if like is not None:
            data = w.reshape(data, [have, *sizes])
    else:
        sizes = list(shape)
    fits = w.node("LessOrEqual", w.vector([have]), w.vector([want]))
    missing = w.arith("Sub", want, have)
    if isinstance(missing, Tensor):
        missing = w.guarded(missing, fits)
    if -1 in shape and like is None:
        sizes = w.sizes(data)[1:]
    padding = w.full([missing, *sizes], 0, data.dtype)
    return w.concat([data, padding])


@writes("array_concat")
def array_concat(w, array, like=None):
    """The elements along their first axis; with `like`, an empty array gives no rows of it."""
    element = array.element
    if array.shapes is None:
        sizes = w.sizes(array.data)
        rows = w.product(sizes[:2])
        if like is not None and -1 in element.shape[1:]:
            sizes[2:] = w.sizes(like)[1:]
        return w.reshape(array.data, [rows, *sizes[2:]])
    rows = w.reduce("ReduceSum", w.gather(array.shapes, w.ints([0]), 1), [0], False)
    rest = []
    for axis, n in enumerate(element.shape[1:], 1):
        if n >= 0:
            rest.append(n)
            continue
        if like is not None:
            rest.append(w.size(like, axis))
        else:
            column = w.gather(array.shapes, w.ints([axis]), 1)
            rest.append(w.reduce("ReduceMax", column, [0], False))
    return w.node("Reshape", array.data, w.vector([rows, *rest]), shape=w.types[0].shape, allowzero=1)


@writes("array_split_as")
def array_split_as(w, x, array):
    """x, flattened, with the first sizes of the elements of the array."""
    array = flattened(w, array)
    n = w.size(array.shapes, 0)
    rest = w.slice_axis(w.shape_of(x), 0, 1, x.rank)
    first = w.slice_axis(array.shapes, 1, 0, 1)
    if x.rank == 1:
        shapes = first
    else:
        shapes = w.concat([first, w.expand(w.unsqueeze(rest, [0]), [n, x.rank - 1])], 1)
    return Stack(_element(w), w.flat(x), replace(shapes, shape=(-1, x.rank)))


@writes("array_flatten")
def array_flatten(w, array, like=None, *, order):
    """A stack of stacks without its outermost level."""
    if like is not None:
        array = _of_lengths(w, array, (like.counts[0], *array.counts[1:]))
    elif order:
        n = w.reduce("ReduceSum", array.counts[0], [0], True)
        array = _of_lengths(w, array, (_runs(w, n, order), *array.counts[1:]))
    return replace(array, counts=array.counts[1:])


@writes("array_regroup")
def array_regroup(w, array, like, *, partial):
    total = w.reduce("ReduceSum", like.counts[0], [0], True)
    n = w.vector([length(w, array)])
    if partial and array.shapes is None and not array.counts and -1 not in array.element.shape:
        array = _first(w, array, total)
        array = replace(array, data=_grown(w, array.data, total))
    else:
        array = replace(array, data=w.guarded(array.data, w.node("Equal", n, total, shape=(1,))))
    return replace(array, counts=(like.counts[0], *array.counts))


@writes("array_chunks")
def array_chunks(w, array, *, order):
    return replace(array, counts=(_runs(w, w.vector([length(w, array)]), order), *array.counts))


def _runs(w: OpSite, n: Tensor, order: int) -> Tensor:
    """The lengths of the runs that n elements are split into.

    The first k runs have binom(k + order, order + 1) elements, so n of them need at most sqrt(2 n) + 2 runs.
    """
    if order > 2:
        raise Refused(f"runs of order {order}; the memory policies of loops use 1 and 2")
    root = w.node("Sqrt", w.cast(w.mul(n, w.ints([2])), "float64"))
    k = w.arange(w.add(w.cast(w.node("Ceil", root), "int64"), w.ints([2])))

    def elements(k: Tensor) -> Tensor:
        """The elements of the first k runs."""
        product = k
        for i in range(1, order + 1):
            product = w.mul(product, w.add(k, w.ints([i])))
        return w.node("Min", w.div(product, w.ints([math.factorial(order + 1)])), n)

    starts, ends = elements(k), elements(w.add(k, w.ints([1])))
    return w.node("Compress", w.sub(ends, starts), w.node("Less", starts, n), axis=0, shape=(-1,))


@writes("array_cut")
def array_cut(w, x, counts, within):
    """Sections of x, flattened, with their shapes. A model has no errors, so `within` says nothing there."""
    counts = w.cast(counts, "int64")
    n = w.size(counts, 0)
    rest = w.slice_axis(w.shape_of(x), 0, 1, x.rank)
    first = w.unsqueeze(counts, [1])
    shapes = first if x.rank == 1 else w.concat([first, w.expand(w.unsqueeze(rest, [0]), [n, x.rank - 1])], 1)
    return Stack(_element(w), w.flat(x), replace(shapes, shape=(-1, x.rank)))


@writes("array_paste")
def array_paste(w, array, like):
    return w.reshape_like(w.flat(array.data), like)


def sum_of_stacks(w, *x: Stack) -> Stack:
    """The sum of stacks, element by element; an element that one of them lacks counts as zeros."""
    total = x[0]
    for each in x[1:]:
        total = _sum(w, total, each)
    return total


def _sum(w: OpSite, a: Stack, b: Stack) -> Stack:
    if a.shapes is None and b.shapes is None and _uniform(w):
        if a.counts:
            return replace(a, data=w.add(a.data, b.data))
        most = w.arith("Max", w.size(a.data, 0), w.size(b.data, 0))
        return replace(a, data=w.add(_grown(w, a.data, most), _grown(w, b.data, most)))
    if a.counts:
        raise Refused("stacks of stacks of arrays of different shapes are added")
    a, b = flattened(w, a), flattened(w, b)
    most = w.arith("Max", w.size(a.tensors[1], 0), w.size(b.tensors[1], 0))
    a, b = padded(w, a, most), padded(w, b, most)
    shapes = w.node("Max", a.tensors[1], b.tensors[1])
    return Stack(_element(w), w.add(laid_out(w, a, shapes), laid_out(w, b, shapes)), shapes)


def _grown(w: OpSite, data: Tensor, count) -> Tensor:
    """`data` with zeros after it, so that it has `count` elements."""
    if isinstance(count, int) and count == (data.shape or (-1,))[0]:
        return data
    absent = w.arith("Sub", count, w.size(data, 0))
    return w.concat([data, w.full([absent, *w.sizes(data)[1:]], 0, data.dtype)])
