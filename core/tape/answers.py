"""What a tape answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.ir import Type

__all__ = ["Appended", "Evaluated", "Gradients"]


@dataclass(frozen=True, slots=True)
class Appended:
    """An op as it stands on the tape: its place, its type, and the names of its outputs with their types."""

    place: int
    type: str
    outputs: tuple[tuple[str, Type], ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Values by name, and the places of the ops that had to run for them."""

    values: dict[str, Any]
    ran: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a playback gave.

    value:     of the target.
    gradients: by name of the variable.
    missing:   variable -> why it has no gradient.
    played:    places of the ops that were played back, in that order.
    final:     (variable, place of the op after which its gradient was final), in the order in which they became final.
    ran:       places of the ops that first had to run forwards.
    """

    value: Any
    gradients: dict[str, Any]
    missing: dict[str, str]
    played: tuple[int, ...]
    final: tuple[tuple[str, int | None], ...]
    ran: tuple[int, ...]
