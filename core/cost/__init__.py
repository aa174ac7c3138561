"""Predict the memory and work of a block before it runs, and choose the memory policies that fit a budget.

A simulation of the reference executor on types, without arrays, gives its peak memory and its floating-point
operations. Another memory policy changes only the *nests*, the ops of block 0 that contain loops. Each nest is
differentiated and optimised by itself under the policy. Its residuals and its work then replace those of the original
nest among the lifetimes of the other arrays. A budget therefore compares many memory plans without compiling each of
them. The plan with the least work that fits is compiled as a whole, to check its peak.

    memory    peak bytes of a step
    scratch   temporary bytes of one op
    views     ops that allocate nothing
    work      floating-point operations
    duration  an upper estimate of the time of one op
    nests     the ops of block 0 that contain loops
    variants  one nest under other memory policies
    step      a step under other memory policies
    budget    the choice of a memory plan
"""

from core.cost.memory import Memory, nested_runs, predict_memory
from core.cost.work import count_work

__all__ = ["Memory", "count_work", "nested_runs", "predict_memory"]
