"""Gather and scatter-add: read whole rows of an array, or add to them, at positions that are data.

The code never uses an index out of range: it writes the number of the check to the error word and uses position 0.
Rows of one element are read or added eight at a time, whose indices are checked together. Many float32 rows are added
in blocks, as `core.ops.common.scatter_rows` tells: the sums of each block to totals in scratch memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.polling import polls_by_control
from core.codegen.prefetch import ahead, fetch
from core.codegen.reductions import combine
from core.ir.precision import HALVES
from core.ops.common.scatter_rows import rows_in_block
from core.plan.instructions import Gather, ScatterAdd

__all__ = [
    "PARAMS",
    "adds_in_blocks",
    "all_checked",
    "block_rows",
    "checked",
    "gather_function",
    "gather_work",
    "indexed_units",
    "rounds",
    "row_of",
    "scatter_function",
    "slab",
    "totals_bytes",
]

BLOCK = 8
"""Rows of one element that are read or added together."""

SLABS = 4
"""Slabs to which elements are added in turn."""

ROW = 40
"""The work of finding one row in memory, in operations."""

PARAMS = [
    *((name, "ptr") for name in ("x", "index", "out", "error")),
    *((name, "int64") for name in ("check", "first", "end")),
]


def gather_function(name: str, each: Gather) -> Function:
    """``name(x, index, out, error, check, first, end)`` for a `Gather`: rows `first` to `end` of the result."""
    f = Function(name, PARAMS, noalias=False)
    outer, size, inner = each.x.shape
    between, pitch, _ = each.x.strides
    count = each.out.shape[1]
    polls_by_control(f, gather_work(each))
    nbytes = inner * itemsize(each.x.dtype)

    def rows(o: IRValue, first: IRValue, end: IRValue) -> None:
        """Rows `first` to `end` of slab `o`."""
        source = f.at(f.param("x"), f.op(f"mul nsw {o}, {between}", "int64"), each.x.dtype)
        target = slab(f, f.param("out"), o, count, I64(0), inner, each.x.dtype)
        if inner == 1:
            first = _in_blocks(f, first, end, lambda row: _gather_block(f, each, source, target, row))
        with f.loop(first, end, polls=True) as i:
            at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
            if outer == 1 and inner > 1 and ahead(nbytes):
                later = f.intrinsic("smin", f.binary("add", i, I64(ahead(nbytes))), I64(count - 1))
                soon = f.convert(f.load(f.at(f.param("index"), later, each.index.dtype), each.index.dtype), "int64")
                fetch(f, f.param("x"), f.op(f"mul {soon}, {pitch}", "int64"), each.x.dtype, nbytes)
            here = f.at(source, f.op(f"mul nsw {at}, {pitch}", "int64"), each.x.dtype)
            there = f.at(target, f.op(f"mul nsw {i}, {inner}", "int64"), each.x.dtype)
            f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            f.do(f"call void @llvm.memcpy.p0.p0.i64({there}, {here}, i64 {nbytes}, i1 false)")

    if outer == 1:
        rows(I64(0), f.param("first"), f.param("end"))
    else:
        for_each_slab(f, count, rows)
    return f


def for_each_slab(f: Function, count: int, rows: Callable[[IRValue, IRValue, IRValue], None]) -> None:
    """``rows(slab, first, end)`` for the slabs of `count` rows in which rows `first` to `end` lie."""
    count = max(count, 1)  # no row is in a slab of none
    first, end = f.param("first"), f.param("end")
    past = f.op(f"udiv {f.binary('add', end, I64(count - 1))}, {count}", "int64")
    with f.loop(f.op(f"udiv {first}, {count}", "int64"), past, polls=True) as o:
        before = f.op(f"mul nsw {o}, {count}", "int64")
        start, stop = (f.binary("sub", each, before) for each in (first, end))
        rows(o, f.intrinsic("smax", start, I64(0)), f.intrinsic("smin", stop, I64(count)))


def _in_blocks(f: Function, first: IRValue, end: IRValue, write: Callable[[IRValue], None]) -> IRValue:
    """Write whole blocks of `BLOCK` rows from `first` on; the number after them."""
    count = f.op(f"sub {end}, {first.name}", "int64")
    whole = f.binary("add", first, f.op(f"and {count}, {-BLOCK}", "int64"))
    with f.loop(first, whole, BLOCK, polls=True) as row:
        write(row)
    return whole


def _gather_block(f: Function, each: Gather, source: IRValue, target: IRValue, row: IRValue) -> None:
    """A block of rows of one element, from `row` on. source, target: the addresses of row 0 of their slab."""
    dtype = each.x.dtype
    stored = "uint16" if dtype in HALVES else dtype
    for k, at in enumerate(_block_of_positions(f, each, row, each.x.shape[1])):
        value = f.load(f.at(source, f.op(f"mul nsw {at}, {each.x.strides[1]}", "int64"), stored), stored)
        f.store(value, f.at(target, f.binary("add", row, I64(k)), stored))


def _block_of_positions(f: Function, each: Gather | ScatterAdd, row: IRValue, size: int) -> list[IRValue]:
    """The positions of the rows of a block, from the front."""
    dtype = each.index.dtype
    (found,) = all_checked(f, [f.load(f.at(f.param("index"), row, dtype), dtype, BLOCK)], size)
    return [f.op(f"extractelement {found}, i64 {k}", "int64") for k in range(BLOCK)]


def scatter_function(name: str, each: ScatterAdd) -> Function:
    """``name(x, index, out, error, [rows,] [totals,] check, first, end)`` for a `ScatterAdd`, whose result the caller
    has filled.

    The range counts slabs, or vectors of columns if there is one slab: no two ranges write one element, and each
    element is reduced in the order of the index. 16-bit floats are added to float32 sums.
    totals: scratch memory of `totals_bytes`, if the scatter `adds_in_blocks`.
    """
    pointers, numbers = PARAMS[:4], PARAMS[4:]
    more = [*([("rows", "ptr")] if each.rows else []), *([("totals", "ptr")] if adds_in_blocks(each) else [])]
    f = Function(name, [*pointers, *more, *numbers], noalias=False)
    polls_by_control(f, gather_work(each))
    count, block = _count(each), block_rows(each)
    if not adds_in_blocks(each):
        _scatter_rows(f, each, I64(0), I64(count))
        return f

    def add_to_totals(total: IRValue, out: IRValue, lanes: int) -> None:
        f.store(f.binary("fadd", f.load(total, "float32", lanes), f.load(out, "float32", lanes)), total)
        f.store(f.splat(literal(0, "float32"), lanes), out)

    def add_totals(total: IRValue, out: IRValue, lanes: int) -> None:
        f.store(f.binary("fadd", f.load(total, "float32", lanes), f.load(out, "float32", lanes)), out)

    _of_each_sum(f, each, lambda total, _, lanes: f.store(f.splat(literal(0, "float32"), lanes), total))
    last = (count - 1) // block * block
    with f.loop(I64(0), I64(last), block, polls=True) as row:
        _scatter_rows(f, each, row, f.binary("add", row, I64(block)))
        _of_each_sum(f, each, add_to_totals)
    _scatter_rows(f, each, I64(last), I64(count))
    _of_each_sum(f, each, add_totals)
    return f


def block_rows(each: ScatterAdd) -> int:
    """The rows of each slab that are added one after another, before their sums are added to those of other blocks."""
    dtype = "float32" if rounds(each) else each.out.dtype
    return rows_in_block(dtype if each.op == "sum" else "", _count(each), each.out.shape[1])


def adds_in_blocks(each: ScatterAdd) -> bool:
    """Whether the rows of a scatter are several blocks."""
    return block_rows(each) < _count(each)


def totals_bytes(each: ScatterAdd) -> int:
    """The memory for the totals of all blocks: whole cache lines."""
    return -(-math.prod(each.out.shape) * itemsize("float32") // 64) * 64


def _of_each_sum(f: Function, each: ScatterAdd, write: Callable[[IRValue, IRValue, int], None]) -> None:
    """``write(total, sum, lanes)`` for the addresses of the vectors and elements that the range has."""
    outer, size, inner = each.out.shape
    first, end = f.param("first"), f.param("end")

    def vector(at: IRValue, lanes: int) -> None:
        write(f.at(f.param("totals"), at, "float32"), f.at(f.param("out"), at, "float32"), lanes)

    if outer > 1:  # the sums of slabs lie side by side
        width = lanes("float32")
        start, stop = (f.op(f"mul nsw {each}, {size * inner}", "int64") for each in (first, end))
        whole = f.binary("sub", stop, I64(width - 1))
        rest = f.slot("int64")
        f.write(start, rest)
        with f.loop(start, whole, width, polls=True) as at:
            vector(at, width)
            f.write(f.binary("add", at, I64(width)), rest)
        with f.loop(f.read(rest, "int64"), stop) as at:
            vector(at, 1)
        return
    width = _lanes(each)
    vectors = inner // width
    start, stop = (
        f.op(f"mul nsw {each}, {width}", "int64") for each in (first, f.intrinsic("smin", end, I64(vectors)))
    )
    with f.loop(I64(0), I64(size), polls=True) as row:
        before = f.op(f"mul nsw {row}, {inner}", "int64")
        with f.loop(start, stop, width) as j:
            vector(f.binary("add", before, j), width)
        if inner % width:
            with f.when(f.compare("icmp sgt", end, I64(vectors))), f.loop(I64(vectors * width), I64(inner)) as j:
                vector(f.binary("add", before, j), 1)


def _scatter_rows(f: Function, each: ScatterAdd, start: IRValue, stop: IRValue) -> None:
    """Reduce rows `start` to `stop` of each slab of the range, or the columns of the range."""
    outer, _, inner = each.out.shape
    first, end = f.param("first"), f.param("end")
    if inner == 1 and each.rows is None and each.out.dtype == each.x.dtype:
        _scatter_elements(f, each, start, stop)
        return
    whole = inner // _lanes(each)
    slabs, columns, tail = (first, end), (I64(0), I64(whole)), IRValue("true", "bool")
    if outer == 1:
        slabs, columns = (I64(0), I64(1)), (first, f.intrinsic("smin", end, I64(whole)))
        tail = f.compare("icmp sgt", end, I64(whole))
    with f.loop(*slabs, polls=True) as o, f.loop(start, stop, polls=True) as i:
        _scatter_row(f, each, o, i, columns, tail)


def _scatter_row(
    f: Function, each: ScatterAdd, o: IRValue, i: IRValue, columns: tuple[IRValue, IRValue], tail: IRValue
) -> None:
    """Reduce one row of slab `o`: the vectors of `columns`, and if `tail` the elements after the last whole vector."""
    (_, size, inner), dtype, given, width = each.out.shape, each.out.dtype, each.x.dtype, _lanes(each)
    at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
    target = slab(f, f.param("out"), o, size, at, inner, dtype)
    source = slab(f, f.param("x"), o, each.x.shape[1], row_of(f, each, i), inner, given)

    def reduce(j: IRValue, lanes: int) -> None:
        here = f.at(target, j, dtype)
        more = f.convert(f.load(f.at(source, j, given), given, lanes), dtype)
        f.store(combine(f, each.op, f.load(here, dtype, lanes), more), here)

    if inner >= width:
        from_, to = (f.op(f"mul nsw {each}, {width}", "int64") for each in columns)
        with f.loop(from_, to, width) as j:
            reduce(j, width)
    if inner % width:
        with f.when(tail), f.loop(I64(inner // width * width), I64(inner)) as j:
            reduce(j, 1)


def _scatter_elements(f: Function, each: ScatterAdd, start: IRValue, stop: IRValue) -> None:
    """Reduce rows of one element: those of some slabs in turn, since a sum often waits for the one before it."""
    outer = each.out.shape[0]
    first, end = f.param("first"), f.param("end")

    def slabs(o: IRValue, number: int) -> None:
        some = [f.binary("add", o, I64(k)) if k else o for k in range(number)]
        rest = _in_blocks(f, start, stop, lambda row: _scatter_block(f, each, some, row))
        with f.loop(rest, stop) as i:
            for one in some:
                _scatter_row(f, each, one, i, (I64(0), I64(1)), IRValue("true", "bool"))

    if outer == 1:
        with f.when(f.compare("icmp sgt", end, first)):
            slabs(I64(0), 1)
        return
    left = f.binary("sub", end, first)
    whole = f.binary("add", first, f.op(f"and {left}, {-SLABS}", "int64"))
    with f.loop(first, whole, SLABS, polls=True) as o:
        slabs(o, SLABS)
    with f.loop(whole, end, polls=True) as o:
        slabs(o, 1)


def _scatter_block(f: Function, each: ScatterAdd, slabs: Sequence[IRValue], row: IRValue) -> None:
    """A block of rows of one element in each of some slabs, from `row` on."""
    dtype, (_, size, inner) = each.out.dtype, each.out.shape
    targets = [slab(f, f.param("out"), o, size, I64(0), inner, dtype) for o in slabs]
    sources = [slab(f, f.param("x"), o, each.x.shape[1], row, inner, dtype) for o in slabs]
    for k, at in enumerate(_block_of_positions(f, each, row, size)):
        for source, target in zip(sources, targets, strict=True):
            here = f.at(target, at, dtype)
            more = f.load(f.at(source, I64(k), dtype), dtype)
            f.store(combine(f, each.op, f.load(here, dtype), more), here)


def indexed_units(each: Gather | ScatterAdd) -> int:
    """Units of work of a gather or scatter: the most ranges that it can be split into."""
    if isinstance(each, Gather):
        return each.out.shape[0] * each.out.shape[1]
    outer, size, inner = each.out.shape
    if rounds(each):
        return outer * size
    return outer if outer > 1 else -(-inner // _lanes(each))


def rounds(each: ScatterAdd) -> bool:
    """Whether a scatter rounds its sums: then it writes one row of the result after another (see `rounded_scatter`)."""
    return each.out.dtype in HALVES


def row_of(f: Function, each: ScatterAdd, i: IRValue) -> IRValue:
    """The row of x that a scatter adds for entry `i` of the index."""
    if each.rows is None:
        return i
    return checked(f, f.at(f.param("rows"), i, each.rows.dtype), each.rows.dtype, each.x.shape[1], I64(each.rows_check))


def _lanes(each: ScatterAdd) -> int:
    width, inner = lanes(each.out.dtype), each.out.shape[2]
    while width > max(inner, 1):  # a row may be empty
        width //= 2
    return width


def gather_work(each: Gather | ScatterAdd) -> int:
    """The work of one call, in operations."""
    outer, _, inner = each.out.shape
    return int(outer * _count(each) * (inner + ROW))


def _count(each: Gather | ScatterAdd) -> int:
    """Rows that are read or added, for each slab."""
    return each.index.shape[0]


def checked(f: Function, address: IRValue, dtype: str, size: int, check: IRValue | None = None) -> IRValue:
    """The index at `address`, counted from the front. Out of range it is 0, and the check fails."""
    return all_checked(f, [f.load(address, dtype)], size, check)[0]


def all_checked(f: Function, found: list[IRValue], size: int, check: IRValue | None = None) -> list[IRValue]:
    """Indices counted from the front. If one is out of range, the check fails, and that one is 0.

    found: numbers, or one vector of them.
    """
    raws = [f.convert(each, "int64") for each in found]
    wrapped = [f.select(f.compare("icmp slt", raw, I64(0)), f.binary("add", raw, I64(size)), raw) for raw in raws]
    fine = [f.compare("icmp ult", each, I64(size)) for each in wrapped]
    together = functools.reduce(lambda one, other: f.binary("and", one, other), fine)
    if together.lanes > 1:
        f.declarations.add(f"declare i1 @llvm.vector.reduce.and.v{together.lanes}i1({together.type})")
        together = f.op(f"call i1 @llvm.vector.reduce.and.v{together.lanes}i1({together})", "bool")
    with f.when(f.op(f"xor {together}, true", "bool")):
        fail(f, f.param("error"), check or f.param("check"))
    return [f.select(one, each, literal(0, "int64")) for one, each in zip(fine, wrapped, strict=True)]


def slab(f: Function, base: IRValue, outer: IRValue, size: int, at: IRValue, inner: int, dtype: str) -> IRValue:
    """The address of row (outer, at) of an array [., size, inner]."""
    first = f.op(f"mul nsw {outer}, {size}", "int64")
    row = f.op(f"add nsw {first}, {at.name}", "int64")
    return f.at(base, f.op(f"mul nsw {row}, {inner}", "int64"), dtype)
