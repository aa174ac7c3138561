"""Sparse gradients: the few nonzero rows of a table's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from backpass_client.text import NamedArrays

__all__ = ["Rows", "from_tensors", "to_tensors"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows:
    """Some rows of a table; all other rows are zero.

    rows:   row numbers, int64 [n]; ascending and without duplicates in a response.
    values: the values of these rows, [n, ...].
    shape:  the shape of the whole table.
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Rows({len(self.rows)} rows of {self.values.dtype}{list(self.shape)})"

    def whole(self) -> np.ndarray:
        """The whole table. The values of a repeated row are added."""
        table = np.zeros(self.shape, self.values.dtype)
        np.add.at(table, self.rows, self.values)
        return table


def from_tensors(said: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The gradients of a response by name: arrays, or `Rows` for the tables listed under its member `sparse`."""
    found: dict[str, Any] = NamedArrays(
        {n.removeprefix("grad/"): v for n, v in tensors.items() if n.startswith("grad/")}
    )
    for name, shape in said.get("sparse", {}).items():
        if name in found:
            found[name] = Rows(tensors[f"rows/{name}"], found[name], tuple(shape))
    return found


def to_tensors(gradients: Mapping[str, Any]) -> dict[str, Any]:
    """`gradients`, arrays or `Rows`, as the tensors of a request."""
    found = {}
    for name, value in gradients.items():
        if isinstance(value, Rows):
            found[f"rows/{name}"], value = value.rows, value.values
        found[f"grad/{name}"] = value
    return found
