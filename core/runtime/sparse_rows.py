"""A table of which few rows are not zero, or few are new, as these rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

__all__ = ["RowArray"]


@dataclass(frozen=True, slots=True)
class RowArray:
    """Rows of a table.

    rows:   int64 [n], ascending, each there once.
    values: [n, *row], on the same device.
    shape:  of the whole table, [size, *row].
    """

    rows: Any
    values: Any
    shape: tuple[int, ...]

    def whole(self, xp: ModuleType = np) -> Any:
        """The table, its other rows zero."""
        table = xp.zeros(self.shape, self.values.dtype)
        self.write(table)
        return table

    def write(self, table: Any) -> None:
        """Put the rows in their places in `table`; its other rows stay."""
        table[self.rows] = self.values
