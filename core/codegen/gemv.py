"""Products of a few rows with a matrix that is stored by columns: every number of it is used only a few times.

The result is dot products of vectors that follow each other in memory. The lanes of several sums are added up together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from core.codegen.denormals import vanishing
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.machine import lanes
from core.codegen.polling import STOP_PARAM, product_polls
from core.codegen.reductions import reduce_lanes
from core.codegen.vector_slices import mask, store_lanes
from core.plan.instructions import Gemm

__all__ = ["FEW", "Gemv", "gemv_function", "gemv_of", "sums_of_lanes"]

FEW = 16
"""Rows from which on a matrix stored by columns is worth packing."""

ROWS, COLUMNS, SUMS = 4, 4, 8
"""Rows and columns of dot products that are computed together; columns if there is one row."""

DEPTH = 256
"""Additions in sequence before a sum is added to the result: rounding errors grow with the number of additions, and the
second cache keeps the rows of a for so many steps.
"""


@dataclass(frozen=True, slots=True)
class Gemv:
    """One shape of product: c [m, n] = a [m, k] b [k, n]. Strides count elements; rows of c have no gaps.

    of_b:     dtype of b, which may be a 16-bit float.
    vanishes: whether it takes denormal numbers for zero.
    """

    m: int
    n: int
    k: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: int
    dtype: str
    of_b: str
    accumulate: bool
    vanishes: bool = False

    @property
    def width(self) -> int:
        """Lanes of a vector: no more than the shorter half of its elements are missing."""
        width = lanes(self.dtype)
        while width > 1 and width // 2 >= self.k:
            width //= 2
        return width

    @property
    def columns(self) -> int:
        """Columns of a part."""
        return SUMS if self.m == 1 else COLUMNS

    @property
    def depth(self) -> int:
        """Steps along k in one block, whose sums are then added to the result."""
        return DEPTH * self.width

    @property
    def parts(self) -> int:
        return math.ceil(self.n / self.columns)


def gemv_of(each: Gemm) -> Gemv | None:
    """The shape of a product with few rows; None if another function computes it."""
    (m, k), n = each.a.shape[-2:], each.b.shape[-1]
    (down, along), b = each.a.strides[-2:], (each.b.strides[-2], each.b.strides[-1])
    if n == 1:
        b = (b[0], k)  # one column: nothing steps to the next one
    if (
        (n == 1 and m > 1)
        or (n > 1 and each.c.strides[-1] != 1)
        or each.then is not None
        or each.a.dtype != each.c.dtype
    ):
        return None
    by_columns = b[0] == 1 and (b[1] != 1 or n == 1)
    if m >= FEW or not by_columns or (along != 1 and k > 1):
        return None
    return Gemv(m, n, k, (down, along), b, each.c.strides[-2], each.c.dtype, each.b.dtype, each.accumulate)


def gemv_function(name: str, p: Gemv) -> Function:
    """``name(a, b, c[, stop], first, end)`` for parts `first` to `end`: blocks of columns.

    `stop` is there if the product is long (`product_polls`).
    """
    polls = product_polls(p.m, p.n, p.k)
    pointers = [("a", "ptr"), ("b", "ptr"), ("c", "ptr"), *([STOP_PARAM] if polls else [])]
    f = Function(name, [*pointers, ("first", "int64"), ("end", "int64")])
    f.stop = f.param("stop") if polls else None
    with vanishing(f, p.vanishes):
        vectors = p.k // p.width * p.width
        if p.k <= 2 * p.depth:
            _columns(f, p, _Terms((I64(0), I64(vectors)), rest=True, adds=p.accumulate))
        else:
            _columns(f, p, _Terms((I64(0), I64(0)), rest=True, adds=p.accumulate))
            with f.loop(I64(0), I64(vectors), p.depth, polls=True) as first:
                last = f.intrinsic("smin", f.binary("add", first, I64(p.depth)), I64(vectors))
                _columns(f, p, _Terms((first, last), rest=False, adds=True))
    return f


@dataclass(frozen=True, slots=True)
class _Terms:
    """Some terms of all sums.

    steps: the first one along k, and the one after the last: whole vectors.
    rest:  whether the terms after all whole vectors are among them.
    adds:  whether the sums are added to the result.
    """

    steps: tuple[IRValue, IRValue]
    rest: bool
    adds: bool


def _columns(f: Function, p: Gemv, terms: _Terms) -> None:
    """The columns of the parts of the function."""
    whole, rest = divmod(p.n, p.columns)
    if whole:
        end = f.intrinsic("smin", f.param("end"), I64(whole)) if rest else f.param("end")
        with f.loop(f.param("first"), end, polls=True) as part:
            _dots(f, p, terms, f.op(f"mul nsw {part}, {p.columns}", "int64"), p.columns)
    if rest:
        with f.when(f.compare("icmp sgt", f.param("end"), I64(whole))):
            _dots(f, p, terms, I64(whole * p.columns), rest)


def _dots(f: Function, p: Gemv, terms: _Terms, start: IRValue, columns: int) -> None:
    """`columns` columns of all rows from `start`."""
    rows = min(p.m, ROWS)
    whole = p.m // rows * rows
    if whole == rows:
        _dots_of(f, p, terms, I64(0), rows, start, columns)
    else:
        with f.loop(I64(0), I64(whole), rows) as row:
            _dots_of(f, p, terms, row, rows, start, columns)
    if whole < p.m:
        _dots_of(f, p, terms, I64(whole), p.m - whole, start, columns)


def _dots_of(f: Function, p: Gemv, terms: _Terms, row: IRValue, rows: int, start: IRValue, columns: int) -> None:
    a = f.at(f.param("a"), f.op(f"mul nsw {row}, {p.a[0]}", "int64"), p.dtype)
    b = f.at(f.param("b"), f.op(f"mul nsw {start}, {p.b[1]}", "int64"), p.of_b)
    c = f.at(f.at(f.param("c"), f.op(f"mul nsw {row}, {p.c}", "int64"), p.dtype), start, p.dtype)

    def products(k: IRValue, which: IRValue | None = None) -> Iterator[tuple[IRValue, IRValue]]:
        def vectors(base: IRValue, step: int, count: int, dtype: str) -> list[IRValue]:
            base = f.at(base, k, dtype)
            loaded = (f.load(f.at(base, I64(i * step), dtype), dtype, p.width, which) for i in range(count))
            return [f.convert(each, p.dtype) for each in loaded]

        ours, theirs = vectors(a, p.a[0], rows, p.dtype), vectors(b, p.b[1], columns, p.of_b)
        return ((x, y) for x in ours for y in theirs)

    zero = f.splat(literal(0, p.dtype), p.width)
    slots = [f.slot(p.dtype, p.width) for _ in range(rows * columns)]
    for slot in slots:
        f.write(zero, slot)
    with f.loop(*terms.steps, p.width) as k:
        for slot, (x, y) in zip(slots, products(k), strict=True):
            f.write(f.fma(x, y, f.read(slot, p.dtype, p.width)), slot)
    sums = [f.read(slot, p.dtype, p.width) for slot in slots]
    left = p.k % p.width
    if left and terms.rest:
        pairs = products(I64(p.k - left), _mask(left, p.width))
        sums = [f.fma(x, y, total) for total, (x, y) in zip(sums, pairs, strict=True)]
    for i in range(rows):
        total = sums_of_lanes(f, sums[i * columns : (i + 1) * columns])
        _put(f, p, total, f.at(c, I64(i * p.c), p.dtype), columns, terms.adds)


def sums_of_lanes(f: Function, vectors: list[IRValue]) -> IRValue:
    """A vector with the sum of the lanes of each of `vectors`, in order; its lanes are a power of two.

    Two vectors at a time are folded to one: half as many lanes of each are left to add.
    """
    width = vectors[0].lanes
    if len(vectors) == 1:
        return reduce_lanes(f, "sum", vectors[0])
    if width == 1:
        return _joined(f, vectors)
    while len(vectors) & (len(vectors) - 1):
        vectors = [*vectors, f.splat(literal(0, vectors[0].dtype), width)]
    left = width  # lanes of each sum
    while left > 1 and len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_folded(f, x, y, left, 2 * width) for x, y in pairs]
        left //= 2
    if left == 1:
        return vectors[0] if len(vectors) == 1 else _joined(f, vectors)
    (total,) = vectors
    while left > 1:
        total = _folded(f, total, IRValue("poison", total.dtype, total.lanes), left, total.lanes)
        left //= 2
    return total


def _folded(f: Function, x: IRValue, y: IRValue, left: int, lanes: int) -> IRValue:
    """The first `lanes` lanes of x and y, which hold `left` lanes of each sum, with the halves of each sum added."""
    halves = []
    for second in (0, left // 2):
        places = ", ".join(f"i32 {at + second + i}" for at in range(0, lanes, left) for i in range(left // 2))
        count = lanes // 2
        halves.append(f.op(f"shufflevector {x}, {y}, <{count} x i32> <{places}>", x.dtype, count))
    return f.binary("fadd", *halves)


def _joined(f: Function, vectors: list[IRValue]) -> IRValue:
    """One vector with the lanes of all vectors, padded to a power of two."""
    values = [
        v if v.lanes == 1 else f.op(f"extractelement {v}, i64 {i}", v.dtype) for v in vectors for i in range(v.lanes)
    ]
    count = 1 << (len(values) - 1).bit_length()
    joined = f.splat(literal(0, values[0].dtype), count)
    for i, value in enumerate(values):
        joined = f.op(f"insertelement {joined}, {value}, i64 {i}", joined.dtype, count)
    return joined


def _mask(count: int, width: int) -> IRValue | None:
    return mask(count, width) if width > 1 else None


def _put(f: Function, p: Gemv, total: IRValue, address: IRValue, count: int, adds: bool) -> None:
    """Store the first `count` lanes of a sum to c, or add them to it."""
    if adds:
        total = f.binary("fadd", total, f.load(address, p.dtype, total.lanes, _mask(count, total.lanes)))
    store_lanes(f, total, address, count)
