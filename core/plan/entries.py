"""The three forms that the value of a variable has while its block is lowered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from core.plan.data import View
from core.plan.fusion import Member

__all__ = ["Entry", "Uniform"]


@dataclass(frozen=True, slots=True)
class Uniform:
    """The same number in every element."""

    number: Any
    dtype: str
    shape: tuple[int, ...]


Entry = Uniform | Member | View
"""A number, a value inside a fusion that still grows, or an array in memory."""
