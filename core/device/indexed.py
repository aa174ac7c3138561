"""Gathers and scatters on many threads: a thread for each element, or for each column that is reduced in order."""

from __future__ import annotations

from core.codegen.gather_scatter import checked
from core.codegen.llvm import I64, Function
from core.codegen.reductions import combine, identity
from core.device.threads import Threads, flat_offset, split
from core.plan.data import Gather, ScatterAdd

__all__ = ["gather_kernel", "scatter_kernel"]

PARAMS = [*((name, "ptr") for name in ("x", "index", "out", "error")), ("check", "int64")]


def gather_kernel(name: str, each: Gather, threads: Threads) -> Function:
    """``name(x, index, out, error, check)`` for all threads."""
    f = Function(name, PARAMS, noalias=False)
    outer, size, inner = each.x.shape
    count, dtype = each.out.shape[1], each.x.dtype
    with f.loop(threads.number(f), I64(outer * count * inner), threads.total) as at:
        o, i, j = split(f, at, (outer, count, inner))
        row = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        source = f.at(f.param("x"), flat_offset(f, (o, row, j), (size * inner, inner, 1)), dtype)
        f.store(f.load(source, dtype), f.at(f.param("out"), at, dtype))
    return f


def scatter_kernel(name: str, each: ScatterAdd, threads: Threads) -> Function:
    """``name(x, index, out, [rows,] error, check)`` for all threads. A column is reduced in the order of the index."""
    pointers = [("x", "ptr"), ("index", "ptr"), ("out", "ptr"), *([("rows", "ptr")] if each.rows else [])]
    f = Function(name, [*pointers, *PARAMS[3:]], noalias=False)
    outer, size, inner = each.out.shape
    count, dtype, given = each.index.shape[0], each.x.dtype, each.x.shape[1]
    with f.loop(threads.number(f), I64(outer * inner), threads.total) as at:
        o, j = split(f, at, (outer, inner))
        with f.loop(I64(0), I64(size)) as row:
            place = flat_offset(f, (o, row, j), (size * inner, inner, 1))
            f.store(identity(each.op, dtype), f.at(f.param("out"), place, dtype))
        with f.loop(I64(0), I64(count)) as i:
            row = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
            here = f.at(f.param("out"), flat_offset(f, (o, row, j), (size * inner, inner, 1)), dtype)
            added = i
            if each.rows is not None:
                place = f.at(f.param("rows"), i, each.rows.dtype)
                added = checked(f, place, each.rows.dtype, given, I64(each.rows_check))
            more = f.load(f.at(f.param("x"), flat_offset(f, (o, added, j), (given * inner, inner, 1)), dtype), dtype)
            f.store(combine(f, each.op, f.load(here, dtype), more), here)
    return f
