"""Gathers inside fusions: rows of an array at positions that are data, read where they are used.

A lookup is an instruction of a fusion, so what it reads reaches no memory of its own. It depends on arrays only, so
each fusion that needs the rows looks them up itself, unless they are stored already.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from core.ir import Op
from core.ir.registry import lookup as spec_of
from core.plan.fusion import Axes, Fusion, Member
from core.plan.memory import View, contiguous

__all__ = ["LEAST", "Lookup", "cut_rows", "lookup_of", "read_by_fusions", "rows_at"]

LEAST = 16
"""Fewest adjacent elements that a lookup reads: a fusion takes shorter rows one by one, with half-empty vectors."""

APART = frozenset(
    (
        "array_join", "array_unstack", "concat", "einsum", "gather", "if_else", "index_select", "loop", "matmul",
        "merge_rows", "scatter_add_like", "segment_max", "segment_prod", "segment_sum", "slice_into", "sort", "top_k",
    )
)  # fmt: skip
"""Ops that read an array from memory in any case."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The elements of `source`, each `step` times the position at `index` further on.

    source, index: views of the shape of the value.
    size:          of the axis; an index below 0 counts from its end.
    check, error:  the number of the check that an index is in range, and the word that it writes.
    """

    source: View
    index: View
    step: int
    size: int
    check: int
    error: View

    def within(self, fusion: Fusion, axes: Axes) -> int:
        """The value along `axes` of the domain of `fusion`: its number there."""
        source, index = fusion.strides(self.source, axes), fusion.strides(self.index, axes)
        places = (self.index.root, self.index.offset, index, self.size)

        def write() -> int:
            wrapped = fusion.once(("wrapped", places), lambda: self._wrapped(fusion, axes))
            fine = fusion.once(("fine", places), lambda: self._in_range(fusion, wrapped))
            at = fusion.once(("at", places), lambda: _apply(fusion, "where", "int64", fine, wrapped, _zero(fusion)))
            number = fusion.lookup(self.source, axes, at, self.step, self)
            fusion.check(fine, self.error, self.check, guards=number)
            return number

        read = (self.source.root, self.source.offset, self.source.dtype, source, self.step)
        return fusion.once(("lookup", read, places), write)

    @property
    def is_long(self) -> bool:
        """Whether fusions take whole vectors of its adjacent elements."""
        row = self.source.shape[-1] if self.source.strides[-1] == 1 and self.index.strides[-1] == 0 else 0
        return row >= LEAST

    @property
    def slabs(self) -> tuple[View, View] | None:
        """(x, index) of a `Gather` of the elements: the rows of one slab; None if they are not rows at an index."""
        shape, source, index = self.source.shape, self.source.strides, self.index.strides
        axes = 1 + max((i for i, n in enumerate(shape) if n > 1 and index[i]), default=-1)
        inner = math.prod(shape[axes:])
        steps = contiguous(shape)  # of the result
        if any(n > 1 and source[i] != (0 if i < axes else steps[i]) for i, n in enumerate(shape)):
            return None
        x = View(self.source.root, self.source.dtype, (1, self.size, inner), (0, self.step, 1), self.source.offset)
        return x, replace(self.index, shape=shape[:axes], strides=index[:axes])

    def _wrapped(self, fusion: Fusion, axes: Axes) -> int:
        """The index as int64, counted from the front."""
        raw = fusion.load(self.index, axes)
        if self.index.dtype != "int64":
            raw = fusion.apply("cast", [("dtype", "int64")], [raw], "int64")
        negative = _apply(fusion, "less_than", "bool", raw, _zero(fusion))
        end = _apply(fusion, "add", "int64", raw, fusion.constant(self.size, "int64"))
        return _apply(fusion, "where", "int64", negative, end, raw)

    def _in_range(self, fusion: Fusion, at: int) -> int:
        over = _apply(fusion, "greater_equal", "bool", at, _zero(fusion))
        under = _apply(fusion, "less_than", "bool", at, fusion.constant(self.size, "int64"))
        return _apply(fusion, "logical_and", "bool", over, under)


def _apply(fusion: Fusion, op: str, dtype: str, *args: int) -> int:
    return fusion.apply(op, sorted(spec_of(op).complete({}).items()), args, dtype)


def _zero(fusion: Fusion) -> int:
    return fusion.once("zero", lambda: fusion.constant(0, "int64"))


def rows_at(x: View, index: View, axis: int, check: int, error: View) -> Lookup | None:
    """The lookup of ``x`` at `index` along `axis`; None if its rows are short or have gaps."""
    inner = x.shape[axis + 1 :]
    if math.prod(inner) < LEAST or not inner or inner[-1] < LEAST or x.strides[-1] != 1 or math.prod(index.shape) < 2:
        return None
    shape = (*x.shape[:axis], *index.shape, *inner)
    before, after = (0,) * axis, (0,) * len(inner)
    source = replace(x, shape=shape, strides=(*x.strides[:axis], *(0 for _ in index.shape), *x.strides[axis + 1 :]))
    places = replace(index, shape=shape, strides=(*before, *index.strides, *after))
    return Lookup(source, places, x.strides[axis], x.shape[axis], check, error)


def cut_rows(entry: object, part: Callable[[View], View]) -> Lookup | None:
    """The lookup of a slice of a looked-up value; None for other values. part: the slice, of a view of its shape."""
    found = lookup_of(entry)
    return None if found is None else replace(found, source=part(found.source), index=part(found.index))


def lookup_of(entry: object) -> Lookup | None:
    """The lookup that computes a value inside a fusion, for views of its shape; None for any other value."""
    if not isinstance(entry, Member):
        return None
    draft = entry.fusion.drafts[entry.number]
    found = draft.lookup
    if not isinstance(found, Lookup):
        return None
    index = entry.fusion.strides(found.index, draft.axes)
    views = [
        replace(view, shape=entry.shape, strides=tuple(0 if a is None else strides[a] for a in entry.axes))
        for view, strides in ((found.source, draft.strides), (found.index, index))
    ]
    return replace(found, source=views[0], index=views[1])


def read_by_fusions(readers: list[Op | None]) -> bool:
    """Whether any of the readers may be part of a fusion."""
    return any(reader is not None and reader.type not in APART for reader in readers)
