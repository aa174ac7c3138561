"""Sorts of inputs run first, and other launches overlap them until the first launch that reads their results.

A step sorts ids to add up the rows of a gradient. The ids are mostly inputs, so the sort need not wait for the
gradient. One block sorts; the other processors of the GPU run the rest of the step meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.device.kernels import sort_waits
from core.ir.stop import poll
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction, Instructions, Kernel
from core.plan.memory import Root

__all__ = ["overlapping", "sorts_first"]


def sorts_first(body: Instructions) -> Instructions:
    """Move the sorts to the beginning of `body` whose operands no instruction writes."""
    sorts = [each for each in body.instructions if isinstance(each, Kernel) and sort_waits(each)]
    if not sorts:
        return body
    written: set[Root] = set()
    for each in body.instructions:
        poll()
        written |= {*each.writes(), *(each.outside if isinstance(each, Loop | Branch) else ())}
    early = [each for each in sorts if not written & {*each.reads()}]
    return Instructions((*early, *(each for each in body.instructions if each not in early)))


def overlapping(
    sort: Instruction, behind: Sequence[Sequence[Instruction]], depends: Callable[[Instruction, Instruction], bool]
) -> int:
    """The number of launches directly behind a sort that may overlap it. behind: the instructions of each launch.

    depends: whether the second instruction must wait for the first one.
    """
    for i, launch in enumerate(behind):
        poll()
        if any(depends(sort, each) for each in launch):
            return i
    return len(behind)
