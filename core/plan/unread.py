"""Stores that nothing reads leave the row kernels, and row kernels without results leave the plan.

A lowering stores a value before it knows whether an array is needed: a reshape, for example, whose readers then compute
what they need inside the pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

from core.ir.stop import poll
from core.plan.epilogue import picked
from core.plan.instructions import Instruction, Rows
from core.plan.memory import Root

__all__ = ["part_that_writes", "without_unread"]


def without_unread(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without stores to arrays that no other instruction touches.

    kept: roots that instructions around these touch.
    """
    touched = Counter(root for each in instructions for root in {*each.reads(), *each.writes()})
    found: list[Instruction] = []
    for each in instructions:
        poll()
        if isinstance(each, Rows):
            unread = {root for root in each.writes() if root.place == "arena" and touched[root] == 1}
            unread -= _loaded(each) | kept
            if unread:
                wanted = set(each.writes()) - unread
                if not wanted:
                    continue
                each = part_that_writes(each, wanted)
        found.append(each)
    return tuple(found)


def part_that_writes(rows: Rows, wanted: set[Root]) -> Rows:
    """The part of a row kernel that writes `wanted`."""
    code = rows.kernel.code
    numbers: set[int] = set()
    for n in reversed(range(len(code))):
        instr = code[n]
        written = instr.kind in ("store", "accumulate", "check") and rows.views[instr.operand].root in wanted
        if written or n in numbers:
            numbers.update((n, *instr.args))
    return picked(rows, sorted(numbers))


def _loaded(rows: Rows) -> set[Root]:
    return {rows.views[i.operand].root for i in rows.kernel.code if i.kind in ("load", "lookup")}
