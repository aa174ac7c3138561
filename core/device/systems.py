"""Factorisations and triangular systems on a device: a block of threads for each matrix.

A block works on a panel of 16 columns, or of 16 rows of a solution, at a time. It computes the panel first, and then
subtracts the products of the panel from the rest of the matrix, which it reads and writes once for each panel. One
thread computes each number of a result from the columns, or rows, before it, in their order; sums over a column are
those of lanes, then of warps. So the bits depend on the number of threads of a block, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from core.codegen.llvm import I64, Function, IRValue
from core.device.blocks import PANEL, Block
from core.device.cholesky import write_cholesky
from core.device.elimination import write_elimination
from core.device.substitution import columns_of, write_substitution
from core.device.threads import Threads, block_number
from core.plan.systems import Triangle

if TYPE_CHECKING:
    from core.plan.instructions import Kernel

__all__ = ["SYSTEMS", "system_kernel", "system_units", "system_waits"]


def system_kernel(name: str, each: Kernel, launch: Threads) -> Function:
    """``name(arrays..., error, check)`` for all threads."""
    names, write = SYSTEMS[each.kind]
    f = Function(name, [*((n, "ptr") for n in (*names, "error")), ("check", "int64")], noalias=False)
    block = Block(f, launch)
    with f.loop(block_number(f, launch), I64(system_units(each)), launch.blocks) as unit:
        write(block, each.spec, unit)
        block.meet()
    return f


def system_units(each: Kernel) -> int:
    """How many blocks can work at a time: on a matrix, or some columns of its right-hand side, each."""
    groups = -(-each.spec.k // columns_of(each.spec)) if isinstance(each.spec, Triangle) else 1
    return each.spec.batch * groups


def system_waits(each: Kernel) -> int:
    """Barriers of a block for one unit: most of them once for each row, or for each panel."""
    panels = -(-each.spec.n // PANEL)
    return {"cholesky": 8 * panels + 3 * each.spec.n, "eliminate": 7 * each.spec.n + 2 * panels}.get(
        each.kind, 2 * panels
    )


SYSTEMS: dict[str, tuple[tuple[str, ...], Callable[[Block, Any, IRValue], None]]] = {
    "cholesky": (("x", "out"), write_cholesky),
    "eliminate": (("x", "out", "order", "sign"), write_elimination),
    "substitute": (("t", "y", "out"), write_substitution),
    "substitute_ordered": (("t", "y", "order", "out"), write_substitution),
    "substitute_identity": (("t", "order", "out"), write_substitution),
}
"""For each kind of kernel the names of its arrays, and what writes it for one unit: a matrix, or some columns of it."""
