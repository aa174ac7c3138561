"""Results of passes over a program: the loss, the gradients and the fetched values of one response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backpass_client.rows import from_tensors
from backpass_client.text import NamedArrays, fields

__all__ = ["Arrays", "Gradients", "gradients_of", "group"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, repr=False)
class Gradients:
    """The result of one backward pass.

    gradients: arrays by parameter name; `Rows` for a table that the program reads only by lookups with `is_sparse`.
    fetched:   the requested values by name.
    missing:   variable -> the reason why it has no gradient.
    said:      the JSON members of the response.
    """

    loss: np.ndarray | None
    gradients: dict[str, Any]
    fetched: Arrays
    missing: dict[str, str]
    said: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return fields(self, "loss", "gradients", "fetched", "missing")


def gradients_of(said: dict[str, Any], tensors: dict[str, np.ndarray]) -> Gradients:
    """The `Gradients` in a response, from its JSON members and its tensors."""
    return Gradients(
        tensors.get("loss"), from_tensors(said, tensors), group(tensors, "fetch"), said.get("missing", {}), said
    )


def group(tensors: dict[str, np.ndarray], prefix: str) -> Arrays:
    """The tensors called `prefix`/<name>, keyed by <name>."""
    start = f"{prefix}/"
    return NamedArrays({name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)})
