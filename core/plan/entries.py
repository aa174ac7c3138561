"""The forms that the value of a variable has while its block is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.plan.fusion import Fusion, Member
from core.plan.memory import Root, View, contiguous

__all__ = ["Entry", "Pattern", "Uniform", "positions"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same number in every element."""

    number: Any
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """Elements that are computed from their positions wherever they are read: a mask, a range.

    places: a view of no memory, whose offset and strides give the position of each element.
    code:   elementwise ops (type, attributes, other operand or None, dtype of the result), the first one on the
            position.
    """

    places: View
    code: tuple[tuple[str, tuple[tuple[str, Any], ...], Uniform | None, str], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.places.shape

    @property
    def dtype(self) -> str:
        return self.code[-1][3] if self.code else "int64"

    def then(self, op: str, other: Any = None, dtype: str | None = None, **attrs: Any) -> Pattern:
        """The result of one more elementwise op; `other`, a number, is its second operand."""
        operand = None if other is None else Uniform(other, self.dtype, ())
        step = (op, tuple(sorted(attrs.items())), operand, dtype or self.dtype)
        return Pattern(self.places, (*self.code, step))

    def as_dtype(self, dtype: str) -> Pattern:
        if dtype == self.dtype:
            return self
        return Pattern(self.places, (*self.code, ("cast", (("dtype", dtype),), None, dtype)))

    def within(self, fusion: Fusion, strides: tuple[int, ...]) -> int:
        """The pattern as a value of `fusion`, with these strides along the axes of the domain: its number there."""
        number = fusion.count(strides, self.places.offset)
        for op, attrs, other, dtype in self.code:
            args = [number] if other is None else [number, fusion.constant(other.number, other.dtype)]
            number = fusion.apply(op, attrs, args, dtype)
        return number


def positions(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, first: int = 0) -> Pattern:
    """The position of each element in row-major order, or with other strides, as int64."""
    steps = contiguous(shape) if strides is None else strides
    return Pattern(View(Root(0, "none"), "int64", shape, steps, first))


Entry = Uniform | Pattern | Member | View
"""A number, elements computed from their positions, a value inside a fusion that still grows, or an array in memory."""
