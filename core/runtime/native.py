"""A block whose regions are machine code, called between the ops that the reference executor runs."""

from __future__ import annotations

from core.ir import Block, Op
from core.passes.row_bounds import bound_rows
from core.plan.partition import plan_parts
from core.runtime.backend import Backend, Region
from core.runtime.expecting import ExpectingRegion
from core.runtime.reference import NATIVE, Interpreter, largest_array

__all__ = ["native_interpreter"]


def native_interpreter(block: Block, backend: Backend, timed: bool = False) -> Interpreter:
    """An interpreter of `block` that calls compiled regions, as few and as large as `backend` allows.

    timed: the regions measure the time of each kernel, for runs with `times`.
    """
    bounded = bound_rows(block)
    picks = None
    if bounded is not None:
        block, picks = bounded.block, bounded.picks
    ops: list[Op] = []
    for part in plan_parts(block, backend.target).parts:
        if isinstance(part, Op):
            ops.append(part)
        else:
            region: Region = ExpectingRegion(part, backend, timed) if part.expected else backend.compile(part, timed)
            own = part.block
            ops.append(Op(NATIVE, own.params, own.results, {"region": region}, own.ops[0].location))
    parts = Block(block.params, tuple(ops), block.results, block.types)
    alone = len(ops) == 1 and ops[0].type == NATIVE and (ops[0].inputs, ops[0].outputs) == (block.params, block.results)
    only = ops[0].attrs["region"] if alone else None
    return Interpreter(block, largest_array(block), only, picks, parts)
