"""Lowerings of ops on arrays whose sizes only the run tells (`core.plan.sizes`).

Most ops take such an array as one of its largest size. The others, which combine elements along the axis of an open
size or check them, get it with neutral elements beyond its length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from core.ir import HOLE, Op, TensorType, Type
from core.ir.precision import is_half
from core.ir.registry import lookup
from core.ops.common.types import as_dtype
from core.ops.indexing.gather import cut
from core.plan.compose import Maker
from core.plan.data import PRODUCT_BLOCK, Gather, Gemm, Kernel, Limited, View
from core.plan.entries import Entry, positions
from core.plan.geometry import Selection, Tail
from core.plan.halves import narrowed, wide, widened
from core.plan.indexing import computed_positions
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.meeting_sizes import (
    Axes,
    agreeing,
    broadcast,
    first_of,
    known_size,
    matched,
    same_size,
    sizes_of,
    with_equal,
    with_known,
)
from core.plan.plan import NOT_COVERED
from core.plan.ragged import running_total
from core.plan.reduce import KINDS, reduced
from core.plan.registering import registering
from core.plan.shapes import expanded, reshaped
from core.plan.sizes import Given, Size, bounds, in_blocks, is_open, tensor
from core.plan.unsupported import Unsupported

__all__ = [
    "adopt",
    "along_known",
    "clear_integers",
    "is_sized",
    "lower_sized",
    "masked",
    "new_size",
    "of_known_sizes",
    "parts_of_known",
    "rule",
    "run",
    "selected",
    "set_sizes",
    "sliced_known",
    "under",
    "whole",
]


def is_sized(low: Lowering, op: Op) -> bool:
    """Whether `op` reads or makes an array of an open size."""
    names = (*op.inputs, *op.outputs)
    return any(n in low.sizes or is_open(low.types[n]) for n in names if n != HOLE)


def adopt(low: Lowering, inner: Lowering, name: str, param: str) -> None:
    """Give a parameter of an inner block the sizes of the outer variable."""
    if name in low.sizes:
        inner.types[param], inner.sizes[param] = low.types[name], low.sizes[name]


def of_known_sizes(low: Lowering, op: Op, names: Iterable[str]) -> None:
    """Raises Unsupported if only the run tells a size of one of these operands of `op`."""
    if any(low.sizes.get(n) for n in names):
        raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")


def new_size(low: Lowering, bound: int) -> Size:
    return Size(bound, low.allocate((), "int64", "length"))


def set_sizes(low: Lowering, op: Op, axes: Sequence[Axes]) -> None:
    """Set the sizes of the results of `op`, and their types with the largest sizes.

    Raises Unsupported if there is no largest size, or if `axes` misses an open one.
    """
    if not any(axes) and not any(is_open(low.types[name]) for name in op.outputs):
        return
    types = low.largest(op)
    for i, (name, own) in enumerate(zip(op.outputs, axes, strict=True)):
        declared = low.types[name]
        if not isinstance(declared, TensorType) or types is None:
            raise Unsupported(f"the size of {name} is known only when it runs")
        open_axes = {axis for axis, n in enumerate(declared.shape) if n == -1}
        sizes = types[i].shape
        if open_axes - own.keys() or any(sizes[axis] != size.bound for axis, size in own.items()):
            raise Unsupported(f"the size of {name} is known only when it runs")
        low.types[name] = types[i]
        if own:
            low.sizes[name] = own


# --- values beyond the length -----------------------------------------------------------------------------------


def within(low: Lowering, shape: tuple[int, ...], axis: int, size: Size) -> Entry:
    """A bool for each element: whether its position along `axis` is below the length."""
    along = positions(shape, tuple(int(i == axis) for i in range(len(shape))))
    return Maker(low)("less_than", along, size.length)


def masked(low: Lowering, entry: Entry, axes: Mapping[int, Size], fill: object) -> Entry:
    """`entry` with `fill` beyond its lengths."""
    of = Maker(low)
    for axis, size in axes.items():
        own = tuple(n if i == axis else 1 for i, n in enumerate(entry.shape))
        entry = of.where(within(low, own, axis, size), entry, of.number(as_dtype(entry.dtype).type(fill), entry.dtype))
    return entry


def whole(low: Lowering, name: str, fill: object = 0, axes: frozenset[int] | None = None) -> Entry:
    """The value of a variable with `fill` beyond its lengths. axes: only those; None for all."""
    own = {i: s for i, s in low.sizes.get(name, {}).items() if axes is None or i in axes}
    return masked(low, low.entry(name), own, fill)


def under(low: Lowering, op: Op, entries: Mapping[str, Entry]) -> Op:
    """`op` with other values for some of its operands, under names of their own."""
    names = {}
    for name, entry in entries.items():
        names[name] = f"{name}@within"
        low.types[names[name]] = low.types[name]
        low.define(names[name], entry)
    return replace(op, inputs=tuple(names.get(n, n) for n in op.inputs))


@contextmanager
def limited(low: Lowering, size: Size | None) -> Iterator[None]:
    """Elementwise work inside the context leaves out what lies beyond this length along the first axis."""
    low.limit = size
    try:
        yield
    finally:
        low.limit = None


def run(low: Lowering, op: Op, size: Size | None = None) -> None:
    """Lower an op whose operands and results have known types now, and clear integers beyond their lengths.

    size: of the first axis of all results and of what is computed for them, if its rows depend on their own rows alone.
    """
    lowering = LOWERINGS.get(op.type)
    with limited(low, size):
        if lowering is not None:
            lowering(low, op)
        elif lookup(op.type).elementwise:
            low.elementwise(op)
        else:
            raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")
    clear_integers(low, op)


def clear_integers(low: Lowering, op: Op) -> None:
    for name in op.outputs:
        own = low.sizes.get(name)
        entry = low.entry(name)
        if own and getattr(entry, "dtype", "").startswith(("int", "uint")):
            low.define(name, masked(low, entry, own, 0))


# --- the rules --------------------------------------------------------------------------------------------------

RULES: dict[str, Callable[[Lowering, Op], None]] = {}


rule = registering(RULES)
"""Decorator: the function lowers the ops of these types on arrays of open sizes."""


def lower_sized(low: Lowering, op: Op) -> None:
    """Lower an op that reads or makes arrays of open sizes. Raises Unsupported."""
    found = RULES.get(op.type)
    if found is not None:
        found(low, op)
    elif lookup(op.type).elementwise:
        _elementwise(low, op)
    else:
        raise Unsupported(f"{op.type} of sizes that only the run tells has no machine code")


def _elementwise(low: Lowering, op: Op) -> None:
    op, sizes = _meeting(low, op)
    run(low, op, sizes.get(0))


def _meeting(low: Lowering, op: Op) -> tuple[Op, Axes]:
    """An elementwise op whose operands have sizes that agree, and the open ones of its result."""
    op = agreeing(low, op)
    sizes = with_known(low, op, broadcast(low, [n for n in op.inputs if n != HOLE]))
    set_sizes(low, op, [sizes])
    return op, sizes


@rule("mod", "fmod", "floor_div", "bitwise_left_shift", "bitwise_right_shift")
def _checked(low: Lowering, op: Op) -> None:
    """Check all elements of the second operand. Elements beyond its length are 1, which passes the check."""
    op, _ = _meeting(low, op)
    second = op.inputs[1]
    if sizes_of(low, second):
        op = under(low, op, {second: whole(low, second, 1)})
    run(low, op)


@rule(
    "assign", "stop_gradient", "barrier", "fill_zeros_like", "full_like", "uniform_random_like", "gaussian_random_like"
)
def _alike(low: Lowering, op: Op) -> None:
    """Results like the operand in the same place, or like the first one."""
    each = op.inputs if op.type == "barrier" else op.inputs[:1]
    if op.type.endswith("random_like") and set(sizes_of(low, op.inputs[0])) - {0}:
        raise Unsupported("random numbers are counted along known sizes")
    set_sizes(low, op, [dict(sizes_of(low, n)) for n in each])
    run(low, op)


@rule("expand_as")
def _expand_as(low: Lowering, op: Op) -> None:
    op = agreeing(low, op)
    x, like = op.inputs
    own = with_known(low, op, dict(sizes_of(low, like)))
    extra = low.type(like).rank - low.type(x).rank
    for axis, n in enumerate(low.type(x).shape):
        if n != 1 and not same_size(low, sizes_of(low, x).get(axis), sizes_of(low, like).get(axis + extra)):
            raise Unsupported("sizes that only the run can compare")
    set_sizes(low, op, [dict(own)])
    low.define(op.outputs[0], expanded(low.entry(x), low.type(like).shape))


@rule("sum_to", "sum_to_like")
def _sum_to(low: Lowering, op: Op) -> None:
    op = agreeing(low, op) if op.type == "sum_to_like" else op
    x, own = op.inputs[0], sizes_of(low, op.inputs[0])
    shape = low.type(op.inputs[1]).shape if op.type == "sum_to_like" else op.attrs["shape"]
    extra = low.type(x).rank - len(shape)
    rows = not extra and own.keys() == {0} and shape[1:] == low.type(x).shape[1:]
    if op.type == "sum_to" and rows and shape[0] > 1:
        _as_known(low, op, own[0], shape)
        return
    kept: Axes = {}
    gone = set(range(extra))
    for axis, n in enumerate(shape):
        size = own.get(axis + extra)
        like = sizes_of(low, op.inputs[1]).get(axis) if op.type == "sum_to_like" else None
        if size is None and like is None:
            continue
        if size is not None and n == 1 and like is None:
            gone.add(axis + extra)
        elif size is not None and same_size(low, size, like):
            kept[axis] = size if like is None else like
        else:
            raise Unsupported("sizes that only the run can compare")
    if op.type == "sum_to" and own.keys() - gone:
        raise Unsupported("sizes that only the run can compare")
    declared = low.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    for axis, n in enumerate(declared.shape):
        if n == -1 and axis not in kept and axis + extra not in own:  # known, though the program does not say so
            number = low.type(x).shape[axis + extra]
            kept[axis] = known_size(low, number)
    set_sizes(low, op, [kept])
    run(low, under(low, op, {x: whole(low, x, 0, frozenset(gone))}) if own.keys() & gone else op)


def _as_known(low: Lowering, op: Op, size: Size, shape: tuple[int, ...]) -> None:
    """An array of an open size that the program takes for one of a known size: the run compares them."""
    of, view = Maker(low), low.stored(low.entry(op.inputs[0]))
    if shape[0] > size.bound:
        raise Unsupported("sizes that only the run can compare")
    fine = of("equal", size.length, of.number(shape[0], "int64"))
    of.check(fine, "shape_mismatch", f"the first size is not {shape[0]}", op.location)
    set_sizes(low, op, [{}])
    low.define(op.outputs[0], replace(view, shape=shape))


NEUTRAL = {"sum": 0, "prod": 1, "and": True, "or": False}


@rule("reduce_sum", "reduce_prod", "reduce_all", "reduce_any", "reduce_max", "reduce_min", "reduce_mean")
def _reduce(low: Lowering, op: Op) -> None:
    x = op.inputs[0]
    own, type = sizes_of(low, x), low.type(x)
    axes = op.attrs["axes"]
    over = frozenset(range(type.rank) if axes is None else (a % type.rank for a in axes))
    keep = op.attrs["keepdims"]
    left = [i for i in range(type.rank) if keep or i not in over]
    set_sizes(low, op, [{left.index(i): s for i, s in own.items() if i not in over}])
    open_axes = over & own.keys()
    if not open_axes:
        run(low, op, own.get(0))
        return
    of, kind = Maker(low), KINDS[op.type]
    out = low.type(op.outputs[0])
    if kind in ("max", "min"):
        if not type.is_float:
            raise Unsupported(f"{op.type} of {type.dtype} over a size that only the run tells")
        for axis in open_axes if op.attrs["empty"] == "error" else ():
            some = of("greater_than", own[axis].length, of.number(0, "int64"))
            of.check(some, "shape_mismatch", f"cannot reduce {x} over an axis of size 0", op.location)
        entry = whole(low, x, -math.inf if kind == "max" else math.inf, open_axes)
        low.define(op.outputs[0], reshaped(low, reduced(low, kind, entry, over, out), out.shape))
        return
    if op.type != "reduce_mean" and (is_half(type) or type.dtype != out.dtype):
        run(low, under(low, op, {x: whole(low, x, NEUTRAL[kind], open_axes)}))
        return
    if op.type == "reduce_mean" and not type.is_float:
        raise Unsupported(f"reduce_mean of {type.dtype}")
    exact = wide(out)
    total: Entry
    try:
        with limited(low, own[0] if open_axes == {0} and not is_half(type) else None):
            entry = whole(low, x, NEUTRAL[kind], open_axes)
            total = reduced(low, kind, widened(low, entry) if is_half(type) else entry, over, exact)
    except Unsupported:  # rows up to the length do not suffice
        entry = whole(low, x, NEUTRAL[kind], open_axes)
        total = reduced(low, kind, widened(low, entry) if is_half(type) else entry, over, exact)
    if op.type != "reduce_mean":
        low.define(op.outputs[0], total)
        return
    count = of("maximum", _count(low, x, over), of.number(1, "int64"))
    mean = of("div", total, of.cast(count, exact.dtype))
    low.define(op.outputs[0], narrowed(low, mean, out) if is_half(type) else mean)


def _count(low: Lowering, x: str, over: frozenset[int]) -> Entry:
    """The number of elements of a variable over some axes, an int64 scalar."""
    of, own = Maker(low), sizes_of(low, x)
    known = math.prod(n for i, n in enumerate(low.type(x).shape) if i in over and i not in own)
    total: Entry = of.number(known, "int64")
    for axis in sorted(over & own.keys()):
        total = of.mul(total, own[axis].length)
    return total


@rule("inverse_count")
def _inverse_count(low: Lowering, op: Op) -> None:
    x, of = op.inputs[0], Maker(low)
    rank, axes, dtype = low.type(x).rank, op.attrs["axes"], low.type(x).dtype
    over = frozenset(range(rank) if axes is None else (a % rank for a in axes))
    count = of("sub", _count(low, x, over), of.number(op.attrs["ddof"], "int64"))
    some = of("greater_than", count, of.number(0, "int64"))
    inverse = of("div", of.number(1.0), of.cast(count, "float64"))
    low.define(op.outputs[0], of.cast(of.where(some, inverse, of.number(np.inf)), dtype))


@rule("size")
def _size(low: Lowering, op: Op) -> None:
    count = _count(low, op.inputs[0], frozenset(range(low.type(op.inputs[0]).rank)))
    type = low.type(op.outputs[0])
    low.define(op.outputs[0], reshaped(low, Maker(low).cast(count, type.dtype), type.shape))


# --- shapes -----------------------------------------------------------------------------------------------------


@rule("reshape", "reshape_as", "unsqueeze", "squeeze", "merge_axes", "unflatten")
def _reshape(low: Lowering, op: Op) -> None:
    """The first axis alone may be open. Rows may be split or joined if that needs no division of the length."""
    x = op.inputs[0]
    own = sizes_of(low, x)
    declared = low.block.types[op.outputs[0]]
    assert isinstance(declared, TensorType)
    if declared.is_static and len(own) == 1 and op.type in ("reshape", "reshape_as"):
        ((axis, only),) = own.items()
        _as_reshaped(low, op, axis, only, declared.shape)
        return
    if own.keys() - {0} or low.type(x).rank == 0:
        raise Unsupported("another size than the first one is known only when it runs")
    if 0 not in own:
        raise Unsupported("a known size that is declared open")
    size, row = own[0], math.prod(low.type(x).shape[1:])
    if op.type == "reshape_as":
        like = sizes_of(low, op.inputs[1])
        if like.keys() != {0}:
            raise Unsupported("another size than the first one is known only when it runs")
        rest = math.prod(low.type(op.inputs[1]).shape[1:])
        wanted = scaled(low, size, row, rest)
        if not _equal(low, wanted, like[0]) and not same_size(low, wanted, like[0]):
            raise Unsupported("sizes that only the run can compare")
        wanted = like[0]
    else:
        if [i for i, n in enumerate(declared.shape) if n == -1] != [0]:
            raise Unsupported("another size than the first one is known only when it runs")
        wanted = scaled(low, size, row, math.prod(declared.shape[1:]))
    set_sizes(low, op, [{0: wanted}])
    low.define(op.outputs[0], reshaped(low, low.entry(x), low.type(op.outputs[0]).shape))


def _as_reshaped(low: Lowering, op: Op, axis: int, size: Size, shape: tuple[int, ...]) -> None:
    """An array of one open size that the program takes for an array of a known shape."""
    of, given = Maker(low), low.type(op.inputs[0]).shape
    rest, count = math.prod(given) // size.bound, math.prod(shape)
    if not count or not rest or count % rest or count > size.bound * rest or not low.target.expects:
        raise Unsupported("sizes that do not fit")
    number = count // rest
    fits = of("equal", size.length, of.number(number, "int64"))
    of.check(fits, NOT_COVERED, "another number of elements", op.location)
    view = low.stored(low.entry(op.inputs[0]))
    set_sizes(low, op, [{}])
    part = replace(view, shape=(*given[:axis], number, *given[axis + 1 :]))
    low.define(op.outputs[0], reshaped(low, part, shape))


def scaled(low: Lowering, size: Size, row: int, rest: int) -> Size:
    """The length of `size` rows of `row` elements as rows of `rest` elements."""
    if row == rest:
        return size
    base, factor = low.multiples.get(size, (size, 1))
    if (factor * row) % rest:
        raise Unsupported("a length that only the run can divide")
    times = factor * row // rest
    if times == 1:
        return base
    found = next((s for s, pair in low.multiples.items() if pair == (base, times)), None)
    if found is None:
        of = Maker(low)
        length = low.dense(of.mul(base.length, of.number(times, "int64")))
        found = Size(base.bound * times, length)
        low.multiples[found] = (base, times)
    return found


def _equal(low: Lowering, a: Size, b: Size) -> bool:
    return a is b or low.multiples.get(a, (a, 1)) == low.multiples.get(b, (b, 1))


@rule("transpose")
def _transpose(low: Lowering, op: Op) -> None:
    own, rank, axes = sizes_of(low, op.inputs[0]), low.type(op.inputs[0]).rank, op.attrs["axes"]
    order = tuple(reversed(range(rank))) if axes is None else tuple(a % rank for a in axes)
    set_sizes(low, op, [{order.index(i): s for i, s in own.items()}])
    run(low, op)


def sliced_known(low: Lowering, op: Op) -> None:
    """Slices of known sizes."""
    own = sizes_of(low, op.inputs[0])
    shape = low.type(op.inputs[0]).shape
    touched = {axis for axis, part in cut(len(shape), **op.attrs) if axis in own}
    if touched or (op.type == "slice_into" and own != sizes_of(low, op.inputs[1])):
        raise Unsupported("a slice of an axis whose size only the run tells")
    set_sizes(low, op, [dict(own)])
    run(low, op)


@rule("unstack")
def parts_of_known(low: Lowering, op: Op) -> None:
    """Parts along an axis of known size."""
    given = [sizes_of(low, n) for n in op.inputs]
    if op.type == "pad_constant":
        pads = op.attrs["paddings"]
        axes = {i for i in range(len(pads) // 2) if any(pads[2 * i : 2 * i + 2])}
    else:
        axes = {op.attrs["axis"] % low.type(op.inputs[0]).rank}
    if any(each != given[0] for each in given) or axes & given[0].keys():
        raise Unsupported(f"{op.type} along an axis whose size only the run tells")
    own = given[0]
    if op.type == "unstack":
        (axis,) = axes
        own = {i - (i > axis): s for i, s in own.items()}
    set_sizes(low, op, [dict(own) for _ in op.outputs])
    run(low, op)


@bounds("check_shape")
def _checked_sizes(op: Op, given: Given, declared: Sequence[Type]) -> tuple[TensorType, ...] | None:
    """The known sizes of the result, and the largest ones of the operand along its other axes."""
    out, x = declared[0], tensor(given[0])
    if not isinstance(out, TensorType) or 0 in (*x.shape, *out.shape):
        return None
    return (TensorType(tuple(m if n == -1 else n for m, n in zip(x.shape, out.shape, strict=True)), x.dtype),)


@rule("check_shape")
def _check_shape(low: Lowering, op: Op) -> None:
    """The code covers the runs in which the sizes are those of the check."""
    x, like = op.inputs
    for axis, wanted in enumerate(op.attrs["shape"]):
        if wanted != -1 and axis in sizes_of(low, x):
            if not low.target.expects or wanted > low.type(x).shape[axis]:
                raise Unsupported("sizes that only the run can compare")
            x = first_of(low, x, axis, wanted, True)
    met = op.attrs["axes"]
    for i, j in zip(met[::2], met[1::2], strict=True):
        x, like = matched(low, (x, i % low.type(x).rank), (like, j % low.type(like).rank))
    set_sizes(low, op, [dict(sizes_of(low, x))])
    low.define(op.outputs[0], low.entry(x))


@rule("argmax", "argmin", "one_hot", "running_argmax")
def along_known(low: Lowering, op: Op) -> None:
    """Ops along an axis of known size."""
    own = sizes_of(low, op.inputs[0])
    declared, rank = low.block.types[op.outputs[0]], low.type(op.inputs[0]).rank
    assert isinstance(declared, TensorType)
    if any(sizes_of(low, n) != own for n in op.inputs):
        raise Unsupported("sizes that only the run can compare")
    if op.type == "one_hot":
        set_sizes(low, op, [dict(own)])
    else:
        axis = op.attrs["axis"] % rank
        if axis in own:
            raise Unsupported(f"{op.type} along an axis whose size only the run tells")
        gone = declared.rank < rank
        set_sizes(low, op, [{i - (gone and i > axis): s for i, s in own.items()} for _ in op.outputs])
    run(low, op)


# --- products ---------------------------------------------------------------------------------------------------


@rule("matmul")
def _matmul(low: Lowering, op: Op) -> None:
    """Matrices. Both operands are zero beyond the length of a sum."""
    x, y = op.inputs
    a, b = low.type(x), low.type(y)
    if b.rank != 2 or a.rank < 2 or (a.rank > 2 and (op.attrs["transpose_x"] or sizes_of(low, y))):
        raise Unsupported("a product of arrays whose sizes only the run tells")
    terms, row = (a.rank - 2, a.rank - 1) if op.attrs["transpose_x"] else (a.rank - 1, a.rank - 2)
    others, column = (1, 0) if op.attrs["transpose_y"] else (0, 1)
    op = with_equal(low, op, (0, terms), (1, others))
    x, y = op.inputs
    a, b, summed = low.type(x), low.type(y), sizes_of(low, x).get(terms)
    own = {i: s for i, s in sizes_of(low, x).items() if i < a.rank - 2}
    if row in sizes_of(low, x):
        own[a.rank - 2] = sizes_of(low, x)[row]
    if column in sizes_of(low, y):
        own[a.rank - 1] = sizes_of(low, y)[column]
    set_sizes(low, op, [own])
    matrices = a.rank == 2 and not is_half(a)
    if summed is not None:
        if matrices and _in_blocks(low, op, summed):
            return
        op = under(low, op, {x: whole(low, x, 0, frozenset({terms})), y: whole(low, y, 0, frozenset({others}))})
    elif matrices and 0 in own:
        low.product_limit = own[0]
    try:
        run(low, op)
    finally:
        low.product_limit = None


def _in_blocks(low: Lowering, op: Op, size: Size) -> bool:
    """Lower a product of matrices with a sum over an open size in blocks. False if that cannot be."""
    if size.bound % PRODUCT_BLOCK or size.bound == PRODUCT_BLOCK or op.outputs[0] in low.destinations.sums:
        return False
    x, y = (low.dense(low.entry(n)) for n in op.inputs)
    if x.root.place != "arena" or y.root.place != "arena" or not low.type(op.inputs[0]).is_float:
        return False
    type = low.type(op.outputs[0])
    a = _turned(x) if op.attrs["transpose_x"] else x
    b = _turned(y) if op.attrs["transpose_y"] else y
    for view, axis in ((a, 1), (b, 0)):
        other = 1 - axis
        spec = Tail(view.dtype, size.bound, view.strides[axis], view.shape[other], view.strides[other], PRODUCT_BLOCK)
        low.add(Kernel("clear_tail", spec, (size.length, view), location=op.location))
    out = low.allocate(type.shape, type.dtype, op.outputs[0])
    made = Gemm(a, b, out, location=op.location)
    low.add(Limited(made, size.bound, size.length, "terms", location=op.location))
    low.define(op.outputs[0], out)
    return True


def _turned(view: View) -> View:
    return replace(view, shape=view.shape[::-1], strides=view.strides[::-1])


# --- positions --------------------------------------------------------------------------------------------------


@rule("nonzero")
def _nonzero(low: Lowering, op: Op) -> None:
    x, of = op.inputs[0], Maker(low)
    type = low.type(x)
    entry = low.entry(x)
    flags = entry if entry.dtype == "bool" else of("not_equal", entry, of.number(0, entry.dtype))
    flags = low.dense(masked(low, flags, sizes_of(low, x), False))
    size = new_size(low, in_blocks(math.prod(type.shape)))
    set_sizes(low, op, [{0: size}])
    out = low.allocate(low.type(op.outputs[0]).shape, "int64", op.outputs[0])
    low.add(
        Kernel(
            "selection", Selection(type.shape, size.bound), (flags, out, size.length), written=2, location=op.location
        )
    )
    low.define(op.outputs[0], out)


def _from_front(low: Lowering, op: Op, index: Entry, own: Axes, size: Size) -> Entry:
    """Positions in an array of an open size, counted from its front and checked."""
    of = Maker(low)
    at = of.cast(index, "int64")
    zero = of.number(0, "int64")
    at = of.where(of("less_than", at, zero), of.add(at, size.length), at)
    fine = of("logical_and", of("greater_equal", at, zero), of("less_than", at, size.length))
    checked = masked(low, fine, own, True)
    of.check(checked, "index_out_of_range", "an index is out of range for its axis", op.location)
    return of.where(fine, at, zero)


@rule("gather", "index_select")
def _gather(low: Lowering, op: Op) -> None:
    x, index = op.inputs
    own, at, axis = sizes_of(low, x), sizes_of(low, index), op.attrs["axis"] % low.type(x).rank
    rank = low.type(index).rank if op.type == "gather" else 1
    sizes = {i + (rank - 1) * (i > axis): s for i, s in own.items() if i != axis}
    sizes |= {axis + i: s for i, s in at.items()}
    set_sizes(low, op, [sizes])
    picked = _picks(low, x, index)
    if axis in own and not picked:
        op = under(low, op, {index: _from_front(low, op, low.entry(index), at, own[axis])})
        low.types[op.inputs[1]] = replace(low.type(index), dtype="int64")
    if axis == 0 and at.keys() == {0} and rank == 1 and not picked:
        message = f"an index is out of range for an axis of size {low.type(x).shape[0]}"
        rows, places = low.dense(low.entry(x)), low.dense(low.entry(op.inputs[1]))
        out = low.destination(op.outputs[0])
        _rows_at(low, op, rows, places, out, at[0], message)
        low.define(op.outputs[0], out)
        clear_integers(low, op)
        return
    run(low, op)


def _picks(low: Lowering, source: str, index: str) -> bool:
    """Whether the positions `index` are those of one element in each row of flattened `source` (`indexing`)."""
    maker, flat = low.uses.producers.get(index), low.uses.producers.get(source)
    if maker is None or flat is None or maker.type != "positions_along" or flat.type not in ("reshape", "merge_axes"):
        return False
    x = maker.inputs[1]
    return bool(maker.attrs["axis"] % low.type(x).rank not in sizes_of(low, x))


@rule("scatter_add_like")
def _scatter(low: Lowering, op: Op) -> None:
    x, index, like = op.inputs
    axis = op.attrs["axis"] % low.type(like).rank
    for i in range(low.type(index).rank):
        x, index = matched(low, (x, axis + i), (index, i))
    if (x, index) != op.inputs[:2]:
        op = replace(op, inputs=(x, index, like))
    rank = low.type(index).rank
    for j in (j for j in range(low.type(like).rank) if j != axis):
        i = j if j < axis else j - 1 + rank
        if sizes_of(low, x).get(i) is not sizes_of(low, like).get(j):
            x, like = matched(low, (x, i), (like, j))
            op = replace(op, inputs=(x, index, like))
    own, at = sizes_of(low, like), sizes_of(low, index)
    set_sizes(low, op, [dict(own)])
    picked = _picks(low, like, index)
    if own.keys() - {axis} and not picked:
        raise Unsupported("a sum into rows whose sizes only the run tells")
    entries = {x: whole(low, x)} if sizes_of(low, x) else {}
    if picked:  # positions beyond the length are 0: `whole` makes the addends there 0, too
        run(low, under(low, op, entries))
        return
    if axis in own:
        entries[index] = _from_front(low, op, low.entry(index), at, own[axis])
    op = under(low, op, entries)
    if axis in own:
        low.types[op.inputs[1]] = replace(low.type(index), dtype="int64")
    run(low, op)


@rule("class_index")
def _class_index(low: Lowering, op: Op) -> None:
    axis = op.attrs["axis"] % low.type(op.inputs[1]).rank
    op = with_equal(low, op, (1, 0), (0, 0)) if axis else op
    label, x = op.inputs
    if axis in sizes_of(low, x):
        raise Unsupported("classes whose number only the run tells")
    sizes = dict(sizes_of(low, x))
    given = sizes_of(low, label)
    shift = low.type(label).rank < low.type(x).rank
    if {i + (shift and i >= axis): s for i, s in given.items()} != sizes:
        raise Unsupported("sizes that only the run can compare")
    set_sizes(low, op, [dict(sizes), dict(sizes)])
    run(low, op)


@rule("positions_along")
def _positions_along(low: Lowering, op: Op) -> None:
    """Only the first axis may be open. The number of rows does not matter, unless the positions are those of rows: then
    their readers count from the front and check.
    """
    axis = op.attrs["axis"] % low.type(op.inputs[1]).rank
    op = with_equal(low, op, (1, 0), (0, 0)) if axis else op
    index, x = op.inputs
    own, at = sizes_of(low, x), sizes_of(low, index)
    if (own.keys() | at.keys()) - {0} or (axis and own != at):
        raise Unsupported("positions along sizes that only the run tells")
    set_sizes(low, op, [dict(at)])
    if axis in own:
        op = under(low, op, {index: _from_front(low, op, low.entry(index), at, own[axis])})
        low.types[op.inputs[0]] = replace(low.type(index), dtype="int64")
        low.define(op.outputs[0], computed_positions(low, op))
    else:
        lowering = LOWERINGS[op.type]
        lowering(low, op)
    if hasattr(low.entry(op.outputs[0]), "shape"):
        clear_integers(low, op)


@rule("wrapped_index", "label_rows", "is_padding", "positions_nd")
def _positions(low: Lowering, op: Op) -> None:
    index, x = op.inputs
    if 0 in sizes_of(low, x) or (op.type == "positions_nd" and sizes_of(low, x)):
        raise Unsupported("positions in rows whose number only the run tells")
    rank = low.type(op.inputs[0]).rank - (op.type == "positions_nd")
    set_sizes(low, op, [{axis: size for axis, size in sizes_of(low, index).items() if axis < rank}])
    run(low, op)


@rule("segment_sum")
def _segments(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    x, ids = op.inputs[:2]
    if len(op.inputs) > 2 and any(sizes_of(low, n) for n in op.inputs[2:]):
        raise Unsupported("segments whose number only the run tells")
    if sizes_of(low, x) != sizes_of(low, ids):
        raise Unsupported("sizes that only the run can compare")
    set_sizes(low, op, [{}])
    run(low, under(low, op, {x: whole(low, x)}))


@rule("check_finite")
def _check_finite(low: Lowering, op: Op) -> None:
    set_sizes(low, op, [dict(sizes_of(low, op.inputs[0]))])
    run(low, under(low, op, {op.inputs[0]: whole(low, op.inputs[0])}))


# --- rows in two parts ------------------------------------------------------------------------------------------


def _chosen(low: Lowering, op: Op, mask: str, value: bool) -> tuple[View, Size]:
    """The positions at which a mask has this value, and their number."""
    key = (mask, value)
    if key not in low.selections:
        entry = low.entry(mask)
        flags = masked(low, entry if value else Maker(low)("logical_not", entry), sizes_of(low, mask), False)
        at, size = selected(low, op, flags)
        low.selections[key] = at, size
    return low.selections[key]


def selected(low: Lowering, op: Op, flags: Entry) -> tuple[View, Size]:
    """The positions of the true elements of a vector, and their number."""
    given = low.dense(flags)
    size = new_size(low, in_blocks(given.shape[0]))
    at = low.allocate((size.bound,), "int64")
    spec = Selection(given.shape, size.bound)
    low.add(Kernel("selection", spec, (given, at, size.length), written=2, location=op.location))
    return at, size


def _rows_at(low: Lowering, op: Op, x: View, at: View, out: View, size: Size | None = None, message: str = "") -> None:
    """``out[i] = x[at[i]]``. size: of the positions, if only the run tells it."""
    inner = math.prod(x.shape[1:])
    flat = [View(v.root, v.dtype, (1, v.shape[0], inner), (v.shape[0] * inner, inner, 1), v.offset) for v in (x, out)]
    check = low.shared.check("index_out_of_range", message or "a row is out of range", op.location)
    rows = Gather(flat[0], at, flat[1], check, location=op.location)
    low.add(rows if size is None else Limited(rows, size.bound, size.length, location=op.location))


@rule("split_by_mask")
def _split_by_mask(low: Lowering, op: Op) -> None:
    op = with_equal(low, op, (0, 0), (1, 0))
    x, mask = op.inputs
    if sizes_of(low, x) != sizes_of(low, mask) or sizes_of(low, x).keys() - {0}:
        raise Unsupported("sizes that only the run can compare")
    rows = low.dense(low.entry(x))
    parts = [_chosen(low, op, mask, value) for value in (True, False)]
    set_sizes(low, op, [{0: size} for _, size in parts])
    for name, (at, size) in zip(op.outputs, parts, strict=True):
        out = low.destination(name)
        _rows_at(low, op, rows, at, out, size)
        low.define(name, out)
    clear_integers(low, op)


@rule("merge_by_mask")
def _merge_by_mask(low: Lowering, op: Op) -> None:
    """The rows of both parts at their places, and a choice between them."""
    mask, yes, no = op.inputs
    of = Maker(low)
    own = sizes_of(low, mask)
    if any(sizes_of(low, n).keys() - {0} for n in (yes, no)) or low.type(yes).shape[1:] != low.type(no).shape[1:]:
        raise Unsupported("sizes that only the run can compare")
    set_sizes(low, op, [dict(own)])
    flags = low.entry(mask)
    out = low.type(op.outputs[0])
    made = []
    for name, part in ((yes, flags), (no, of("logical_not", flags))):
        ones = of.cast(masked(low, part, own, False), "int64")
        count = reshaped(low, of.reduce("sum", ones, frozenset({0})), ())
        size = sizes_of(low, name).get(0)
        length: Entry = size.length if size is not None else of.number(low.type(name).shape[0], "int64")
        message = "the rows are not as many as the mask asks for"
        of.check(of("equal", count, length), "shape_mismatch", message, op.location)
        before = of("maximum", of("sub", running_total(low, op, ones), of.number(1, "int64")), of.number(0, "int64"))
        at = of("minimum", before, of.number(low.type(name).shape[0] - 1, "int64"))
        rows = low.allocate(out.shape, out.dtype)
        _rows_at(low, op, low.dense(low.entry(name)), low.dense(at), rows)
        made.append(rows)
    column = reshaped(low, flags, (out.shape[0], *(1 for _ in out.shape[1:])))
    low.define(op.outputs[0], of.where(column, *made))
    clear_integers(low, op)
