"""Cheap values are computed again where another fusion needs them, and not stored.

A value that a few cheap ops make from one array, and from arrays much smaller than it, takes no more memory traffic to
compute again than to read, and it need not be written. Examples are a deviation from the mean, and the result of a
normalisation that its adjoint reads. An array that the pass reads in any case counts as nothing: so the mask of a relu
comes from the values that its batch normalisation reads again.

Values that the first fusion has stored for others are arrays too. So are its small values, which are stored for this:
the sums along the rows, of which a layer normalisation has two for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from core.ops.common.types import as_dtype
from core.plan.fusion import Axes, Draft, Fusion, Member
from core.plan.memory import View

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

    member:  the value.
    numbers: of the drafts that compute it, in order; the last one is its own.
    arrays:  those among them whose values are read from memory.
    stored:  stores a value of the fusion.
    """

    def __init__(
        self, member: Member, numbers: Sequence[int], arrays: Set[int], stored: Callable[[Member], View]
    ) -> None:
        self.member, self.numbers, self.arrays, self.stored = member, numbers, arrays, stored

    def within(self, fusion: Fusion, axes: Axes) -> int:
        """The value along `axes` of the domain of `fusion`: its number there."""
        key = ("repeated", self.member.fusion, self.numbers[-1], self.member.axes, self.member.shape, axes)
        return fusion.once(key, lambda: self._write(fusion, axes))

    def _write(self, fusion: Fusion, axes: Axes) -> int:
        drafts, made = self.member.fusion.drafts, dict[int, int]()
        for n in self.numbers:
            draft = drafts[n]
            instr = draft.instr
            if n in self.arrays:
                made[n] = fusion.load(self.array(n), axes)
            elif instr.kind == "constant":
                made[n] = fusion.once(("number", instr.dtype, repr(instr.value)), _number(fusion, draft))
            else:
                made[n] = fusion.apply(instr.op, instr.attrs, [made[a] for a in instr.args], instr.dtype)
        again = (n for n in self.numbers if n not in self.arrays)
        fusion.ops.extend(drafts[n].instr.op for n in again if drafts[n].instr.kind == "apply")
        return made[self.numbers[-1]]

    def array(self, number: int) -> View:
        """The array with the value `number`, with its strides along the axes of the member. It is stored if need be."""
        draft = self.member.fusion.drafts[number]
        if draft.instr.kind != "load":
            return self.stored(replace(self.member, number=number, dtype=draft.instr.dtype))
        assert draft.view is not None
        strides = tuple(0 if a is None else draft.strides[a] for a in self.member.axes)
        return replace(draft.view, shape=self.member.shape, strides=strides)


def _number(fusion: Fusion, draft: Draft) -> Callable[[], int]:
    return lambda: fusion.constant(draft.instr.value, draft.instr.dtype)


def repeated_of(
    entry: object,
    fusion: Fusion,
    axes: Axes,
    stays: Callable[[View], bool],
    held: Callable[[Member], View | None],
    stored: Callable[[Member], View],
    read_later: Callable[[Fusion, Sequence[int]], bool],
) -> Repeated | None:
    """`entry` as work to do again in `fusion`, along `axes` of its domain; None if reading it from memory is better.

    stays:      whether an array is in memory in any case, complete before `fusion` runs.
    held:       the array that a value is stored in already; None for other values.
    stored:     stores a value.
    read_later: whether elementwise work that is still to come reads one of some values of a fusion.
    """
    if not isinstance(entry, Member):
        return None
    source = entry.fusion
    if source.size is not fusion.size:  # rows beyond a length that the run tells are unspecified
        return None
    numbers, arrays = _Walk(entry, held).computing(entry.number)
    if not arrays or entry.number in arrays:
        return None
    if fusion.position < source.position and not _is_widened(source, numbers):
        return None
    found = Repeated(entry, numbers, arrays, stored)
    large: dict[object, int] = {}
    for n in arrays:
        draft = source.drafts[n]
        if draft.instr.kind == "load":
            view = found.array(n)
        else:
            value = replace(entry, number=n, dtype=draft.instr.dtype)
            stored_in = held(value)
            if stored_in is None:  # a small value, in memory of its own
                if not fusion.can_load(fusion.along(value.shape, value.layout()[1], axes)):
                    return None
                continue
            view = stored_in
        if not stays(view) or not fusion.can_load(fusion.strides(view, axes)):
            return None
        if not _is_small(entry, n):
            nbytes = 0 if fusion.loads(view) else as_dtype(view.dtype).itemsize
            large[view.root, view.offset, view.dtype, view.strides] = nbytes
    if not large:
        return None
    cost = sum(large.values())
    if cost <= as_dtype(entry.dtype).itemsize or (len(large) == 1 and read_later(source, numbers[:-1])):
        return found
    return None


@dataclass(frozen=True, slots=True)
class _Walk:
    """The way from a value of a fusion back to arrays. held: as in `repeated_of`."""

    member: Member
    held: Callable[[Member], View | None]

    def computing(self, number: int) -> tuple[tuple[int, ...], frozenset[int]]:
        """The drafts that compute value `number`, and those of them that are arrays; none if there is no cheap way."""
        drafts = self.member.fusion.drafts
        needed, waiting, ops, arrays = {number}, [number], 0, set[int]()
        while waiting:
            n = waiting.pop()
            instr = drafts[n].instr
            if instr.kind == "load" or (n != number and self._may_be_array(n)):
                arrays.add(n)
                continue
            if instr.kind == "apply":
                ops += ROUNDED if instr.dtype in ("float16", "bfloat16") else 1
                if instr.op not in CHEAP or ops > MOST:
                    return (), frozenset()
            elif instr.kind != "constant":
                return (), frozenset()
            waiting += [a for a in set(instr.args) if a not in needed]
            needed.update(instr.args)
        return tuple(sorted(needed)), frozenset(arrays)

    def _may_be_array(self, n: int) -> bool:
        """Whether a value that is no load is read from memory: it is there, or small and not cheap."""
        instr = self.member.fusion.drafts[n].instr
        if instr.kind not in ("apply", "reduce", "lookup"):
            return False
        if self.held(replace(self.member, number=n, dtype=instr.dtype)) is not None:
            return True
        return _is_small(self.member, n) and (instr.kind == "reduce" or instr.op not in CHEAP)


def _is_widened(source: Fusion, numbers: Sequence[int]) -> bool:
    """Whether a value is an array in another dtype. A fusion before `source` can read the array itself."""
    code = [source.drafts[n].instr for n in numbers]
    return all(instr.kind == "load" or instr.op == "cast" for instr in code)


def _is_small(member: Member, number: int) -> bool:
    """Whether value `number` of the fusion of `member` has at most one element for `SMALL` of its own."""
    fusion = member.fusion
    own = _elements(fusion, fusion.drafts[member.number].varies)
    return SMALL * _elements(fusion, fusion.drafts[number].varies) <= own


def _elements(fusion: Fusion, axes: frozenset[int]) -> int:
    count = 1
    for a in axes:
        count *= fusion.shape[a]
    return count
