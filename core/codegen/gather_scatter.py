"""Gather and scatter-add: read whole rows of an array, or add to them, at positions that are data.

The code never uses an index out of range: it writes the number of the check to the error word and uses position 0.
Rows of one element are read or added in blocks, whose indices are checked together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.polling import polls_by_control
from core.codegen.prefetch import ahead, fetch
from core.codegen.reductions import combine
from core.codegen.vector_slices import unravel
from core.ir.precision import HALVES
from core.plan.instructions import Gather, ScatterAdd

__all__ = [
    "PARAMS",
    "all_checked",
    "checked",
    "gather_function",
    "gather_work",
    "indexed_units",
    "rounds",
    "row_of",
    "scatter_function",
    "slab",
]

BLOCK = 8
"""Rows of one element in a block."""

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
    count = each.out.shape[1]
    polls_by_control(f, gather_work(each))
    first = f.param("first")
    if outer == 1 and inner == 1:
        first = _in_blocks(f, first, f.param("end"), lambda row: _gather_block(f, each, row))
    with f.loop(first, f.param("end"), polls=True) as row:
        o, i = (I64(0), row) if outer == 1 else unravel(f, row, (outer, count))
        at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        source = slab(f, f.param("x"), o, size, at, inner, each.x.dtype)
        target = f.at(f.param("out"), f.op(f"mul nsw {row}, {inner}", "int64"), each.x.dtype)
        nbytes = inner * itemsize(each.x.dtype)
        if outer == 1 and inner > 1 and ahead(nbytes):
            later = f.intrinsic("smin", f.binary("add", row, I64(ahead(nbytes))), I64(count - 1))
            at = f.convert(f.load(f.at(f.param("index"), later, each.index.dtype), each.index.dtype), "int64")
            fetch(f, f.param("x"), f.op(f"mul {at}, {inner}", "int64"), each.x.dtype, nbytes)
        f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, i64 {nbytes}, i1 false)")
    return f


def _in_blocks(f: Function, first: IRValue, end: IRValue, write: Callable[[IRValue], None]) -> IRValue:
    """Write whole blocks from `first` on; the number after them."""
    count = f.op(f"sub {end}, {first.name}", "int64")
    whole = f.binary("add", first, f.op(f"and {count}, {-BLOCK}", "int64"))
    with f.loop(first, whole, BLOCK, polls=True) as row:
        write(row)
    return whole


def _gather_block(f: Function, each: Gather, row: IRValue) -> None:
    dtype = each.x.dtype
    stored = "uint16" if dtype in HALVES else dtype
    for k, at in enumerate(_block_of_positions(f, each, row, each.x.shape[1])):
        value = f.load(f.at(f.param("x"), at, stored), stored)
        f.store(value, f.at(f.param("out"), f.binary("add", row, I64(k)), stored))


def _block_of_positions(f: Function, each: Gather | ScatterAdd, row: IRValue, size: int) -> list[IRValue]:
    """The positions of the rows of a block, from the front."""
    dtype = each.index.dtype
    (found,) = all_checked(f, [f.load(f.at(f.param("index"), row, dtype), dtype, BLOCK)], size)
    return [f.op(f"extractelement {found}, i64 {k}", "int64") for k in range(BLOCK)]


def scatter_function(name: str, each: ScatterAdd) -> Function:
    """``name(x, index, out, error, [rows,] check, first, end)`` for a `ScatterAdd`, whose result the caller has filled.

    The range counts slabs, or vectors of columns if there is one slab: no two ranges write one element, and each
    element is reduced in the order of the index. 16-bit floats are added to float32 sums.
    """
    pointers, numbers = PARAMS[:4], PARAMS[4:]
    f = Function(name, [*pointers, *([("rows", "ptr")] if each.rows else []), *numbers], noalias=False)
    outer, size, inner = each.out.shape
    count, dtype, given, width = _count(each), each.out.dtype, each.x.dtype, _lanes(each)
    polls_by_control(f, gather_work(each))
    first, end, whole = f.param("first"), f.param("end"), inner // width
    slabs, columns, tail = (first, end), (I64(0), I64(whole * width)), IRValue("true", "bool")
    if outer == 1:
        slabs = (I64(0), I64(1))
        ends = (first, f.intrinsic("smin", end, I64(whole)))
        columns = tuple(f.op(f"mul nsw {each}, {width}", "int64") for each in ends)  # type: ignore[assignment]
        tail = f.compare("icmp sgt", end, I64(whole))
    begin = I64(0)
    if outer == 1 and inner == 1 and each.rows is None and dtype == given:
        some = f.select(f.compare("icmp sgt", end, first), I64(count), I64(0))
        begin = _in_blocks(f, I64(0), some, lambda row: _scatter_block(f, each, row))
    with f.loop(*slabs, polls=True) as o, f.loop(begin, I64(count), polls=True) as i:
        at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        target = slab(f, f.param("out"), o, size, at, inner, dtype)
        source = slab(f, f.param("x"), o, each.x.shape[1], row_of(f, each, i), inner, given)

        def reduce(j: IRValue, lanes: int, target: IRValue = target, source: IRValue = source) -> None:
            here = f.at(target, j, dtype)
            more = f.convert(f.load(f.at(source, j, given), given, lanes), dtype)
            f.store(combine(f, each.op, f.load(here, dtype, lanes), more), here)

        if whole:
            with f.loop(*columns, width) as j:
                reduce(j, width)
        if inner % width:
            with f.when(tail), f.loop(I64(whole * width), I64(inner)) as j:
                reduce(j, 1)
    return f


def _scatter_block(f: Function, each: ScatterAdd, row: IRValue) -> None:
    dtype = each.out.dtype
    for k, at in enumerate(_block_of_positions(f, each, row, each.out.shape[1])):
        here = f.at(f.param("out"), at, dtype)
        more = f.load(f.at(f.param("x"), f.binary("add", row, I64(k)), dtype), dtype)
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
