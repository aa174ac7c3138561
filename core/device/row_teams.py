"""The teams of a row kernel: the threads that have a row together, and the scratch memory of sums over rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from core.codegen.llvm import itemsize
from core.device.column_sums import column_sums, is_own, reduced_axes
from core.device.threads import WARP, OneBlock, Threads
from core.plan.instructions import Rows
from core.plan.memory import Root

__all__ = [
    "RowGroups",
    "added_up",
    "at_once",
    "columns_of",
    "early_loads",
    "groups_of",
    "kept_arrays",
    "most_columns",
    "parts_of",
    "pools",
    "room_of",
    "row_groups",
    "row_units",
    "sums_room",
    "teams_of",
    "width_of",
]

ALIGNMENT = 256
"""Bytes between the sums of two arrays."""

FEWEST_PARTS = 4
"""Parts of the teams from which on two stages are faster than one."""

REDUCTION = 8
"""Elements of a row that take as long as a warp's reduction."""

LONG = 2048
"""Elements of a row from which on a block has the row, if there are fewer rows than warps."""

MOST_COLUMNS, FEW_COLUMNS = 16, 4
"""Most elements of a row for which a thread has registers of their own, and the number that all kernels may have."""

MOST_KEPT = 48
"""Elements of arrays and sums that a thread has in registers, if it has more than FEW_COLUMNS elements of a row."""

AT_ONCE = 4
"""Most elements or rows whose loads a thread starts together, where it goes from one to the next."""

LOADS_AT_ONCE = 16
"""Loads that a thread starts together in such a loop, about."""

MOST_TEXT = 200
"""Instructions that a thread has for several elements written one after the other: they make compilation longer."""

MOST_POOLED = 1 << 15
"""Bytes of shared memory for the sums that the warps of a block add up."""

FEWEST_GROUPS = 64
"""Groups of rows from which on a team for each group is faster than a copy of all sums for each team."""


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Groups of rows that add to the same elements of a result: a team has a whole group, and adds in place.

    kept, reduced: axes of the rows: those that number the groups, and those of the rows of a group.
    groups, rows:  how many groups, and rows of each. sums: the instructions that add in place.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    groups: int
    rows: int
    sums: frozenset[int]


def row_groups(each: Rows) -> RowGroups | None:
    """The groups of the largest result that has enough of them."""
    kernel = each.kernel
    found: dict[tuple[int, ...], set[int]] = {}
    for n, i in enumerate(kernel.code):
        if i.kind == "accumulate" and kernel.operands[i.operand].inner:
            found.setdefault(reduced_axes(kernel, i), set()).add(n)
    best = None
    for reduced, numbers in found.items():
        kept = tuple(axis for axis in range(len(kernel.outer)) if axis not in reduced)
        groups = math.prod(kernel.outer[axis] for axis in kept)
        if reduced and groups >= FEWEST_GROUPS and (best is None or groups > best.groups):
            best = RowGroups(kept, reduced, groups, kernel.rows // groups, frozenset(numbers))
    return best


def sums_room(each: Rows, threads: Threads, part: bool = False) -> int:
    """Bytes of scratch memory that a row kernel needs. part: as in `row_kernel`."""
    return sum(room_of(each, n, teams) for n, teams in added_up(each, threads, part).items())


def added_up(each: Rows, threads: Threads, part: bool = False) -> dict[int, int]:
    """The instructions for whose results teams have sums that are then added up, and how many teams have one.

    Threads that share a column are teams here, and so are warps that have parts of a sum over the whole domain.
    """
    kernel = each.kernel
    sums = [n for n, i in enumerate(kernel.code) if i.kind == "accumulate"]
    columns = None if part else column_sums(each, threads)
    if columns is not None:  # several warps may have columns of one row
        teams = {n: columns.parts if kernel.operands[kernel.code[n].operand].inner else columns.warps for n in sums}
        return {n: count for n, count in teams.items() if count > 1}
    groups, count, pooled = groups_of(each, threads, part), teams_of(each, threads, part), pools(each, threads, part)
    blocks = -(-count // (threads.block // WARP))
    shared = [n for n in sums if not is_own(kernel, kernel.code[n]) and (groups is None or n not in groups.sums)]
    return {n: blocks if n in pooled else count for n in shared if n not in pooled or blocks > 1}


def pools(each: Rows, threads: Threads, part: bool = False) -> dict[int, int]:
    """The sums that the warps of a block add up in shared memory, so that a block leaves one: where each begins there.

    They are those that a warp has in registers. If one block has all rows, it writes the results.
    """
    kernel, warps, found, at = each.kernel, threads.block // WARP, {}, 0
    if part or isinstance(threads, OneBlock) or width_of(each, threads) != WARP:
        return {}
    if column_sums(each, threads) is not None:
        return {}
    groups = groups_of(each, threads, part)
    for n, i in enumerate(kernel.code):
        if i.kind != "accumulate" or is_own(kernel, i) or (groups is not None and n in groups.sums):
            continue
        operand, view = kernel.operands[i.operand], each.views[i.operand]
        elsewhere = any(size > 1 and step for size, step in zip(kernel.outer, operand.outer, strict=True))
        nbytes = warps * math.prod(view.shape) * itemsize(view.dtype)
        if elsewhere or (operand.inner and not columns_of(each, WARP)) or at + nbytes > MOST_POOLED:
            continue
        found[n] = at
        at += -(-nbytes // 16) * 16
    return found


def row_units(each: Rows, threads: Threads) -> int:
    """Threads that have something to do."""
    kernel = each.kernel
    if not any(i.kind == "accumulate" or (i.kind == "reduce" and kernel.code[i.args[0]].full) for i in kernel.code):
        return kernel.rows * kernel.inner
    columns = column_sums(each, threads)
    return columns.parts * columns.columns if columns is not None else teams_of(each, threads) * width_of(each, threads)


def groups_of(each: Rows, threads: Threads, part: bool) -> RowGroups | None:
    """The groups of rows that teams have, unless they have one row after the other."""
    return row_groups(each) if not part and width_of(each, threads) > 1 else None


def columns_of(each: Rows, width: int) -> int:
    """Elements of a row that each thread of a team has in registers; 0 if they are too many."""
    columns = -(-each.kernel.inner // width)
    return columns if width > 1 and columns <= most_columns(each) else 0


def most_columns(each: Rows) -> int:
    """Most elements of a row that a thread may have in registers."""
    columns, kept = MOST_COLUMNS, kept_arrays(each)
    along = [i for i in each.kernel.code if i.full]
    while columns > FEW_COLUMNS and (columns * kept > MOST_KEPT or columns * len(along) > MOST_TEXT):
        columns //= 2
    return columns


def kept_arrays(each: Rows) -> int:
    """Arrays and sums of which a thread that has several elements of a row keeps them all in registers."""
    sums = lambda i: i.kind == "accumulate" and each.kernel.operands[i.operand].inner > 0
    return sum(i.kind == "load" or sums(i) for i in each.kernel.code if i.full)


def at_once(each: Rows, numbers: Iterable[int], trips: int) -> int:
    """Elements whose loads a thread starts together in a loop of `trips` trips over the instructions `numbers`."""
    code = [each.kernel.code[n] for n in numbers]
    loads = sum(i.kind == "load" for i in code)
    count = min(AT_ONCE, trips, LOADS_AT_ONCE // max(loads, 1), MOST_TEXT // max(len(code), 1))
    return max(1, count) if loads else 1


def early_loads(each: Rows, numbers: Iterable[int]) -> list[int]:
    """The loads among the instructions `numbers` that may run before the others: of memory not written before them."""
    code, found = each.kernel.code, []
    written: set[Root] = set()
    for n in numbers:
        if code[n].kind == "load" and each.views[code[n].operand].root not in written:
            found.append(n)
        elif code[n].kind in ("store", "accumulate"):
            written.add(each.views[code[n].operand].root)
    return found


def width_of(each: Rows, threads: Threads) -> int:
    """Threads of a team."""
    kernel = each.kernel
    if isinstance(threads, OneBlock):
        return WARP
    if kernel.inner >= LONG and kernel.rows < threads.warps:
        return threads.block
    if any(i.kind == "accumulate" and not is_own(kernel, i) for i in kernel.code):
        # A thread alone would have sums of its own for all columns. Those of a warp may need too many registers.
        has_columns = any(i.kind == "accumulate" and kernel.operands[i.operand].inner for i in kernel.code)
        return threads.block if has_columns and WARP < -(-kernel.inner // most_columns(each)) <= threads.block else WARP
    alone = -(-kernel.rows // threads.total) * kernel.inner
    together = -(-kernel.rows // threads.warps) * (-(-kernel.inner // WARP) + REDUCTION)
    return 1 if alone < together else WARP


def teams_of(each: Rows, threads: Threads, part: bool = False) -> int:
    """Teams that have rows."""
    groups = groups_of(each, threads, part)
    return min(threads.total // width_of(each, threads), each.kernel.rows if groups is None else groups.groups)


def parts_of(teams: int, size: int, threads: Threads) -> int:
    """Threads that add up what the teams have for one of `size` elements, about the square root of the teams."""
    parts = 1
    while 4 * parts * parts <= teams and 2 * parts * size <= threads.total:
        parts *= 2
    return parts if parts >= FEWEST_PARTS else 1


def room_of(each: Rows, number: int, teams: int) -> int:
    """Bytes for the sums of all teams of one accumulation."""
    view = each.views[each.kernel.code[number].operand]
    nbytes = teams * math.prod(view.shape) * itemsize(view.dtype)
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
