"""Ops without machine code: the step calls the reference executor for them."""

from __future__ import annotations

from core.ir import HOLE, Block, Op
from core.plan.data import Interpreted
from core.plan.lowering import Lowering
from core.plan.unsupported import Unsupported

__all__ = ["interpret"]


def interpret(low: Lowering, op: Op, reason: str) -> None:
    """Append an instruction that lets the reference executor run `op`.

    reason: why the op has no machine code.
    Raises Unsupported if an array has no known size or native dtype, or if the target cannot call the executor.
    """
    if not low.target.interprets:
        raise Unsupported(reason)
    names = tuple(dict.fromkeys(n for n in op.inputs if n != HOLE))
    for name in (*names, *op.outputs):
        low.type(name)
    given = [low.dense(low.entry(n)) for n in names]
    for name in op.outputs:
        low.stand_alone(name)
    made = [low.destination(n) for n in op.outputs]
    block = Block(names, (op,), op.outputs, {n: low.types[n] for n in (*names, *op.outputs)})
    each = Interpreted(len(low.shared.interpreted), block, (*given, *made), reason, location=op.location)
    low.shared.interpreted.append(each)
    low.add(each)
    for name, view in zip(op.outputs, made, strict=True):
        low.define(name, view)
