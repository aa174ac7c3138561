"""A plan, as data: what a code generator reads, for a CPU or a GPU.

A plan is a list of instructions over views of buffers. Nothing in it holds an address; a `Root` says how its address is
found, and where that is in the arena, the arena map gives the offset. The instructions that hold others, loops and
branches, are in `flow`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from core.ir import Block
from core.ir.errors import Location

__all__ = [
    "Gather",
    "Gemm",
    "Instr",
    "Instruction",
    "Interpreted",
    "Kernel",
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
]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """Instructions in the order they run."""

    instructions: tuple[Instruction, ...]


# --- memory ------------------------------------------------------------------------------------------------------


Place = Literal["arena", "given", "carried", "element"]


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A piece of memory, of `nbytes` bytes.

    place: "arena", where the arena map puts it; "given", an array that the caller passes; "carried", one of a loop's
    states, whose address changes from trip to trip; "element", what belongs to one trip: an element of a stack that a
    loop records or reads, or a trip's part of what is made for several.
    name: of the variable, for people.
    """

    nbytes: int
    place: Place = "arena"
    name: str = ""

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


@dataclass(slots=True, eq=False)
class Stack:
    """Memory for what a loop records of one value: slots of equal size, as many as it turns out to need.

    kept: whether what one run of the loop recorded outlives the next one, because an outer loop records it.
    """

    slot_bytes: int
    kept: bool = False


# --- row kernels -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operand:
    """How a row kernel walks through one array: a stride for each outer axis, and one along the row."""

    dtype: str
    outer: tuple[int, ...]
    inner: int
    written: bool = False


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction of a row kernel; its value is known by its position.

    kind: "constant" (value), "load" (operand), "iota" (position along the row, int64), "apply" (op, attrs, args),
    "reduce" (op: sum, max, ...; one value of a row from a full one), "store" (operand, args), "accumulate" (op, args,
    operand: into what that holds; value: whether a value that is the same along the row counts for each element),
    "check" (args: a bool that must hold everywhere; value: number of the check).
    full: whether it is done for each element of a row, as its value or where it is stored differs along the row.
    """

    kind: str
    dtype: str = ""
    full: bool = False
    args: tuple[int, ...] = ()
    op: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    operand: int = -1
    value: Any = None


@dataclass(frozen=True, slots=True)
class RowKernel:
    """The same instructions for every row of a domain: `outer` axes of rows, each of `inner` elements."""

    outer: tuple[int, ...]
    inner: int
    operands: tuple[Operand, ...]
    code: tuple[Instr, ...]

    @property
    def rows(self) -> int:
        return math.prod(self.outer)


# --- instructions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One thing to do. location: the client's op, the first of them where several are fused."""

    location: Location | None = field(default=None, kw_only=True)

    def reads(self) -> Iterator[Root]:
        yield from ()

    def writes(self) -> Iterator[Root]:
        yield from ()


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Instruction):
    """A row kernel and its arrays: views in the order of the kernel's operands, whose offsets alone still matter.

    ops: the client's ops in it, for people.
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

    then: what is done with each element of c [m, n] as soon as it is there; a kernel of m rows of n elements, in any
          order of them, that reduces nothing but columns.
    kept: whether c is read by anything else.
    """

    a: View
    b: View
    c: View
    accumulate: bool = False
    then: Rows | None = None
    kept: bool = True

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
    """Rows of an array at positions that are data; an index below 0 counts from the end. check: number of its check."""

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


class ScatterAdd(Indexed):
    """Zeros in `out` [outer, size, inner], then ``out[o, index[i], :] += x[o, i, :]``, in the order of i."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Kernel(Instruction):
    """Any other kernel: `kind` names its code generator, `spec` is all it must know beside its arrays.

    views: what it reads, then what it writes (the last `written` ones).
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
    """An op that the reference executor runs, called from where it stands.

    number: among those of the plan. block: the op alone. views: dense arrays, its parameters and then its results.
    reason: why it has no machine code.
    """

    number: int
    block: Block
    views: tuple[View, ...]
    reason: str

    def reads(self) -> Iterator[Root]:
        return (v.root for v in self.views[: len(self.block.params)])

    def writes(self) -> Iterator[Root]:
        return (v.root for v in self.views[len(self.block.params) :])
