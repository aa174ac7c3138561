"""Parts of a loop that do not depend on who runs its trips, one thread or all threads of a GPU: elements of stacks, the
buffers of states, and products that several trips share.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.codegen.array_parts import held
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.step_writer import StepWriter
from core.plan.data import Gemm, Root, Sequence, Stack
from core.plan.flow import Ahead, Elements, Growing, Hoisted, Loop, Recording, Source, Span, State

__all__ = [
    "advance",
    "multiply_ahead",
    "multiply_many",
    "multiply_rest",
    "open_buffers",
    "open_element",
    "slot_address",
    "slot_of",
    "swap_states",
    "trips_before",
]


def swap_states(f: Function, each: Loop, now: Mapping[State, IRValue], following: Mapping[State, IRValue]) -> None:
    """Exchange the two buffers of each state that has two, at the end of a trip.

    now, following: state -> slot with the address of its buffer.
    """
    for state in each.states:
        if state.now is not state.following:
            old = f.read(now[state], "ptr")
            f.write(f.read(following[state], "ptr"), now[state])
            f.write(old, following[state])


def advance(step: StepWriter, recording: Recording, start: IRValue, trip: IRValue, length: IRValue | None) -> None:
    """Move the cursor of a stack behind the slot of this trip, or behind all slots of a loop of known length."""
    f = step.f
    count = length if length is not None else f.binary("add", trip, I64(1))
    f.write(f.binary("add", start, count), step.cursor(recording.stack))


def open_element(step: StepWriter, stack: Source, element: Root | Recording | Span, at: IRValue) -> None:
    """Bind `element`, the body's name for element `at` of a stack."""
    f = step.f
    if isinstance(stack, Elements | Growing | Span):
        assert isinstance(element, Root)
        step.roots[element] = f.at(held(step, stack)[0], f.binary("mul", at, I64(element.nbytes)), "uint8")
        return
    start, _ = step.recordings[stack]
    address = slot_address(step, stack.stack, f.binary("add", start, at))
    if isinstance(element, Root):
        step.roots[element] = address
    else:
        first = f.load(address, "int64")
        step.recordings[element] = (first, f.load(f.at(address, I64(8), "uint8"), "int64"))


def slot_address(step: StepWriter, stack: Stack, slot: IRValue) -> IRValue:
    """The address of a slot in the memory that the stack has at present."""
    f = step.f
    base = f.load(step.stack_entry(stack), "ptr")
    return f.at(base, f.binary("mul", slot, I64(stack.slot_bytes)), "uint8")


def trips_before(f: Function, each: Loop, trip: IRValue, now: Mapping[State, IRValue]) -> IRValue:
    """The number of completed trips: of this loop, or of the longer loop that this one is a run of."""
    if each.counter is None:
        return trip
    counted = f.load(f.read(now[each.counter], "ptr"), "int64")
    return f.select(f.compare("icmp sgt", counted, trip), counted, trip)


def multiply_ahead(step: StepWriter, each: Loop, ahead: Ahead, trip: IRValue, there: IRValue) -> None:
    """Multiply rows ahead: one product for several trips, while so many rows are left.

    there: slot that holds whether the products of this trip were computed ahead.
    """
    f = step.f
    backwards = each.reverse and ahead.source is None
    slot = slot_of(f, ahead, trip, backwards)
    enough, row = _next_row(step, each, ahead, trip)
    with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(ahead.trips)), I64(0))):
        f.write(f.select(enough, I64(1), I64(0)), there)
        with f.when(enough):
            first = f.at(row, I64(-(ahead.trips - 1) * ahead.row.nbytes if backwards else 0), "uint8")
            _row_product(step, ahead, ahead.many, first, I64(0))
    with f.when(f.compare("icmp eq", f.read(there, "int64"), I64(0))):
        _row_product(step, ahead, ahead.one, row, slot)
    open_buffers(step, ahead, slot)


def _next_row(step: StepWriter, each: Loop, ahead: Ahead, trip: IRValue) -> tuple[IRValue, IRValue]:
    """(whether `ahead.trips` rows are left, the address of the row of this trip)."""
    f = step.f
    if ahead.source is None:
        stack = next(stack for stack, element in each.over if element is ahead.row)
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


def _row_product(step: StepWriter, ahead: Ahead, product: Gemm, row: IRValue, slot: IRValue) -> None:
    outer = dict(step.roots)
    step.roots[ahead.row] = row
    open_buffers(step, ahead, slot)
    step.sequence(Sequence((product,)))
    step.roots = outer


def slot_of(f: Function, hoisted: Hoisted | Ahead, trip: IRValue, reverse: bool) -> IRValue:
    """The slot of a trip in the buffers of a joint product, in the order of the stacks."""
    slot = f.binary("urem", trip, I64(hoisted.trips))
    return f.binary("sub", I64(hoisted.trips - 1), slot) if reverse else slot


def open_buffers(step: StepWriter, hoisted: Hoisted | Ahead, slot: IRValue) -> None:
    """Bind the body's names for the results of joint products to their place in the buffers."""
    f = step.f
    for element, buffer in hoisted.kept:
        step.roots[element] = f.at(step.base(buffer), f.binary("mul", slot, I64(element.nbytes)), "uint8")


def multiply_many(step: StepWriter, each: Loop, hoisted: Hoisted, trip: IRValue, at: IRValue) -> None:
    """After every `hoisted.trips` trips, compute their joint product."""
    f = step.f
    last = I64(hoisted.trips - 1)
    with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(hoisted.trips)), last)):
        outer = dict(step.roots)
        first = at if each.reverse else f.binary("sub", at, last)
        _open_operands(step, each, hoisted, first, I64(0))
        step.sequence(Sequence((hoisted.many,)))
        step.roots = outer


def multiply_rest(step: StepWriter, each: Loop, hoisted: Hoisted, trips: IRValue) -> None:
    """After the last trip, compute the products of the trips that a joint product did not cover."""
    f = step.f
    rest = f.binary("urem", trips, I64(hoisted.trips))
    first, slot = f.binary("sub", trips, rest), I64(0)
    if each.reverse:
        first, slot = I64(0), f.binary("sub", I64(hoisted.trips), rest)
    with f.loop(I64(0), rest) as i:
        _open_operands(step, each, hoisted, f.binary("add", first, i), f.binary("add", slot, i))
        step.sequence(Sequence((hoisted.one,)))


def _open_operands(step: StepWriter, each: Loop, hoisted: Hoisted, at: IRValue, slot: IRValue) -> None:
    """Set the arrays of a product: element `at` of a stack, or `slot` of a buffer."""
    touched = {v.root for v in hoisted.one.arrays}
    for stack, element in (*each.over, *each.records):
        if element in touched:
            open_element(step, stack, element, at)
    open_buffers(step, hoisted, slot)
