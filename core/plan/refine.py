"""The rewrites of finished instructions: of a whole plan, and of the bodies of its loops and branches.

A body is rewritten like a plan of its own. Arrays that the instructions around it touch as well stay as they are: its
operands, and the results that it writes to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from core.ir.stop import poll
from core.plan.epilogue import fuse_epilogues
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction, Instructions
from core.plan.made_rows import make_in_merges
from core.plan.memory import Root
from core.plan.merged_operands import merge_in_readers
from core.plan.scattered import scatter_gathered
from core.plan.stripes import in_stripes
from core.plan.tails import clear_tails
from core.plan.target import Target
from core.plan.unread import without_unread

__all__ = ["refined"]


def refined(
    instructions: Sequence[Instruction], target: Target, kept: Set[Root] = frozenset()
) -> tuple[Instruction, ...]:
    """`instructions` without stores and passes over memory that others make unnecessary.

    kept: roots that instructions around these touch as well.
    """
    found: Sequence[Instruction] = [_inside(each, target) for each in instructions]
    found = without_unread(scatter_gathered(found, kept), kept)
    found = fuse_epilogues(in_stripes(found, target.stripes, kept), target.products, kept)
    found = make_in_merges(merge_in_readers(found, kept), kept) if target.rows.merges else found
    return clear_tails(found)


def _inside(each: Instruction, target: Target) -> Instruction:
    """A loop or branch with rewritten bodies; any other instruction as it is."""
    poll()
    if isinstance(each, Loop):
        return replace(each, body=_body(each.body, target, each.outside))
    if isinstance(each, Branch):
        around = (*each.outside, *each.results)
        return replace(each, yes=_body(each.yes, target, around), no=_body(each.no, target, around))
    return each


def _body(body: Instructions, target: Target, around: Iterable[Root]) -> Instructions:
    return Instructions(refined(body.instructions, target, frozenset(around)))
