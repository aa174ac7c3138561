"""The records that a tape returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.ir import Type

__all__ = ["Appended", "Evaluated", "Extension", "Gradients"]


@dataclass(frozen=True, slots=True)
class Appended:
    """An op on the tape: its place, its type, and the names of its outputs with their types."""

    place: int
    type: str
    outputs: tuple[tuple[str, Type], ...]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Values by name, and the places of the ops that were run for them."""

    values: dict[str, Any]
    ran: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gradients:
    """The result of a backward pass over a tape.

    value:     of the target.
    gradients: by name of the variable.
    missing:   variable -> reason why it has no gradient.
    played:    places of the ops in the backward pass, in its order.
    final:     (variable, place of the op after which its gradient is final), in the order in which they become final.
    ran:       places of the ops that were run forward first.
    """

    value: Any
    gradients: dict[str, Any]
    missing: dict[str, str]
    played: tuple[int, ...]
    final: tuple[tuple[str, int | None], ...]
    ran: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extension:
    """The ops that one request added to a tape.

    places:    of the ops.
    repeated:  whether they are, with their places and types, those that the same structure added before.
    gradients: of the requested backward pass.
    """

    places: tuple[int, ...]
    repeated: bool
    gradients: Gradients | None
