"""Dead code elimination, inner blocks included."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from core.ir import Block, Op, inner_blocks
from core.ir.registry import roles_of
from core.ir.stop import poll

__all__ = ["eliminate_dead"]


def eliminate_dead(block: Block) -> Block:
    """`block` with only the ops that its results need, in the same order.

    Unread results of branches and unread stacks of loops are removed, and so are the ops inside that compute them.
    Parameters of `block` stay: they are its signature.
    """
    needed = set(block.results)
    kept: list[Op] = []
    for op in reversed(block.ops):
        poll()
        if needed.isdisjoint(op.outputs):
            continue
        op = _trim(op, needed)
        kept.append(op)
        needed.update(op.inputs)
    ops = tuple(reversed(kept))
    named = {*block.params, *(name for op in ops for name in op.outputs)}
    types = {name: type for name, type in block.types.items() if name in named}
    return Block(block.params, ops, block.results, types, block.stopped & named, block.index)


def _trim(op: Op, needed: Collection[str]) -> Op:
    """`op` without unread optional outputs. A branch also loses the operands that neither side reads."""
    roles = roles_of(op)
    if roles is None:
        return op
    keep = [i for i, name in enumerate(op.outputs) if i not in roles.optional or name in needed]
    blocks = {
        name: eliminate_dead(replace(inner, results=tuple(inner.results[i] for i in keep)))
        for name, inner in inner_blocks(op)
    }
    inputs = op.inputs
    if not roles.repeats:  # the operands of a loop stay: their number is in its attributes
        used = [i for i in roles.passed if any(_reads(b, b.params[roles.param(i)]) for b in blocks.values())]
        blocks = {name: _with_params(inner, [roles.param(i) for i in used]) for name, inner in blocks.items()}
        inputs = tuple(op.inputs[i] for i in (*roles.condition, *used))
    return replace(op, inputs=inputs, outputs=tuple(op.outputs[i] for i in keep), attrs={**op.attrs, **blocks})


def _reads(block: Block, name: str) -> bool:
    return name in block.results or any(name in op.inputs for op in block.ops)


def _with_params(block: Block, params: list[int]) -> Block:
    """`block` with only these parameters; the others must be unread."""
    kept = tuple(block.params[i] for i in params)
    dropped = set(block.params) - set(kept)
    types = {name: type for name, type in block.types.items() if name not in dropped}
    return replace(block, params=kept, types=types, stopped=block.stopped - dropped)
