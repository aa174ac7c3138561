"""Answers that carry gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Arrays", "Gradients", "gradients_of", "group"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one pass gave. missing: variable -> why it has no gradient. said: the rest of the answer."""

    loss: np.ndarray | None
    gradients: Arrays
    fetched: Arrays
    missing: dict[str, str]
    said: dict[str, Any] = field(default_factory=dict)


def gradients_of(said: dict[str, Any], tensors: Arrays) -> Gradients:
    """An answer that carries gradients."""
    return Gradients(
        tensors.get("loss"), group(tensors, "grad"), group(tensors, "fetch"), said.get("missing", {}), said
    )


def group(tensors: Arrays, prefix: str) -> Arrays:
    """The tensors called `prefix`/<name>, by that name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
