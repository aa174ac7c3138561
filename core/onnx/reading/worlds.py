"""Sample sizes. A world gives each open size of a model a number.

The types of all values are inferred for each world as well as for the open sizes. Two sizes that are equal in all
worlds are equal in the program: the numbers are distinct, of several magnitudes, so that a bound such as
``min(size, 64)`` shows, and leave different remainders, so that rounding such as ``size // 2 * 2`` shows.

A world in which a type does not fit, for example because a table has fewer rows than the sample asks for, says nothing
about the values that follow: the program itself would fail there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.ir import TensorType

__all__ = ["WORLDS", "Sample", "Sizes"]

_FIRST = (5, 12, 211, 4096, 70002, 9)
_STEP = (2, 4, 12, 128, 1042, 6)
WORLDS = len(_FIRST)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A tensor in one world: its type, which is static, and its elements if they follow from sizes alone."""

    type: TensorType
    value: np.ndarray | None = None


class Sizes:
    """The open sizes of a model, by name."""

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[int, ...]] = {}

    def of(self, name: str) -> tuple[int, ...]:
        """The sample of the size `name` in each world."""
        if name not in self._numbers:
            n = len(self._numbers)
            self._numbers[name] = tuple(first + step * n for first, step in zip(_FIRST, _STEP, strict=True))
        return self._numbers[name]

    def name_of(self, numbers: Sequence[int | None]) -> str | None:
        """The name of the size that is `numbers` in the worlds where these are known; None if it has none."""
        known = [(w, n) for w, n in enumerate(numbers) if n is not None]
        for name, found in self._numbers.items():
            if len(known) > 1 and not name.startswith("\0") and all(found[w] == n for w, n in known):
                return name
        return None

    def fresh(self) -> tuple[int, ...]:
        """Samples of a size that has no name."""
        return self.of(f"\0{len(self._numbers)}")
