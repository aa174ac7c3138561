"""Bounds of a value that a client writes: of a number, or of the length of a string or a list."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Bounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The accepted values of an attribute or a member, as a note of its annotation: ``Annotated[float, Bounds(gt=0)]``.

    gt, ge, lt, le: bounds of a number.
    nonzero:        whether 0 is refused.
    infinite:       whether a number may be infinite. NaN is refused in any case.
    min_length, max_length: of a string or a list.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    nonzero: bool = False
    infinite: bool = False
    min_length: int | None = None
    max_length: int | None = None

    def wrong(self, value: Any) -> str | None:
        """The bound that `value` violates, as the end of a sentence, or None."""
        if isinstance(value, float) and (math.isnan(value) or (math.isinf(value) and not self.infinite)):
            return "must be a number" if self.infinite else "must be finite"
        if isinstance(value, int | float) and not isinstance(value, bool):
            for bound, fits, words in (
                (self.gt, lambda b: value > b, "above"),
                (self.ge, lambda b: value >= b, "at least"),
                (self.lt, lambda b: value < b, "below"),
                (self.le, lambda b: value <= b, "at most"),
            ):
                if bound is not None and not fits(bound):
                    return f"must be {words} {bound if isinstance(bound, int) else format(bound, 'g')}"
            if self.nonzero and value == 0:
                return "must not be 0"
        if isinstance(value, str | tuple):
            if self.min_length is not None and len(value) < self.min_length:
                return f"must have a length of at least {self.min_length}"
            if self.max_length is not None and len(value) > self.max_length:
                return f"must have a length of at most {self.max_length}"
        return None
