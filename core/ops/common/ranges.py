"""Types of attributes with the values that they accept. `Annotated[float, Bounds(...)]` declares any other range."""

from __future__ import annotations

from typing import Annotated

from core.ir.bounds import Bounds

__all__ = [
    "Count",
    "Fraction",
    "Nonzero",
    "NotNegative",
    "OpenSize",
    "Positive",
    "Probability",
    "Reach",
    "Size",
    "Span",
]

Size = Annotated[int, Bounds(ge=0)]
OpenSize = Annotated[int, Bounds(ge=-1)]
"""A size, or -1 for a size that the data determine."""

Count = Annotated[int, Bounds(ge=1)]
Reach = Annotated[int, Bounds(ge=0, le=2**31 - 1)]
Span = Annotated[int, Bounds(ge=1, le=2**31 - 1)]
"""A distance between elements. A distance times the size of an axis stays below 2**62, far from overflow of int64."""

Positive = Annotated[float, Bounds(gt=0)]
NotNegative = Annotated[float, Bounds(ge=0)]
Nonzero = Annotated[float, Bounds(nonzero=True)]
Fraction = Annotated[float, Bounds(ge=0, lt=1)]
Probability = Annotated[float, Bounds(ge=0, le=1)]
