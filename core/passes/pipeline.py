"""The passes between differentiation and execution, in their order."""

from __future__ import annotations

from core.ir import Block
from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants

__all__ = ["optimize"]


def optimize(block: Block) -> Block:
    """Run the pipeline between differentiation and execution.

    Every pass keeps the results equal to rounding. Folding and sharing change how often an operation runs, not which
    operations compute a result.
    """
    block = eliminate_dead(block)
    block = expand_composites(block)
    block = fold_constants(block)
    block = share_common(block)
    block = accumulate_early(block)
    return eliminate_dead(block)
