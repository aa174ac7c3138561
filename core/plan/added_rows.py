"""Sums of rows at positions that are data: the scatter that adds them, in float32 for 16-bit floats."""

from __future__ import annotations

import math

from core.ir import Op
from core.ir.precision import is_half
from core.plan.entries import Entry
from core.plan.halves import narrowed, widened_array
from core.plan.instructions import ScatterAdd
from core.plan.lowering import Lowering
from core.plan.slabs import flat, slabs

__all__ = ["added_rows"]

ROWS, COLUMNS = 64, 16
"""Fewest rows of a result whose 16-bit sums a scatter rounds itself, since threads share such a result by its rows, and
fewest elements of a row, which must be worth an entry in a list."""

NARROW = 4
"""Fewest elements of a row that a scatter widens: a pass widens many single numbers together in less time."""


def added_rows(low: Lowering, op: Op, entry: Entry, index: Entry, axis: int, check: int) -> Entry:
    """The result of `op`: elements of `entry` along `axis`, added up at the positions `index` of that axis.

    check: number of the check of the index.
    """
    out = low.type(op.outputs[0])
    half, inner = is_half(out), math.prod(out.shape[axis + 1 :])
    in_place = low.target.scatters_halves and inner >= NARROW
    x = low.dense(widened_array(low, entry) if half and not in_place else entry)
    at = low.dense(index)
    rounds = half and in_place and out.shape[axis] >= ROWS and inner >= COLUMNS
    target = low.destination(op.outputs[0]) if rounds or not half else low.allocate(out.shape, "float32")
    given = slabs(x, (*out.shape[:axis], math.prod(at.shape), *out.shape[axis + 1 :]), axis)
    low.add(ScatterAdd(given, flat(at), slabs(target, out.shape, axis), check, location=op.location))
    return narrowed(low, target, out) if half and not rounds else target
