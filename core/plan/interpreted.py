"""Ops without machine code: the step calls the reference executor for them."""

from __future__ import annotations

from core.ir import HOLE, Block, Op, TensorType
from core.plan.instructions import Interpreted
from core.plan.lowering import Lowering
from core.plan.sizes import Size, is_open
from core.plan.unsupported import Unsupported

__all__ = ["interpret"]


def interpret(low: Lowering, op: Op, reason: str) -> None:
    """Append an instruction that lets the reference executor run `op`.

    reason: why the op has no machine code.
    Raises Unsupported if an array has no known largest size or native dtype, or if the target cannot call the executor.
    """
    if not low.target.interprets:
        raise Unsupported(reason)
    names = tuple(dict.fromkeys(n for n in op.inputs if n != HOLE))
    declared = {n: low.block.types[n] for n in (*names, *op.outputs)}
    if any(is_open(declared[n]) for n in op.outputs):
        _bound(low, op)
    for name in (*names, *op.outputs):
        low.type(name)
    given = [low.dense(low.entry(n)) for n in names]
    for name in op.outputs:
        low.stand_alone(name)
    made = [low.destination(n) for n in op.outputs]
    block = Block(names, (op,), op.outputs, declared)
    sizes = [low.sizes.get(n, {}) for n in (*names, *op.outputs)]
    lengths = tuple(tuple((axis, size.length) for axis, size in sorted(own.items())) for own in sizes)
    views, check = (*given, *made), low.outgrown(op)
    each = Interpreted(len(low.shared.interpreted), block, views, reason, lengths, check, location=op.location)
    low.shared.interpreted.append(each)
    low.add(each)
    for name, view in zip(op.outputs, made, strict=True):
        low.define(name, view)


def _bound(low: Lowering, op: Op) -> None:
    """Give the results of `op` their largest sizes, or those that are expected. Raises Unsupported without either."""
    types = low.largest(op)
    for name, type in zip(op.outputs, types or (None,) * len(op.outputs), strict=True):
        declared = low.types[name]
        if type is None or not isinstance(declared, TensorType):
            raise Unsupported(f"the size of {name} is known only when it runs")
        if not is_open(declared):
            continue
        low.types[name] = type
        axes = [axis for axis, n in enumerate(declared.shape) if n == -1]
        low.sizes[name] = {axis: Size(type.shape[axis], low.allocate((), "int64", "length")) for axis in axes}
