"""Gather and scatter-add: read whole rows of an array, or add to them, at positions that are data.

The code never uses an index out of range: it writes the number of the check to the error word and uses position 0.
"""

from __future__ import annotations

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue, itemsize, literal
from core.codegen.machine import lanes
from core.codegen.polling import polls_by_control
from core.plan.data import Gather, ScatterAdd

__all__ = ["checked", "gather_function", "gather_work", "scatter_function"]

ROW = 40
"""The work of finding one row in memory, in operations."""

PARAMS = [("x", "ptr"), ("index", "ptr"), ("out", "ptr"), ("error", "ptr"), ("check", "int64")]


def gather_function(name: str, each: Gather) -> Function:
    """``name(x, index, out, error, check)`` for a `Gather`."""
    f = Function(name, PARAMS, noalias=False)
    outer, size, inner = each.x.shape
    count = each.out.shape[1]
    polls_by_control(f, gather_work(each))
    with f.loop(I64(0), I64(outer), polls=True) as o, f.loop(I64(0), I64(count), polls=True) as i:
        at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        source = _slab(f, f.param("x"), o, size, at, inner, each.x.dtype)
        target = _slab(f, f.param("out"), o, count, i, inner, each.x.dtype)
        nbytes = inner * itemsize(each.x.dtype)
        f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, i64 {nbytes}, i1 false)")
    return f


def scatter_function(name: str, each: ScatterAdd) -> Function:
    """``name(x, index, out, error, check)`` for a `ScatterAdd`. The caller has filled `out` with zeros."""
    f = Function(name, PARAMS, noalias=False)
    outer, size, inner = each.out.shape
    count = each.x.shape[1]
    dtype = each.x.dtype
    width = min(lanes(dtype), inner)
    add = "fadd" if dtype.startswith("float") else "add"
    polls_by_control(f, gather_work(each))
    with f.loop(I64(0), I64(outer), polls=True) as o, f.loop(I64(0), I64(count), polls=True) as i:
        at = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        target = _slab(f, f.param("out"), o, size, at, inner, dtype)
        source = _slab(f, f.param("x"), o, count, i, inner, dtype)
        whole = inner // width * width
        for start, end, step in ((0, whole, width), (whole, inner, 1)):
            if start == end:
                continue
            with f.loop(I64(start), I64(end), step) as j:
                here = f.at(target, j, dtype)
                more = f.load(f.at(source, j, dtype), dtype, step)
                f.store(f.binary(add, f.load(here, dtype, step), more), here)
    return f


def gather_work(each: Gather | ScatterAdd) -> int:
    """The work of one call, in operations."""
    outer, count, inner = each.out.shape if isinstance(each, Gather) else each.x.shape
    return int(outer * count * (inner + ROW))


def checked(f: Function, address: IRValue, dtype: str, size: int) -> IRValue:
    """The index at `address`, counted from the front. Out of range it is 0, and the check fails."""
    raw = f.convert(f.load(address, dtype), "int64")
    wrapped = f.select(f.compare("icmp slt", raw, I64(0)), f.op(f"add {raw}, {size}", "int64"), raw)
    fine = f.compare("icmp ult", wrapped, I64(size))
    with f.when(f.op(f"xor {fine}, true", "bool")):
        fail(f, f.param("error"), f.param("check"))
    return f.select(fine, wrapped, literal(0, "int64"))


def _slab(f: Function, base: IRValue, outer: IRValue, size: int, at: IRValue, inner: int, dtype: str) -> IRValue:
    """The address of row (outer, at) of an array [., size, inner]."""
    first = f.op(f"mul nsw {outer}, {size}", "int64")
    row = f.op(f"add nsw {first}, {at.name}", "int64")
    return f.at(base, f.op(f"mul nsw {row}, {inner}", "int64"), dtype)
