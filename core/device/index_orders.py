"""Scatters by a sorted index: the sort is an instruction of its own, which scatters with the same index share.

Graph networks sum the edges of each node in every layer, forward and backward, with the same ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from core.device.buckets import padded_sums
from core.ir.stop import poll
from core.ops.common.types import as_dtype
from core.plan.flow import Branch, Loop
from core.plan.instructions import Instruction, Instructions, Kernel, ScatterAdd
from core.plan.memory import Root, View

__all__ = ["INDEX_ORDER", "NO_ROWS", "IndexOrder", "is_sparse", "with_orders"]

FEW = 32
"""Rows, or results of a column, up to which each thread looks through the index."""

SPARSE = 8
"""Results for each row of x from which on those without rows are filled first."""

INDEX_ORDER = "index_order"
"""The kind of a kernel ``(index, order, bounds)``; see `IndexOrder`."""

NO_ROWS = "no_rows"
"""The kind of a kernel ``(out)`` that writes the result of a reduction of no rows. Its spec names the reduction."""

WORD = "int32"


@dataclass(frozen=True, slots=True)
class IndexOrder:
    """The order of `count` positions of an index by the rows that they name, of `size`; equal ones keep their order.

    order:  the positions in that order.
    bounds: if most rows are named nowhere (`is_sparse`), the rows in that order; else where each row starts in it, and
            the end.
    dtype:  of the index, which counts from the end of the rows if it is negative.
    """

    dtype: str
    count: int
    size: int

    @property
    def bounds(self) -> int:
        """Words of `bounds`. Prefix sums, which may make the starts in place, need some more."""
        return self.count if is_sparse(self.count, self.size) else padded_sums(self.size + 2)


def is_sparse(count: int, size: int) -> bool:
    """Whether most results of a scatter have no rows."""
    return size >= SPARSE * count


def with_orders(body: Instructions) -> Instructions:
    """`body` with a sort before each scatter that needs one, unless an earlier one has sorted the same index."""
    return Instructions(tuple(_ordered(body)))


def _ordered(body: Instructions) -> Iterator[Instruction]:
    known: dict[tuple[Root, int, IndexOrder], tuple[View, View]] = {}
    for each in body.instructions:
        poll()
        if isinstance(each, ScatterAdd) and _sorts(each):
            index = each.index
            spec = IndexOrder(index.dtype, index.shape[0], each.out.shape[1])
            key = (index.root, index.offset, spec)
            now = _order_of_constant(index, spec)
            if now is not None:
                known[key] = known.get(key, now)
            elif key not in known:
                known[key] = _words(spec.count), _words(spec.bounds)
                yield Kernel(INDEX_ORDER, spec, (index, *known[key]), 2, each.check, location=each.location)
            if is_sparse(spec.count, spec.size):
                yield Kernel(NO_ROWS, each.op, (each.out,), location=each.location)
            each = replace(each, order=known[key])
        elif isinstance(each, Loop):
            each = replace(each, body=with_orders(each.body))
        elif isinstance(each, Branch):
            each = replace(each, yes=with_orders(each.yes), no=with_orders(each.no))
        yield each
        touched = {*each.writes(), *(each.outside if isinstance(each, Loop | Branch) else ())}
        known = {key: order for key, order in known.items() if key[0] not in touched}


def _sorts(each: ScatterAdd) -> bool:
    return each.pattern is None and min(each.index.shape[0], each.out.shape[1]) > FEW


def _order_of_constant(index: View, spec: IndexOrder) -> tuple[View, View] | None:
    """The order and the bounds of a constant index; None if the index is not constant, or names a row out of range."""
    if index.root.place != "constant":
        return None
    rows = np.frombuffer(index.root.data, as_dtype(index.dtype))[index.offset :][: spec.count].astype("int64")
    rows = np.where(rows < 0, rows + spec.size, rows)
    if rows.min() < 0 or rows.max() >= spec.size:
        return None
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    bounds = ordered if is_sparse(spec.count, spec.size) else np.searchsorted(ordered, np.arange(spec.size + 1))
    return _constant(order), _constant(bounds)


def _constant(words: np.ndarray) -> View:
    data = words.astype(WORD).tobytes()
    return View(Root(len(data), "constant", data=data), WORD, words.shape, (1,), 0)


def _words(count: int) -> View:
    return View(Root(4 * count), WORD, (count,), (1,), 0)
