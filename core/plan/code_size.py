"""The predicted size of the machine code of nested blocks, before anything is planned."""

from __future__ import annotations

from core.ir import Block, Op, StackType, inner_blocks
from core.ir.registry import is_loop
from core.ir.stop import poll

__all__ = ["NESTED_TEXT", "predicted_text", "too_large"]

NESTED_TEXT = 4_000_000
"""Limit of the predicted text of all nested blocks of a step, in characters. LLVM takes some ten seconds for so much.

The decision depends on the program alone and not on measured time, so that equal calls give equal bits.
"""

OP, BRANCH, LOOP, STACK = 280, 1500, 3000, 500
"""Characters of an op, and further ones of a branch, of a loop, and of each stack that a loop reads or records.

A loop hands on the stacks of all loops inside it, so their number can grow with the square of the depth.
"""


def too_large(block: Block) -> dict[int, str]:
    """The ops of `block`, by position, to leave to the reference executor so that the others are within the limit.

    The largest ones are left first. An op without inner blocks never is.
    """
    sizes = {i: predicted_text(op, block) for i, op in enumerate(block.ops) if any(inner_blocks(op))}
    total = sum(sizes.values())
    found: dict[int, str] = {}
    for index in sorted(sizes, key=lambda i: (-sizes[i], i)):
        if total <= NESTED_TEXT:
            break
        total -= sizes[index]
        found[index] = (
            f"its nested blocks are too large for machine code: about {sizes[index]} characters of LLVM IR, "
            f"and the limit for all nested blocks is {NESTED_TEXT}"
        )
    return found


def predicted_text(op: Op, block: Block) -> int:
    """Characters of LLVM IR for an op of `block`, inner blocks included."""
    total = 0
    left = [(op, block)]
    for each, around in left:  # the list grows during the loop
        poll()
        total += OP
        inside = [inner for _, inner in inner_blocks(each)]
        if inside:
            total += LOOP if is_loop(each) else BRANCH
            total += STACK * sum(isinstance(around.types[n], StackType) for n in (*each.inputs, *each.outputs) if n)
        left += [(inner_op, inner) for inner in inside for inner_op in inner.ops]
    return total
