"""Gathers on many threads: a thread for each element."""

from __future__ import annotations

from core.codegen.gather_scatter import checked
from core.codegen.llvm import Function
from core.device.threads import Threads, flat_offset, split
from core.plan.instructions import Gather

__all__ = ["gather_kernel"]

PARAMS = [*((name, "ptr") for name in ("x", "index", "out", "error")), ("check", "int64"), ("end", "int64")]


def gather_kernel(name: str, each: Gather, threads: Threads) -> Function:
    """``name(x, index, out, error, check, end)`` for all threads. end: after the last element of the result."""
    f = Function(name, PARAMS, noalias=False)
    outer, size, inner = each.x.shape
    count, dtype = each.out.shape[1], each.x.dtype
    with f.loop(threads.number(f), f.param("end"), threads.total) as at:
        o, i, j = split(f, at, (outer, count, inner))
        row = checked(f, f.at(f.param("index"), i, each.index.dtype), each.index.dtype, size)
        source = f.at(f.param("x"), flat_offset(f, (o, row, j), each.x.strides), dtype)
        f.store(f.load(source, dtype), f.at(f.param("out"), at, dtype))
    return f
