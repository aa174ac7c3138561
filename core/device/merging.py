"""Rows merged by their numbers (`core.plan.merge_specs`): a thread for each element of the sums."""

from __future__ import annotations

from core.codegen.block_sums import in_blocks
from core.codegen.llvm import I64, Function, IRValue, literal
from core.codegen.merging import places_of, rows_at_once
from core.device.threads import Threads, split
from core.ir.precision import HALVES
from core.plan.instructions import Kernel

__all__ = ["merge_kernel", "merge_units"]


def merge_units(each: Kernel) -> int:
    """Threads that have something to do."""
    return int(each.spec.room * each.spec.inner)


def merge_kernel(name: str, each: Kernel, threads: Threads) -> Function:
    """``name(x, order, starts, out, scratch, error, check)`` for all threads. Rows are added in their order."""
    spec, names = each.spec, ("x", "order", "starts", "out", "scratch", "error")
    wide = "float32" if spec.dtype in HALVES else spec.dtype
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    total = f.slot(wide)
    with f.loop(threads.number(f), I64(merge_units(each)), threads.total) as at:
        unit, column = split(f, at, (spec.room, spec.inner))
        f.write(literal(0, wide), total)

        def add(places: tuple[IRValue, IRValue], column: IRValue = column) -> None:
            with f.loop(*places) as i:
                place = f.convert(f.load(f.at(f.param("order"), i, "int32"), "int32"), "int64")
                source = f.binary("add", f.op(f"mul nsw {place}, {spec.inner}", "int64"), column)
                found = f.convert(f.load(f.at(f.param("x"), source, spec.dtype), spec.dtype), wide)
                f.write(f.binary("fadd" if found.is_float else "add", f.read(total, wide), found), total)

        in_blocks(f, places_of(f, f.param("starts"), unit), rows_at_once(spec), [total], 1, add)
        f.store(f.convert(f.read(total, wide), spec.dtype), f.at(f.param("out"), at, spec.dtype))
    return f
