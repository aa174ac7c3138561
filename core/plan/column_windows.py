"""Which columns a stripe of attention need not compute, because a mask hides them.

Behind a mask the probabilities are exactly 0, and so are their gradients: products with them add zeros. That is true if
the numbers that enter are moderate: the exponential of a score behind a mask of -1e9 is 0 only next to a score that is
far above -1e9, and 0 times infinity is no zero. So the analysis follows bounds through the instructions of a stripe
(`core.plan.masked_bounds`), from the assumption that all numbers that enter are between -limit and limit. The run
checks the assumption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from core.ir.precision import HALVES
from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.masked_bounds import FLOATS, Known, MaskedBounds, Unknown
from core.plan.masks import Band, Given, edges_of
from core.plan.memory import Root
from core.plan.striped import Striped, Window

__all__ = ["ColumnWindows"]

ASSUMED = ((1024.0, 2.0**26), (16.0, 9000.0))
"""Limits of the numbers that enter, and the size of numbers in a mask that hide. Under the second ones, float16 has
numbers for scores of up to 255 terms."""

EDGES = 2
"""Most edges of a band that are tried, on each side."""


class ColumnWindows:
    """The windows of the `Striped` instructions of a list, one after another.

    instructions: all of the list; an array that several of them write has no bounds.
    block:        columns are left out in blocks of so many.
    halves:       whether generated code can check 16-bit numbers that enter.
    """

    def __init__(self, instructions: Sequence[Instruction], block: int, halves: bool = False) -> None:
        self.block = block
        self.floats = FLOATS.union(HALVES) if halves else FLOATS
        self.known: dict[Root, Known] = {}
        self.writes = Counter(root for each in instructions for root in set(each.writes()))

    def of(self, each: Striped) -> Window | None:
        """The window of an instruction, after those before it; None if it needs all columns."""
        parts = list(each.instructions)
        dtypes = {v.dtype for g in parts if isinstance(g, Gemm) for v in (g.a, g.b, g.c)}
        if each.shared or each.domain.columns < 2 * self.block or not dtypes <= self.floats:
            return None
        for mask in self._masks(each):
            for limit, hides in ASSUMED:
                bounds = MaskedBounds(each, mask, limit, hides, self.writes, self.known, self.floats)
                try:
                    bounds.follow()
                except Unknown:
                    continue
                window = bounds.window(self.block)
                for root, values in bounds.values.items():
                    if root not in each.inside and self.writes[root] == 1:
                        self.known[root] = Known(values, each.domain, mask, window)
                return window
        return None

    def _masks(self, each: Striped) -> Iterator[Band | Given]:
        """The masks to try: that of the arrays of earlier stripes, or bands, or arrays that are loaded."""
        known = (self.known[root] for root in each.reads() if root in self.known)
        earlier = list(dict.fromkeys(k.mask for k in known if k.domain == each.domain))
        if earlier:
            yield from earlier[:1] if len(earlier) == 1 else ()
            return
        rows = [part for part in each.body if isinstance(part, Rows)]
        edges = list(dict.fromkeys(edge for part in rows for edge in edges_of(part, each.domain)))
        first = [None, *dict.fromkeys(edge.first for edge in edges if edge.first is not None)]
        last = [None, *dict.fromkeys(edge.last for edge in edges if edge.last is not None)]
        pairs = [Band(a, b) for a in first[: EDGES + 1] for b in last[: EDGES + 1]]
        for band in sorted(pairs, key=lambda band: (band.first is None) + (band.last is None)):
            if band != Band() and band.shows_each_row(each.domain):
                yield band
        loaded = (
            Given.of(part, n)
            for part in rows
            for n, i in enumerate(part.kernel.code)
            if i.kind == "load" and i.full and part.views[i.operand].root not in each.inside
        )
        yield from dict.fromkeys(g for g in loaded if g is not None and g.dtype in ("bool", *self.floats))
