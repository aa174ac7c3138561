"""Cheap values are computed again where another fusion needs them, and not stored.

A value that a few cheap ops make from one array, and from arrays much smaller than it, takes no more memory traffic to
compute again than to read, and it need not be written. Examples are a deviation from the mean, and the result of a
normalisation that its adjoint reads. An array that the pass reads in any case counts as nothing: so the mask of a relu
comes from the values that its batch normalisation reads again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from core.ops.common.types import as_dtype
from core.plan.data import View
from core.plan.fusion import Axes, Draft, Fusion, Member

__all__ = ["CHEAP", "Repeated", "repeated_of"]

CHEAP = frozenset(
    (
        "abs", "add", "cast", "greater_equal", "greater_than", "less_equal", "less_than", "maximum", "minimum", "mul",
        "neg", "relu", "scale", "square", "sub", "sum", "where",
    )
)  # fmt: skip
"""Ops that take less time than reading their operand from memory."""

MOST, ROUNDED = 12, 3
"""Most ops of a value that is computed again; an op that rounds to 16 bits counts as several."""

SMALL = 16
"""An array is small if it has at most one element for so many elements of the value."""


class Repeated:
    """A value of a fusion that is complete, as work that any later fusion can do again.

    member: the value. numbers: of the drafts that compute it, in order; the last one is its own.
    """

    def __init__(self, member: Member, numbers: Sequence[int]) -> None:
        self.member, self.numbers = member, numbers

    def views(self) -> Iterator[View]:
        """The arrays that it reads, with their strides along the axes of the value."""
        for n in self.numbers:
            draft = self.member.fusion.drafts[n]
            if draft.view is not None:
                yield self._along(draft)

    def within(self, fusion: Fusion, axes: Axes) -> int:
        """The value along `axes` of the domain of `fusion`: its number there."""
        key = ("repeated", self.member.fusion, self.numbers[-1], self.member.axes, self.member.shape, axes)
        return fusion.once(key, lambda: self._write(fusion, axes))

    def _write(self, fusion: Fusion, axes: Axes) -> int:
        drafts, made = self.member.fusion.drafts, dict[int, int]()
        for n in self.numbers:
            draft = drafts[n]
            instr = draft.instr
            if draft.view is not None:
                made[n] = fusion.load(self._along(draft), axes)
            elif instr.kind == "constant":
                made[n] = fusion.once(("number", instr.dtype, repr(instr.value)), _number(fusion, draft))
            else:
                args = [made[a] for a in instr.args]
                key = ("again", instr.op, instr.attrs, tuple(args), instr.dtype)
                made[n] = fusion.once(key, _applied(fusion, draft, args))
        fusion.ops.extend(drafts[n].instr.op for n in self.numbers if drafts[n].instr.kind == "apply")
        return made[self.numbers[-1]]

    def _along(self, draft: Draft) -> View:
        assert draft.view is not None
        strides = tuple(0 if a is None else draft.strides[a] for a in self.member.axes)
        return replace(draft.view, shape=self.member.shape, strides=strides)


def _number(fusion: Fusion, draft: Draft) -> Callable[[], int]:
    return lambda: fusion.constant(draft.instr.value, draft.instr.dtype)


def _applied(fusion: Fusion, draft: Draft, args: Sequence[int]) -> Callable[[], int]:
    instr = draft.instr
    return lambda: fusion.apply(instr.op, instr.attrs, args, instr.dtype)


def repeated_of(
    entry: object,
    fusion: Fusion,
    axes: Axes,
    stays: Callable[[View], bool],
    read_later: Callable[[Fusion, Sequence[int]], bool],
) -> Repeated | None:
    """`entry` as work to do again in `fusion`, along `axes` of its domain; None if reading it from memory is better.

    stays:      whether an array is in memory in any case, complete before `fusion` runs.
    read_later: whether elementwise work that is still to come reads one of some values of a fusion.
    """
    if not isinstance(entry, Member):
        return None
    source = entry.fusion
    if source.size is not None or fusion.size is not None:  # rows beyond a length that the run tells are unspecified
        return None
    numbers = _computing(source, entry.number)
    if numbers is None or not any(source.drafts[n].instr.kind == "apply" for n in numbers):
        return None
    found = Repeated(entry, numbers)
    size = _elements(source, source.drafts[entry.number].varies)
    large: dict[object, int] = {}
    for n in numbers:
        draft = source.drafts[n]
        if draft.view is None:
            continue
        view = found._along(draft)
        if not stays(view) or not fusion.can_load(fusion.strides(view, axes)):
            return None
        if SMALL * _elements(source, draft.varies) > size:
            nbytes = 0 if fusion.loads(view) else as_dtype(view.dtype).itemsize
            large[view.root, view.offset, view.dtype, draft.strides] = nbytes
    if not large:
        return None
    cost = sum(large.values())
    if cost <= as_dtype(entry.dtype).itemsize or (len(large) == 1 and read_later(source, numbers[:-1])):
        return found
    return None


def _computing(fusion: Fusion, number: int) -> tuple[int, ...] | None:
    """The drafts that compute value `number` from arrays and constants; None if they are not few cheap ops."""
    needed, waiting, ops = {number}, [number], 0
    while waiting:
        instr = fusion.drafts[waiting.pop()].instr
        if instr.kind == "apply":
            ops += ROUNDED if instr.dtype in ("float16", "bfloat16") else 1
            if instr.op not in CHEAP or ops > MOST:
                return None
        elif instr.kind not in ("load", "constant"):
            return None
        waiting += [a for a in set(instr.args) if a not in needed]
        needed.update(instr.args)
    return tuple(sorted(needed))


def _elements(fusion: Fusion, axes: frozenset[int]) -> int:
    count = 1
    for a in axes:
        count *= fusion.shape[a]
    return count
