"""Instructions that change and read tensor arrays that grow (`core.plan.flow.Growing`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from core.plan.data import Instruction, Root, Sequence, Stack, View
from core.plan.flow import Elements, Growing, Recording, Source

__all__ = ["AddArrays", "ArrayOp", "ArrayWork", "KeepArray", "Kind"]

Kind = Literal["clear", "copy", "put", "erase", "extend", "fit", "get", "join", "count", "same"]


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
        yield from (each.count.root for each in (self.target, *self.sources) if isinstance(each, Growing))
        yield from (each.view.root for each in self.sources if isinstance(each, Elements))

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
    body: Sequence

    def writes(self) -> Iterator[Root]:
        yield from ArrayWork.writes(self)
        yield self.total.root


@dataclass(frozen=True, slots=True, eq=False)
class KeepArray(ArrayWork):
    """Append the elements of the source to the stack of a recording, which an outer loop records in this trip."""

    recording: Recording

    @property
    def stack(self) -> Stack:
        return self.recording.stack
