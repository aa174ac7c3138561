"""Instructions that change and read tensor arrays that grow (`core.plan.flow.Growing`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from core.plan.flow import Growing, Recording, Source, Span, roots_of
from core.plan.instructions import Instruction, Instructions
from core.plan.memory import Root, Stack, View

__all__ = [
    "AddArrays",
    "ArrayOp",
    "ArrayWork",
    "CountRows",
    "CutRows",
    "Flatten",
    "JoinRows",
    "KeepArray",
    "Kind",
    "MakeRuns",
    "OpenSpan",
]

Kind = Literal["clear", "copy", "put", "erase", "extend", "fit", "get", "join", "count", "same", "alike"]


@dataclass(frozen=True, slots=True, eq=False)
class ArrayWork(Instruction):
    """An instruction on tensor arrays. It does nothing after a check has failed, since its operands may be wrong.

    target: the array that it changes.
    source: the array that it reads.
    """

    target: Growing | None
    source: Source | None

    @property
    def stack(self) -> Stack | None:
        """The stack that it may have to enlarge."""
        return self.target.stack if self.target is not None else None

    @property
    def sources(self) -> Iterator[Source]:
        """The arrays that it reads."""
        if self.source is not None:
            yield self.source

    def reads(self) -> Iterator[Root]:
        if self.target is not None:
            yield self.target.count.root
        for each in self.sources:
            yield from roots_of(each)

    def writes(self) -> Iterator[Root]:
        if self.target is not None:
            yield self.target.count.root


@dataclass(frozen=True, slots=True, eq=False)
class ArrayOp(ArrayWork):
    """
    kind: "clear"  the target becomes empty.
          "copy"   the target becomes equal to the source.
          "put"    element `index` of the target becomes `value`. The target grows if it must, by zeros in between.
          "erase"  element `index` of the target becomes zero, if it exists; the last one is left out.
          "extend" the target gets zeros up to the length of the source.
          "fit"    the same, and elements beyond that length are left out.
          "get"    `value` becomes element `index` of the source, or zeros if there is none.
          "join"   `value` becomes all elements of the source, then zeros.
          "count"  `value` becomes the number of elements of the source.
          "same"   the source and `other` must have equally many elements.
          "alike"  they are arrays of runs, and their runs must have equally many elements too.
    check: number of its check. With it, "put" takes indices up to the length, "get" those below it, and "join" at most
           as many elements as `value` has rows; without it, "join" leaves further elements out. 0 for none.
    """

    kind: Kind
    value: View | None = None
    index: View | None = None
    other: Source | None = None
    check: int = 0

    @property
    def stack(self) -> Stack | None:
        return self.target.stack if self.target is not None and self.kind not in ("clear", "erase") else None

    @property
    def sources(self) -> Iterator[Source]:
        yield from (each for each in (self.source, self.other) if each is not None)

    def reads(self) -> Iterator[Root]:
        yield from ArrayWork.reads(self)
        if self.index is not None:
            yield self.index.root
        if self.value is not None and self.kind == "put":
            yield self.value.root

    def writes(self) -> Iterator[Root]:
        yield from ArrayWork.writes(self)
        if self.value is not None and self.kind != "put":
            yield self.value.root


@dataclass(frozen=True, slots=True, eq=False)
class AddArrays(ArrayWork):
    """Add each element of the source to the element of the target at its position; missing ones are zeros.

    terms: the roots of the two elements in `body`, which writes their sum to `total`.
    """

    terms: tuple[Root, Root]
    total: View
    body: Instructions

    def writes(self) -> Iterator[Root]:
        yield from ArrayWork.writes(self)
        yield self.total.root


@dataclass(frozen=True, slots=True, eq=False)
class KeepArray(ArrayWork):
    """Append the elements of the source to the stack of a recording, which an outer loop may record in this trip."""

    recording: Recording

    @property
    def stack(self) -> Stack:
        return self.recording.stack


@dataclass(frozen=True, slots=True, eq=False)
class OpenSpan(ArrayWork):
    """Let `span` begin at the first element of its array and have as many as `length`, an int64 scalar."""

    span: Span
    length: View

    def reads(self) -> Iterator[Root]:
        yield self.length.root


@dataclass(frozen=True, slots=True, eq=False)
class CutRows(ArrayWork):
    """Make the rows of `x` elements of the target, one after the other, as many rows each as `source`, int64, tells.

    The source is an array of their sizes, and not that of the target.

    rows:  the number of rows of x, an int64 scalar.
    most:  the most rows of an element, an int64 scalar; each element of the target has room for so many.
    check: number of its check: the sizes are from 0 to `most`, and their sum is `rows`.
    """

    x: View
    rows: View
    most: View
    check: int

    def reads(self) -> Iterator[Root]:
        yield from ArrayWork.reads(self)
        yield from (view.root for view in (self.x, self.rows, self.most))


@dataclass(frozen=True, slots=True, eq=False)
class JoinRows(ArrayWork):
    """Copy the rows of all elements of the source to `value`, one after the other.

    lengths: the array of the numbers of their rows.
    rows:    how many they are together, an int64 scalar; `value` has room for so many.
    check:   number of its check that they are so many; with 0 they are known to be.
    """

    lengths: Source
    value: View
    rows: View
    check: int

    @property
    def sources(self) -> Iterator[Source]:
        yield from (each for each in (self.source, self.lengths) if each is not None)

    def reads(self) -> Iterator[Root]:
        yield from ArrayWork.reads(self)
        yield self.rows.root

    def writes(self) -> Iterator[Root]:
        yield self.value.root


@dataclass(frozen=True, slots=True, eq=False)
class CountRows(ArrayWork):
    """Write the sum of the elements of the source, an array of int64, to `value`."""

    value: View

    def writes(self) -> Iterator[Root]:
        yield self.value.root


@dataclass(frozen=True, slots=True, eq=False)
class MakeRuns(ArrayWork):
    """Divide the source into runs of adjacent elements, in order. A slot of the recording refers to one run.

    like:  an array of as many runs, each as long as its own; None for runs k = 1, 2, ... of binom(k + order - 1, order)
           elements, of which the last may be shorter.
    exact: whether the source must have exactly as many elements as the runs of `like`, and not only so many.
    check: number of the check for that; 0 without `like`.
    """

    recording: Recording
    like: Recording | None
    order: int = 0
    exact: bool = False
    check: int = 0

    @property
    def stack(self) -> Stack:
        return self.recording.stack

    @property
    def sources(self) -> Iterator[Source]:
        if self.source is not None:
            yield self.source
        if self.like is not None:
            yield self.like


@dataclass(frozen=True, slots=True, eq=False)
class Flatten(ArrayWork):
    """Copy the elements of all runs of the source, in order, to the target, to `value` or to the end of a recording.

    like:  an array of runs: each run gets as many elements as the run of `like` at its position, the last ones zeros or
           left out; and there are no more runs than those.
    order: 0, or as `MakeRuns.order` says: each run gets as many elements as that, but the last one no more than it has.
    value: further rows become zeros.
    check: number of its check: there must be no more elements than rows of `value`. 0 leaves further elements out.
    """

    source: Recording
    like: Recording | None
    order: int
    value: View | None = None
    check: int = 0
    recording: Recording | None = None

    @property
    def stack(self) -> Stack | None:
        holder = self.target or self.recording
        return None if holder is None else holder.stack

    @property
    def sources(self) -> Iterator[Source]:
        yield self.source
        if self.like is not None:
            yield self.like

    def writes(self) -> Iterator[Root]:
        yield from ArrayWork.writes(self)
        if self.value is not None:
            yield self.value.root
