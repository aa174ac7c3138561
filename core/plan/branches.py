"""Branches: the lowering of `if_else`, an instruction that holds the instructions of both sides."""

from __future__ import annotations

from core.ir import Op, StackType
from core.plan.data import Root, Sequence
from core.plan.flow import Branch, outer_roots
from core.plan.lowering import Lowering, lowers
from core.plan.sized import adopt
from core.plan.stacks import captured
from core.plan.unsupported import Unsupported
from core.plan.walk import lower_ops

__all__: list[str] = []


@lowers("if_else")
def lower_if_else(low: Lowering, op: Op) -> None:
    if any(isinstance(low.types[n], StackType) for n in op.outputs):
        raise Unsupported("a branch that returns tensor arrays")
    condition = low.stored(low.entry(op.inputs[0]))
    operands = [captured(low, n) for n in op.inputs[1:]]
    targets = [low.destination(n) for n in op.outputs]
    sides = []
    own: set[Root] = set()
    for block in (op.attrs["true_block"], op.attrs["false_block"]):
        inner = Lowering(block, low.shared)
        for name, outer, operand in zip(block.params, op.inputs[1:], operands, strict=True):
            adopt(low, inner, outer, name)
            inner.define(name, operand)
        for name, target in zip(block.results, targets, strict=True):
            inner.destinations.want(name, target)
        lower_ops(inner)
        sides.append(Sequence(inner.finish()))
        own |= inner.own
    results = tuple(t.root for t in targets)
    reached = dict.fromkeys(root for side in sides for root in outer_roots(side, own))
    yes, no = sides
    low.add(Branch(condition, yes, no, results, tuple(reached), location=op.location))
    for name, target in zip(op.outputs, targets, strict=True):
        low.define(name, target)
