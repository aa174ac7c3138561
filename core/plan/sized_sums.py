"""Lowerings of sums and products over axes whose sizes only the run tells (`core.plan.sized`)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from core.ir import Op
from core.ir.precision import is_half
from core.plan.compose import Maker
from core.plan.data import PRODUCT_BLOCK, Gemm, Kernel, Limited, View
from core.plan.entries import Entry
from core.plan.geometry import Tail
from core.plan.halves import narrowed, wide, widened
from core.plan.lowering import Lowering
from core.plan.meeting_sizes import (
    sizes_of,
    with_equal,
)
from core.plan.reduce import KINDS, reduced
from core.plan.shapes import reshaped
from core.plan.sized import limited, rule, run, set_sizes, under, whole
from core.plan.sizes import Size
from core.plan.unsupported import Unsupported

__all__ = ["count_elements"]

NEUTRAL = {"sum": 0, "prod": 1, "and": True, "or": False}
"""Reduction -> the element that does not change its result."""


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
    count = of("maximum", count_elements(low, x, over), of.number(1, "int64"))
    mean = of("div", total, of.cast(count, exact.dtype))
    low.define(op.outputs[0], narrowed(low, mean, out) if is_half(type) else mean)


def count_elements(low: Lowering, x: str, over: frozenset[int]) -> Entry:
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
    count = of("sub", count_elements(low, x, over), of.number(op.attrs["ddof"], "int64"))
    some = of("greater_than", count, of.number(0, "int64"))
    inverse = of("div", of.number(1.0), of.cast(count, "float64"))
    low.define(op.outputs[0], of.cast(of.where(some, inverse, of.number(np.inf)), dtype))


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
