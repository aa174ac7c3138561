"""Control flow, as data: loops and branches, instructions that hold instructions; and the values that loops keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from core.plan.data import Gemm, Instruction, Root, Sequence, Stack, View

__all__ = ["Ahead", "Branch", "Elements", "Hoisted", "Loop", "Recording", "State"]


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Instruction):
    """Trips of `body`.

    condition: whether the first state, a bool, is asked before each trip; else there are as many trips as `over` has
               elements.
    over:      each stack it reads, and what an element is called in the body.
    records:   each stack that it writes, and what the body leaves there.
    reverse:   from the last element to the first; what is recorded stands where the element stood.
    ops:       of the client's, in one trip.
    limits:    numbers of the checks for too many trips and too many ops.
    counter:   the state that counts the trips of the longer loop that this one is a run of, if it is one.
    outside:   roots that the body reads and that are not its own.
    hoisted:   products that are made every few trips, behind the body.
    ahead:     products that are made every few trips, before the body.
    """

    body: Sequence
    states: tuple[State, ...]
    condition: bool
    over: tuple[tuple[Recording | Elements, Root | Recording], ...]
    records: tuple[tuple[Recording | Elements, Root | Recording], ...]
    reverse: bool
    ops: int
    limits: tuple[int, int]
    counter: State | None = None
    outside: tuple[Root, ...] = ()
    hoisted: tuple[Hoisted, ...] = ()
    ahead: tuple[Ahead, ...] = ()

    @property
    def length(self) -> int | None:
        """The number of trips, if it is known."""
        return next((stack.length for stack, _ in self.over), None)

    def reads(self) -> Iterator[Root]:
        yield from (s.initial.root for s in self.states)
        yield from (e.view.root for e, _ in self.over if isinstance(e, Elements))
        yield from self.outside

    def writes(self) -> Iterator[Root]:
        for state in self.states:
            yield state.final.root
            yield from state.buffers
        yield from (e.view.root for e, _ in self.records if isinstance(e, Elements))
        for kept in (*(each.kept for each in self.hoisted), *(each.kept for each in self.ahead)):
            yield from (room for _, room in kept)


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Instruction):
    """One of two lists of instructions, by a bool. results: the roots that both write."""

    condition: View
    yes: Sequence
    no: Sequence
    results: tuple[Root, ...] = ()
    outside: tuple[Root, ...] = ()

    def reads(self) -> Iterator[Root]:
        yield self.condition.root
        yield from self.outside

    def writes(self) -> Iterator[Root]:
        yield from self.results


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A stack value: the slots that one run of a loop filled.

    element: one of them, where they are stacks. length: how many they are, where that is known.
    """

    stack: Stack
    element: Recording | Elements | None = None
    length: int | None = None

    @property
    def inside(self) -> Iterator[Stack]:
        """The stacks that hold what its slots only point to: they last as long as this one."""
        if isinstance(self.element, Recording):
            yield self.element.stack
            yield from self.element.inside


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """A stack value whose length is known: what `view` holds, a dense array, along its first axis."""

    view: View

    @property
    def length(self) -> int:
        return self.view.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A carried value of a loop.

    now:       where a trip reads it; one of the two `buffers`.
    following: where a trip writes it, the other one; the same root where it is updated in place.
    """

    now: Root
    following: Root
    buffers: tuple[Root, ...]
    initial: View
    final: View

    @property
    def nbytes(self) -> int:
        return self.now.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Hoisted:
    """A product that trips add to a state, made for `trips` of them at once; what is left at the end, one by one.

    one, many: for a trip, and for `trips` that lie one behind the other.
    kept:      the operands that a trip computes: what they are called in the body, and room for those of `trips`.
    """

    one: Gemm
    many: Gemm
    trips: int
    kept: tuple[tuple[Root, Root], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A product of a row of an array, the next one in each trip, with what no trip changes: made for `trips` at once.

    rows, index: the array [1, size, row], and which row a trip takes, a scalar that grows by one from trip to trip.
    row:         what the row is called.
    one, many:   for a trip, and for `trips` of them, if there are so many rows left.
    kept:        the result: what it is called in the body, and room for those of `trips`.
    """

    rows: View
    index: View
    row: Root
    one: Gemm
    many: Gemm
    trips: int
    kept: tuple[tuple[Root, Root], ...]
