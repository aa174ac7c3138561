"""Parts of a loop that do not depend on who runs its trips, one thread or all threads of a GPU: the buffers of states,
elements of stacks, and products that several trips share.
"""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.array_parts import held
from core.codegen.llvm import I64, IRValue
from core.codegen.step_writer import StepWriter
from core.plan.flow import Ahead, Element, Elements, Growing, Hoisted, Loop, Recording, Source, Span, State
from core.plan.instructions import Gemm, Instructions
from core.plan.memory import Root, Stack

__all__ = ["LoopCode", "slot_address"]


class LoopCode:
    """A loop while it is written. The constructor writes the code before the first trip.

    done:            slot with the number of completed trips.
    length:          the number of trips; None if a condition decides.
    now, following:  of each state, the slots with the addresses of its two buffers.
    growing, starts: of each stack that grows, the element in the body, and the first slot of the loop.
    slots:           of each of these, the address of the element of the present trip.
    ahead:           each product that is computed ahead, and the slot that holds whether that of a trip was.
    """

    def __init__(self, step: StepWriter, each: Loop, copy: Callable[[IRValue, IRValue, int], None]) -> None:
        """copy: writes code that copies memory: target, source, bytes."""
        self.step, self.each, self.f = step, each, step.f
        f = step.f
        self.now: dict[State, IRValue] = {}
        self.following: dict[State, IRValue] = {}
        for state in each.states:
            buffers = [step.base(b) for b in state.buffers]
            self.now[state], self.following[state] = f.slot("ptr"), f.slot("ptr")
            f.write(buffers[0], self.now[state])
            f.write(buffers[-1], self.following[state])
            copy(buffers[0], step.address(state.initial), state.nbytes)
        self.done = f.slot("int64")
        f.write(I64(0), self.done)
        self.length: IRValue | None = None
        for stack, _ in each.over:  # all of one length
            self.length = held(step, stack)[1]
        self.growing = {stack: element for stack, element in each.records if isinstance(stack, Recording)}
        self.starts = {recording: self._start(recording) for recording in self.growing}
        self.slots: dict[Recording, IRValue] = {}
        self.ahead = [(ahead, f.slot("int64")) for ahead in each.ahead]

    def _start(self, recording: Recording) -> IRValue:
        """The first slot of a recording. Stacks that are not kept are empty before the loop."""
        cursor = self.step.cursor(recording.stack)
        if not recording.stack.kept:
            for emptied in (recording.stack, *recording.inside):
                self.f.write(I64(0), self.step.cursor(emptied))
        return self.f.read(cursor, "int64")

    # --- trips ---------------------------------------------------------------------------------------------------

    def has_next(self, trip: IRValue) -> IRValue:
        """Whether there is a trip after `trip` trips, unless a limit ends the loop."""
        if self.length is not None:
            return self.f.compare("icmp slt", trip, self.length)
        return self.f.load(self.f.read(self.now[self.each.states[0]], "ptr"), "bool")

    def trips_before(self, trip: IRValue) -> IRValue:
        """The number of completed trips: of this loop, or of the longer loop that this one is a run of."""
        f, counter = self.f, self.each.counter
        if counter is None:
            return trip
        counted = f.load(f.read(self.now[counter], "ptr"), "int64")
        return f.select(f.compare("icmp sgt", counted, trip), counted, trip)

    def open(self, trip: IRValue) -> IRValue:
        """Bind the body's names for states, elements and buffers; returns the position of the trip in the stacks."""
        f, step, each = self.f, self.step, self.each
        for state in each.states:
            step.roots[state.now] = f.read(self.now[state], "ptr")
            step.roots[state.following] = f.read(self.following[state], "ptr")
        at = trip
        if each.reverse and self.length is not None:
            at = f.binary("sub", f.binary("sub", self.length, I64(1)), trip)
        for source, element in each.over:
            self._open_element(source, element, at)
        for source, element in each.records:
            if not isinstance(source, Recording):
                self._open_element(source, element, at)
        for hoisted in each.hoisted:
            self._open_buffers(hoisted, self._buffer_slot(hoisted, trip, each.reverse))
        return at

    def open_slots(self, at: IRValue, slot_in: Callable[[Recording, IRValue, IRValue], IRValue]) -> None:
        """Bind the body's names for the elements of the stacks that grow.

        at:      the position of the trip.
        slot_in: writes code that gives a stack so many bytes, the last argument, and returns the address of a slot.
        """
        f, length = self.f, self.length
        for recording, element in self.growing.items():
            start = self.starts[recording]
            slot = f.binary("add", start, at)
            needed = f.binary("add", start, length) if length is not None else f.binary("add", slot, I64(1))
            nbytes = f.binary("mul", needed, I64(recording.stack.slot_bytes))
            self.slots[recording] = slot_in(recording, slot, nbytes)
            if isinstance(element, Root):
                self.step.roots[element] = self.slots[recording]

    def put(self, recording: Recording, inner: Recording | Span) -> None:
        """Write where a loop in the body has recorded to the element of this trip."""
        start, count = self.step.recordings[inner.places if isinstance(inner, Span) else inner]
        self.f.store(start, self.slots[recording])
        self.f.store(count, self.f.at(self.slots[recording], I64(8), "uint8"))

    def advance(self, recording: Recording, trip: IRValue) -> None:
        """Move the cursor of a stack behind the slot of this trip, or behind all slots of a loop of known length."""
        f = self.f
        count = self.length if self.length is not None else f.binary("add", trip, I64(1))
        f.write(f.binary("add", self.starts[recording], count), self.step.cursor(recording.stack))

    def end_trip(self, trip: IRValue) -> None:
        """Exchange the two buffers of each state that has two, and count the trip."""
        f = self.f
        for state in self.each.states:
            if state.now is not state.following:
                old = f.read(self.now[state], "ptr")
                f.write(f.read(self.following[state], "ptr"), self.now[state])
                f.write(old, self.following[state])
        f.write(f.binary("add", trip, I64(1)), self.done)

    def end(self) -> IRValue:
        """Behind the last trip, bind the names of recordings and states; returns the number of trips."""
        trips = self.f.read(self.done, "int64")
        for recording, start in self.starts.items():
            self.step.recordings[recording] = (start, trips)
        for state in self.each.states:
            self.step.roots[state.now] = self.f.read(self.now[state], "ptr")
        return trips

    def _open_element(self, source: Source, element: Element, at: IRValue) -> None:
        """Bind `element`, the body's name for element `at` of a stack."""
        f, step = self.f, self.step
        if isinstance(source, Elements | Growing | Span):
            assert isinstance(element, Root)
            step.roots[element] = f.at(held(step, source)[0], f.binary("mul", at, I64(element.nbytes)), "uint8")
            return
        start, _ = step.recordings[source]
        address = slot_address(step, source.stack, f.binary("add", start, at))
        if isinstance(element, Root):
            step.roots[element] = address
        else:
            first = f.load(address, "int64")
            step.recordings[element] = (first, f.load(f.at(address, I64(8), "uint8"), "int64"))

    # --- products of several trips -------------------------------------------------------------------------------

    def multiply_ahead(self, ahead: Ahead, there: IRValue, trip: IRValue) -> None:
        """Multiply rows ahead: one product for several trips, while so many rows are left.

        there: slot that holds whether the products of this trip were computed ahead.
        """
        f = self.f
        backwards = self.each.reverse and ahead.source is None
        slot = self._buffer_slot(ahead, trip, backwards)
        enough, row = self._next_row(ahead, trip)
        with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(ahead.trips)), I64(0))):
            f.write(f.select(enough, I64(1), I64(0)), there)
            with f.when(enough):
                first = f.at(row, I64(-(ahead.trips - 1) * ahead.row.nbytes if backwards else 0), "uint8")
                self._row_product(ahead, ahead.many, first, I64(0))
        with f.when(f.compare("icmp eq", f.read(there, "int64"), I64(0))):
            self._row_product(ahead, ahead.one, row, slot)
        self._open_buffers(ahead, slot)

    def _next_row(self, ahead: Ahead, trip: IRValue) -> tuple[IRValue, IRValue]:
        """(whether `ahead.trips` rows are left, the address of the row of this trip)."""
        f, step = self.f, self.step
        if ahead.source is None:
            stack = next(stack for stack, element in self.each.over if element is ahead.row)
            enough = f.compare("icmp sle", f.binary("add", trip, I64(ahead.trips)), held(step, stack)[1])
            return enough, step.roots[ahead.row]
        rows, number = ahead.source
        size, index = rows.shape[1], f.load(step.address(number), "int64")
        fits = f.compare("icmp sle", index, I64(size - ahead.trips))
        from_end = f.binary("add", index, I64(size))
        at = f.select(f.compare("icmp slt", index, I64(0)), from_end, index)
        inside = f.compare("icmp ult", at, I64(size))  # if not, the check in the body fails
        at = f.select(inside, at, I64(0))
        row = f.at(step.address(rows), f.binary("mul", at, I64(ahead.row.nbytes)), "uint8")
        return f.binary("and", f.compare("icmp sge", index, I64(0)), fits), row

    def _row_product(self, ahead: Ahead, product: Gemm, row: IRValue, slot: IRValue) -> None:
        outer = dict(self.step.roots)
        self.step.roots[ahead.row] = row
        self._open_buffers(ahead, slot)
        self.step.sequence(Instructions((product,)))
        self.step.roots = outer

    def multiply_many(self, hoisted: Hoisted, trip: IRValue, at: IRValue) -> None:
        """After every `hoisted.trips` trips, compute their joint product."""
        f = self.f
        last = I64(hoisted.trips - 1)
        with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(hoisted.trips)), last)):
            outer = dict(self.step.roots)
            first = at if self.each.reverse else f.binary("sub", at, last)
            self._open_operands(hoisted, first, I64(0))
            self.step.sequence(Instructions((hoisted.many,)))
            self.step.roots = outer

    def multiply_rest(self, hoisted: Hoisted, trips: IRValue) -> None:
        """After the last trip, compute the products of the trips that a joint product did not cover."""
        f = self.f
        rest = f.binary("urem", trips, I64(hoisted.trips))
        first, slot = f.binary("sub", trips, rest), I64(0)
        if self.each.reverse:
            first, slot = I64(0), f.binary("sub", I64(hoisted.trips), rest)
        with f.loop(I64(0), rest) as i:
            self._open_operands(hoisted, f.binary("add", first, i), f.binary("add", slot, i))
            self.step.sequence(Instructions((hoisted.one,)))

    def _open_operands(self, hoisted: Hoisted, at: IRValue, slot: IRValue) -> None:
        """Set the arrays of a product: element `at` of a stack, or `slot` of a buffer."""
        touched = {v.root for v in hoisted.one.arrays}
        for source, element in (*self.each.over, *self.each.records):
            if element in touched:
                self._open_element(source, element, at)
        self._open_buffers(hoisted, slot)

    def _buffer_slot(self, joint: Hoisted | Ahead, trip: IRValue, reverse: bool) -> IRValue:
        """The slot of a trip in the buffers of a joint product, in the order of the stacks."""
        slot = self.f.binary("urem", trip, I64(joint.trips))
        return self.f.binary("sub", I64(joint.trips - 1), slot) if reverse else slot

    def _open_buffers(self, joint: Hoisted | Ahead, slot: IRValue) -> None:
        """Bind the body's names for the results of joint products to their place in the buffers."""
        f, step = self.f, self.step
        for element, buffer in joint.kept:
            step.roots[element] = f.at(step.base(buffer), f.binary("mul", slot, I64(element.nbytes)), "uint8")


def slot_address(step: StepWriter, stack: Stack, slot: IRValue) -> IRValue:
    """The address of a slot in the memory that the stack has at present."""
    f = step.f
    base = f.load(step.stack_entry(stack), "ptr")
    return f.at(base, f.binary("mul", slot, I64(stack.slot_bytes)), "uint8")
