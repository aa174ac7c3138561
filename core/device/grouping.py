"""Launches that several instructions share, none of which waits for another: each has blocks of its own.

A launch takes longer than much of what runs in it. So instructions that follow each other and do not depend on each
other run in one. The threads of the launch are numbered anew for each instruction, from its first block on. So small
ones run at the same time on different blocks, and large ones on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from core.device.index_orders import NO_ROWS
from core.device.row_teams import sums_room
from core.device.segments import Segment
from core.device.spread import SPREAD, is_resident, wanted_blocks
from core.device.threads import Threads
from core.ir.stop import poll
from core.plan.data import Gather, Instruction, Kernel, Root, Rows, ScatterAdd

__all__ = ["grouped", "is_light"]

LONELY = ("turn", "merge_rows", NO_ROWS)
"""Kinds of kernels whose threads wait for nothing outside of their block, and need no scratch memory."""


def grouped(
    segments: Iterable[Segment], processors: int, launch: Threads, depend: Callable[[Instruction, Instruction], bool]
) -> Iterator[Segment]:
    """The same work, with a segment of the kind "group" where several that follow each other can share a launch.

    processors: most blocks of a launch whose threads all meet. launch: any launch of the step. depend: whether the
    second instruction must wait for the first one.
    """
    waiting: list[Segment] = []
    for each in segments:
        poll()
        if not _may_join(waiting, each, processors, launch, depend):
            yield from _closed(waiting, processors, launch)
            waiting = []
        waiting.append(each)
    yield from _closed(waiting, processors, launch)


def _may_join(
    waiting: Sequence[Segment],
    new: Segment,
    processors: int,
    launch: Threads,
    depend: Callable[[Instruction, Instruction], bool],
) -> bool:
    """Whether no instruction of `new` waits for those before it, nor for all threads of its launch."""
    before = [one for each in waiting for one in each.instructions]
    if not waiting or waiting[0].kind not in ("wide", "together") or new.kind not in ("wide", "together"):
        return False
    if len(waiting) == 1:  # it has not been looked at
        if not all(_is_lonely(one, processors, launch) for one in before):
            return False
        if any(depend(one, other) for i, other in enumerate(before) for one in before[:i]):
            return False
    for one in new.instructions:
        if not _is_lonely(one, processors, launch) or any(depend(other, one) for other in before):
            return False
        before.append(one)
    return True


def _is_lonely(one: Instruction, processors: int, launch: Threads) -> bool:
    """Whether the threads of an instruction wait for nothing outside of their block, and need no scratch memory."""
    if isinstance(one, Rows):
        return not is_resident(one) and not sums_room(one, launch.on(processors))
    if isinstance(one, ScatterAdd):
        return one.order is not None
    return isinstance(one, Gather) or (isinstance(one, Kernel) and one.kind in LONELY)


def is_light(each: Segment, processors: int, launch: Threads) -> bool:
    """Whether a segment may share its launch with others. processors, launch: see `grouped`."""
    if each.kind not in ("wide", "together") or not all(_is_lonely(i, processors, launch) for i in each.instructions):
        return False
    written: set[Root] = set()
    for one in each.instructions:
        if written & {*one.reads(), *one.writes()}:
            return False
        written |= {*one.writes()}
    return bool(each.instructions)


def _closed(waiting: Sequence[Segment], processors: int, launch: Threads) -> Iterator[Segment]:
    """The segments as one group, if that is possible."""
    instructions = tuple(one for each in waiting for one in each.instructions)
    if len(waiting) > 1:
        wanted = [max(1, wanted_blocks(one, processors, launch)) for one in instructions]
        blocks = min(sum(wanted), processors * SPREAD)
        if not any(isinstance(one, Rows) and sums_room(one, launch.on(blocks)) for one in instructions):
            firsts = accumulate(wanted[:-1], initial=0)
            yield Segment("group", instructions, blocks, tuple(first % blocks for first in firsts))
            return
    yield from waiting
