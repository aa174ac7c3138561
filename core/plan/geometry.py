"""Specifications of kernels (`Kernel.spec`): paddings, convolutions, pooling, and transpositions.

Every image has three spatial axes here; missing ones have size 1. Windows never reach beyond an image: where they
would, the image is first copied into a larger array that contains its padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Correlation",
    "Order",
    "Padding",
    "Pool",
    "Scan",
    "Scattered",
    "Selection",
    "Tail",
    "Tiles",
    "Transposition",
    "Triple",
]

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Padding:
    """Planes of `size`, each copied into a padded plane, `before` elements from its start on every axis.

    A padded row is stored as `phases` parts: its element ``q * phases + p`` is element q of part p, so that windows
    that move by `phases` read adjacent elements.

    rows:  sizes of a padded plane along the first two axes.
    reach: elements of a padded row that windows read; elements after them are not stored.
    fill:  the number in the padding.
    """

    dtype: str
    planes: int
    size: Triple
    before: Triple
    rows: tuple[int, int]
    reach: int
    phases: int = 1
    fill: float = 0.0

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.planes * self.plane

    @property
    def units(self) -> int:
        return self.planes

    @property
    def length(self) -> int:
        """Elements of one part of a row."""
        return -(-self.reach // self.phases)

    @property
    def row(self) -> int:
        """Elements of one padded row."""
        return self.phases * self.length

    @property
    def plane(self) -> int:
        return math.prod(self.rows) * self.row

    def along(self, position: int) -> int:
        """The index in the stored row of the element at `position` of a padded row."""
        return position % self.phases * self.length + position // self.phases


@dataclass(frozen=True, slots=True)
class Correlation:
    """A convolution of `batch` images, or one of its adjoints. Windows move by 1 along the last axis.

    channels, out: channels of the image and of the result, in each group.
    counts:        windows along each axis.
    plane:         elements from one channel of the image to the next.
    moves, taps:   elements from one window to the next, and between elements of a window, on the first two axes.
    along:         offsets of the elements of a window's row.
    together:      images that one product of matrices takes together, if the convolution runs as products.
    rows:          rows of windows that one product takes, if it takes part of an image; 0 for all.
    shares:        products to the filters of one group; each takes the same number of image channels.
    given:         dtype of the operands, if the convolution runs as products of pairs of 16-bit floats; "" for `dtype`.
    """

    dtype: str
    batch: int
    groups: int
    channels: int
    out: int
    kernel: Triple
    counts: Triple
    plane: int
    moves: tuple[int, int]
    taps: tuple[int, int]
    along: tuple[int, ...]
    together: int = 1
    rows: int = 0
    shares: int = 1
    given: str = ""

    @property
    def operands(self) -> str:
        """The dtype of the operands."""
        return self.given or self.dtype

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 2 * self.batch * self.groups * self.out * self.depth * self.pixels // (2 if self.given else 1)

    @property
    def units(self) -> int:
        """Images times groups."""
        return self.batch * self.groups

    @property
    def pixels(self) -> int:
        return math.prod(self.counts)

    @property
    def size(self) -> int:
        """Elements of a filter's channel."""
        return math.prod(self.kernel)

    @property
    def depth(self) -> int:
        """Products that are summed up to one element of the result."""
        return self.channels * self.size


@dataclass(frozen=True, slots=True)
class Pool:
    """A reduction of each window of `planes` planes. The planes need no padding, or are padded already.

    steps:   elements from one row of a plane to the next, on the first two axes.
    plane:   elements from one plane to the next.
    before:  elements of padding before a plane, on each axis.
    index:   dtype of the second result, the number of the largest element of each window; empty if it is not computed.
    numbers: how that number grows along each axis of a window.
    corner:  how it grows on each axis from window to window; and `first`: its value at the first element.
    last:    whether the last one of several NaNs counts, and not the first one.
    size:    of a plane, if windows may reach beyond it: elements outside are left out. Zeros if they do not.
    """

    kind: Literal["max", "sum"]
    dtype: str
    planes: int
    plane: int
    steps: tuple[int, int]
    kernel: Triple
    strides: Triple
    counts: Triple
    before: Triple = (0, 0, 0)
    numbers: Triple = (0, 0, 0)
    corner: Triple = (0, 0, 0)
    first: int = 0
    index: str = ""
    last: bool = True
    size: Triple = (0, 0, 0)

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.planes * math.prod(self.counts) * math.prod(self.kernel)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Tiles:
    """Windows side by side in planes of `size`: each of `counts` elements is spread over its window of `kernel`.

    chosen: whether it goes only to the element with the given number in its window.
    """

    dtype: str
    planes: int
    size: Triple
    kernel: Triple
    counts: Triple
    chosen: bool

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.planes * math.prod(self.size)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Scattered:
    """`count` elements of each of `planes` planes of `size`, read from or added at positions that are data."""

    dtype: str
    index: str
    planes: int
    size: int
    count: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 8 * self.planes * (self.size + 4 * self.count)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Transposition:
    """A matrix [rows, columns], whose rows are `step` elements apart, to be stored as [columns, rows]."""

    rows: int
    columns: int
    step: int
    dtype: str

    @property
    def work(self) -> int:
        return self.rows * self.columns * 4


@dataclass(frozen=True, slots=True)
class Scan:
    """Running results along the middle axis of dense arrays [outer, size, inner].

    kind:      "sum" and "prod" of the elements so far; "linear", ``a[t] * out[t - 1] + b[t]`` of two arrays; "logsum",
               the logarithm of the sum of exponentials; "argmax" and "argmin", the first position of the extreme.
    exclusive: whether an element counts only from the next result on.
    reverse:   whether it runs from the end.
    restarts:  whether a "linear" one reads a bool for each position, and has the result b[t] where it is set.
    """

    kind: Literal["sum", "prod", "linear", "logsum", "argmax", "argmin"]
    dtype: str
    outer: int
    size: int
    inner: int
    exclusive: bool = False
    reverse: bool = False
    restarts: bool = False

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.outer * self.size * self.inner * (40 if self.kind == "logsum" else 8)


@dataclass(frozen=True, slots=True)
class Order:
    """The stable order of the elements along the middle axis of a dense array [outer, size, inner]; NaN comes last.

    last:       instead of the positions in order, whether each element is the last one that equals it.
    first, end: the range of the positions that are wanted; no end is the end of the row.
    """

    dtype: str
    outer: int
    size: int
    inner: int
    descending: bool = False
    last: bool = False
    first: int = 0
    end: int | None = None

    @property
    def wanted(self) -> int:
        """The number of positions of each row of the result."""
        return (self.size if self.end is None else self.end) - self.first

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.outer * self.size * self.inner * (64 if 4 * self.wanted > self.size else 16)

    @property
    def units(self) -> int:
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class Selection:
    """The positions of the true elements of a dense array of bools of `shape`, in row-major order, and their number.

    rows: of the array of positions.
    """

    shape: tuple[int, ...]
    rows: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.size * (4 + 8 * len(self.shape))

    @property
    def units(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Tail:
    """Zeros in a matrix from a length, which the run tells, to the next multiple of `block`.

    size, step: the largest length, and the stride along that axis. width, along: the other axis and its stride.
    """

    dtype: str
    size: int
    step: int
    width: int
    along: int
    block: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.block * self.width

    @property
    def units(self) -> int:
        return 1
