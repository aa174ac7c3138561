"""Stretches of small instructions that threads run side by side, because their branches do not read each other.

An instruction that takes a few microseconds gains nothing from several threads. Branches that consist of such
instructions do: the towers or heads of a net, and the gradients of weights beside the gradients of the layers before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.ir.stop import poll
from core.ops.common.types import as_dtype
from core.plan.flow import Branch, Loop
from core.plan.growing import ArrayWork
from core.plan.instructions import Gemm, Instruction, Interpreted, Kernel, Limited, Rows
from core.plan.memory import Root, View
from core.plan.striped import Striped
from core.plan.work import work_of

__all__ = ["Limits", "Stretch", "stretches"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the instructions that run side by side. Times are estimates, in nanoseconds.

    longest: of one instruction; a longer one is divided among the threads itself.
    heavy:   an instruction that joins two branches of this time runs after both.
    gain:    the least time that a stretch must save. A thread that sleeps needs as long to wake.
    window:  most instructions of a stretch.
    starts:  most places at which a stretch may begin: those behind which most branches begin.
    """

    longest: float = 20_000.0
    heavy: float = 2_000.0
    gain: float = 25_000.0
    window: int = 200
    starts: int = 32


LIMITS = Limits()

BARRIERS = (Loop, Branch, ArrayWork, Interpreted, Limited, Striped)
"""Instructions that a stretch does not contain."""

FORK_NS, CROSSING_NS = 2_000.0, 800.0
"""The cost of a fork, and the extra cost of an instruction whose operands come from the caches of another core."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Instructions from position `first` to before `end`.

    ahead:  the positions that run first, on one thread, such as lookups at positions that the program is given.
    shares: the positions that each thread runs, in their order.
    after:  the positions that run last, on one thread: what joins branches.
    """

    first: int
    end: int
    ahead: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]


@dataclass(slots=True)
class _Place:
    """The elements that an instruction touches in one root.

    view, axes: where it begins, and (size, stride in elements) of each axis; None: anything in the root.
    """

    root: Root
    written: bool
    view: View | None = None
    axes: Sequence[tuple[int, int]] | None = None
    _span: tuple[int, list[tuple[int, int]]] | None = None

    def span(self) -> tuple[int, list[tuple[int, int]]]:
        """The first byte, and (size, stride in bytes) of each axis that moves, the largest stride first."""
        if self._span is None:
            assert self.view is not None and self.axes is not None, "a place of known axes"
            size = as_dtype(self.view.dtype).itemsize
            moving = [(n, stride * size) for n, stride in self.axes if n > 1 and stride]
            low = self.view.offset * size + sum((n - 1) * stride for n, stride in moving if stride < 0)
            down = sorted(((n, abs(stride)) for n, stride in moving), key=lambda axis: -axis[1])
            self._span = low, [*down, (size, 1)]
        return self._span


def stretches(instructions: Sequence[Instruction], threads: int) -> list[Stretch]:
    """The stretches of straight code that gain most on so many threads, in order; they do not overlap."""
    if threads < 2:
        return []
    limits = LIMITS
    times = [_time(each) for each in instructions]
    if sum(each for each in times if each <= limits.longest) * (1 - 1 / threads) < limits.gain:
        return []
    plain = [_is_plain(each) for each in instructions]
    before = _conflicts(instructions, times, limits)
    needs = [max(conflicts, default=-1) for conflicts in before]
    starts = Counter(need + 1 for i, need in enumerate(needs) if need < i - 1)
    found = []
    for start, _ in starts.most_common(limits.starts):
        stretch, gain = _from(start, times, plain, before, threads, limits)
        if stretch is not None:
            found.append((gain, stretch))
    chosen: list[Stretch] = []
    for _, stretch in sorted(found, key=lambda each: (-each[0], each[1].first)):
        if all(stretch.end <= other.first or other.end <= stretch.first for other in chosen):
            chosen.append(stretch)
    return sorted(chosen, key=lambda each: each.first)


def _from(
    start: int, times: list[float], plain: list[bool], before: list[list[int]], threads: int, limits: Limits
) -> tuple[Stretch | None, float]:
    """The stretch that begins at `start`, and the time it saves; None if that is too little."""
    branch: dict[int, int] = {}  # position -> the number of its branch
    members: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    ahead: set[int] = set()
    after: set[int] = set()
    ordered = False  # whether an instruction that may report an error runs last; the later ones then do, too
    for at in range(start, min(start + limits.window, len(times))):
        poll()
        if times[at] > limits.longest:
            break
        needed = [i for i in before[at] if i >= start and i not in ahead]
        if not plain[at]:
            ordered = ordered or bool(needed)
            (after if ordered else ahead).add(at)
            continue
        joined = {branch[i] for i in needed if i not in after}
        if not after.isdisjoint(needed) or sum(spent[each] >= limits.heavy for each in joined) > 1:
            after.add(at)
            continue
        own = max(joined, key=lambda each: len(members[each]), default=at)
        for each in joined - {own}:
            branch |= dict.fromkeys(members[each], own)
            members[own] += members.pop(each)
            spent[own] += spent.pop(each)
        members.setdefault(own, []).append(at)
        spent[own] = spent.get(own, 0.0) + times[at]
        branch[at] = own
    shares: list[list[int]] = [[] for _ in range(min(threads, len(members)))]
    loads = [0.0] * len(shares)
    for own in sorted(members, key=lambda each: (-spent[each], each)):
        least = loads.index(min(loads))
        shares[least] += members[own]
        loads[least] += spent[own] + CROSSING_NS * len(members[own])
    gain = sum(spent.values()) - max(loads, default=0.0) - FORK_NS
    if not branch or gain < limits.gain:
        return None, 0.0
    end = max(branch) + 1
    aside = (tuple(sorted(i for i in each if i < end)) for each in (ahead, after))
    return Stretch(start, end, next(aside), tuple(tuple(sorted(each)) for each in shares), next(aside)), gain


def _is_plain(each: Instruction) -> bool:
    """Whether an instruction may run beside others, since it reports no error and shares no partial sums."""
    if isinstance(each, Rows):
        return not each.kernel.merged and all(i.kind != "check" for i in each.kernel.code)
    if isinstance(each, Gemm):
        sums = each.then is not None and any(i.kind == "accumulate" for i in each.then.kernel.code)
        return not sums and (each.then is None or _is_plain(each.then))
    return isinstance(each, Kernel) and not each.check


def _time(each: Instruction) -> float:
    poll()
    if isinstance(each, BARRIERS):
        return math.inf
    work = work_of(each)
    return 100.0 + work.flops / (4 if isinstance(each, Rows) else 40) + work.nbytes / 20


def _conflicts(instructions: Sequence[Instruction], times: list[float], limits: Limits) -> list[list[int]]:
    """For each instruction, those before it, as far back as a window, that must run before it."""
    touched: dict[Root, list[tuple[int, _Place]]] = {}
    found: list[list[int]] = []
    for at, each in enumerate(instructions):
        poll()
        own: dict[int, None] = {}
        places = list(_places(each)) if times[at] <= limits.longest else []
        for place in places:
            there = touched.setdefault(place.root, [])
            while there and there[0][0] <= at - limits.window:
                there.pop(0)
            for i, other in there:
                if i not in own and (place.written or other.written) and not _apart(place, other):
                    own[i] = None
        for place in places:
            touched[place.root].append((at, place))
        found.append(list(own))
    return found


def _places(each: Instruction) -> Iterator[_Place]:
    if isinstance(each, Rows):
        anywhere = _anywhere(each)
        sizes = (*each.kernel.outer, each.kernel.inner)
        for i, (view, operand) in enumerate(zip(each.views, each.kernel.operands, strict=True)):
            axes = None if i in anywhere else list(zip(sizes, (*operand.outer, operand.inner), strict=True))
            yield _Place(view.root, operand.written, view, axes)
    elif isinstance(each, Gemm):
        for view, written in ((each.a, False), (each.b, False), (each.c, True)):
            yield _Place(view.root, written, view, list(zip(view.shape, view.strides, strict=True)))
        if each.then is not None:
            anywhere = _anywhere(each.then)
            for i, (view, operand) in enumerate(zip(each.then.views, each.then.kernel.operands, strict=True)):
                axes = None if i in anywhere else list(zip(view.shape, view.strides, strict=True))
                yield _Place(view.root, operand.written, view, axes)
    else:
        changed = set(each.writes())
        yield from (_Place(root, root in changed) for root in changed.union(each.reads()))


def _anywhere(each: Rows) -> set[int]:
    """The operands of a row kernel whose strides do not describe which elements it touches."""
    found = {i.operand for i in each.kernel.code if i.kind in ("lookup", "accumulate")}
    for rows in each.kernel.merged:
        found.update((rows.x, rows.order, rows.starts), rows.made.params if rows.made else ())
    return found


def _apart(some: _Place, other: _Place) -> bool:
    """Whether two places of one root have no byte in common, as far as it is easily seen.

    They are apart if their ranges of bytes are, or if both repeat with the same stride and are apart within it, as
    columns of one matrix.
    """
    if some.axes is None or other.axes is None:
        return False
    (start, axes), (begin, others) = some.span(), other.span()
    if start + _extent(axes) <= begin or begin + _extent(others) <= start:
        return True
    period = axes[0][1]
    if period != others[0][1] or period == 1:
        return False
    a, b = _extent(axes[1:]), _extent(others[1:])
    start, begin = start % period, begin % period
    return start + a <= period and begin + b <= period and (start + a <= begin or begin + b <= start)


def _extent(axes: Sequence[tuple[int, int]]) -> int:
    """Bytes from the first to the last one."""
    return 1 + sum((n - 1) * stride for n, stride in axes)
