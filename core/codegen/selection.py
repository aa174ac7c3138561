"""The positions of the chosen elements of an array, and zeros beyond a length (see `core.plan.geometry`)."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, literal
from core.codegen.module import Module
from core.codegen.vector_slices import unravel
from core.plan.geometry import Selection, Tail

__all__ = ["clear_tail", "selection"]


def selection(_: Module, f: Function, spec: Selection) -> None:
    """``(flags, out, count)``; there is one unit. Rows of `out` beyond the count become zero."""
    rank, size = len(spec.shape), spec.size
    flags, out = f.param("flags"), f.param("out")
    with f.when(f.compare("icmp sgt", f.param("end"), f.param("first"))):
        found = f.slot("int64")
        f.write(I64(0), found)
        with f.loop(I64(0), I64(size), polls=True) as i:
            at = f.read(found, "int64")
            chosen = f.load(f.at(flags, i, "bool"), "bool")
            if rank == 1:  # the number of rows is at most i here, so there is room
                f.store(i, f.at(out, at, "int64"))
            elif rank:
                with f.when(chosen):
                    row = f.op(f"mul nsw {at}, {rank}", "int64")
                    for axis, position in enumerate(unravel(f, i, spec.shape)):
                        f.store(position, f.at(out, f.binary("add", row, I64(axis)), "int64"))
            f.write(f.binary("add", at, f.select(chosen, I64(1), I64(0))), found)
        count = f.read(found, "int64")
        f.store(count, f.param("count"))
        if rank:
            first = f.op(f"mul nsw {count}, {rank}", "int64")
            with f.loop(first, I64(spec.rows * rank), polls=True) as i:
                f.store(I64(0), f.at(out, i, "int64"))


def clear_tail(_: Module, f: Function, spec: Tail) -> None:
    """``(length, x)``; there is one unit."""
    with f.when(f.compare("icmp sgt", f.param("end"), f.param("first"))):
        length = f.load(f.param("length"), "int64")
        blocks = f.op(f"udiv {f.binary('add', length, I64(spec.block - 1))}, {spec.block}", "int64")
        end = f.intrinsic("smin", f.op(f"mul nsw {blocks}, {spec.block}", "int64"), I64(spec.size))
        with f.loop(length, end) as i, f.loop(I64(0), I64(spec.width)) as j:
            at = f.binary("add", f.binary("mul", i, I64(spec.step)), f.binary("mul", j, I64(spec.along)))
            f.store(literal(0, spec.dtype), f.at(f.param("x"), at, spec.dtype))
