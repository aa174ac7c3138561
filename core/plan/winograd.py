"""Convolution with 3 x 3 filters by the algorithm F(2x2, 3x3) of Winograd (Lavin and Gray 2016).

Four pixels of the result, a square of 2 x 2, need 36 multiplications for each pair of channels. Here they need 16: a
square of 4 x 4 pixels of the image and the filter are transformed to 16 numbers each, by additions. The products of
these numbers, summed over the channels of the image, are transformed to the four pixels. So a convolution is 16
products of matrices, whose columns are squares. `winograd_filters` transforms the filters, `winograd` does the rest.

Each result reads the same numbers of the image as a direct sum, so a number that is not finite reaches no other one.
But the elements of a filter share their rounding errors: those of a sum are relative to the largest element, and the
adjoint to filters mixes what its nine elements read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from core.plan.geometry import Correlation
from core.plan.target import WinogradLimits
from core.plan.windows import Windows

__all__ = ["Winograd", "WinogradFilters", "WinogradSums", "WinogradTotal", "winograd_of", "winograd_sums_of"]

LINE = 16
"""Elements to whose multiple the output channels of a sum are padded: no vector is longer."""


@dataclass(frozen=True, slots=True)
class Winograd:
    """Squares of `conv`, read from planes of `size` that have no padding.

    size:   rows and columns of a plane of the image.
    before: rows and columns of padding before its first element.
    rows:   rows of squares that are computed together.
    """

    conv: Correlation
    size: tuple[int, int]
    before: tuple[int, int]
    rows: int

    @property
    def squares(self) -> tuple[int, int]:
        """Squares along both axes of the result."""
        _, height, width = self.conv.counts
        return -(-height // 2), -(-width // 2)

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        conv = self.conv
        each = 32 * conv.channels * conv.out + 32 * conv.channels + 24 * conv.out
        return conv.units * math.prod(self.squares) * each


@dataclass(frozen=True, slots=True)
class WinogradFilters:
    """The filters of `conv`, transformed: [group, number of the 16, channel, output channel].

    flipped: whether they are given as [group, channel, out, kernel] and each kernel axis is to be reversed; else they
             are given as [group, out, channel, kernel].
    """

    conv: Correlation
    flipped: bool

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the transformed filters."""
        return self.conv.groups, 16, self.conv.channels, self.conv.out

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 4 * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WinogradSums:
    """Sums over the squares of a share of the batch, for each of the 16 numbers of each pair of channels.

    The adjoint to filters multiplies the transformed image by the transformed cotangents.

    shares: parts of the squares with sums of their own.
    blocks: parts of the channels of the image.
    """

    squares: Winograd
    shares: int
    blocks: int

    @property
    def padded(self) -> int:
        """Output channels of one sum, with the padding that completes the last vector."""
        return -(-self.squares.conv.out // LINE) * LINE

    @property
    def share(self) -> int:
        """Elements of one share."""
        return math.prod(self.shape[1:])

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """The shape of the sums."""
        conv = self.squares.conv
        return self.shares, conv.groups, 16, conv.channels, self.padded

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.squares.work


@dataclass(frozen=True, slots=True)
class WinogradTotal:
    """The total of `sums` over its shares, transformed to filters."""

    sums: WinogradSums

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 4 * math.prod(self.sums.shape)


def winograd_of(conv: Correlation, windows: Windows, limits: WinogradLimits | None) -> Winograd | None:
    """The spec of the kernel, or None if another form is faster. conv, windows: of the same convolution."""
    if limits is None or windows.kernel != (1, 3, 3) or windows.strides != (1, 1, 1) or windows.dilations != (1, 1, 1):
        return None
    if windows.size[0] != 1 or windows.counts[0] != 1 or windows.before[0] != 0:
        return None
    if min(conv.channels, conv.out) < limits.channels or conv.channels * conv.out > limits.filters:
        return None
    conv = replace(conv, plane=math.prod(windows.size))
    made = Winograd(conv, windows.size[1:], windows.before[1:], 1)
    rows, columns = made.squares
    lanes = limits.lanes(conv.dtype, columns)
    vectors = -(-columns // lanes)
    products = 16 * rows * vectors * lanes
    if vectors > limits.vectors or products > limits.products * conv.pixels:
        return None
    if conv.units * rows * columns < limits.squares:
        return None
    row = 16 * vectors * lanes * (conv.channels + conv.out)
    fitting = limits.elements // row
    # Blocks of fewer rows than this read more numbers of the filters, which no near cache holds, than of their squares.
    worth = min(8 * conv.channels * conv.out // row, rows // -(-limits.units // conv.units))
    most = max(1, min(rows, max(fitting, worth), limits.vectors // vectors))
    return replace(made, rows=-(-rows // -(-rows // most)))


def winograd_sums_of(conv: Correlation, windows: Windows, limits: WinogradLimits | None) -> WinogradSums | None:
    """The spec of the sums of the adjoint to filters, or None if another form is faster."""
    squares = winograd_of(conv, windows, limits)
    if squares is None or limits is None:
        return None
    parts = (n for n in range(max(1, conv.channels // limits.block), 0, -1) if conv.channels % n == 0)
    one = WinogradSums(squares, 1, next(parts))
    rows, columns = squares.squares
    for shares in (8, 4, 2):
        terms = conv.batch * rows * columns // shares
        if terms >= limits.terms and shares * one.share <= conv.units * conv.channels * squares.conv.plane:
            return replace(one, shares=shares)
    return one
