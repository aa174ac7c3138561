"""What kernels must know beside their arrays: windows that slide over images, and a matrix that is laid out anew.

Every image has three spatial axes here; those it lacks are of size 1. Windows never hang over the end of an image:
where they would, the image is first copied into a room that holds the padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Correlation", "Pool", "Room", "Scattered", "Tiles", "Triple", "Turned"]

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Room:
    """Planes of `size`, each copied into a room of its own, `before` elements behind its start, on every axis.

    A row of the room is kept as `phases` parts: its element ``q * phases + p`` is element q of part p, so that windows
    that move by `phases` meet elements that lie side by side.

    rows:  sizes of the room along the first two axes.
    reach: elements of a row, before it is parted, that windows meet; none behind them has a place.
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
        """In additions and multiplications, or what takes as long."""
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
        """Elements of one row of the room."""
        return self.phases * self.length

    @property
    def plane(self) -> int:
        return math.prod(self.rows) * self.row

    def along(self, position: int) -> int:
        """Where the element at `position` of a row lies in it."""
        return position % self.phases * self.length + position // self.phases


@dataclass(frozen=True, slots=True)
class Correlation:
    """A convolution, or one of its adjoints, of `batch` images, whose windows move by 1 along the last axis.

    channels, out: of the image and of the result, in each group. counts: windows along each axis.
    plane:         elements from one channel of the image to the next.
    moves, taps:   elements from one window to the next, and from one element of it to the next, on the first two axes.
    along:         where the elements of a window's row lie.
    together:      of products of matrices: images that one takes together; or, of a single one, so many `rows` of
                   windows, 0 for all.
    shares:        how many products there are to the filters of a group, each for as many of the image's channels.
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

    @property
    def work(self) -> int:
        """In additions and multiplications, or what takes as long."""
        return 2 * self.batch * self.groups * self.out * self.depth * self.pixels

    @property
    def units(self) -> int:
        """Images of one group each."""
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
        """Products that are summed to one element of the result."""
        return self.channels * self.size


@dataclass(frozen=True, slots=True)
class Pool:
    """A reduction of each window of `planes` planes; the planes have no padding, or have been copied into rooms.

    kind:    "max" or "sum".
    steps:   elements from one row of a plane to the next, on the first two axes; `plane`: from one plane to the next.
    numbers: how the number of the largest element grows along each axis of a window. Where `corner` is given, it also
             grows by that on each axis from window to window, and starts at `first`.
    index:   dtype of the numbers, or nothing if nobody reads them.
    before:  of the windows' first element, what is padding.
    last:    whether of several NaNs the last counts.
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

    @property
    def work(self) -> int:
        """In additions and multiplications, or what takes as long."""
        return 8 * self.planes * math.prod(self.counts) * math.prod(self.kernel)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Tiles:
    """Windows that tile planes of `size`: each element of `counts` spread over a window of `kernel`.

    chosen: whether it goes only to the element of which the number is given.
    """

    dtype: str
    planes: int
    size: Triple
    kernel: Triple
    counts: Triple
    chosen: bool

    @property
    def work(self) -> int:
        """In additions and multiplications, or what takes as long."""
        return 8 * self.planes * math.prod(self.size)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Scattered:
    """`count` elements for each of `planes` planes of `size`, read or added at positions that are data."""

    dtype: str
    index: str
    planes: int
    size: int
    count: int

    @property
    def work(self) -> int:
        """In additions and multiplications, or what takes as long."""
        return 8 * self.planes * (self.size + 4 * self.count)

    @property
    def units(self) -> int:
        return self.planes


@dataclass(frozen=True, slots=True)
class Turned:
    """A matrix [rows, columns], whose rows are `step` elements apart, to be laid out as [columns, rows]."""

    rows: int
    columns: int
    step: int
    dtype: str

    @property
    def work(self) -> int:
        return self.rows * self.columns * 4
