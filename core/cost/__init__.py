"""The memory and work of a block before it runs, and the memory policies that fit a budget.

The reference executor's run is played from the types alone, without arrays: its peak of memory and its floating-point
operations. Another memory policy changes only the *nests*, the ops of block 0 that contain loops. Each nest is
differentiated and optimised by itself under the policy, and its residuals and its work replace those of the original
nest among the lives of the other arrays. So a budget compares many plans without compiling any of them again; the plan
with the least work that fits is then compiled as a whole to be sure.

    memory    peak bytes of a step
    work      floating-point operations
    nests     the ops of block 0 with loops inside
    variants  one nest under other memory policies
    step      a step under other memory policies
    budget    the choice
"""

from core.cost.memory import Memory, nested_runs, predict_memory
from core.cost.work import count_work

__all__ = ["Memory", "count_work", "nested_runs", "predict_memory"]
