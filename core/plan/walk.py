"""The walk over the ops of a block: each op gets its instructions, or is left to the reference executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.ir import HOLE, Op, inner_blocks
from core.ir.registry import lookup
from core.ir.stop import poll
from core.plan.array_elements import keep_common
from core.plan.array_rules import RULES, takes_arrays
from core.plan.constants import lower_constant
from core.plan.early import early_first
from core.plan.empty import has_empty, lower_empty
from core.plan.interpreted import interpret
from core.plan.known import lower_known
from core.plan.lowering import LOWERINGS, Lowering
from core.plan.open_elements import OPEN_RULES, takes_open_elements
from core.plan.sized import is_sized, lower_sized
from core.plan.sizes import element_of_all, is_open
from core.plan.unsupported import Unsupported

__all__ = ["lower_ops", "undoing"]


def lower_ops(low: Lowering) -> None:
    """Lower every op of the block of `low`, in order. Raises Unsupported with the position of the op."""
    for index, op in early_first(low.block):
        poll()
        low.location = op.location
        try:
            _lower(low, op)
        except Unsupported as refusal:
            raise Unsupported(refusal.reason, index, refusal.place or op.location) from None


def _lower(low: Lowering, op: Op) -> None:
    try:
        with undoing(low, op):
            _lower_natively(low, op)
    except Unsupported as refusal:
        try:
            interpret(low, op, refusal.why(op))
        except Unsupported as uncallable:  # for a loop, the first reason names the op inside
            raise refusal if any(inner_blocks(op)) else uncallable from None


@contextmanager
def undoing(low: Lowering, op: Op) -> Iterator[None]:
    """Undo what the context did for `op` if it raises Unsupported, but for instructions, whose results nobody reads."""
    changes, interpreted = low.destinations.changes, len(low.shared.interpreted)
    open_types = {n: low.types[n] for n in op.outputs if is_open(element_of_all(low.types[n]))}
    try:
        yield
    except Unsupported:
        low.destinations.undo(changes)
        del low.shared.interpreted[interpreted:]
        low.types.update(open_types)
        for name in open_types:
            low.sizes.pop(name, None)
        raise


def _lower_natively(low: Lowering, op: Op) -> None:
    if op.outputs[0] in low.unneeded:
        return
    if op.outputs[0] in low.ahead:
        low.define(op.outputs[0], low.ahead.pop(op.outputs[0]))
        return
    keep_common(low, op)
    lowering = LOWERINGS.get(op.type)
    sums = low.destinations.sums
    if op.type in ("sum", "add") and op.inputs[-1] in sums:  # the product was added where it was computed
        low.define(op.outputs[0], sums[op.inputs[-1]])
    elif takes_open_elements(low, op):
        OPEN_RULES[op.type](low, op)
    elif takes_arrays(low, op):
        RULES[op.type](low, op)
    elif not any(inner_blocks(op)) and is_sized(low, op):
        if has_empty(low, op):
            raise Unsupported("empty arrays among ones whose sizes only the run tells")
        lower_sized(low, op)
    elif has_empty(low, op) and lower_empty(low, op):
        return
    elif lowering:
        lower_known(low, op, lowering)
    elif lookup(op.type).elementwise:
        low.elementwise(op)
    elif all(n == HOLE for n in op.inputs):
        lower_constant(low, op)
    else:
        raise Unsupported(f"{op.type} has no machine code")
