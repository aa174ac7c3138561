"""The transpose of a matrix by tiles in shared memory: threads that follow each other read and write neighbours."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.vector_slices import move
from core.device.threads import WARP, Threads, block_number, one_block
from core.device.tiles import bits_of
from core.plan.geometry import Transposition
from core.plan.instructions import Kernel

__all__ = ["transposition_kernel", "transposition_units"]

TILE = WARP
"""Rows and columns of a tile."""


def transposition_units(spec: Transposition) -> int:
    """Tiles, each the work of a block."""
    return -(-spec.rows // TILE) * -(-spec.columns // TILE)


def transposition_kernel(name: str, each: Kernel, threads: Threads) -> Function:
    """``name(x, out, scratch, error, check)`` for all threads: out [columns, rows] from x [rows, columns]."""
    spec, names = each.spec, ("x", "out", "scratch", "error")
    dtype, team = bits_of(spec.dtype), one_block(threads)
    f = Function(name, [*((n, "ptr") for n in names), ("check", "int64")], noalias=False)
    tile = team.shared(f, TILE * (TILE + 1) * itemsize(dtype))
    number = team.number(f)
    near, far = team.lane(f), f.op(f"udiv {number}, {WARP}", "int64")
    across = -(-spec.columns // TILE)
    with f.loop(block_number(f, threads), I64(transposition_units(spec)), threads.blocks) as unit:
        top, left = (_times(f, f.op(f"{op} {unit}, {across}", "int64"), TILE) for op in ("udiv", "urem"))

        def inside(i: IRValue, j: IRValue) -> IRValue:
            return f.binary(
                "and", *(f.compare("icmp slt", at, I64(n)) for at, n in ((i, spec.rows), (j, spec.columns)))
            )

        with f.loop(far, I64(TILE), threads.block // WARP) as row:
            i, j = f.binary("add", top, row), f.binary("add", left, near)
            with f.when(inside(i, j)):
                value = f.load(move(f, f.param("x"), dtype, (i, spec.step), (j, 1)), dtype)
                f.store(value, move(f, tile, dtype, (row, TILE + 1), (near, 1)))
        team.barrier(f)
        with f.loop(far, I64(TILE), threads.block // WARP) as column:
            i, j = f.binary("add", top, near), f.binary("add", left, column)
            with f.when(inside(i, j)):
                value = f.load(move(f, tile, dtype, (near, TILE + 1), (column, 1)), dtype)
                f.store(value, move(f, f.param("out"), dtype, (j, spec.rows), (i, 1)))
        team.barrier(f)
    return f


def _times(f: Function, value: IRValue, factor: int) -> IRValue:
    return f.op(f"mul nsw {value}, {factor}", "int64")
