"""The positions of the chosen elements of an array, and zeros beyond a length (see `core.plan.geometry`)."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.module import Module
from core.codegen.vector_slices import unravel
from core.plan.geometry import Selection, Tail

__all__ = ["clear_tail", "copy_tail", "selection", "tail_units"]


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


def tail_units(spec: Tail) -> int:
    return spec.block


def clear_tail(_: Module, f: Function, spec: Tail) -> None:
    """``(length, x)``. A unit is a row of the last block."""
    length, first = _last_block(f, spec)
    end = f.select(f.compare("icmp eq", first, length), length, f.binary("add", first, I64(spec.block)))
    start = f.intrinsic("smax", f.binary("add", first, f.param("first")), length)
    end = f.intrinsic("smin", f.binary("add", first, f.param("end")), end)
    with f.loop(start, end) as i, f.loop(I64(0), I64(spec.width)) as j:
        f.store(literal(0, spec.dtype), f.at(f.param("x"), _place(f, spec, i, j), spec.dtype))


def copy_tail(_: Module, f: Function, spec: Tail) -> None:
    """``(length, x, out)``: the last block of x, with zeros behind the length. A unit is a row of it."""
    length, first = _last_block(f, spec)
    rows = f.select(f.compare("icmp eq", first, length), I64(0), f.param("end"))
    with f.loop(f.param("first"), rows) as i:
        row = f.binary("add", first, i)
        inside = f.compare("icmp slt", row, length)
        given = f.select(inside, row, first)  # which is below the length, too
        with f.loop(I64(0), I64(spec.width)) as j:
            value = f.load(f.at(f.param("x"), _place(f, spec, given, j), spec.dtype), spec.dtype)
            kept = f.select(inside, value, literal(0, spec.dtype))
            f.store(kept, f.at(f.param("out"), _place(f, spec, i, j), spec.dtype))


def _last_block(f: Function, spec: Tail) -> tuple[IRValue, IRValue]:
    """The length, and its whole blocks in rows."""
    length = f.load(f.param("length"), "int64")
    return length, f.op(f"mul nsw {f.op(f'udiv {length}, {spec.block}', 'int64')}, {spec.block}", "int64")


def _place(f: Function, spec: Tail, i: IRValue, j: IRValue) -> IRValue:
    return f.binary("add", f.binary("mul", i, I64(spec.step)), f.binary("mul", j, I64(spec.along)))
