"""Block -> Block: the transformations of a program before it runs. Each pass is a pure function in a file of its own.

The pipeline between differentiation and execution is `optimize`: eliminate dead code, expand composites, fold
constants, share common ops, accumulate early, eliminate dead code again. The other passes run where a question asks
for them. A pass keeps every result to the last bit but one: it changes how often an operation runs, never which one.

    pipeline    `optimize`
    dce         drop the ops that no result needs
    expand      replace composites and calls by their bodies
    fold        compute at compile time whatever does not depend on the run
    cse         compute equal expressions once
    accumulate  add to one running total instead of holding all addends
    bind        give parameters the types of this run, and infer all other types again
    chunk       write a loop as loops over runs of trips: the memory policies `sqrt` and `binomial`
    merge       merge loops that make the same trips
    recompute   run forward ops again in the backward pass instead of keeping their results
"""

from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants
from core.passes.pipeline import optimize

__all__ = ["accumulate_early", "eliminate_dead", "expand_composites", "fold_constants", "optimize", "share_common"]
