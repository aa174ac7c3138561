"""Dense arrays as slabs around an axis, as gathers and scatters take them, and gathers of slabs."""

from __future__ import annotations

import math

from core.ir import Op
from core.ir.errors import Location
from core.plan.entries import Entry
from core.plan.instructions import Gather
from core.plan.lowering import Lowering
from core.plan.memory import View, bytes_of

__all__ = ["OUT_OF_RANGE", "add_gather", "as_slabs", "flat", "gather_slabs", "slabs", "taken"]

MOST_BYTES = 1 << 20
"""Most bytes of the result of a gather that comes before the fusions that could read it."""

OUT_OF_RANGE = "a position is out of range"
"""The message of checks of positions that a lowering has computed: they fail only if an earlier check has failed."""


def as_slabs(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """The sizes [outer, size, inner] of a dense array around `axis`. A number is one element."""
    if not shape:
        return 1, 1, 1
    at = axis % len(shape)
    return math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :])


def slabs(view: View, shape: tuple[int, ...], axis: int) -> View:
    """The elements of a dense array that `shape` has, as [outer, size, inner] around `axis`."""
    outer, size, inner = as_slabs(shape, axis)
    return View(view.root, view.dtype, (outer, size, inner), (size * inner, inner, 1), view.offset)


def flat(view: View) -> View:
    """A dense array as a vector."""
    return View(view.root, view.dtype, (math.prod(view.shape),), (1,), view.offset)


def gather_slabs(x: View, axis: int, at: View, out: View, check: int, location: Location | None) -> Gather:
    """The instruction that copies the slabs of `x` at positions along `axis`, which `check` finds in range, to `out`.

    All views are dense; `out` may have memory for more slabs than there are positions.
    """
    shape = (*x.shape[:axis], math.prod(at.shape), *x.shape[axis + 1 :])
    return Gather(slabs(x, x.shape, axis), flat(at), slabs(out, shape, axis), check, location=location)


def add_gather(low: Lowering, each: Gather, early: bool) -> None:
    """Add a gather. early: whether its result is new memory that fusions read.

    Then the gather comes before the fusions that could read it, as long as the result is small: it lives longer.
    """
    if early and bytes_of(each.out.shape, each.out.dtype) <= MOST_BYTES:
        low.add_early(each)
    else:
        low.add(each)


def taken(low: Lowering, op: Op, x: Entry, index: Entry, axis: int = 0) -> View:
    """The slabs of `x` at positions along `axis` that the lowering has computed, [*outer, *index, *inner]."""
    source, at = low.dense(x), low.dense(index)
    out = low.allocate((*source.shape[:axis], *at.shape, *source.shape[axis + 1 :]), source.dtype)
    check = low.shared.check("index_out_of_range", OUT_OF_RANGE, op.location)
    low.add(gather_slabs(source, axis, at, out, check, op.location))
    return out
