"""Specifications of kernels that walk tables: rows of sequences, sorted vectors, boxes in images, scores of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["BestPath", "RegionBins", "Search", "Spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """One number for each of `rows` rows of `count` sequences that follow each other.

    Row r of sequence i gets ``first[i] + step * r``. Rows after the last sequence get 0.
    """

    count: int
    rows: int
    step: int

    units: int = 1

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.count + 2 * self.rows


@dataclass(frozen=True, slots=True)
class Search:
    """The positions of `count` values in an ascending vector of `size` elements; NaN is the largest value.

    right: whether a value's position is after its equals, not before them.
    """

    dtype: str
    size: int
    count: int
    right: bool

    @property
    def units(self) -> int:
        return self.count

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.count * max(self.size, 1).bit_length()


@dataclass(frozen=True, slots=True)
class RegionBins:
    """The position of the largest element of each bin of each box, in images [images, channels, height, width].

    counts: bins along the height and the width of a box.
    """

    dtype: str
    boxes: int
    channels: int
    size: tuple[int, int]
    counts: tuple[int, int]

    @property
    def units(self) -> int:
        """Boxes times channels."""
        return self.boxes * self.channels

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long, if a box is the whole image."""
        return 4 * self.units * (math.prod(self.size) + 4 * math.prod(self.counts))


@dataclass(frozen=True, slots=True)
class BestPath:
    """The best path of each of `batch` sequences through `time` steps of `labels` labels (Viterbi 1967)."""

    dtype: str
    batch: int
    time: int
    labels: int

    @property
    def units(self) -> int:
        return self.batch

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 2 * self.batch * self.time * self.labels * (self.labels + 8)
