"""Control flow as data: loops and branches, which hold other instructions, and the stacks and states of loops."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from core.ir import TensorType
from core.plan.instructions import Gemm, Instruction, Instructions
from core.plan.memory import Root, Stack, View

__all__ = [
    "Ahead",
    "Branch",
    "Element",
    "Elements",
    "Flattened",
    "Growing",
    "Hoisted",
    "Loop",
    "Pending",
    "Placed",
    "Recorded",
    "Recording",
    "Source",
    "Span",
    "State",
    "Vacant",
    "filled_roots",
    "outer_roots",
    "roots_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Instruction):
    """Trips of `body`.

    condition: whether the first state, a bool, decides before each trip; else there are as many trips as `over` has
               elements.
    over:      each stack that it runs over, and the element in the body.
    records:   each stack that it writes, and the element in the body.
    reverse:   whether it runs from the last element to the first; a recorded element has the position of the element
               that it was computed from.
    ops:       client ops in one trip, for the limit of ops.
    limits:    numbers of the checks for too many trips and too many ops.
    counter:   the state that counts the trips of the longer loop, if this loop is one run of a longer loop.
    outside:   roots that the body touches and does not own.
    filled:    those among them that it writes: loops inside record to their places in these arrays.
    hoisted:   products that are computed every few trips, after the body.
    ahead:     products that are computed every few trips, before the body.
    """

    body: Instructions
    states: tuple[State, ...]
    condition: bool
    over: tuple[tuple[Source, Element], ...]
    records: tuple[tuple[Recorded, Element], ...]
    reverse: bool
    ops: int
    limits: tuple[int, int]
    counter: State | None = None
    outside: tuple[Root, ...] = ()
    filled: tuple[Root, ...] = ()
    hoisted: tuple[Hoisted, ...] = ()
    ahead: tuple[Ahead, ...] = ()

    @property
    def length(self) -> int | None:
        """The number of trips if it is known, else None."""
        return next((stack.length for stack, _ in self.over), None)

    @property
    def joint(self) -> tuple[Hoisted | Ahead, ...]:
        """The products that are computed every few trips."""
        return (*self.hoisted, *self.ahead)

    def reads(self) -> Iterator[Root]:
        yield from (s.initial.root for s in self.states)
        for stack, _ in self.over:
            yield from roots_of(stack)
        yield from self.outside

    def writes(self) -> Iterator[Root]:
        for state in self.states:
            yield state.final.root
            yield from state.buffers
        yield from (e.view.root for e, _ in self.records if isinstance(e, Elements | Span))
        yield from self.filled
        yield from (memory for each in self.joint for _, memory in each.kept)


@dataclass(frozen=True, slots=True, eq=False)
class Branch(Instruction):
    """One of two lists of instructions, chosen by a bool.

    results: the roots that they write and do not own.
    outside: roots that they touch and do not own.
    """

    condition: View
    yes: Instructions
    no: Instructions
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

    element: a slot, if slots are stacks.
    length:  number of slots, if known.
    loose:   whether nothing says that another stack of the same loop is equally long: `MakeRuns` made it, or it is a
             run of such an array.
    lent:    whether the slots refer to elements that other instructions wrote.
    source:  the array that the runs are parts of, if it is one in memory.
    order:   the order of `MakeRuns` if the runs have the lengths that it says, else 0.
    whole:   whether the runs together are all of `source`.
    sizes:   (axis, largest size, recording of the sizes) for each axis of the arrays inside whose size only the run
             tells.
    """

    stack: Stack
    element: Recording | Elements | Span | None = None
    length: int | None = None
    loose: bool = False
    lent: bool = False
    source: Source | None = None
    order: int = 0
    whole: bool = False
    sizes: tuple[tuple[int, int, Recording], ...] = ()

    @property
    def inside(self) -> Iterator[Stack]:
        """The stacks that its slots refer to and that are written with it; they live as long as this one."""
        if isinstance(self.element, Recording) and not self.lent:
            yield self.element.stack
            yield from self.element.inside


@dataclass(frozen=True, slots=True, eq=False)
class Elements:
    """A stack value of known length: the elements of a dense array along its first axis."""

    view: View

    @property
    def length(self) -> int:
        return self.view.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A stack value: adjacent elements of a dense array along its first axis; only the run tells which.

    view: the whole array.
    of:   a span at the same positions of another array; None if it has its own.
    """

    view: View
    of: Span | None = None

    @property
    def places(self) -> Span:
        """The span that has the positions."""
        return self.of or self

    @property
    def length(self) -> None:
        """The number of elements is known only during the run."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """A tensor array in memory that grows: its elements are the first slots of a stack, a scalar holds their number.

    A missing element of a cotangent is a slot of zeros.

    count: an int64 scalar, the number of elements.
    shape, dtype: of each element; the largest shape if only the run tells its sizes.
    owned: whether the ops of the block may change it in place, once nothing else reads it.
    sizes: (axis, largest size, array of the sizes) for each axis of the elements whose size only the run tells.
    """

    stack: Stack
    count: View
    shape: tuple[int, ...]
    dtype: str
    owned: bool = True
    sizes: tuple[tuple[int, int, Growing], ...] = ()

    @property
    def length(self) -> None:
        """The number of elements is known only during the run."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """The cotangent of a tensor array with a single element: `value`, a dense array, at `index`, an int64 scalar.

    sizes: (axis, largest size, int64 scalar) for each axis of `value` whose size only the run tells.
    """

    value: View
    index: View
    sizes: tuple[tuple[int, int, View], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Vacant:
    """An empty tensor array of elements whose sizes have no largest value yet: the first write tells it.

    type: of the elements, with the size 1 for these.
    """

    type: TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Flattened:
    """A tensor array of the elements of all `runs`, in order; see `growing.Flatten` for `like` and `order`."""

    runs: Recording
    like: Recording | None
    order: int


Pending = Placed | Flattened | Vacant
"""A tensor array that becomes one in memory only if an op needs it there (`array_memory.moved`)."""

Source = Growing | Recording | Elements | Span
"""A tensor array that an instruction reads."""

Recorded = Recording | Elements | Span
"""A tensor array that a loop records."""

Element = Root | Recording | Span
"""The element of a tensor array in the body of a loop: memory for an array, or a tensor array itself."""


def roots_of(source: Source) -> Iterator[Root]:
    """The roots that a tensor array needs, but for the memory of stacks."""
    if isinstance(source, Growing):
        yield source.count.root
        for _, _, lengths in source.sizes:
            yield from roots_of(lengths)
    elif isinstance(source, Elements | Span):
        yield source.view.root
    elif isinstance(source.element, Recording | Span):
        yield from roots_of(source.element)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A carried value of a loop.

    now:       the root that a trip reads; one of the two `buffers`.
    following: the root that a trip writes, the other buffer; the same root if the state is updated in place.
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
    """A product that each trip adds to a state or records, computed for `trips` trips at once; the rest one by one.

    one, many: the product of one trip, and of `trips` trips whose operands are adjacent in memory.
    kept:      for each operand that a trip computes: its root in the body, and memory for `trips` of them.
    """

    one: Gemm
    many: Gemm
    trips: int
    kept: tuple[tuple[Root, Root], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """A product of the next row of an array with an operand that no trip changes, computed for `trips` trips at once.

    source:    the array [1, size, row], and the row of a trip: a scalar that grows by one from trip to trip. None if
               the row is the element of a stack that the loop runs over.
    row:       the root of the row.
    one, many: the product of one trip, and of `trips` trips, used if so many rows are left.
    kept:      for the result: its root in the body, and memory for `trips` of them.
    """

    source: tuple[View, View] | None
    row: Root
    one: Gemm
    many: Gemm
    trips: int
    kept: tuple[tuple[Root, Root], ...]


def outer_roots(body: Instructions, own: Collection[Root]) -> tuple[Root, ...]:
    """The roots that `body` reads or writes and that are not its `own`, each once."""
    touched = (root for each in body.instructions for root in (*each.reads(), *each.writes()))
    return tuple(dict.fromkeys(root for root in touched if root not in own))


def filled_roots(body: Instructions, own: Collection[Root]) -> tuple[Root, ...]:
    """The roots in the arena that loops in `body` record to and that are not its `own`, each once."""
    nested = (root for each in body.instructions if isinstance(each, Loop | Branch) for root in each.writes())
    return tuple(dict.fromkeys(root for root in nested if root not in own and root.place == "arena"))
