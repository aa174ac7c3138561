"""Answers that carry gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass_client.rows import from_tensors

if TYPE_CHECKING:
    from backpass_client.expression import Expression

__all__ = ["Arrays", "Gradients", "Playback", "gradients_of", "group"]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one pass gave. missing: variable -> why it has no gradient. said: the rest of the answer.

    gradients: arrays by name; Rows for a table all of whose uses are lookups with `is_sparse`.
    """

    loss: np.ndarray | None
    gradients: dict[str, Any]
    fetched: Arrays
    missing: dict[str, str]
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Playback:
    """What a backward pass did.

    played:   places of the ops that were played back, in that order; `Expression.place` is such a place.
    final:    (variable, place of the op after which its gradient was final), in the order in which they became final.
    ran:      places of the ops that first had to run forwards.
    missing:  variables without a gradient, with the reason.
    compiled: whether this structure was new to the worker.
    """

    played: list[int]
    final: list[tuple[Expression, int | None]]
    ran: list[int]
    missing: list[tuple[Expression, str]]
    compiled: bool


def gradients_of(said: dict[str, Any], tensors: Arrays) -> Gradients:
    """An answer that carries gradients."""
    return Gradients(
        tensors.get("loss"), from_tensors(said, tensors), group(tensors, "fetch"), said.get("missing", {}), said
    )


def group(tensors: Arrays, prefix: str) -> Arrays:
    """The tensors called `prefix`/<name>, by that name."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
