"""Loops and branches in the step function.

A recording is two numbers: its first slot in the memory of a stack (`stack_memory`), and its length.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.codegen.array_parts import held, refusal_of
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.data import Gemm, Root, Sequence, Stack
from core.plan.flow import Ahead, Branch, Elements, Growing, Hoisted, Loop, Recording, Source, Span, State
from core.runtime.control_words import STOPPED

__all__ = ["write_branch", "write_loop"]


def write_branch(step: StepWriter, each: Branch) -> None:
    f = step.f
    holds = f.load(step.address(each.condition), "bool")
    yes, no, after = f.label("then"), f.label("else"), f.label("joined")
    f.branch(holds, yes, no)
    for label, side in ((yes, each.yes), (no, each.no)):
        f.begin(label)
        step.sequence(side)
        f.jump(after)
    f.begin(after)


def write_loop(step: StepWriter, each: Loop) -> None:
    """Write the trips of a loop. Each trip swaps the buffers of the states. A set error word ends all loops."""
    f = step.f
    now, following = {}, {}
    for state in each.states:
        buffers = [step.base(b) for b in state.buffers]
        now[state], following[state] = f.slot("ptr"), f.slot("ptr")
        f.write(buffers[0], now[state])
        f.write(buffers[-1], following[state])
        copy(f, buffers[0], step.address(state.initial), state.nbytes)
    done = f.slot("int64")
    f.write(I64(0), done)
    length = None
    for stack, _ in each.over:  # all of one length
        length = held(step, stack)[1]
    growing = [(r, element) for r, element in each.records if isinstance(r, Recording)]
    starts = {}
    for recording, _ in growing:
        cursor = step.cursor(recording.stack)
        if not recording.stack.kept:
            for emptied in (recording.stack, *recording.inside):
                f.write(I64(0), step.cursor(emptied))
        starts[recording] = f.read(cursor, "int64")

    made = [f.slot("int64") for _ in each.ahead]
    head, body, after = f.label("asked"), f.label("trip"), f.label("ended")
    f.jump(head)
    f.begin(head)
    if length is None:
        first = f.read(now[each.states[0]], "ptr")
        go = f.load(first, "bool")
    else:
        go = f.compare("icmp slt", f.read(done, "int64"), length)
    fine = f.compare("icmp eq", f.load(step.control("error"), "int64"), I64(0))
    f.branch(f.binary("and", go, fine), body, after)
    f.begin(body)
    trip = f.read(done, "int64")
    _limits(step, each, _trips_before(f, each, trip, now))
    inside = f.label("inside")
    f.branch(f.compare("icmp eq", f.load(step.control("error"), "int64"), I64(0)), inside, after)
    f.begin(inside)
    for state in each.states:
        step.roots[state.now] = f.read(now[state], "ptr")
        step.roots[state.following] = f.read(following[state], "ptr")
    at = trip
    if each.reverse and length is not None:
        at = f.binary("sub", f.binary("sub", length, I64(1)), trip)
    for stack, element in each.over:
        _open_element(step, stack, element, at)
    for stack, element in each.records:
        if not isinstance(stack, Recording):
            _open_element(step, stack, element, at)
    for hoisted in each.hoisted:
        _open_buffers(step, hoisted, _slot_of(f, hoisted, trip, each.reverse))
    for ahead, there in zip(each.ahead, made, strict=True):
        _ahead(step, each, ahead, trip, there)
    slots = {}
    for recording, element in growing:
        slots[recording] = _new_slot(step, recording, starts[recording], at, length)
        if isinstance(element, Root):
            step.roots[element] = slots[recording]
    step.sequence(each.body)
    for hoisted in each.hoisted:
        _many(step, each, hoisted, trip, at)
    for recording, element in growing:
        if not isinstance(element, Root):
            start, count = step.recordings[element.places if isinstance(element, Span) else element]
            f.store(start, slots[recording])
            f.store(count, f.at(slots[recording], I64(8), "uint8"))
        cursor = step.cursor(recording.stack)
        if length is None:
            f.write(f.binary("add", f.binary("add", starts[recording], trip), I64(1)), cursor)
        else:
            f.write(f.binary("add", starts[recording], length), cursor)
    for state in each.states:
        if state.now is not state.following:
            old = f.read(now[state], "ptr")
            f.write(f.read(following[state], "ptr"), now[state])
            f.write(old, following[state])
    f.write(f.binary("add", trip, I64(1)), done)
    f.jump(head)
    f.begin(after)
    trips = f.read(done, "int64")
    for recording, _ in growing:
        step.recordings[recording] = (starts[recording], trips)
    for state in each.states:
        step.roots[state.now] = f.read(now[state], "ptr")
    for hoisted in each.hoisted:
        _rest(step, each, hoisted, trips)
    for state in each.states:
        copy(f, step.address(state.final), step.roots[state.now], state.nbytes)


def _ahead(step: StepWriter, each: Loop, ahead: Ahead, trip: IRValue, there: IRValue) -> None:
    """Multiply rows ahead: one product for several trips, while so many rows are left.

    there: slot that holds whether the products of this trip were computed ahead.
    """
    f = step.f
    backwards = each.reverse and ahead.source is None
    slot = _slot_of(f, ahead, trip, backwards)
    enough, row = _next_row(step, each, ahead, trip)
    with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(ahead.trips)), I64(0))):
        f.write(f.select(enough, I64(1), I64(0)), there)
        with f.when(enough):
            first = f.at(row, I64(-(ahead.trips - 1) * ahead.row.nbytes if backwards else 0), "uint8")
            _row_product(step, ahead, ahead.many, first, I64(0))
    with f.when(f.compare("icmp eq", f.read(there, "int64"), I64(0))):
        _row_product(step, ahead, ahead.one, row, slot)
    _open_buffers(step, ahead, slot)


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
    _open_buffers(step, ahead, slot)
    step.sequence(Sequence((product,)))
    step.roots = outer


def _slot_of(f: Function, hoisted: Hoisted | Ahead, trip: IRValue, reverse: bool) -> IRValue:
    """The slot of a trip in the buffers of a joint product, in the order of the stacks."""
    slot = f.binary("urem", trip, I64(hoisted.trips))
    return f.binary("sub", I64(hoisted.trips - 1), slot) if reverse else slot


def _open_buffers(step: StepWriter, hoisted: Hoisted | Ahead, slot: IRValue) -> None:
    f = step.f
    for element, buffer in hoisted.kept:
        step.roots[element] = f.at(step.base(buffer), f.binary("mul", slot, I64(element.nbytes)), "uint8")


def _many(step: StepWriter, each: Loop, hoisted: Hoisted, trip: IRValue, at: IRValue) -> None:
    """After every `hoisted.trips` trips, compute their joint product."""
    f = step.f
    last = I64(hoisted.trips - 1)
    with f.when(f.compare("icmp eq", f.binary("urem", trip, I64(hoisted.trips)), last)):
        outer = dict(step.roots)
        first = at if each.reverse else f.binary("sub", at, last)
        _open_operands(step, each, hoisted, first, I64(0))
        step.sequence(Sequence((hoisted.many,)))
        step.roots = outer


def _rest(step: StepWriter, each: Loop, hoisted: Hoisted, trips: IRValue) -> None:
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
            _open_element(step, stack, element, at)
    _open_buffers(step, hoisted, slot)


def _trips_before(f: Function, each: Loop, trip: IRValue, now: Mapping[State, IRValue]) -> IRValue:
    """The number of completed trips: of this loop, or of the longer loop that this one is a run of."""
    if each.counter is None:
        return trip
    counted = f.load(f.read(now[each.counter], "ptr"), "int64")
    return f.select(f.compare("icmp sgt", counted, trip), counted, trip)


def _limits(step: StepWriter, each: Loop, trip: IRValue) -> None:
    """Set the error word if this trip exceeds a limit or the stop word is set; the trip then does not run.

    trip: the number of completed trips.
    """
    f = step.f
    step.module.polls = True
    too_many, too_long = each.limits
    with f.when(f.compare("icmp sge", trip, f.load(step.control("max_trips"), "int64"))):
        f.store(I64(too_many), step.control("error"))
    left = f.binary("sub", f.load(step.control("ops_left"), "int64"), I64(each.ops))
    f.store(left, step.control("ops_left"))
    with f.when(f.compare("icmp slt", left, I64(0))):
        f.store(I64(too_long), step.control("error"))
    word = f.op(f"load volatile i64, {step.control('stop')}, align 8", "int64")
    with f.when(f.compare("icmp ne", word, I64(0))):
        f.store(I64(STOPPED), step.control("error"))


def _open_element(step: StepWriter, stack: Source, element: Root | Recording | Span, at: IRValue) -> None:
    """Bind `element`, the body's name for element `at` of a stack."""
    f = step.f
    if isinstance(stack, Elements | Growing | Span):
        assert isinstance(element, Root)
        step.roots[element] = f.at(held(step, stack)[0], f.binary("mul", at, I64(element.nbytes)), "uint8")
        return
    start, _ = step.recordings[stack]
    address = _slot_address(step, stack.stack, f.binary("add", start, at))
    if isinstance(element, Root):
        step.roots[element] = address
    else:
        first = f.load(address, "int64")
        step.recordings[element] = (first, f.load(f.at(address, I64(8), "uint8"), "int64"))


def _new_slot(step: StepWriter, recording: Recording, start: IRValue, at: IRValue, length: IRValue | None) -> IRValue:
    """The address of slot `at` of a recording in progress, after the stack has grown if it must."""
    f = step.f
    slot = f.binary("add", start, at)
    needed = f.binary("add", start, length) if length is not None else f.binary("add", slot, I64(1))
    nbytes = f.binary("mul", needed, I64(recording.stack.slot_bytes))
    entry = step.stack_entry(recording.stack)
    refusal = refusal_of(step, recording.stack)
    if recording.element is not None:  # a slot of a few words, once for each run of an inner loop: short code is better
        arguments = f"{entry}, {slot}, {nbytes}, {I64(recording.stack.slot_bytes)}, {f.param('control')}, {refusal}"
        return f.op(f"call ptr @slot({arguments})", "ptr")
    fits = made_room(f, entry, nbytes, refusal)
    return _slot_address(step, recording.stack, f.select(fits, slot, I64(0)))


def _slot_address(step: StepWriter, stack: Stack, slot: IRValue) -> IRValue:
    f = step.f
    base = f.load(step.stack_entry(stack), "ptr")
    return f.at(base, f.binary("mul", slot, I64(stack.slot_bytes)), "uint8")


def copy(f: Function, target: IRValue, source: IRValue, nbytes: int) -> None:
    f.declarations.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memmove.p0.p0.i64({target}, {source}, i64 {nbytes}, i1 false)")
