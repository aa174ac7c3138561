"""The instructions of a plan, as data for a code generator. An instruction reads and writes views of roots.

`flow` has the instructions that hold other instructions: loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from core.ir import Block
from core.ir.errors import Location
from core.plan.memory import Root, View
from core.plan.row_kernels import RowKernel

__all__ = [
    "PRODUCT_BLOCK",
    "Gather",
    "Gemm",
    "IndexPattern",
    "Indexed",
    "Instruction",
    "Instructions",
    "Interpreted",
    "Kernel",
    "Limited",
    "Rows",
    "ScatterAdd",
    "product_block",
]

PRODUCT_BLOCK, PRODUCT_PARTS = 128, 8
"""If only the run tells the number of rows, or terms, of a product, its largest value is a multiple of PRODUCT_BLOCK.
The product takes them in about PRODUCT_PARTS parts.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """An instruction. location: the client's op; the first one if several are fused."""

    location: Location | None = field(default=None, kw_only=True)

    def reads(self) -> Iterator[Root]:
        """The roots that it reads."""
        yield from ()

    def writes(self) -> Iterator[Root]:
        """The roots that it writes."""
        yield from ()


@dataclass(frozen=True, slots=True, eq=False)
class Instructions:
    """Instructions in the order they run."""

    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Instruction):
    """A row kernel and its arrays.

    views: in the order of the kernel's operands, which have the strides; of the views only root and offset count.
    ops:   the ops in it, for profiles.
    """

    kernel: RowKernel
    views: tuple[View, ...]
    ops: tuple[str, ...] = ()

    def reads(self) -> Iterator[Root]:
        return (v.root for v in self.views)

    def writes(self) -> Iterator[Root]:
        return (v.root for v, o in zip(self.views, self.kernel.operands, strict=True) if o.written)


@dataclass(frozen=True, slots=True, eq=False)
class Gemm(Instruction):
    """``c = a b``, or ``c += a b``: a [batch..., m, k], b [batch..., k, n], c [batch..., m, n].

    then: the epilogue: a kernel of m rows of n elements that runs on each element of c [m, n] as soon as it is
          computed. It may visit elements in any order, and reduces along columns only. In a batch it is the kernel
          of each product and does not reduce. Its views have the shape of c, but for those of sums.
    kept: whether another instruction reads c; if not, c need not be stored.
    """

    a: View
    b: View
    c: View
    accumulate: bool = False
    then: Rows | None = None
    kept: bool = True

    @property
    def matrices(self) -> tuple[tuple[View, str], ...]:
        """Each matrix with the names of its last two axes."""
        return (self.a, "mk"), (self.b, "kn"), (self.c, "mn")

    @property
    def arrays(self) -> tuple[View, ...]:
        """The matrices, and the arrays of the epilogue."""
        return (self.a, self.b, self.c, *(self.then.views if self.then else ()))

    def reads(self) -> Iterator[Root]:
        yield from (self.a.root, self.b.root)
        if self.accumulate:
            yield self.c.root
        if self.then:
            yield from self.then.reads()

    def writes(self) -> Iterator[Root]:
        yield self.c.root
        if self.then:
            yield from self.then.writes()


@dataclass(frozen=True, slots=True, eq=False)
class Indexed(Instruction):
    """Rows of an array at positions that are data. An index below 0 counts from the end. check: number of its check."""

    x: View
    index: View
    out: View
    check: int

    def reads(self) -> Iterator[Root]:
        yield from (self.x.root, self.index.root)

    def writes(self) -> Iterator[Root]:
        yield self.out.root


class Gather(Indexed):
    """``out[o, i, :] = x[o, index[i], :]``, x [outer, size, inner] with adjacent elements along its last axis."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IndexPattern:
    """An index that follows from positions: element (a, b) of [count, length] is ``first + a step + b stride``.

    Both steps are above 0, and all elements name rows that exist.
    """

    first: int
    count: int
    step: int
    length: int
    stride: int


@dataclass(frozen=True, slots=True, eq=False)
class ScatterAdd(Indexed):
    """Zeros in `out` [outer, size, inner], then ``out[o, index[i], :] += x[o, i, :]``, in the order of i.

    16-bit rows of x are added in float32. If `out` has 16 bits, its sums are rounded once. Many rows are added in
    blocks (`core.ops.common.scatter_rows`).

    op:   "sum", or another reduction, which begins with its identity.
    rows: positions of the rows of x: ``x[o, rows[i], :]`` is added; None adds them in order.
    rows_check: number of the check of `rows`.
    order: the order of the index, which then is not read, and its bounds (`core.device.index_orders`). If most results
           have no rows, `out` is filled already.
    pattern: of the index, which then is not read.
    """

    op: str = "sum"
    rows: View | None = None
    rows_check: int = 0
    order: tuple[View, View] | None = None
    pattern: IndexPattern | None = None

    def reads(self) -> Iterator[Root]:
        yield self.x.root
        if self.order is not None:
            yield from (each.root for each in self.order)
        elif self.pattern is None:
            yield self.index.root
        if self.rows is not None:
            yield self.rows.root


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Instruction):
    """Any other kernel.

    kind:  names its code generator.
    spec:  its sizes and parameters, from `geometry`.
    views: the arrays that it reads, then the `written` arrays that it writes.
    check: number of its check; 0 if it has none.
    """

    kind: str
    spec: Any
    views: tuple[View, ...]
    written: int = 1
    check: int = 0

    def reads(self) -> Iterator[Root]:
        return (v.root for v in self.views[: -self.written])

    def writes(self) -> Iterator[Root]:
        return (v.root for v in self.views[-self.written :])


@dataclass(frozen=True, slots=True, eq=False)
class Interpreted(Instruction):
    """An op that the reference executor runs; generated code calls it from this place.

    number: among the interpreted ops of the plan.
    block:  of this op alone.
    views:  dense arrays: the parameters of the block, then its results.
    reason: why it has no machine code.
    lengths: for each view its axes whose size only the run tells, and the scalars with these sizes.
    check:  number of the check that fails if a result is larger than its view; 0 if that cannot be.
    """

    number: int
    block: Block
    views: tuple[View, ...]
    reason: str
    lengths: tuple[tuple[tuple[int, View], ...], ...] = ()
    check: int = 0

    @property
    def arrays(self) -> tuple[View, ...]:
        """The views, and the scalars with their lengths."""
        return (*self.views, *(v for own in self.lengths for _, v in own))

    def reads(self) -> Iterator[Root]:
        yield from self._roots(slice(len(self.block.params)))

    def writes(self) -> Iterator[Root]:
        yield from self._roots(slice(len(self.block.params), None))

    def _roots(self, part: slice) -> Iterator[Root]:
        yield from (v.root for v in self.views[part])
        yield from (v.root for own in self.lengths[part] for _, v in own)


@dataclass(frozen=True, slots=True, eq=False)
class Limited(Instruction):
    """A part of an instruction on arrays whose first size only the run tells: the work of their length.

    instruction: on arrays of the largest size. Elements beyond the length are unspecified. The units of a kernel follow
                 each other as the elements along the first axis do.
    bound, length: the largest size, and the scalar with the length.
    along: of a product: "rows" if the length is that of its rows, "terms" if it is that of its sums. The operands are
           zero from the length to the next multiple of `block` then.
    last: for the operands of such a product: an array to read in place of the last block, if the length is no multiple
          of one, with the strides of the operand; None for an operand that is zero there itself.
    """

    instruction: Rows | Gemm | Gather | Kernel
    bound: int
    length: View
    along: Literal["rows", "terms"] = "rows"
    last: tuple[View | None, View | None] = (None, None)

    @property
    def block(self) -> int:
        """Rows, or terms, of a product that are computed together."""
        return product_block(self.bound)

    def reads(self) -> Iterator[Root]:
        yield self.length.root
        yield from (each.root for each in self.last if each is not None)
        yield from self.instruction.reads()

    def writes(self) -> Iterator[Root]:
        yield from self.instruction.writes()


def product_block(bound: int) -> int:
    """Rows, or terms, that a product of at most `bound`, a multiple of `PRODUCT_BLOCK`, takes at a time."""
    blocks = bound // PRODUCT_BLOCK
    most = max(1, blocks // PRODUCT_PARTS)
    return PRODUCT_BLOCK * next(n for n in range(most, 0, -1) if blocks % n == 0)
