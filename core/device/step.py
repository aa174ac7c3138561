"""The code of a step on a GPU: the order of its work, what shares a launch, and one function for each launch."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from core.codegen.cpus import generating_for
from core.device.device_step import DeviceStep
from core.device.early_sorts import overlapping, sorts_first
from core.device.gpu import GPU
from core.device.grouping import grouped
from core.device.index_orders import with_orders
from core.device.index_patterns import with_patterns
from core.device.launches import DeviceCode, Launch
from core.device.multiplication import Multiplication
from core.device.rules import RULES, Rules
from core.device.schedule import scheduled
from core.device.segments import segments_of, separated
from core.device.spread import joins_sums
from core.device.threads import Threads
from core.plan.instructions import Instruction
from core.plan.plan import Plan

__all__ = ["Timed", "write_device_step", "write_timed_step"]

Timed = tuple[tuple[Instruction, ...], ...]
"""For each launch and each product of the library the instructions that it computes."""


def write_device_step(plan: Plan, blocks: int, block: int, rules: Rules = RULES) -> DeviceCode:
    """The step of a plan as launches of at most `blocks` blocks, of `block` threads each."""
    return _written(plan, blocks, block, rules)[0]


def write_timed_step(plan: Plan, blocks: int, block: int, rules: Rules = RULES) -> tuple[DeviceCode, Timed]:
    """The step with a launch for each instruction, where that is possible, and the instructions of each of its work.

    Its results have the bits of those of `write_device_step`.
    """
    return _written(plan, blocks, block, rules, timed=True)


def _written(plan: Plan, blocks: int, block: int, rules: Rules, timed: bool = False) -> tuple[DeviceCode, Timed]:
    """timed: whether each instruction has a launch of its own as far as possible, and no two launches overlap."""
    work: list[Launch | Multiplication] = []
    parts: list[tuple[Instruction, ...]] = []
    sorts: list[int] = []  # positions
    plan = replace(plan, body=sorts_first(with_orders(with_patterns(plan.body))))
    with generating_for(GPU):
        usual = Threads(1, block)
        order = scheduled(plan, segments_of(plan, blocks, rules), blocks, usual, rules)
        step = DeviceStep(order.plan, order.arena, blocks, block, rules)
        segments = tuple(grouped(order.segments, blocks, usual, rules, step.depend))
        if timed:
            segments = separated(order.plan, segments)
        left = deque(enumerate(segments))
        while left:
            i, each = left.popleft()
            behind: tuple[Instruction, ...] = ()
            if not timed and left and joins_sums(each, left[0][1], usual):
                behind = left.popleft()[1].instructions
            for made, instructions in step.segment(i, each, behind):
                work.append(made)
                parts.append(instructions)
                if each.kind == "sort":
                    sorts.append(len(work) - 1)
        for at in () if timed else sorts:
            sort, (kernel,) = work[at], parts[at]
            assert isinstance(sort, Launch)
            work[at] = replace(sort, beside=overlapping(kernel, parts[at + 1 :], step.depend))
        text = step.module.text()
    return DeviceCode(text, tuple(work), step.arena.size + step.module.scratch), tuple(parts)
