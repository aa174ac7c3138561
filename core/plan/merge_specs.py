"""Specifications of the kernels that merge rows by their numbers (`Kernel.spec`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MergedRows", "RowOrder"]


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The order of `count` ids of rows of a table by their numbers; equal ones keep their order.

    dtype:   of the ids, which count from the end of the table if they are negative.
    size:    rows of the table.
    padding: the row whose ids are left out; -1 for none.
    kept:    whether a bool for each id says if it is kept.
    """

    dtype: str
    count: int
    size: int
    padding: int = -1
    kept: bool = False

    @property
    def room(self) -> int:
        """The most distinct rows."""
        return min(self.count, self.size)

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return 64 * self.count

    @property
    def units(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class MergedRows:
    """Sums of the rows of x [count, inner] by an order; `room` sums, of which the last ones may be empty."""

    dtype: str
    count: int
    room: int
    inner: int

    @property
    def work(self) -> int:
        """Time, in additions and multiplications that take as long."""
        return self.count * (2 * self.inner + 40)

    @property
    def units(self) -> int:
        return self.room
