"""Sizes that operands must share: where the types leave one open, the run compares them.

A composite calls these on its operands, because its ops may take sizes that the composite itself refuses: a product
repeats a batch of one, and a slice ends where its array ends.
"""

from __future__ import annotations

from typing import Any

from core.ops.common.types import same_size

__all__ = ["agreed", "shaped", "squared"]


def shaped(x, sizes):
    """x with `sizes`, one for each axis; -1 takes any size. A run with another size is an error (shape_mismatch)."""
    wanted = tuple(m if n == -1 else n for m, n in zip(x.shape, sizes, strict=True))
    return x if wanted == x.shape else x.builder.emit("check_shape", x, shape=wanted)


def agreed(x, y, *axes: tuple[int, int]) -> tuple[Any, Any]:
    """x and y, whose sizes along each pair of axes are equal: axis i of x, axis j of y.

    A size that only one of them knows becomes known of both. Raises ProgramError (shape_mismatch) for known sizes that
    differ; the run compares the others.
    """
    own, others = list(x.shape), list(y.shape)
    for i, j in axes:
        own[i] = others[j] = same_size(x.shape[i], y.shape[j], f"axis {i} of {x.type} and axis {j} of {y.type} differ")
    x, y = shaped(x, own), shaped(y, others)
    met = [axis for i, j in axes if x.shape[i] == -1 for axis in (i, j)]
    return x.builder.emit("check_shape", x, y, shape=x.shape, axes=tuple(met)) if met else x, y


def squared(x):
    """Matrices x, whose last two sizes are equal."""
    n = max(x.shape[-2:])
    x = shaped(x, (*x.shape[:-2], n, n))
    return agreed(x, x, (x.rank - 1, x.rank - 2))[0]
