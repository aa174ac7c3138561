"""Composites of a loop's body replaced by their expansions, where that saves products in the backward pass.

The pullback of a composite computes its expansion again. At the top level of a program the two become one, because both
are in one block. The backward pass of a loop is a block of its own: there a recurrent cell would multiply by its
weights twice. With the expansion in the forward block, its values are residuals like all others.
"""

from __future__ import annotations

from dataclasses import replace

from core.ir import HOLE, Block, Op, inner_blocks
from core.ir.builder import BlockBuilder, expansion
from core.ir.registry import lookup

__all__ = ["opened"]

LONG = frozenset({"matmul", "einsum", "correlate", "correlate_input_adjoint"})
"""Ops that take longer than reading their result from memory."""


def opened(block: Block) -> Block:
    """`block` with the expansions of those composites that have no VJP rule and contain a product, but no loop.

    Variables of the block keep their names.
    """
    if not any(_opens(block, op) for op in block.ops):
        return block
    b = BlockBuilder.like(block)
    b.ops = []
    for op in block.ops:
        if _opens(block, op):
            _inline(b, op, _expansion(block, op))
        else:
            b.ops.append(op)
    return replace(block, ops=tuple(b.ops), types=dict(b.types), stopped=frozenset(b.stopped))


def _opens(block: Block, op: Op) -> bool:
    spec = lookup(op.type)
    if spec.kind != "composite" or spec.vjp_rule is not None or spec.unavailable is not None:
        return False
    return _is_long(_expansion(block, op))


def _is_long(block: Block) -> bool:
    if any(any(inner_blocks(op)) for op in block.ops):
        return False
    return any(op.type in LONG or _opens(block, op) for op in block.ops)


def _expansion(block: Block, op: Op) -> Block:
    types = tuple(None if n == HOLE else block.types[n] for n in op.inputs)
    return expansion(lookup(op.type), types, op.attrs)


def _inline(b: BlockBuilder, op: Op, inner: Block) -> None:
    """Add the ops of `inner`, which may contain more to open. Its results get the names of the outputs of `op`."""
    inner = opened(inner)
    start = len(b.ops)
    with b.at(op.location):
        outs = b.inline(inner, [None if n == HOLE else b.value(n) for n in op.inputs])
    made = {n for each in b.ops[start:] for n in each.outputs}
    renamed: dict[str, str] = {}
    for name, out in zip(op.outputs, outs, strict=True):
        if out.name in made and out.name not in renamed:
            renamed[out.name] = name
            del b.types[out.name]
            b.stopped.discard(out.name)
        else:  # an operand of `op`, or one result twice
            made_op = b.make("assign", out)
            b.ops.append(replace(made_op, outputs=(name,), location=op.location))
    if renamed:
        b.ops[start:] = [
            replace(
                each,
                inputs=tuple(renamed.get(n, n) for n in each.inputs),
                outputs=tuple(renamed.get(n, n) for n in each.outputs),
            )
            for each in b.ops[start:]
        ]
