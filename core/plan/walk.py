"""The walk over the ops of a block: each op gets its instructions, or is left to the reference executor."""

from __future__ import annotations

from core.ir import HOLE, Op, TensorType, inner_blocks
from core.ir.precision import is_half
from core.ir.registry import lookup
from core.ir.stop import poll
from core.plan.constants import lower_constant
from core.plan.halves import lower_wide
from core.plan.interpreted import interpret
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.unsupported import Unsupported

__all__ = ["lower_ops"]

WIDE = frozenset(
    (
        "argmax",
        "argmin",
        "argsort",
        "correlate",
        "correlate_filter_adjoint",
        "correlate_input_adjoint",
        "cumprod",
        "cumsum",
        "einsum",
        "is_last",
        "linear_scan",
        "logcumsumexp",
        "logsumexp",
        "max_pool",
        "pick",
        "running_argmax",
        "segment_max",
        "segment_prod",
        "segment_sum",
        "unpool_like",
        "window_sum",
        "window_sum_adjoint",
    )
)
"""Ops whose lowering takes 16-bit floats in float32."""


def lower_ops(low: Lowering) -> None:
    """Lower every op of the block of `low`, in order. Raises Unsupported with the position of the op."""
    for index, op in enumerate(low.block.ops):
        poll()
        low.location = op.location
        try:
            _lower(low, op)
        except Unsupported as refusal:
            raise Unsupported(refusal.reason, index, refusal.place or op.location) from None


def _lower(low: Lowering, op: Op) -> None:
    taken, interpreted = set(low.destinations.taken), len(low.shared.interpreted)
    try:
        _lower_natively(low, op)
    except Unsupported as refusal:
        low.destinations.taken = taken
        del low.shared.interpreted[interpreted:]
        try:
            interpret(low, op, refusal.why(op))
        except Unsupported as uncallable:  # for a loop, the first reason names the op inside
            raise refusal if any(inner_blocks(op)) else uncallable from None


def _refuse_empty(low: Lowering, op: Op) -> None:
    for name in op.inputs:
        type = low.types[name] if name != HOLE else None
        if isinstance(type, TensorType) and 0 in type.shape:
            raise Unsupported("empty arrays")


def _lower_natively(low: Lowering, op: Op) -> None:
    lowering = LOWERINGS.get(op.type)
    sums = low.destinations.sums
    if op.type in ("sum", "add") and op.inputs[-1] in sums:  # the product was added where it was computed
        low.define(op.outputs[0], sums[op.inputs[-1]])
    elif op.type in WIDE and any(is_half(low.types[n]) for n in (*op.inputs, *op.outputs) if n != HOLE):
        _refuse_empty(low, op)
        lower_wide(low, op, LOWERINGS[op.type])
    elif lowering:
        _refuse_empty(low, op)
        lowering(low, op)
    elif lookup(op.type).elementwise:
        low.elementwise(op)
    elif all(n == HOLE for n in op.inputs):
        lower_constant(low, op)
    else:
        raise Unsupported(f"{op.type} has no machine code")
