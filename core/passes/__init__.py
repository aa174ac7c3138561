"""Block -> Block: what the compiler does to a program before it runs. One pass a file, named by a verb."""

from core.passes.accumulate import accumulate_early
from core.passes.cse import share_common
from core.passes.dce import eliminate_dead
from core.passes.expand import expand_composites
from core.passes.fold import fold_constants
from core.passes.pipeline import optimize

__all__ = ["accumulate_early", "eliminate_dead", "expand_composites", "fold_constants", "optimize", "share_common"]
