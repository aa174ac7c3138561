"""Resizing of an axis: by arithmetic on slices where the sizes have a simple ratio, or by a product with a matrix.

If out / size is p / q in lowest terms, the output elements p i + k of all i read the same neighbours of element q i,
with the same weights: they are phase k. So a phase is a weighted sum of slices with stride q, and the result has the
phases in turns. Only the elements that the definition names are multiplied, and memory is read in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from core.ir.precision import HALVES
from core.ops.elementwise.arithmetic import cast, scale
from core.ops.indexing.gather import slice_
from core.ops.linalg.matmul import matmul
from core.ops.reduction.sums import sum_
from core.ops.shape.concat_split import stack
from core.ops.shape.pad import bordered
from core.ops.shape.reshape import merged, transpose

__all__ = ["CLOSE", "DENSE", "Phases", "in_float32", "in_phases", "phase_count", "phases_of", "with_matrix"]

MOST_TERMS = 32
"""Most slices that the phases of an axis read."""

MOST_STEP = 8
"""Largest stride of a slice. Beyond it the slices read much more memory than they use."""

CLOSE = 1e-9
"""Positions and weights that differ by less are equal: they are computed in float64."""

DENSE = 64
"""Most elements for each tap of an axis without phases that is resized by a product with a matrix. The taps of a longer
axis are gathered: the product would multiply zeros for the most part.
"""


@dataclass(frozen=True, slots=True)
class Phases:
    """How an axis is resized.

    length: elements of a phase.
    step:   stride of the slices.
    taps:   for each phase, the start of each slice, which may lie outside of the axis, and its weight.
    """

    length: int
    step: int
    taps: tuple[tuple[tuple[int, float], ...], ...]

    def border(self, size: int) -> tuple[int, int]:
        """Elements that the slices read before and after an axis of `size` elements."""
        starts = [at for phase in self.taps for at, _ in phase]
        return max(0, -min(starts)), max(0, max(starts) + self.step * (self.length - 1) - size + 1)


def phase_count(size: int, out: int, taps: int) -> int | None:
    """The number of phases of an axis that is resized from `size` to `out` elements; None if there are too many.

    taps: the number of elements that each output element reads.
    """
    length = math.gcd(size, out)
    few = length > 1 and out // length * taps <= MOST_TERMS and size // length <= MOST_STEP
    return out // length if few else None


def phases_of(size: int, out: int, index: np.ndarray, weight: np.ndarray) -> Phases | None:
    """The phases of an axis that is resized from `size` to `out` elements; None if they read far beyond its ends.

    index, weight: [taps, phases], the positions that the first output elements read, and their weights. A position
    outside of the axis means the element at its border.
    """
    length = math.gcd(size, out)
    taps = tuple(
        tuple((int(at), float(by)) for at, by in zip(*each, strict=True) if abs(by) > CLOSE)
        for each in zip(index.T, weight.T, strict=True)
    )
    found = Phases(length, size // length, taps)
    return found if all(taps) and sum(found.border(size)) < size else None


def in_phases(x, axis: int, phases: Phases):
    """x with one axis resized."""
    before, after = phases.border(x.shape[axis])
    x = bordered(x, axis, before, after, "replicate")
    made = []
    for taps in phases.taps:
        terms = []
        for at, weight in taps:
            start = before + at
            end = start + phases.step * (phases.length - 1) + 1
            part = slice_(x, axes=(axis,), starts=(start,), ends=(end,), steps=(phases.step,))
            terms.append(part if weight == 1.0 else scale(part, scale=weight))
        made.append(sum_(*terms) if len(terms) > 1 else terms[0])
    return made[0] if len(made) == 1 else merged(stack(*made, axis=axis + 1), axis, axis + 2)


def with_matrix(x, axis: int, weights):
    """x with one axis resized by a product with `weights` [size, out]."""
    order = (*(i for i in range(x.rank) if i != axis), axis)
    resized = matmul(transpose(x, axes=order), cast(weights, dtype=x.dtype))
    return transpose(resized, axes=tuple(order.index(i) for i in range(x.rank)))


def in_float32(x, function: Callable):
    """``function(x)``, a sum with weights, computed in float32 and rounded once if x has 16-bit floats."""
    return cast(function(cast(x, dtype="float32")), dtype=x.dtype) if x.dtype in HALVES else function(x)
