"""Scatters by an index that a kernel computes from positions alone, such as that of overlapping frames of a signal.

The rows of a result then follow from its position: the index needs no memory, and no sort.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from core.device.segments import flat
from core.ir.stop import poll
from core.plan.instructions import IndexPattern, Instructions, Rows, ScatterAdd

__all__ = ["with_patterns"]


def with_patterns(body: Instructions) -> Instructions:
    """Give scatters the pattern of their index, and leave out the kernels that wrote such an index for nobody else.

    Scatters in loops and branches stay as they are.
    """
    writes = Counter(root for each in flat(body.instructions) for root in each.writes())
    counts = {each.views[-1].root: each for each in body.instructions if isinstance(each, Rows) and _counts(each)}
    found = []
    for each in body.instructions:
        poll()
        if isinstance(each, ScatterAdd) and each.index.root in counts and writes[each.index.root] == 1:
            pattern = _pattern_of(each, counts[each.index.root])
            each = each if pattern is None else replace(each, pattern=pattern)
        found.append(each)
    writers = set(counts.values())
    read = {root for each in flat(found) if each not in writers for root in each.reads()}
    return Instructions(tuple(each for each in found if each not in writers or read & {*each.writes()}))


def _counts(each: Rows) -> bool:
    """Whether a kernel only writes an arithmetic sequence of each row's positions, in the order of memory."""
    (operand, *more), view = each.kernel.operands, each.views[0]
    inner, outer = each.kernel.inner, each.kernel.outer
    return (
        not more
        and [i.kind for i in each.kernel.code] == ["iota", "store"]
        and view.root.place == "arena"
        and (view.offset, operand.outer, operand.inner) == (0, (inner,)[: len(outer)], 1)
    )


def _pattern_of(each: ScatterAdd, writer: Rows) -> IndexPattern | None:
    """The pattern of an index; None if the index is not in the order of memory, or names a row out of range."""
    iota, index = writer.kernel.code[0], each.index
    attrs, length = dict(iota.attrs), writer.kernel.inner
    (count,), (step,) = writer.kernel.outer or (1,), attrs["outer"] or (1,)
    stride, first = attrs["inner"], int(iota.value)
    last = first + (count - 1) * step + (length - 1) * stride
    in_order = index.shape == (count * length,) and (index.offset, index.strides) == (0, (1,))
    if not in_order or index.dtype != writer.views[0].dtype or min(step, stride) < 1:
        return None
    return IndexPattern(first, count, step, length, stride) if first >= 0 and last < each.out.shape[1] else None
