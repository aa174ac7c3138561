"""The adjoint of a convolution to its filters, with the output channels in the lanes of vectors.

It takes two kernels. `filter_sums` adds products up to [share, group, filter element, output channel], where each share
is a part of the batch: shares give threads work where filters are few, and short sums are exact. `filter_total` adds
the shares up, in their order, and stores [group, output channel, filter element].
"""

from __future__ import annotations

from dataclasses import dataclass

from core.plan.geometry import Correlation
from core.plan.target import FilterSumLimits

__all__ = ["FilterSums", "FilterTotal", "filter_sums_of"]

LINE = 16
"""Elements to whose multiple the output channels of a sum are padded: no vector is longer."""


@dataclass(frozen=True, slots=True)
class FilterSums:
    """shares: parts of the batch with sums of their own."""

    conv: Correlation
    shares: int

    @property
    def padded(self) -> int:
        """Output channels of one filter element, with the padding that completes the last vector."""
        return -(-self.conv.out // LINE) * LINE

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the sums."""
        return self.shares, self.conv.groups, self.conv.depth, self.padded

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.conv.work


@dataclass(frozen=True, slots=True)
class FilterTotal:
    """The total of `sums` over its shares, transposed."""

    sums: FilterSums

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        shares, groups, depth, padded = self.sums.shape
        return 4 * (shares + 2) * groups * depth * padded


def filter_sums_of(conv: Correlation, limits: FilterSumLimits) -> FilterSums | None:
    """The spec of `filter_sums`, or None if another form is faster."""
    terms = conv.batch * conv.pixels
    if conv.out < limits.out or conv.depth < limits.depth or terms < limits.terms:
        return None
    filters = conv.groups * conv.depth * conv.out
    given = conv.units * conv.out * conv.pixels
    for shares in (8, 4, 2):
        if conv.batch >= shares and terms >= shares * limits.share_terms and shares * filters <= given:
            return FilterSums(conv, shares)
    return FilterSums(conv, 1)
