"""Parts of a JSON body that another process has decoded: tensors as arrays, a program as JSON text.

The parts stand in the document at their places, so that a body is validated in the same way however it was decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.formats.json_tensors import MEMBERS, TensorError, TensorLimits, decode_one
from service.store.program_text import ProgramText

__all__ = ["PROGRAM", "ExtractedTensor", "Place", "as_text", "is_tensor", "packed", "put_back", "tensors_in"]

PROGRAM = "program"
Place = tuple[str | int, ...]
"""The keys that lead from a document to a part of it."""


@dataclass(frozen=True, slots=True)
class ExtractedTensor:
    """A JSON tensor: its array, or the reason why it has none."""

    array: np.ndarray | None
    error: TensorError | None = None

    def extracted(self) -> np.ndarray:
        """Raises TensorError."""
        if self.array is None:
            assert self.error is not None
            raise self.error
        return self.array


def is_tensor(value: Any) -> bool:
    """Whether `value` looks like a JSON tensor."""
    return type(value) is dict and "dtype" in value and ("data" in value or "b64" in value)


def tensors_in(document: dict[str, Any], limits: TensorLimits) -> Iterator[tuple[Place, np.ndarray | TensorError]]:
    """Every JSON tensor in `document` outside its program, with its place; None stands there afterwards."""
    waiting: list[tuple[Place, Any]] = [((), document)]
    while waiting:
        place, holder = waiting.pop()
        items = holder.items() if type(holder) is dict else enumerate(holder)
        for key, value in list(items):
            if is_tensor(value) and value.keys() <= MEMBERS:
                found: np.ndarray | TensorError
                try:
                    found = decode_one(value, limits)
                except TensorError as error:
                    found = error
                holder[key] = None
                yield (*place, key), found
            elif type(value) in (dict, list) and (place or key != PROGRAM):
                waiting.append(((*place, key), value))


def put_back(document: dict[str, Any], place: Place, part: Any) -> None:
    """Put `part` at its place."""
    *holders, last = place
    at: Any = document
    for key in holders:
        at = at[key]
    at[last] = part


TEXT = ""
"""The only member of an object that stands for a program; no valid program has it."""


def packed(program: ProgramText) -> dict[str, Any]:
    """An object that stands for a program in a document."""
    return {TEXT: program}


def as_text(program: dict[str, Any]) -> ProgramText:
    """The program of a request, decoded here or in another process."""
    found = program.get(TEXT)
    return found if isinstance(found, ProgramText) else ProgramText.of(program)
