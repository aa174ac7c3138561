"""Loops and branches in the step function.

A recording is two numbers: its first slot in the memory of a stack (`stack_memory`), and its length.
"""

from __future__ import annotations

from functools import partial

from core.codegen.array_parts import refusal_of
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.loop_parts import LoopCode, slot_address
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.flow import Branch, Loop, Recording
from core.plan.memory import Root
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
    loop = LoopCode(step, each, partial(_copy, f))
    head, body, inside, after = f.label("asked"), f.label("trip"), f.label("inside"), f.label("ended")
    f.jump(head)
    f.begin(head)
    trip = f.read(loop.done, "int64")
    go = loop.has_next(trip)
    f.branch(f.binary("and", go, _has_no_error(step)), body, after)
    f.begin(body)
    _limits(step, each, loop.trips_before(trip))
    f.branch(_has_no_error(step), inside, after)
    f.begin(inside)
    at = loop.open(trip)
    for ahead, there in loop.ahead:
        loop.multiply_ahead(ahead, there, trip)
    loop.open_slots(at, partial(_slot, step))
    step.sequence(each.body)
    for hoisted in each.hoisted:
        loop.multiply_many(hoisted, trip, at)
    for recording, element in loop.growing.items():
        if not isinstance(element, Root):
            loop.put(recording, element)
        loop.advance(recording, trip)
    loop.end_trip(trip)
    f.jump(head)
    f.begin(after)
    trips = loop.end()
    for hoisted in each.hoisted:
        loop.multiply_rest(hoisted, trips)
    for state in each.states:
        _copy(f, step.address(state.final), step.roots[state.now], state.nbytes)


def _has_no_error(step: StepWriter) -> IRValue:
    """Whether the error word is not set."""
    return step.f.compare("icmp eq", step.f.load(step.control("error"), "int64"), I64(0))


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


def _slot(step: StepWriter, recording: Recording, slot: IRValue, nbytes: IRValue) -> IRValue:
    """The address of a slot of a recording in progress, after the stack has grown to `nbytes` bytes if it must."""
    f, stack = step.f, recording.stack
    entry, refusal = step.stack_entry(stack), refusal_of(step, stack)
    if recording.element is not None:  # a slot of a few words, once for each run of an inner loop: short code is better
        arguments = f"{entry}, {slot}, {nbytes}, {I64(stack.slot_bytes)}, {f.param('control')}, {refusal}"
        return f.op(f"call ptr @slot({arguments})", "ptr")
    fits = made_room(f, entry, nbytes, refusal)
    return slot_address(step, stack, f.select(fits, slot, I64(0)))


def _copy(f: Function, target: IRValue, source: IRValue, nbytes: int) -> None:
    f.declarations.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memmove.p0.p0.i64({target}, {source}, i64 {nbytes}, i1 false)")
