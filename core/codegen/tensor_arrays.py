"""Tensor arrays that grow, in the step function: each instruction calls a function that all arrays share.

An instruction does nothing after a check has failed or the stop word is set, since an index may be wrong then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.codegen.array_parts import (
    HELD,
    TARGET,
    call_shared,
    clear_bytes,
    copy_bytes,
    fail_check,
    function_of,
    goes_on,
    held,
    refusal_of,
    room,
    slot_of,
    target_of,
)
from core.codegen.array_rows import count_rows, cut_rows, join_rows
from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.runs import compare_runs, flatten, make_runs
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.growing import (
    AddArrays,
    ArrayOp,
    ArrayWork,
    CountRows,
    CutRows,
    Flatten,
    JoinRows,
    KeepArray,
    MakeRuns,
    OpenSpan,
)
from core.plan.memory import bytes_of

__all__ = ["write_array"]

FURTHEST = 1 << 40
"""Limit of an index: its place in memory is a number of 64 bits."""


def write_array(step: StepWriter, each: ArrayWork) -> None:
    """Append the code of an instruction on tensor arrays."""
    step.module.polls = True  # the caller sets the limits of memory only for code that polls
    OTHERS.get(type(each), _op)(step, each)


def _op(step: StepWriter, each: ArrayOp) -> None:
    WRITERS[each.kind](step, each)


def _open(step: StepWriter, each: OpenSpan) -> None:
    step.recordings[each.span.places] = I64(0), step.f.load(step.address(each.length), "int64")


def _index(step: StepWriter, each: ArrayOp) -> IRValue:
    assert each.index is not None
    return step.f.load(step.address(each.index), "int64")


# --- the instructions -------------------------------------------------------------------------------------------


def _clear(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    step.f.store(I64(0), step.address(each.target.count))


def _copy(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    assert each.source is not None
    call_shared(step, "copy", copy_function, *target_of(step, each.target), *held(step, each.source))


def _put(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    assert each.value is not None
    value, check = step.address(each.value), I64(each.check)
    call_shared(step, "put", put_function, *target_of(step, each.target), _index(step, each), value, check)


def _erase(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    base, _ = held(step, each.target)
    arguments = (base, step.address(each.target.count), I64(each.target.stack.slot_bytes), _index(step, each))
    call_shared(step, "erase", erase_function, *arguments)


def _extend(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    assert each.source is not None
    _, length = held(step, each.source)
    call_shared(step, "extend", extend_function, *target_of(step, each.target), length)
    if each.kind == "fit":
        f, count = step.f, step.address(each.target.count)
        f.store(f.intrinsic("smin", f.load(count, "int64"), length), count)


def _get(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.value is not None
    out, size = step.address(each.value), I64(bytes_of(each.value.shape, each.value.dtype))
    call_shared(step, "get", get_function, *held(step, each.source), size, _index(step, each), out, I64(each.check))


def _join(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.value is not None
    rows, *shape = each.value.shape
    sizes = (I64(bytes_of(tuple(shape), each.value.dtype)), I64(rows))
    call_shared(
        step, "join", join_function, *held(step, each.source), *sizes, step.address(each.value), I64(each.check)
    )


def _count(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.value is not None
    step.f.store(held(step, each.source)[1], step.address(each.value))


def _same(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.other is not None
    f = step.f
    lengths = [held(step, array)[1] for array in (each.source, each.other)]
    differ = f.compare("icmp ne", *lengths)
    with f.when(f.binary("and", differ, goes_on(f))):
        fail(f, step.control("error"), I64(each.check))
    if each.kind == "alike":
        first, second = (held(step, array)[0] for array in (each.source, each.other))
        compare_runs(f, first, second, lengths[0], lambda: fail(f, step.control("error"), I64(each.check)))


def _add(step: StepWriter, each: AddArrays) -> None:
    assert each.target is not None
    assert each.source is not None
    f, size = step.f, I64(each.target.stack.slot_bytes)
    _, length = held(step, each.source)
    call_shared(step, "extend", extend_function, *target_of(step, each.target), length)
    own, _ = held(step, each.target)
    other, length = held(step, each.source)
    first, second = each.terms
    given = f.select(goes_on(f), length, I64(0))  # else memory and lengths of both arrays may be anything
    with f.loop(I64(0), given) as i:
        at = f.binary("mul", i, size)
        step.roots[first], step.roots[second] = f.at(own, at, "uint8"), f.at(other, at, "uint8")
        step.sequence(each.body)
        f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        f.do(f"call void @llvm.memcpy.p0.p0.i64({step.roots[first]}, {step.address(each.total)}, {size}, i1 false)")


def _keep(step: StepWriter, each: KeepArray) -> None:
    assert each.source is not None
    f, stack = step.f, each.recording.stack
    base, length = held(step, each.source)
    entry, cursor, size = step.stack_entry(stack), step.cursor(stack), I64(stack.slot_bytes)
    if not stack.kept:
        f.write(I64(0), cursor)
    start = f.read(cursor, "int64")
    needed = f.binary("mul", f.binary("add", start, length), size)
    fits = made_room(f, entry, needed, refusal_of(step, stack), goes_on(f))
    count = f.select(f.binary("and", goes_on(f), fits), length, I64(0))
    own = f.at(f.load(entry, "ptr"), f.binary("mul", start, size), "uint8")
    f.declarations.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
    f.do(f"call void @llvm.memcpy.p0.p0.i64({own}, {base}, {f.binary('mul', count, size)}, i1 false)")
    f.write(f.binary("add", start, count), cursor)
    step.recordings[each.recording] = (start, count)


WRITERS: dict[str, Callable[[StepWriter, ArrayOp], None]] = {
    "clear": _clear,
    "copy": _copy,
    "put": _put,
    "erase": _erase,
    "extend": _extend,
    "fit": _extend,
    "get": _get,
    "join": _join,
    "count": _count,
    "same": _same,
    "alike": _same,
}


OTHERS: dict[type[ArrayWork], Callable[[StepWriter, Any], None]] = {
    AddArrays: _add,
    CountRows: count_rows,
    CutRows: cut_rows,
    Flatten: flatten,
    JoinRows: join_rows,
    KeepArray: _keep,
    MakeRuns: make_runs,
    OpenSpan: _open,
}
"""The instructions besides `ArrayOp`."""


# --- functions that all arrays of a step share ------------------------------------------------------------------


def copy_function(name: str) -> Function:
    """``copy(control, stack, count, size, refusal, base, length)``: the array becomes `length` elements at `base`."""
    f = function_of(name, [*TARGET, *HELD])
    length = f.param("length")
    with f.when(goes_on(f)), room(f, length) as own:
        copy_bytes(f, own, f.param("base"), length)
        f.store(length, f.param("count"))
    return f


def put_function(name: str) -> Function:
    """``put(control, stack, count, size, refusal, index, value, check)``: write the element at `value` to `index`."""
    f = function_of(name, [*TARGET, ("index", "int64"), ("value", "ptr"), ("check", "int64")])
    index = f.param("index")
    with f.when(goes_on(f)):
        count = f.load(f.param("count"), "int64")
        checked = f.compare("icmp ne", f.param("check"), I64(0))
        fits = f.compare("icmp ule", index, f.select(checked, count, I64(FURTHEST)))
        with f.when(f.compare("icmp eq", fits, f.constant(False, fits))):
            fail_check(f)
        with f.when(fits):
            following = f.binary("add", index, I64(1))
            longer = f.intrinsic("smax", count, following)
            with room(f, longer) as own:
                with f.when(f.compare("icmp sgt", index, count)):
                    clear_bytes(f, slot_of(f, own, count), f.binary("sub", index, count))
                copy_bytes(f, slot_of(f, own, index), f.param("value"), I64(1))
                f.store(longer, f.param("count"))
    return f


def extend_function(name: str) -> Function:
    """``extend(control, stack, count, size, refusal, length)``: zeros up to `length`, if the array is shorter."""
    f = function_of(name, [*TARGET, ("length", "int64")])
    length, count = f.param("length"), f.load(f.param("count"), "int64")
    with f.when(f.binary("and", goes_on(f), f.compare("icmp sgt", length, count))), room(f, length) as own:
        clear_bytes(f, slot_of(f, own, count), f.binary("sub", length, count))
        f.store(length, f.param("count"))
    return f


def erase_function(name: str) -> Function:
    """``erase(control, base, count, size, index)``: element `index` becomes zero; the last one is left out."""
    f = function_of(name, [("base", "ptr"), ("count", "ptr"), ("size", "int64"), ("index", "int64")])
    index, count = f.param("index"), f.load(f.param("count"), "int64")
    last = f.binary("sub", count, I64(1))
    with f.when(goes_on(f)):
        with f.when(f.compare("icmp ult", index, count)):
            clear_bytes(f, slot_of(f, f.param("base"), index), I64(1))
        with f.when(f.compare("icmp eq", index, last)):
            f.store(last, f.param("count"))
    return f


def get_function(name: str) -> Function:
    """``get(control, base, length, size, index, out, check)``: element `index` to `out`, zeros if it does not exist."""
    f = function_of(name, [*HELD, ("size", "int64"), ("index", "int64"), ("out", "ptr"), ("check", "int64")])
    going, out = goes_on(f), f.param("out")
    inside = f.binary("and", going, f.compare("icmp ult", f.param("index"), f.param("length")))

    def missing() -> None:
        clear_bytes(f, out, I64(1))
        with f.when(going):
            fail_check(f)

    f.either(inside, lambda: copy_bytes(f, out, slot_of(f, f.param("base"), f.param("index")), I64(1)), missing)
    return f


def join_function(name: str) -> Function:
    """``join(control, base, length, size, rows, out, check)``: the first `rows` elements to `out`, then zeros."""
    f = function_of(name, [*HELD, ("size", "int64"), ("rows", "int64"), ("out", "ptr"), ("check", "int64")])
    length, rows = f.param("length"), f.param("rows")
    with f.when(goes_on(f)):
        with f.when(f.compare("icmp sgt", length, rows)):
            fail_check(f)
        given = f.intrinsic("smin", length, rows)
        copy_bytes(f, f.param("out"), f.param("base"), given)
        clear_bytes(f, slot_of(f, f.param("out"), given), f.binary("sub", rows, given))
    return f
