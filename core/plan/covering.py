"""Adjoints of pooling that gather: each element of a plane adds up what the windows over it give.

A target takes them if its generator tests which windows lie over an element (`PoolLimits.gathers`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.plan.windows import Windows

__all__ = ["Covering"]


@dataclass(frozen=True, slots=True)
class Covering:
    """Windows over `planes` planes, each with a number that it gives to all its elements, or to the one it has chosen.

    index: dtype of the number, within its window, of the element that a window has chosen; empty if they give to all.
    """

    dtype: str
    planes: int
    windows: Windows
    index: str = ""

    @property
    def over(self) -> int:
        """Most windows over an element."""
        w = self.windows
        return math.prod(-(-k // s) for k, s in zip(w.kernel, w.strides, strict=True))

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 4 * self.planes * math.prod(self.windows.size) * (2 + self.over)
