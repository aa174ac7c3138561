"""Arrays of runs: adjacent elements of another array. A slot of two words has the number of the first, and how many."""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.array_parts import TARGET, call_shared, function_of, goes_on, held, refusal_of, target_of, word_of
from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.flow import Recording, Span
from core.plan.growing import Flatten, MakeRuns
from core.plan.memory import bytes_of

__all__ = ["compare_runs", "flatten", "make_runs"]

NONE = IRValue("null", "ptr")

WORDS = I64(2)
"""Words of a slot."""


def make_runs(step: StepWriter, each: MakeRuns) -> None:
    """Append the code that divides an array into runs."""
    f, stack = step.f, each.recording.stack
    assert each.source is not None
    source = each.source.places if isinstance(each.source, Span) else each.source
    first = step.recordings[source][0] if isinstance(source, Recording | Span) else I64(0)
    _, length = held(step, each.source)
    cursor = step.cursor(stack)
    if not stack.kept:
        f.write(I64(0), cursor)
    start = f.read(cursor, "int64")
    like = _given(step, each.like)
    how = [I64(each.order), I64(int(each.exact)), I64(each.check)]
    arguments = [step.stack_entry(stack), cursor, refusal_of(step, stack), first, length, *like, *how]
    call_shared(step, "runs", runs_function, *arguments)
    step.recordings[each.recording] = (start, f.binary("sub", f.read(cursor, "int64"), start))


def flatten(step: StepWriter, each: Flatten) -> None:
    """Append the code that copies the elements of all runs."""
    f, runs = step.f, each.source
    if isinstance(runs.element, Span):
        view = runs.element.view
        base, size = step.address(view), bytes_of(view.shape[1:], view.dtype)
    else:
        assert isinstance(runs.element, Recording)
        base, size = f.load(step.stack_entry(runs.element.stack), "ptr"), runs.element.stack.slot_bytes
    given = [*_given(step, runs), base, *_given(step, each.like), I64(each.order)]
    if each.target is not None:
        call_shared(step, "flatten", flatten_function, *target_of(step, each.target), I64(0), *given)
        return
    if each.recording is not None:
        stack, cursor, count = each.recording.stack, step.cursor(each.recording.stack), f.slot("int64")
        if not stack.kept:
            f.write(I64(0), cursor)
        f.write(I64(0), count)
        start = f.read(cursor, "int64")
        to = [step.stack_entry(stack), count, I64(stack.slot_bytes), refusal_of(step, stack), start]
        call_shared(step, "flatten", flatten_function, *to, *given)
        length = f.read(count, "int64")
        f.write(f.binary("add", start, length), cursor)
        step.recordings[each.recording] = (start, length)
        return
    assert each.value is not None
    rows = [I64(size), I64(each.value.shape[0]), step.address(each.value), I64(each.check)]
    call_shared(step, "join_runs", join_runs_function, *given, *rows)


def compare_runs(f: Function, first: IRValue, second: IRValue, number: IRValue, differ: Callable[[], None]) -> None:
    """Append the code of `differ` for each run of two arrays of so many runs that have not the same length."""
    with f.loop(I64(0), f.select(goes_on(f), number, I64(0))) as i:
        lengths = [f.load(_word(f, runs, i, 1), "int64") for runs in (first, second)]
        with f.when(f.compare("icmp ne", *lengths)):
            differ()


def _given(step: StepWriter, runs: Recording | None) -> list[IRValue]:
    """The address of the first slot of an array of runs, and the number of slots; null and 0 for none."""
    return [NONE, I64(0)] if runs is None else [*held(step, runs)]


# --- functions that all arrays of a step share ------------------------------------------------------------------

RUNS = [("runs", "ptr"), ("number", "int64"), ("base", "ptr"), ("like", "ptr"), ("others", "int64"), ("order", "int64")]


def _word(f: Function, runs: IRValue, index: IRValue, word: int) -> IRValue:
    """The address of a word of slot `index`."""
    return f.at(runs, f.binary("add", f.binary("mul", index, WORDS), I64(word)), "int64")


def _following(f: Function, size: IRValue, done: IRValue, order: IRValue) -> IRValue:
    """binom(done + order, order) from ``size = binom(done + order - 1, order)``, the size of run number `done`."""
    return f.binary("udiv", f.binary("mul", size, f.binary("add", done, order)), done)


def runs_function(name: str) -> Function:
    """``runs(control, stack, cursor, refusal, first, length, like, others, order, exact, check)``: append the runs of
    `length` elements, of which number `first` is the first, to a stack.
    """
    params = [("stack", "ptr"), ("cursor", "ptr"), ("refusal", "int64"), ("first", "int64"), ("length", "int64"),
              ("like", "ptr"), ("others", "int64"), ("order", "int64"), ("exact", "int64"),
              ("check", "int64")]  # fmt: skip
    f = function_of(name, params)
    length, order = f.param("length"), f.param("order")
    alike = f.compare("icmp ne", f.param("like"), NONE)
    number = f.select(alike, f.param("others"), _count(f, length, order, alike))
    start = f.read(f.param("cursor"), "int64")
    needed = f.binary("mul", f.binary("add", start, number), I64(16))
    fits = made_room(f, f.param("stack"), needed, f.param("refusal"), goes_on(f))
    count = f.select(f.binary("and", goes_on(f), fits), number, I64(0))
    slots = f.load(f.param("stack"), "ptr")
    at, size = f.slot("int64"), f.slot("int64")
    f.write(I64(0), at)
    f.write(I64(1), size)
    with f.loop(I64(0), count) as i:
        with f.when(alike):
            f.write(f.load(_word(f, f.param("like"), i, 1), "int64"), size)
        here, wanted = f.read(at, "int64"), f.read(size, "int64")
        inside = f.intrinsic("smin", here, length)
        left = f.binary("sub", length, inside)
        slot = f.binary("add", start, i)
        f.store(f.binary("add", f.param("first"), inside), _word(f, slots, slot, 0))
        f.store(f.intrinsic("smin", wanted, left), _word(f, slots, slot, 1))
        f.write(f.binary("add", here, wanted), at)
        f.write(_following(f, wanted, f.binary("add", i, I64(1)), order), size)
    f.write(f.binary("add", start, count), f.param("cursor"))
    total = f.read(at, "int64")
    exact = f.compare("icmp ne", f.param("exact"), I64(0))
    wrong = f.select(exact, f.compare("icmp ne", total, length), f.compare("icmp sgt", total, length))
    with f.when(f.binary("and", f.binary("and", alike, wrong), goes_on(f))):
        fail(f, word_of(f, "error"), f.param("check"))
    return f


def _count(f: Function, length: IRValue, order: IRValue, none: IRValue) -> IRValue:
    """The number of runs that `length` elements make, or 0 if `none` holds."""
    done, left, size = f.slot("int64"), f.slot("int64"), f.slot("int64")
    f.write(I64(0), done)
    f.write(f.select(none, I64(0), length), left)
    f.write(I64(1), size)
    head, body, after = f.label("asked"), f.label("run"), f.label("counted")
    f.jump(head)
    f.begin(head)
    f.branch(f.compare("icmp sgt", f.read(left, "int64"), I64(0)), body, after)
    f.begin(body)
    own, number = f.read(size, "int64"), f.binary("add", f.read(done, "int64"), I64(1))
    f.write(f.binary("sub", f.read(left, "int64"), own), left)
    f.write(_following(f, own, number, order), size)
    f.write(number, done)
    f.jump(head)
    f.begin(after)
    return f.read(done, "int64")


def _copied(f: Function, size: IRValue, rows: IRValue, out: IRValue) -> IRValue:
    """Copy the elements of all runs to the first `rows` rows of `out`; returns how many elements there are."""
    order, alike = f.param("order"), f.compare("icmp ne", f.param("like"), NONE)
    some = f.compare("icmp ne", order, I64(0))
    number = f.select(alike, f.intrinsic("smin", f.param("number"), f.param("others")), f.param("number"))
    last = f.binary("sub", number, I64(1))
    done, whole, wanted = f.slot("int64"), f.slot("int64"), f.slot("int64")
    f.write(I64(0), done)
    f.write(I64(1), whole)
    with f.loop(I64(0), number) as i:
        length = f.load(_word(f, f.param("runs"), i, 1), "int64")
        full = f.read(whole, "int64")
        ends = f.select(f.compare("icmp eq", i, last), f.intrinsic("smin", length, full), full)
        f.write(f.select(some, ends, length), wanted)
        with f.when(alike):
            f.write(f.load(_word(f, f.param("like"), i, 1), "int64"), wanted)
        here, all_of = f.read(done, "int64"), f.read(wanted, "int64")
        left = f.intrinsic("smax", f.binary("sub", rows, here), I64(0))
        room = f.intrinsic("smin", all_of, left)
        given = f.intrinsic("smin", room, length)
        first = f.load(_word(f, f.param("runs"), i, 0), "int64")
        source = f.at(f.param("base"), f.binary("mul", first, size), "uint8")
        target = f.at(out, f.binary("mul", here, size), "uint8")
        f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, {f.binary('mul', given, size)}, i1 false)")
        rest = f.binary("mul", f.binary("sub", room, given), size)
        beyond = f.at(target, f.binary("mul", given, size), "uint8")
        f.do(f"call void @llvm.memset.p0.i64({beyond}, i8 0, {rest}, i1 false)")
        f.write(f.binary("add", here, all_of), done)
        following = f.binary("add", i, I64(1))
        f.write(_following(f, full, following, order), whole)
    return f.read(done, "int64")


def flatten_function(name: str) -> Function:
    """``flatten(control, stack, count, size, refusal, offset, runs, number, base, like, others, order)``: the elements
    of all runs become those from slot `offset` on; `count` is how many they are.
    """
    params = [*TARGET, ("offset", "int64"), *RUNS]
    f = function_of(name, params)
    size, offset = f.param("size"), f.param("offset")
    with f.when(goes_on(f)):
        total = _copied(f, size, I64(0), f.param("base"))
        needed = f.binary("mul", f.binary("add", offset, total), size)
        with f.when(made_room(f, f.param("stack"), needed, f.param("refusal"))):
            _copied(f, size, total, f.at(f.load(f.param("stack"), "ptr"), f.binary("mul", offset, size), "uint8"))
            f.store(total, f.param("count"))
    return f


def join_runs_function(name: str) -> Function:
    """``join_runs(control, runs, number, base, like, others, order, size, rows, out, check)``: the elements of all runs
    to the first rows of `out`, zeros to the others.
    """
    f = function_of(name, [*RUNS, ("size", "int64"), ("rows", "int64"), ("out", "ptr"), ("check", "int64")])
    size, rows, out = f.param("size"), f.param("rows"), f.param("out")
    with f.when(goes_on(f)):
        total = _copied(f, size, rows, out)
        too_many = f.compare("icmp sgt", total, rows)
        with f.when(f.binary("and", too_many, f.compare("icmp ne", f.param("check"), I64(0)))):
            fail(f, word_of(f, "error"), f.param("check"))
        given = f.intrinsic("smin", total, rows)
        rest = f.binary("mul", f.binary("sub", rows, given), size)
        beyond = f.at(out, f.binary("mul", given, size), "uint8")
        f.do(f"call void @llvm.memset.p0.i64({beyond}, i8 0, {rest}, i1 false)")
    return f
