"""Gradients added up over several batches, for one update with their sum or mean."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np

from core.ir.precision import HALVES
from core.runtime.sparse_rows import RowArray

__all__ = ["GradientSum", "Reduction", "nbytes_of"]

Reduction = Literal["sum", "mean"]


@dataclass(slots=True)
class GradientSum:
    """Sums by parameter, as dense arrays or as rows of tables, and the number of added gradients.

    The sums of 16-bit gradients are float32.
    """

    sums: dict[str, Any] = field(default_factory=dict)
    count: int = 0

    def add(self, gradients: Mapping[str, Any], names: Collection[str], xp: ModuleType = np) -> None:
        """Add the gradients of the parameters in `names`. The arrays of `gradients` are not kept."""
        new = {name: _wide(gradients[name]) for name in gradients if name in names}
        merged = {
            name: _merged(self.sums[name], value, xp)
            for name, value in new.items()
            if name in self.sums and (isinstance(value, RowArray) or isinstance(self.sums[name], RowArray))
        }
        first = {name: _copied(value) for name, value in new.items() if name not in self.sums}
        for name, value in new.items():  # no failure is possible from here on
            if name not in merged and name not in first:
                xp.add(self.sums[name], value, out=self.sums[name])
        self.sums |= merged | first
        self.count += 1

    def copy(self) -> GradientSum:
        """The same sums in arrays of their own."""
        return GradientSum({name: _copied(value) for name, value in self.sums.items()}, self.count)

    def reduced(self, reduction: Reduction) -> dict[str, Any]:
        """The sums, or the means over the added gradients."""
        if reduction == "sum" or self.count == 1:
            return dict(self.sums)
        return {
            name: RowArray(value.rows, value.values / self.count, value.shape)
            if isinstance(value, RowArray)
            else value / self.count
            for name, value in self.sums.items()
        }


def nbytes_of(gradient: Any) -> int:
    """Bytes of a gradient, dense or as rows of a table."""
    return int((gradient.values if isinstance(gradient, RowArray) else gradient).nbytes)


def _wide(gradient: Any) -> Any:
    if isinstance(gradient, RowArray):
        return RowArray(gradient.rows, _wide(gradient.values), gradient.shape)
    return gradient.astype("float32") if str(gradient.dtype) in HALVES else gradient


def _copied(gradient: Any) -> Any:
    if isinstance(gradient, RowArray):
        return RowArray(gradient.rows.copy(), gradient.values.copy(), gradient.shape)
    return gradient.copy()


def _merged(a: Any, b: Any, xp: ModuleType) -> Any:
    """The sum of two gradients of one table, at least one of which is rows."""
    if not (isinstance(a, RowArray) and isinstance(b, RowArray)):
        dense, rows = (b, a) if isinstance(a, RowArray) else (a, b)
        total = dense.copy()
        total[rows.rows] += rows.values  # the rows of one gradient are distinct
        return total
    rows = xp.unique(xp.concatenate([a.rows, b.rows]))
    values = xp.zeros((len(rows), *a.values.shape[1:]), a.values.dtype)
    for each in (a, b):
        values[xp.searchsorted(rows, each.rows)] += each.values
    return RowArray(rows, values, a.shape)
