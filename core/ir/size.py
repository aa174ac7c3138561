"""The number of ops of a block, inner blocks and called functions included, and its limit."""

from __future__ import annotations

from core.ir.errors import ProgramError
from core.ir.program import Block, Op, inner_blocks
from core.ir.stop import poll

__all__ = ["EXPANDED_OPS", "check_size", "expanded_ops", "op_size"]

EXPANDED_OPS = 250_000
"""The most ops of a step before its composites are expanded: some seconds of passes, and some 100 MB of ops."""


def expanded_ops(block: Block) -> int:
    """The number of ops of `block`. A block that several ops contain counts for each of them."""
    return _Count().block(block)


def op_size(op: Op) -> int:
    """The number of ops in `op`: itself, and those of its inner blocks."""
    return _Count().op(op)


def check_size(block: Block) -> None:
    """Raises ProgramError (limit_exceeded), with the place of the largest op, if `block` has too many ops."""
    count = _Count()
    total = count.block(block)
    if total > EXPANDED_OPS:
        largest = max(block.ops, key=count.op)
        raise ProgramError(
            f"the program is too large after expansion: {total} ops, more than the limit of {EXPANDED_OPS}; "
            f"{largest.type} contains {count.op(largest)} of them",
            "limit_exceeded",
            location=largest.location,
            suggestion="nested loops and branches with the memory policy recompute, sqrt or binomial repeat the ops "
            "inside them at each level; calls repeat the ops of their function",
        )


class _Count:
    """Counts each block once."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}

    def block(self, block: Block) -> int:
        found = self._of.get(id(block))
        if found is None:
            found = self._of[id(block)] = sum(map(self.op, block.ops))
        return found

    def op(self, op: Op) -> int:
        poll()
        return 1 + sum(self.block(inner) for _, inner in inner_blocks(op)) if op.attrs else 1
