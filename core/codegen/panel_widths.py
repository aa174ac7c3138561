"""How many columns each packed panel of a product has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.codegen.llvm import I64, Function, IRValue

__all__ = ["PanelWidths", "panel_widths_of"]


@dataclass(frozen=True, slots=True)
class PanelWidths:
    """Panels of `columns` columns: `whole` of `wide` columns, then others of `narrow`. The last one may have fewer."""

    columns: int
    wide: int
    whole: int
    narrow: int

    @property
    def count(self) -> int:
        return self.whole + math.ceil((self.columns - self.whole * self.wide) / self.narrow)

    def start(self, panel: int) -> int:
        """The first column of a panel; after the last panel, the number of columns."""
        before = min(panel, self.whole)
        return min(before * self.wide + (panel - before) * self.narrow, self.columns)

    def write_start(self, f: Function, panel: IRValue) -> IRValue:
        """`start` of a panel whose number the code computes."""
        if self.wide == self.narrow:
            return f.op(f"mul nsw {panel}, {self.wide}", "int64")
        before = f.intrinsic("smin", panel, I64(self.whole))
        after = f.op(f"mul nsw {f.binary('sub', panel, before)}, {self.narrow}", "int64")
        return f.binary("add", f.op(f"mul nsw {before}, {self.wide}", "int64"), after)

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """The first panel of each width, and its columns: at most three."""
        found: list[tuple[int, int]] = []
        for panel in sorted({0, self.whole, self.count - 1}):
            columns = self.start(panel + 1) - self.start(panel)
            if columns and (not found or found[-1][1] != columns):
                found.append((panel, columns))
        return found


def panel_widths_of(columns: int, lanes: int, most: int, pairs: bool) -> PanelWidths:
    """Panels of at most `most` vectors.

    The sums of a tile of one vector wait for each other if they are of pairs, whose additions take longest. Then more
    panels are narrower instead.
    """
    vectors, wide = math.ceil(columns / lanes), most * lanes
    if pairs and most > 2 and vectors > most and vectors % most == 1:
        narrow, whole = divmod(vectors, math.ceil(vectors / most))
        return PanelWidths(columns, (narrow + 1) * lanes, whole, narrow * lanes)
    return PanelWidths(columns, wide, columns // wide, wide)
