"""Launches that several instructions share, none of which waits for another: each has blocks of its own.

A launch takes longer than much of what runs in it. So instructions that follow each other and do not depend on each
other run in one. The threads of the launch are numbered anew for each instruction, from its first block on. So small
ones run at the same time on different blocks, and large ones on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import accumulate, combinations

from core.device.fourier import fourier_scratch
from core.device.index_orders import NO_ROWS
from core.device.row_teams import sums_room
from core.device.rules import Rules
from core.device.scatter import scatter_scratch
from core.device.segments import Segment
from core.device.spread import SPREAD, is_resident, wanted_blocks
from core.device.threads import Threads
from core.device.tiled import tiled
from core.ir.stop import poll
from core.plan.instructions import Gather, Instruction, Kernel, Rows, ScatterAdd

__all__ = ["MOST_INSTRUCTIONS", "Level", "grouped", "level_of"]

MOST_SCRATCH = 1 << 26
"""Bytes that the parts of the sums of a group may take."""

MOST_INSTRUCTIONS = 32
"""Instructions of a group: their kernels are one text, and each is compared with all others."""

BARRIER_FREE = ("turn", "merge_rows", NO_ROWS)
"""Kinds of kernels whose threads wait for nothing outside of their block, and need no scratch memory."""


class Level(IntEnum):
    """A segment may share its launch with segments of its level; one that is ALONE shares its launch with none.

    LARGE: products, convolutions, and Fourier transforms: their registers and their shared memory leave room for few
    other threads. The parts of split sums are added up in a launch of their own.
    """

    ALONE = 0
    LARGE = 1
    LIGHT = 2


def level_of(each: Segment, processors: int, launch: Threads, rules: Rules) -> Level:
    """The level of a segment. processors, launch, rules: see `grouped`."""
    one, *more = each.instructions or (None,)
    wide = launch.on(processors)
    if each.kind == "wide" and one is not None and not more and tiled(one, wide, rules) is not None:
        return Level.LARGE
    if each.kind == "wide" and isinstance(one, Kernel) and one.kind == "fourier" and not more:
        return Level.ALONE if fourier_scratch(one.spec, wide) else Level.LARGE
    free = all(_is_barrier_free(i, processors, launch) for i in each.instructions)
    if not free or each.kind not in ("wide", "together"):
        return Level.ALONE
    few = 0 < len(each.instructions) <= MOST_INSTRUCTIONS
    return Level.LIGHT if few and not any(_conflict(*pair) for pair in _pairs(each)) else Level.ALONE


def _pairs(each: Segment) -> Iterator[tuple[Instruction, Instruction]]:
    """Each instruction of a segment with each one behind it."""
    return combinations(each.instructions, 2)


def _conflict(one: Instruction, other: Instruction) -> bool:
    """Whether one of two instructions writes an array that the other one reads or writes."""
    read, written = {*one.reads()}, {*one.writes()}
    return bool(written & {*other.reads(), *other.writes()} or read & {*other.writes()})


def grouped(
    segments: Iterable[Segment],
    processors: int,
    launch: Threads,
    rules: Rules,
    depend: Callable[[Instruction, Instruction], bool],
) -> Iterator[Segment]:
    """The same work, with a segment of the kind "group" where several that follow each other can share a launch.

    processors: most blocks of a launch whose threads all meet. launch: any launch of the step. depend: whether the
    second instruction must wait for the first one.
    """
    waiting: list[Segment] = []
    level = Level.ALONE
    for each in segments:
        poll()
        own = level_of(each, processors, launch, rules)
        if len(each.instructions) > MOST_INSTRUCTIONS or any(depend(*pair) for pair in _pairs(each)):
            own = Level.ALONE
        before = [one for segment in waiting for one in segment.instructions]
        joins = own == level != Level.ALONE and len(before) + len(each.instructions) <= MOST_INSTRUCTIONS
        if not joins or any(depend(one, new) for one in before for new in each.instructions):
            yield from _closed(waiting, processors, launch, rules)
            waiting, level = [], own
        waiting.append(each)
    yield from _closed(waiting, processors, launch, rules)


def _is_barrier_free(one: Instruction, processors: int, launch: Threads) -> bool:
    """Whether the threads of an instruction wait for nothing outside of their block, and need no scratch memory."""
    if isinstance(one, Rows | ScatterAdd):
        return not (isinstance(one, Rows) and is_resident(one)) and not _scratch(one, launch.on(processors))
    return isinstance(one, Gather) or (isinstance(one, Kernel) and one.kind in BARRIER_FREE)


def _scratch(one: Instruction, threads: Threads) -> int:
    """Bytes of scratch memory that a sum over rows needs on these threads, which then wait for each other."""
    if isinstance(one, Rows):
        return sums_room(one, threads)
    return scatter_scratch(one, threads) if isinstance(one, ScatterAdd) else 0


def _closed(waiting: Sequence[Segment], processors: int, launch: Threads, rules: Rules) -> Iterator[Segment]:
    """The segments as one group, if there are several, and if that is possible."""
    instructions = tuple(one for each in waiting for one in each.instructions)
    if len(waiting) > 1:
        products = [tiled(one, launch.on(processors), rules) for one in instructions]
        wanted = [
            wanted_blocks(one, processors, launch) if product is None else min(processors, product[1].units(product[0]))
            for one, product in zip(instructions, products, strict=True)
        ]
        wanted = [max(1, count) for count in wanted]
        blocks = min(sum(wanted), processors * SPREAD)
        room = sum(plan.scratch(product) for product, plan in filter(None, products))
        if room <= MOST_SCRATCH and not any(_scratch(one, launch.on(blocks)) for one in instructions):
            firsts = accumulate(wanted[:-1], initial=0)
            yield Segment("group", instructions, blocks, tuple(first % blocks for first in firsts))
            return
    yield from waiting
