"""Loops and branches in the step function.

A recording is two numbers: its first slot in the memory of a stack (`stack_memory`), and its length.
"""

from __future__ import annotations

from core.codegen.array_parts import held, refusal_of
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.loop_parts import (
    advance,
    multiply_ahead,
    multiply_many,
    multiply_rest,
    open_buffers,
    open_element,
    slot_address,
    slot_of,
    swap_states,
    trips_before,
)
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.data import Root
from core.plan.flow import Branch, Loop, Recording, Span
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
    _limits(step, each, trips_before(f, each, trip, now))
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
        open_element(step, stack, element, at)
    for stack, element in each.records:
        if not isinstance(stack, Recording):
            open_element(step, stack, element, at)
    for hoisted in each.hoisted:
        open_buffers(step, hoisted, slot_of(f, hoisted, trip, each.reverse))
    for ahead, there in zip(each.ahead, made, strict=True):
        multiply_ahead(step, each, ahead, trip, there)
    slots = {}
    for recording, element in growing:
        slots[recording] = _new_slot(step, recording, starts[recording], at, length)
        if isinstance(element, Root):
            step.roots[element] = slots[recording]
    step.sequence(each.body)
    for hoisted in each.hoisted:
        multiply_many(step, each, hoisted, trip, at)
    for recording, element in growing:
        if not isinstance(element, Root):
            start, count = step.recordings[element.places if isinstance(element, Span) else element]
            f.store(start, slots[recording])
            f.store(count, f.at(slots[recording], I64(8), "uint8"))
        advance(step, recording, starts[recording], trip, length)
    swap_states(f, each, now, following)
    f.write(f.binary("add", trip, I64(1)), done)
    f.jump(head)
    f.begin(after)
    trips = f.read(done, "int64")
    for recording, _ in growing:
        step.recordings[recording] = (starts[recording], trips)
    for state in each.states:
        step.roots[state.now] = f.read(now[state], "ptr")
    for hoisted in each.hoisted:
        multiply_rest(step, each, hoisted, trips)
    for state in each.states:
        copy(f, step.address(state.final), step.roots[state.now], state.nbytes)


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
    return slot_address(step, recording.stack, f.select(fits, slot, I64(0)))


def copy(f: Function, target: IRValue, source: IRValue, nbytes: int) -> None:
    f.declarations.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memmove.p0.p0.i64({target}, {source}, i64 {nbytes}, i1 false)")
