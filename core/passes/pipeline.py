"""The passes between differentiation and execution, in their order."""

from __future__ import annotations

from collections.abc import Callable

from core.ir import Block
from core.ir.size import check_size
from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.deviations import factor_deviations
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants
from core.passes.slices import join_slices

__all__ = ["PIPELINE", "optimize"]

PIPELINE: tuple[Callable[[Block], Block], ...] = (
    eliminate_dead,
    expand_composites,
    fold_constants,
    share_common,
    factor_deviations,
    join_slices,
    accumulate_early,
    eliminate_dead,
)


def optimize(block: Block) -> Block:
    """Run the pipeline between differentiation and execution.

    Every pass keeps the results equal to rounding. Folding and sharing change how often an operation runs, not which
    operations compute a result.

    Raises ProgramError (limit_exceeded) if the block has too many ops.
    """
    check_size(block)
    for transform in PIPELINE:
        block = transform(block)
    return block
