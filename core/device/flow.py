"""Loops of a step on a GPU. Every thread counts the trips by itself; one thread speaks for all where a word is written.

Threads must agree about the end of a loop, or some would wait for others for ever. So none of them decides by a word
that may change meanwhile: the first thread copies the stop word and the error word to one of two `go` words during a
trip, and all threads read that one at the beginning of the next trip, behind a barrier.

A stack cannot grow during a launch. If it is too small, the step ends with an error word of `TOO_SMALL`; the caller
makes it larger and runs the step again.
"""

from __future__ import annotations

from functools import partial

from core.codegen.llvm import I64, Function, IRValue
from core.codegen.loop_parts import LoopCode, slot_address
from core.device.device_writer import DeviceWriter
from core.plan.flow import Elements, Loop, Recording
from core.plan.memory import Root, Stack
from core.runtime.control_words import CONTROL, STOPPED

__all__ = ["CONTROL_WORDS", "GO", "STOP_AT", "TOO_SMALL", "wants", "write_loop"]

GO = len(CONTROL)
"""The position of the two `go` words behind the control words."""

STOP_AT = GO + 2
"""The position of the address of the stop word. That is in memory of the host, which the GPU reads in place: it may
change at any time. The word "stop" of `CONTROL` is unused.
"""

CONTROL_WORDS = STOP_AT + 1

TOO_SMALL = -2
"""Error word: a stack was too small."""


def write_loop(step: DeviceWriter, each: Loop) -> None:
    """Write the trips of a loop: as `core.codegen.flow.write_loop`, for all threads."""
    f, threads = step.f, step.launch
    step.counts_ops = True
    loop = LoopCode(step, each, partial(_copy, step))
    _place_all(step, each)
    with threads.alone(f):
        _write_go_word(step, I64(0))
    threads.barrier(f)
    step.forget()

    head, body, after = f.label("asked"), f.label("trip"), f.label("ended")
    f.jump(head)
    f.begin(head)
    trip = f.read(loop.done, "int64")
    go = loop.has_next(trip)
    parity = f.op(f"and {trip}, 1", "int64")
    error = f.load(_go_word(step, parity), "int64")
    fine = f.binary("and", go, f.compare("icmp eq", error, I64(0)))
    within = _within_limits(step, each, loop.trips_before(trip), fine)
    step.reads(state.now for state in each.states)
    f.branch(f.binary("and", fine, within), body, after)
    f.begin(body)
    with threads.alone(f):
        _write_go_word(step, f.op(f"xor {parity}, 1", "int64"))
    _write_trip(step, loop, trip)
    threads.barrier(f)
    step.forget()
    f.jump(head)
    f.begin(after)
    step.reads_anything()
    trips = loop.end()
    for hoisted in each.hoisted:
        step.meet()
        loop.multiply_rest(hoisted, trips)
    step.meet()
    for state in each.states:
        _copy(step, step.address(state.final), step.roots[state.now], state.nbytes)


def _write_trip(step: DeviceWriter, loop: LoopCode, trip: IRValue) -> None:
    """Write one trip of a loop: its elements, its body, its records and its carried values."""
    at = loop.open(trip)
    for ahead, there in loop.ahead:
        with step.sometimes():
            loop.multiply_ahead(ahead, there, trip)
        step.reads((ahead.row if ahead.source is None else ahead.source[1].root,))
    loop.open_slots(at, partial(_slot, step))
    step.instructions(loop.each.body)
    for hoisted in loop.each.hoisted:
        with step.sometimes():
            loop.multiply_many(hoisted, trip, at)
    for recording, element in loop.growing.items():
        if not isinstance(element, Root):
            with step.launch.alone(step.f):
                loop.put(recording, element)
            step.reads_anything()
        loop.advance(recording, trip)
    loop.end_trip(trip)


def _place_all(step: DeviceWriter, each: Loop) -> None:
    """Tell the step which memory the roots have whose addresses change from trip to trip.

    The two buffers of a state, and the slots of different stacks, are memory that nothing else has inside the loop.
    """
    for state in each.states:
        for root in (state.now, state.following):
            step.put_place(root, {("state", id(root), id(root) + 1)})
    for stack, element in (*each.over, *each.records):
        if not isinstance(element, Root):
            continue
        if isinstance(stack, Recording):
            number = step.plan.stacks.index(stack.stack)
            step.put_place(element, {("stack", number, number + 1)})
        elif isinstance(stack, Elements):
            step.put_place(element, step.places((stack.view.root,)))
    for root, buffer in (pair for product in each.joint for pair in product.kept):
        step.put_place(root, step.places((buffer,)))
    for ahead in each.ahead:
        if ahead.source is not None:
            step.put_place(ahead.row, step.places((ahead.source[0].root,)))


def _go_word(step: DeviceWriter, number: IRValue) -> IRValue:
    f = step.f
    return f.at(f.param("control"), f.binary("add", number, I64(GO)), "int64")


def _write_go_word(step: DeviceWriter, number: IRValue) -> None:
    """Copy the error word to a `go` word, which all threads read before the next trip; a set stop word is an error."""
    f = step.f
    place = f.load(f.at(f.param("control"), I64(STOP_AT), "ptr"), "ptr")
    stop = f.op(f"load volatile i64, {place}, align 8", "int64")
    with f.when(f.compare("icmp ne", stop, I64(0))):
        f.store(I64(STOPPED), step.control("error"))
    error = f.op(f"load volatile i64, {step.control('error')}, align 8", "int64")
    f.store(error, _go_word(step, number))


def _within_limits(step: DeviceWriter, each: Loop, trip: IRValue, goes: IRValue) -> IRValue:
    """Whether this trip exceeds no limit. Each thread counts ops by itself; the first one reports the error."""
    f = step.f
    too_many, too_long = each.limits
    few = f.compare("icmp slt", trip, f.load(step.control("max_trips"), "int64"))
    used = f.select(goes, I64(each.ops), I64(0))
    counter = f.param("ops_left")
    left = f.binary("sub", f.read(counter, "int64"), used)
    f.write(left, counter)
    short = f.compare("icmp sge", left, I64(0))
    for holds, check in ((few, too_many), (short, too_long)):
        broken = f.binary("and", goes, f.op(f"xor {holds}, true", "bool"))
        with step.launch.alone(f), f.when(broken):
            step.fail(I64(check))
    return f.binary("and", few, short)


def _slot(step: DeviceWriter, recording: Recording, slot: IRValue, nbytes: IRValue) -> IRValue:
    """The address of a slot; that of slot 0 and an error if the stack has less than `nbytes` bytes."""
    fits = wants(step, recording.stack, nbytes)
    return slot_address(step, recording.stack, step.f.select(fits, slot, I64(0)))


def wants(step: DeviceWriter, stack: Stack, nbytes: IRValue) -> IRValue:
    """Whether a stack has so many bytes. If not, the first thread notes how many it should have, and an error."""
    f, entry = step.f, step.stack_entry(stack)
    fits = f.compare("icmp sle", nbytes, f.load(f.at(entry, I64(8), "uint8"), "int64"))
    with step.launch.alone(f), f.when(f.op(f"xor {fits}, true", "bool")):
        f.store(I64(TOO_SMALL), step.control("error"))
        wanted = f.at(entry, I64(16), "uint8")
        f.store(f.intrinsic("smax", nbytes, f.load(wanted, "int64")), wanted)
    return fits


def _copy(step: DeviceWriter, target: IRValue, source: IRValue, nbytes: int) -> None:
    """All threads together. The caller has met before; nothing may depend on the copy before the next barrier."""
    f: Function = step.f
    dtype, size = ("int64", 8) if nbytes % 8 == 0 else ("int32", 4) if nbytes % 4 == 0 else ("uint8", 1)
    with f.loop(step.launch.number(f), I64(nbytes // size), step.launch.total) as i:
        f.store(f.load(f.at(source, i, dtype), dtype), f.at(target, i, dtype))
    step.touches_anything()
