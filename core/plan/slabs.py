"""Dense arrays as rows around an axis, as gathers and scatters take them."""

from __future__ import annotations

import math

from core.plan.data import View

__all__ = ["flat", "slabs"]


def slabs(view: View, shape: tuple[int, ...], axis: int) -> View:
    """A dense array as [outer, size, inner] around `axis`."""
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    size = shape[axis]
    return View(view.root, view.dtype, (outer, size, inner), (size * inner, inner, 1), view.offset)


def flat(view: View) -> View:
    return View(view.root, view.dtype, (math.prod(view.shape),), (1,), view.offset)
