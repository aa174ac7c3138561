"""The open sizes that a block has derived from others: each is computed once, so equal ones are known to be equal.

`size_multiples` computes products and multiples, the lowerings of masks, slices and windows the others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from core.plan.entries import Entry
from core.plan.memory import View
from core.plan.sizes import Size

__all__ = ["DerivedSizes"]


@dataclass(slots=True)
class DerivedSizes:
    """The sizes that the lowering of a block has derived so far.

    compared:  pairs of sizes that a check compares.
    multiples: size -> the size that it is a multiple of, and the factor.
    products:  size -> the sizes that it is the product of.
    masks:     (mask, value) -> the positions at which the mask has that value, and their number.
    slices:    (start, end and step, which of their elements, the axis that is sliced) -> its positions and their
               number; None for the number if it is known.
    parts:     (start, stop, step, size of the axis) -> the positions of a slice of known ends, and their number.
    windows:   (size, elements around it less those of a window, stride) -> the number of windows.
    """

    compared: set[frozenset[Size]] = field(default_factory=set)
    multiples: dict[Size, tuple[Size, int]] = field(default_factory=dict)
    products: dict[Size, tuple[Size, ...]] = field(default_factory=dict)
    masks: dict[tuple[str, bool], tuple[View, Size]] = field(default_factory=dict)
    slices: dict[tuple[tuple[str, ...], int, Hashable], tuple[Entry, Size | None]] = field(default_factory=dict)
    parts: dict[tuple[int, int | None, int, Size], tuple[Entry, Size]] = field(default_factory=dict)
    windows: dict[tuple[Size, int, int], Size] = field(default_factory=dict)
