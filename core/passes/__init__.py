"""Passes: transformations from Block to Block before a program runs. Each pass is a pure function in its own file.

The pipeline between differentiation and execution is `optimize`; `PIPELINE` lists its passes in their order. The other
passes run on demand: for feed shapes, for a memory policy or for checkpoints. A pass keeps the results of a block equal
to rounding: it changes how often an operation runs, not which operations compute a result.

    pipeline    `optimize`
    dce         eliminate ops that no result needs
    expand      replace composites and calls by their bodies
    fold        compute constants at compile time
    cse         compute equal expressions once
    deviations  take factors out of sums of deviations from a mean
    slices      gradients of slices that lie side by side as one array
    accumulate  add to a running total instead of keeping all addends
    bind        replace open sizes by those of this run, and infer all other types again
    chunk       write a loop as nested loops over runs of trips: the memory policies `sqrt` and `binomial`
    merge       merge loops that make the same trips
    row_bounds  merge the rows of sparse gradients into arrays of known size, for machine code
    updates     new values of parameters and states apart from the step, so that they can replace the old ones in place
    recompute   compute residuals again in the backward pass instead of keeping them
"""

from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants
from core.passes.pipeline import optimize

__all__ = ["accumulate_early", "eliminate_dead", "expand_composites", "fold_constants", "optimize", "share_common"]
