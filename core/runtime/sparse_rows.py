"""A table as some of its rows: the rows that are not zero, or the rows that changed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["RowArray"]


@dataclass(frozen=True, slots=True)
class RowArray:
    """Rows of a table.

    rows:   int64 [n], ascending, without duplicates.
    values: [n, *row], on the same device.
    shape:  of the whole table, [size, *row].
    """

    rows: Any
    values: Any
    shape: tuple[int, ...]

    def whole(self, xp: ModuleType = np) -> Any:
        """The whole table; the other rows are zero."""
        table = xp.zeros(self.shape, self.values.dtype)
        self.write(table)
        return table

    def write(self, table: Any) -> None:
        """Write the rows to their places in `table`; the other rows stay as they are."""
        table[self.rows] = self.values
