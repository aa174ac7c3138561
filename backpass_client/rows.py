"""Gradients of tables of which few rows are not zero."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Rows", "from_tensors", "to_tensors"]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of a table, its others being zero.

    rows:   int64 [n]; in an answer ascending, each there once.
    values: [n, ...].
    shape:  of the whole table.
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def whole(self) -> np.ndarray:
        """The table; where a row is there twice its values add up."""
        table = np.zeros(self.shape, self.values.dtype)
        np.add.at(table, self.rows, self.values)
        return table


def from_tensors(said: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The gradients of an answer by name: arrays, or Rows where the program looks rows up with `is_sparse`."""
    found: dict[str, Any] = {n.removeprefix("grad/"): v for n, v in tensors.items() if n.startswith("grad/")}
    for name, shape in said.get("sparse", {}).items():
        if name in found:
            found[name] = Rows(tensors[f"rows/{name}"], found[name], tuple(shape))
    return found


def to_tensors(gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Gradients, arrays or Rows, as the tensors of a request."""
    found = {}
    for name, value in gradients.items():
        if isinstance(value, Rows):
            found[f"rows/{name}"], value = value.rows, value.values
        found[f"grad/{name}"] = value
    return found
