"""All passes between differentiation and execution, in their order."""

from __future__ import annotations

from core.ir import Block
from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants

__all__ = ["optimize"]


def optimize(block: Block) -> Block:
    """The pipeline between differentiation and execution. Every pass keeps the meaning to the last bit but one:
    folding and sharing never change an operation, only how often it is done."""
    block = eliminate_dead(block)
    block = expand_composites(block)
    block = fold_constants(block)
    block = share_common(block)
    block = accumulate_early(block)
    return eliminate_dead(block)
