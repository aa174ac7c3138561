"""Sorts of inputs come first, and run beside the work up to their first reader.

The rows of a gradient are sorted by ids, which are inputs as a rule. Then the sort need not wait for the gradient, and
one block that sorts leaves all others to the rest of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.device.kernels import sort_waits
from core.ir.stop import poll
from core.plan.data import Instruction, Kernel, Root
from core.plan.data import Sequence as Body
from core.plan.flow import Branch, Loop

__all__ = ["overlapping", "sorts_first"]


def sorts_first(body: Body) -> Body:
    """`body` with the sorts at its beginning that read only what no instruction writes."""
    sorts = [each for each in body.instructions if isinstance(each, Kernel) and sort_waits(each)]
    if not sorts:
        return body
    written: set[Root] = set()
    for each in body.instructions:
        poll()
        written |= {*each.writes(), *(each.outside if isinstance(each, Loop | Branch) else ())}
    early = [each for each in sorts if not written & {*each.reads()}]
    return Body((*early, *(each for each in body.instructions if each not in early)))


def overlapping(
    sort: Instruction, behind: Sequence[Sequence[Instruction]], depends: Callable[[Instruction, Instruction], bool]
) -> int:
    """How many of the launches `behind` a sort may run at the same time.

    depends: whether two instructions must run one after the other.
    """
    for i, launch in enumerate(behind):
        poll()
        if any(depends(sort, each) for each in launch):
            return i
    return len(behind)
