"""A block whose regions are machine code, called between the ops that the reference executor runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from core.ir import Block, Op, Type
from core.passes.row_bounds import bound_rows
from core.plan.partition import plan_parts
from core.plan.plan import Plan
from core.runtime.backend import Backend, Region
from core.runtime.expecting import ExpectingRegion
from core.runtime.reference import NATIVE, Interpreter, largest_array
from core.runtime.updates_apart import RegionsApart, plans_apart

__all__ = ["native_interpreter"]


NONE: Mapping[int, int] = MappingProxyType({})


def native_interpreter(
    block: Block, backend: Backend, timed: bool = False, updated: Mapping[int, int] = NONE, adapts: bool = True
) -> Interpreter:
    """An interpreter of `block` that calls compiled regions, as few and as large as `backend` allows.

    timed:   the regions measure the time of each kernel, for runs with `times`.
    updated: result -> the parameter with its old value, of the same type: new values that replace the old ones.
    adapts:  as of `Executable`.
    """
    bounded = bound_rows(block)
    picks = None
    if bounded is not None:
        block, picks = bounded.block, bounded.picks
        updated = {picks[i][0]: j for i, j in updated.items() if picks[i][1] is None}
    plans = plans_apart(block, backend.target, updated) if backend.target.updates_in_place else None
    if plans is not None:
        step, update = backend.compile(plans.step, timed), backend.compile(plans.update, timed)
        apart = RegionsApart(step, update, plans.updated, len(block.results))
        ops = [_call(plans.step, step), _call(plans.update, update)]
        parts = _in_parts(block, ops, plans.step.block.types)
        return Interpreter(block, largest_array(block), None, picks, parts, apart)
    ops = []
    for part in plan_parts(block, backend.target).parts:
        if isinstance(part, Op):
            ops.append(part)
        else:
            expecting = adapts and part.expected
            region: Region = ExpectingRegion(part, backend, timed) if expecting else backend.compile(part, timed)
            ops.append(_call(part, region))
    alone = len(ops) == 1 and ops[0].type == NATIVE and (ops[0].inputs, ops[0].outputs) == (block.params, block.results)
    only = ops[0].attrs["region"] if alone else None
    return Interpreter(block, largest_array(block), only, picks, _in_parts(block, ops))


def _call(plan: Plan, region: Region) -> Op:
    """An op that stands for a compiled plan."""
    own = plan.block
    return Op(NATIVE, own.params, own.results, {"region": region}, own.ops[0].location)


def _in_parts(block: Block, ops: list[Op], made: Mapping[str, Type] = MappingProxyType({})) -> Block:
    """`block` with `ops` in place of its own. made: types of variables between these that `block` does not have."""
    return Block(block.params, tuple(ops), block.results, {**made, **block.types})
