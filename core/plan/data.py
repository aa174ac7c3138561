"""The instructions of a plan, and the memory that they work on, as data for a code generator.

An instruction reads and writes views of roots. A root is a piece of memory; it holds no address, but says how its
address is found. `flow` has the instructions that hold other instructions: loops and branches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from core.ir import Block
from core.ir.errors import Location
from core.ops.common.types import as_dtype

__all__ = [
    "PRODUCT_BLOCK",
    "Gather",
    "Gemm",
    "Instr",
    "Instruction",
    "Interpreted",
    "Kernel",
    "Limited",
    "MadeRows",
    "MergedOperand",
    "Operand",
    "Place",
    "Root",
    "RowKernel",
    "Rows",
    "ScatterAdd",
    "Sequence",
    "Stack",
    "View",
    "bytes_of",
    "contiguous",
    "is_matrix",
    "product_block",
]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """Instructions in the order they run."""

    instructions: tuple[Instruction, ...]


# --- memory ------------------------------------------------------------------------------------------------------


PRODUCT_BLOCK, PRODUCT_PARTS = 128, 8
"""Of the rows, or terms, of a product whose number only the run tells: they are multiples of the first, and it takes
them in about as many parts as the second.
"""

Place = Literal["arena", "given", "carried", "element", "constant", "none"]


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * as_dtype(dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A piece of memory of `nbytes` bytes.

    place: "arena"   the arena map has its offset.
           "given"   an array that the caller passes.
           "carried" a state of a loop, whose address changes from trip to trip.
           "element" memory of one trip: an element of a stack that a loop records or reads, or the part of one trip in
                     memory for several.
           "constant" part of the generated code; nothing writes it.
           "none"    no memory; only the strides of its views count.
    name:  of the variable, for debugging.
    data:  the bytes of a constant.
    """

    nbytes: int
    place: Place = "arena"
    name: str = ""
    data: bytes = b""

    def __repr__(self) -> str:
        return f"<{self.place} {self.name or hex(id(self))[-5:]} {self.nbytes}>"


@dataclass(frozen=True, slots=True)
class View:
    """An array in memory. strides and offset count elements."""

    root: Root
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def is_matrix(view: View) -> bool:
    """Whether the last two axes are matrices by rows or by columns that have no gaps inside and do not overlap."""
    (rows, columns), (down, along) = view.shape[-2:], view.strides[-2:]
    return _has_lines(rows, columns, down, along) or _has_lines(columns, rows, along, down)


def _has_lines(count: int, length: int, step: int, along: int) -> bool:
    """Whether lines of adjacent elements, as far apart as their length or more, follow each other."""
    return (length == 1 or along == 1) and (count == 1 or step >= length)


@dataclass(slots=True, eq=False)
class Stack:
    """Memory in which a loop records one value: slots of equal size, whose number only the run determines.

    kept: whether the slots of one run of the loop outlive the next run, because an outer loop records the stack.
    """

    slot_bytes: int
    kept: bool = False


# --- row kernels -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operand:
    """The path of a row kernel through one array: a stride for each outer axis, and one along the row."""

    dtype: str
    outer: tuple[int, ...]
    inner: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction of a row kernel. Other instructions refer to its value by its position in the kernel.

    kind: "constant"   the number `value`.
          "load"       an element of `operand`.
          "lookup"     the element of `operand` that is `args`, an int64, times `step` further on. attrs: `step`.
          "iota"       `value` plus the position along each axis times a stride, int64. attrs: the strides, `outer`
                       and `inner`, as those of an operand.
          "apply"      elementwise op `op` with `attrs` on `args`.
          "reduce"     one value for the row: the reduction `op` (sum, max, ...) of `args`.
          "store"      write `args` to `operand`.
          "accumulate" reduce `args` with `op` into the contents of `operand`. value: whether a value that is constant
                       along the row counts once for each element.
          "check"      `args`, a bool, must be true everywhere; else the number `value` is written to `operand`.
    full:   whether it runs for each element of a row, because its value or its store address varies along the row.
    rounds: of "apply": whether a 16-bit result is rounded (see `core.plan.unrounded`).
    """

    kind: str
    dtype: str = ""
    full: bool = False
    args: tuple[int, ...] = ()
    op: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    operand: int = -1
    value: Any = None
    rounds: bool = True


@dataclass(frozen=True, slots=True)
class MadeRows:
    """How rows that reach no memory are computed.

    kernel: one row for each of them, in order; its last instruction is the value of the row.
    params: for each operand of `kernel` the number of an operand of the row kernel that uses the rows, of which only
            the address counts.
    """

    kernel: RowKernel
    params: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MergedOperand:
    """An operand of a row kernel whose rows are sums of the rows of an array [count, inner]: numbers of operands.

    x:             the array, of which only the address counts.
    order, starts: int32; row i is the sum of rows ``x[order[k]]``, k from ``starts[i]`` to ``starts[i + 1] - 1``.
    count:         elements of `order`.
    made:          how the rows of x are computed, if x is not in memory.
    """

    x: int
    order: int
    starts: int
    count: int
    made: MadeRows | None = None


@dataclass(frozen=True, slots=True)
class RowKernel:
    """The same instructions for every row of a domain: `outer` are the axes of rows, `inner` the elements of a row."""

    outer: tuple[int, ...]
    inner: int
    operands: tuple[Operand, ...]
    code: tuple[Instr, ...]
    merged: tuple[MergedOperand, ...] = ()

    @property
    def rows(self) -> int:
        return math.prod(self.outer)


# --- instructions ------------------------------------------------------------------------------------------------


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
    """``out[o, i, :] = x[o, index[i], :]``, x [outer, size, inner]."""

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

    16-bit rows of x are added in float32. If `out` has 16 bits, its sums are rounded once.

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


def product_block(bound: int) -> int:
    """Rows, or terms, that a product of at most `bound`, a multiple of `PRODUCT_BLOCK`, takes at a time."""
    blocks = bound // PRODUCT_BLOCK
    most = max(1, blocks // PRODUCT_PARTS)
    return PRODUCT_BLOCK * next(n for n in range(most, 0, -1) if blocks % n == 0)


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
