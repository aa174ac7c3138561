"""Instructions that run stripe by stripe, so that their largest arrays exist only for some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.plan.instructions import Gemm, Instruction, Rows
from core.plan.memory import Root, View
from core.plan.row_kernels import Operand

__all__ = ["Domain", "Striped", "StripedProduct", "Window", "canonical_rows"]


@dataclass(frozen=True, slots=True)
class Domain:
    """The shape [batch, rows, columns] of the arrays that are cut into stripes: rows of one matrix of the batch."""

    batch: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.batch * self.rows * self.columns


@dataclass(frozen=True, slots=True, eq=False)
class StripedProduct:
    """A product, and the axis of it that the stripes cut.

    axis:   "m" rows of a and c, "n" columns of b and c, "k" the terms of the sums: each stripe adds to c.
    across: the axis along a row of the domain; "" if it has no single one.
    """

    product: Gemm
    axis: str
    across: str = ""

    @property
    def wide(self) -> View | None:
        """The array of the domain's shape."""
        matrices = self.product.matrices
        return next((view for view, axes in matrices if {self.axis, self.across} == set(axes)), None)


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The columns that each stripe computes: those that a mask shows to one of its rows, as a range.

    The result is that of all columns as long as the numbers that enter are moderate. The run checks that, and takes all
    columns of a matrix, or of a stripe, that does not meet the conditions.

    block:       columns; a range begins at a multiple of it, and ends at one or with the last column.
    first, last: row r sees the columns from ``r + first`` to ``r + last`` at most; None sets no limit.
    mask:        a kernel that loads the mask, if it is data: bools, or numbers of which those up to `hides` hide.
    guards:      kernels that load numbers, row by row of a matrix, which must be between -limit and limit; each row of
                 a mask must have a number that is, and none above.
    """

    block: int
    first: int | None
    last: int | None
    mask: Rows | None
    guards: tuple[Rows, ...]
    limit: float
    hides: float

    def reads(self) -> Iterator[Root]:
        for each in (*self.guards, *([self.mask] if self.mask else [])):
            yield from each.reads()


@dataclass(frozen=True, slots=True, eq=False)
class Striped(Instruction):
    """``body`` for one stripe after another, in the order of the rows.

    body:   products, and row kernels over all rows of the domain, whose rows have `columns` elements.
    inside: roots of the domain's shape that only the body uses: they have memory for one stripe.
    height: rows of a stripe; the last one of each matrix may have fewer.
    shared: whether all threads work on one stripe; the domain is then a single matrix, its row kernels have one axis of
            rows, and the roots of `inside` are in the arena and as large as a stripe.
    window: the columns that a stripe computes; None for all.
    """

    domain: Domain
    body: tuple[Rows | StripedProduct, ...]
    inside: frozenset[Root]
    height: int
    shared: bool = False
    window: Window | None = None

    @property
    def instructions(self) -> Iterator[Rows | Gemm]:
        return (each.product if isinstance(each, StripedProduct) else each for each in self.body)

    @property
    def sums(self) -> tuple[Gemm, ...]:
        """The products to which every stripe adds."""
        return tuple(each.product for each in self.body if isinstance(each, StripedProduct) and each.axis == "k")

    def reads(self) -> Iterator[Root]:
        yield from (root for each in self.instructions for root in each.reads() if self._is_outside(root))
        if self.window is not None:
            yield from self.window.reads()

    def writes(self) -> Iterator[Root]:
        return (root for each in self.instructions for root in each.writes() if self._is_outside(root))

    def _is_outside(self, root: Root) -> bool:
        return self.shared or root not in self.inside


def canonical_rows(domain: Domain, outer: tuple[int, ...], operand: Operand) -> bool:
    """Whether a row kernel over `outer` axes goes through an array of the domain row by row, without gaps."""
    expected = domain.columns
    for size, stride in zip(reversed(outer), reversed(operand.outer), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return operand.inner == 1 and expected == domain.size
