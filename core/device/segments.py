"""The segments of a step: which instructions share a launch, and on how many blocks it runs.

A barrier of one block takes a hundredth of the time between two launches, one of a cluster of blocks some tenths, and a
barrier of all blocks more than half of that time. So short instructions, loops and branches run together; an
instruction that takes longer on one block, or on a cluster, than its own launch on all blocks has a launch of its own,
whose registers are its own too. Those that run together run on one block, on a cluster or on all blocks, and a launch
ends where another number of blocks is faster by more than a launch takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from core.device.buckets import is_local
from core.device.fourier import fourier_units, fourier_waits
from core.device.kernels import sort_bytes, sort_merge, sort_waits
from core.device.multiplication import biased
from core.device.ranks import is_short
from core.device.row_teams import sums_room
from core.device.row_waits import row_waits
from core.device.rules import Rules
from core.device.stripes import stripe_units
from core.device.systems import SYSTEMS, system_units, system_waits
from core.device.threads import BLOCK, MOST_THREADS, Threads
from core.ir.stop import poll
from core.plan.flow import Branch, Elements, Loop, Recording
from core.plan.growing import ArrayWork
from core.plan.instructions import Gemm, Instruction, Instructions, Kernel, Limited, Rows
from core.plan.memory import Stack
from core.plan.plan import Plan
from core.plan.striped import Striped
from core.plan.work import work_of

__all__ = ["Segment", "flat", "segments_of", "separated"]

Kind = Literal["together", "wide", "group", "sort", "product"]

SORT_LOADS = 13
"""Loads that follow each other for each key of a sort."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One launch, or a product of the library.

    kind: "together" several instructions; "wide" one, on many blocks; "group" several that do not wait for each other
          (`core.device.grouping`); "sort" one, which is a sort, on one block of many threads; "product" one large
          product, behind which an instruction may follow that only adds a bias
          (`core.device.multiplication.biased`).
    firsts: of a group the first block of each instruction.
    """

    kind: Kind
    instructions: tuple[Instruction, ...]
    blocks: int
    firsts: tuple[int, ...] = ()


def segments_of(plan: Plan, blocks: int, rules: Rules) -> tuple[Segment, ...]:
    """The segments of a plan in the order they run. blocks: most blocks of a launch."""
    found: list[Segment] = []
    waiting: list[tuple[Instruction, ...]] = []

    def close() -> None:
        found.extend(_together(waiting, blocks, rules))
        waiting.clear()

    bound = _bound(plan.body)
    readers = Counter(root for each in flat(plan.body.instructions) for root in each.reads()) if rules.library else {}
    taken = False
    for i, each in enumerate(plan.body.instructions):
        poll()
        if taken:  # by the product before it
            taken = False
            continue
        large = isinstance(each, Gemm) and work_of(each).flops >= rules.product_flops
        if i in bound and i - 1 in bound:
            waiting[-1] += (each,)
            continue
        if i not in bound and _sorts_apart(each, rules):
            close()
            found.append(Segment("sort", (each,), 1))
            continue
        if i in bound or not (_is_alone(each, blocks, rules) or (large and rules.library)):
            waiting.append((each,))
            continue
        close()
        one: tuple[Instruction, ...] = (each,)
        if isinstance(each, Gemm) and large and rules.library and each.c.root.place == "arena":
            after = plan.body.instructions[i + 1 : i + 2]
            taken = i + 1 not in bound and readers[each.c.root] == 1 and any(biased(each, one) for one in after)
            one = (each, *after) if taken else one
        found.append(Segment("product" if large else "wide", one, blocks))
    close()
    return tuple(found) or (Segment("together", (), 1),)


def separated(plan: Plan, segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same work with a launch for each instruction that can leave its launch, on as many blocks: bits stay equal.

    segments: those of `segments_of`.
    """
    bound, found, number = _bound(plan.body), [], 0
    for each in segments:
        if each.kind == "group":
            found += [Segment("group", (one,), each.blocks, (0,)) for one in each.instructions]
            number += len(each.instructions)
            continue
        if each.kind != "together" or len(each.instructions) < 2:
            found.append(each)
            number += len(each.instructions)
            continue
        group: list[Instruction] = []
        for one in each.instructions:
            if number in bound:
                group.append(one)
            else:
                found += [Segment("together", part, each.blocks) for part in (tuple(group), (one,)) if part]
                group.clear()
            number += 1
        found += [Segment("together", tuple(group), each.blocks)] if group else []
    return tuple(found)


def _bound(body: Instructions) -> frozenset[int]:
    """Positions of instructions that cannot leave a launch: from the first loop with a stack to the last one.

    Positions in stacks are in registers, which do not survive a launch.
    """
    spans: dict[Stack, tuple[int, int]] = {}
    for i, each in enumerate(body.instructions):
        for stack in _stacks((each,)):
            first, _ = spans.get(stack, (i, i))
            spans[stack] = (first, i)
    return frozenset(i for first, last in spans.values() for i in range(first, last + 1))


def _stacks(instructions: Iterable[Instruction]) -> Iterator[Stack]:
    """The stacks that loops in `instructions` record and read, and those recordings that others read."""
    for each in flat(instructions):
        if isinstance(each, ArrayWork):
            yield from (source.stack for source in each.sources if isinstance(source, Recording))
        elif isinstance(each, Loop):
            for one, other in (*each.over, *each.records):
                for recording in (one, other):
                    if isinstance(recording, Recording):
                        yield recording.stack
                        yield from recording.inside


def flat(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """All instructions, those inside of loops and branches too. A product that a loop hoists stands for its trips."""
    for each in instructions:
        yield each
        if isinstance(each, Loop):
            yield from flat(each.body.instructions)
        elif isinstance(each, Branch):
            yield from flat((*each.yes.instructions, *each.no.instructions))


def _sorts_apart(each: Instruction, rules: Rules) -> bool:
    """Whether an instruction is a sort of many keys that fit into the memory of one block.

    Not by buckets: where most keys are equal, each is compared with each.
    """
    if not isinstance(each, Kernel) or not sort_waits(each) or each.spec.count < rules.sorted_apart:
        return False
    threads = Threads(1, MOST_THREADS)
    fits = is_local(sort_bytes(each, threads, rules), threads, rules.shared_bytes)
    return fits and (is_short(each.spec.count, threads) or sort_merge(each, threads, rules) is not None)


def _is_alone(each: Instruction, blocks: int, rules: Rules) -> bool:
    """Whether an instruction is faster in a launch of its own on all blocks than on one block."""
    if isinstance(each, Loop | Branch | ArrayWork) or blocks == 1:
        return False
    few = min(_seconds(each, scope, rules) for scope in _scopes(blocks, rules)[:-1])
    return few > _seconds(each, blocks, rules) + rules.launch


def _scopes(blocks: int, rules: Rules) -> list[int]:
    """The numbers of blocks that a launch may have, if several instructions share it."""
    return sorted({1, min(rules.cluster, blocks), blocks})


def _together(units: Iterable[tuple[Instruction, ...]], blocks: int, rules: Rules) -> list[Segment]:
    """Launches for units that follow each other, each on some number of blocks, in the least time together.

    units: instructions that no launch separates.
    """
    scopes = _scopes(blocks, rules)
    units = list(units)
    least = dict.fromkeys(scopes, 0.0)
    befores: list[dict[int, int]] = []  # for each unit and scope, the scope of the unit before it
    for unit in units:
        before = {to: min((least[scope] + rules.launch * (scope != to), scope) for scope in scopes)[1] for to in scopes}
        took = {scope: sum(_took(each, scope, rules) for each in unit) for scope in scopes}
        least = {s: least[before[s]] + rules.launch * (before[s] != s) + took[s] for s in scopes}
        befores.append(before)
    scope = min(scopes, key=lambda s: least[s])
    chosen = []
    for before in reversed(befores):
        chosen.append(scope)
        scope = before[scope]
    segments = []
    for blocks_of, group in groupby(zip(reversed(chosen), units, strict=True), key=lambda each: each[0]):
        segments.append(Segment("together", tuple(one for _, unit in group for one in unit), blocks_of))
    return segments


def _took(each: Instruction, blocks: int, rules: Rules) -> float:
    """The time of an instruction on so many blocks, with the barriers behind it and those inside it."""
    if isinstance(each, Loop):
        trips = next((stack.length for stack, _ in each.over if isinstance(stack, Elements)), rules.trips)
        return trips * (_barrier(blocks, rules) + sum(_took(one, blocks, rules) for one in each.body.instructions))
    if isinstance(each, Branch):
        return sum(_took(one, blocks, rules) for one in (*each.yes.instructions, *each.no.instructions))
    return _seconds(each, blocks, rules) + _barrier(blocks, rules)


def _barrier(blocks: int, rules: Rules) -> float:
    if blocks == 1:
        return rules.block_barrier
    return rules.cluster_barrier if blocks <= rules.cluster else rules.grid_barrier


def _seconds(each: Instruction, blocks: int, rules: Rules) -> float:
    """The time of an instruction on so many blocks, without the barriers between instructions."""
    work = work_of(each.instruction if isinstance(each, Limited) else each)
    busy, waiting = blocks, 0.0
    if isinstance(each, Striped) and each.shared:
        waiting = len(each.body) * -(-each.domain.rows // each.height) * _barrier(blocks, rules)
    elif isinstance(each, Striped):
        units = stripe_units(each)
        busy = min(blocks, units)
        stripes = each.domain.batch * -(-each.domain.rows // each.height)
        waiting = -(-units // busy) * len(each.body) * -(-stripes // units) * rules.block_barrier
    elif isinstance(each, Kernel) and each.kind in SYSTEMS:
        units = system_units(each)
        busy = min(blocks, units)
        waiting = -(-units // busy) * system_waits(each) * rules.block_barrier
    elif isinstance(each, Kernel) and each.kind == "fourier":
        units = fourier_units(each.spec, Threads(blocks, BLOCK))
        busy = min(blocks, units)
        waiting = -(-units // busy) * fourier_waits(each.spec) * rules.block_barrier
    nbytes, latency = work.nbytes, 0.0
    if isinstance(each, Kernel) and sort_waits(each):
        threads = Threads(blocks, BLOCK)
        merge = sort_merge(each, threads, rules)
        near = is_local(sort_bytes(each, threads, rules), threads, rules.shared_bytes)
        loads = SORT_LOADS * -(-each.spec.count // threads.total)  # of a thread
        latency = rules.load_wait + loads * rules.shared_wait if near else loads * rules.load_wait
        waiting = sort_waits(each) * _barrier(blocks, rules)
        if merge is not None:
            latency = rules.load_wait + merge.instructions * merge.threads / rules.block_flops
            waiting += merge.rounds * _barrier(blocks, rules)
    if isinstance(each, Rows):
        latency = row_waits(each, Threads(blocks, BLOCK), rules)
        moved = 2 * sums_room(each, Threads(blocks, BLOCK))  # what teams have is written, and read again
        nbytes, waiting = nbytes + moved, 2 * _barrier(blocks, rules) if moved else 0.0
    flops = min(rules.flops, busy * rules.block_flops)
    bandwidth = min(rules.bandwidth, busy * rules.block_bandwidth)
    return max(work.flops / flops, nbytes / bandwidth, latency) + waiting
