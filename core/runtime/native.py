"""A block whose regions are machine code, called between the ops that the reference executor runs."""

from __future__ import annotations

from dataclasses import replace

from core.ir import Block, Op
from core.passes.row_bounds import bound_rows
from core.plan import plan_block
from core.plan.partition import parts_of, refusals
from core.runtime.backend import Backend
from core.runtime.reference import NATIVE, Interpreter, interpreter_of

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
    for part in parts_of(block, frozenset(refusals(block, backend.target))):
        if isinstance(part, Op):
            ops.append(part)
        else:
            attrs = {"region": backend.compile(plan_block(part, backend.target), timed)}
            ops.append(Op(NATIVE, part.params, part.results, attrs, part.ops[0].location))
    parts = interpreter_of(Block(block.params, tuple(ops), block.results, block.types))
    alone = len(ops) == 1 and ops[0].type == NATIVE and (ops[0].inputs, ops[0].outputs) == (block.params, block.results)
    region = ops[0].attrs["region"] if alone else None
    return replace(parts, block=block, largest=interpreter_of(block).largest, region=region, picks=picks)
