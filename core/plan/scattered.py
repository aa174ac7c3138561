"""A scatter that adds the rows of a gather reads them where they are: the gathered rows reach no memory."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from core.plan.instructions import Gather, Instruction, ScatterAdd
from core.plan.memory import Root, contiguous
from core.plan.sole_readers import Offer, into_readers

__all__ = ["scatter_gathered"]


def scatter_gathered(instructions: Sequence[Instruction], kept: Set[Root] = frozenset()) -> tuple[Instruction, ...]:
    """`instructions` without the gathers whose result only one scatter reads; the scatter gathers itself.

    kept: roots that others read, too.
    """
    return into_readers(instructions, kept, _offered, _joined)


def _offered(each: Instruction) -> Offer | None:
    if not isinstance(each, Gather) or each.x.strides != contiguous(each.x.shape):
        return None
    return (each.x, each.index), each.out


def _joined(gather: Instruction, reader: Instruction) -> Instruction | None:
    """The scatter that adds the rows that are gathered, in their order."""
    assert isinstance(gather, Gather)
    if not isinstance(reader, ScatterAdd) or reader.rows is not None:
        return None
    out, x = gather.out, reader.x
    if (out.root, out.offset, out.shape, out.dtype) != (x.root, x.offset, x.shape, x.dtype):
        return None
    return replace(reader, x=gather.x, rows=gather.index, rows_check=gather.check)
