"""Tensor arrays that grow, in the step function: each instruction calls a function that all arrays share.

An instruction does nothing after a check has failed or the stop word is set, since an index may be wrong then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.data import bytes_of
from core.plan.flow import Elements, Growing, Source
from core.plan.growing import AddArrays, ArrayOp, ArrayWork, KeepArray
from core.runtime.control_words import CONTROL, STACK

__all__ = ["held", "write_array"]

FURTHEST = 1 << 40
"""Limit of an index: its place in memory is a number of 64 bits."""


def write_array(step: StepWriter, each: ArrayWork) -> None:
    """Append the code of an instruction on tensor arrays."""
    step.module.polls = True  # the caller sets the limits of memory only for code that polls
    if isinstance(each, AddArrays):
        _add(step, each)
        return
    if isinstance(each, KeepArray):
        _keep(step, each)
        return
    assert isinstance(each, ArrayOp), each
    WRITERS[each.kind](step, each)


def held(step: StepWriter, source: Source) -> tuple[IRValue, IRValue]:
    """The address of the first element of an array, and the number of elements."""
    f = step.f
    if isinstance(source, Elements):
        return step.address(source.view), I64(source.length)
    base = f.load(step.stack_entry(source.stack), "ptr")
    if isinstance(source, Growing):
        return base, f.load(step.address(source.count), "int64")
    start, length = step.recordings[source]
    return f.at(base, f.binary("mul", start, I64(source.stack.slot_bytes)), "uint8"), length


def _target(step: StepWriter, array: Growing) -> list[IRValue]:
    """The arguments for an array that a function changes: stack, count, bytes of an element, error of a full stack."""
    refusal = I64(STACK - 2 * step.plan.stacks.index(array.stack))
    return [step.stack_entry(array.stack), step.address(array.count), I64(array.stack.slot_bytes), refusal]


def _call(step: StepWriter, name: str, make: Callable[[str], Function], *arguments: IRValue) -> None:
    function = step.module.function(("tensor array", name), f"array_{name}", make)
    step.f.do(f"call void @{function}({', '.join(map(str, [step.f.param('control'), *arguments]))})")


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
    _call(step, "copy", copy_function, *_target(step, each.target), *held(step, each.source))


def _put(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    assert each.value is not None
    value, check = step.address(each.value), I64(each.check)
    _call(step, "put", put_function, *_target(step, each.target), _index(step, each), value, check)


def _erase(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    base, _ = held(step, each.target)
    arguments = (base, step.address(each.target.count), I64(each.target.stack.slot_bytes), _index(step, each))
    _call(step, "erase", erase_function, *arguments)


def _extend(step: StepWriter, each: ArrayOp) -> None:
    assert each.target is not None
    assert each.source is not None
    _, length = held(step, each.source)
    _call(step, "extend", extend_function, *_target(step, each.target), length)
    if each.kind == "fit":
        f, count = step.f, step.address(each.target.count)
        f.store(f.intrinsic("smin", f.load(count, "int64"), length), count)


def _get(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.value is not None
    out, size = step.address(each.value), I64(bytes_of(each.value.shape, each.value.dtype))
    _call(step, "get", get_function, *held(step, each.source), size, _index(step, each), out, I64(each.check))


def _join(step: StepWriter, each: ArrayOp) -> None:
    assert each.source is not None
    assert each.value is not None
    rows, *shape = each.value.shape
    sizes = (I64(bytes_of(tuple(shape), each.value.dtype)), I64(rows))
    _call(step, "join", join_function, *held(step, each.source), *sizes, step.address(each.value), I64(each.check))


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
    with f.when(f.binary("and", differ, _goes_on(f))):
        fail(f, step.control("error"), I64(each.check))


def _add(step: StepWriter, each: AddArrays) -> None:
    assert each.target is not None
    assert each.source is not None
    f, size = step.f, I64(each.target.stack.slot_bytes)
    _, length = held(step, each.source)
    _call(step, "extend", extend_function, *_target(step, each.target), length)
    own, _ = held(step, each.target)
    other, length = held(step, each.source)
    first, second = each.terms
    given = f.select(_goes_on(f), length, I64(0))  # else memory and lengths of both arrays may be anything
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
    start = f.read(cursor, "int64")
    needed = f.binary("mul", f.binary("add", start, length), size)
    refusal = I64(STACK - 2 * step.plan.stacks.index(stack))
    fits = made_room(f, entry, needed, refusal, _goes_on(f))
    count = f.select(f.binary("and", _goes_on(f), fits), length, I64(0))
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
}


# --- functions that all arrays of a step share ------------------------------------------------------------------

TARGET = [("stack", "ptr"), ("count", "ptr"), ("size", "int64"), ("refusal", "int64")]
HELD = [("base", "ptr"), ("length", "int64")]


def _function(name: str, params: list[tuple[str, str]]) -> Function:
    f = Function(name, [("control", "ptr"), *params], noalias=False)
    f.declarations |= {
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    }
    return f


def _word(f: Function, name: str) -> IRValue:
    return f.at(f.param("control"), I64(CONTROL.index(name)), "int64")


def _goes_on(f: Function) -> IRValue:
    """Whether no check has failed and the stop word is not set."""
    error = f.load(_word(f, "error"), "int64")
    stop = f.op(f"load volatile i64, {_word(f, 'stop')}, align 8", "int64")
    return f.compare("icmp eq", f.binary("or", error, stop), I64(0))


def _fail(f: Function) -> None:
    """Report the check, if there is one."""
    check = f.param("check")
    with f.when(f.compare("icmp ne", check, I64(0))):
        fail(f, _word(f, "error"), check)


@contextmanager
def _room(f: Function, length: IRValue) -> Iterator[IRValue]:
    """Inside the context, the array has memory for `length` elements. The context's value is the address of it."""
    stack, needed = f.param("stack"), f.binary("mul", length, f.param("size"))
    with f.when(made_room(f, stack, needed, f.param("refusal"))):
        yield f.load(stack, "ptr")


def _slot(f: Function, base: IRValue, index: IRValue) -> IRValue:
    return f.at(base, f.binary("mul", index, f.param("size")), "uint8")


def _copy_bytes(f: Function, target: IRValue, source: IRValue, count: IRValue) -> None:
    nbytes = f.binary("mul", count, f.param("size"))
    f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, {nbytes}, i1 false)")


def _clear_bytes(f: Function, target: IRValue, count: IRValue) -> None:
    nbytes = f.binary("mul", count, f.param("size"))
    f.do(f"call void @llvm.memset.p0.i64({target}, i8 0, {nbytes}, i1 false)")


def copy_function(name: str) -> Function:
    """``copy(control, stack, count, size, refusal, base, length)``: the array becomes `length` elements at `base`."""
    f = _function(name, [*TARGET, *HELD])
    length = f.param("length")
    with f.when(_goes_on(f)), _room(f, length) as own:
        _copy_bytes(f, own, f.param("base"), length)
        f.store(length, f.param("count"))
    return f


def put_function(name: str) -> Function:
    """``put(control, stack, count, size, refusal, index, value, check)``: write the element at `value` to `index`."""
    f = _function(name, [*TARGET, ("index", "int64"), ("value", "ptr"), ("check", "int64")])
    index = f.param("index")
    with f.when(_goes_on(f)):
        count = f.load(f.param("count"), "int64")
        checked = f.compare("icmp ne", f.param("check"), I64(0))
        fits = f.compare("icmp ule", index, f.select(checked, count, I64(FURTHEST)))
        with f.when(f.compare("icmp eq", fits, f.constant(False, fits))):
            _fail(f)
        with f.when(fits):
            following = f.binary("add", index, I64(1))
            longer = f.intrinsic("smax", count, following)
            with _room(f, longer) as own:
                with f.when(f.compare("icmp sgt", index, count)):
                    _clear_bytes(f, _slot(f, own, count), f.binary("sub", index, count))
                _copy_bytes(f, _slot(f, own, index), f.param("value"), I64(1))
                f.store(longer, f.param("count"))
    return f


def extend_function(name: str) -> Function:
    """``extend(control, stack, count, size, refusal, length)``: zeros up to `length`, if the array is shorter."""
    f = _function(name, [*TARGET, ("length", "int64")])
    length, count = f.param("length"), f.load(f.param("count"), "int64")
    with f.when(f.binary("and", _goes_on(f), f.compare("icmp sgt", length, count))), _room(f, length) as own:
        _clear_bytes(f, _slot(f, own, count), f.binary("sub", length, count))
        f.store(length, f.param("count"))
    return f


def erase_function(name: str) -> Function:
    """``erase(control, base, count, size, index)``: element `index` becomes zero; the last one is left out."""
    f = _function(name, [("base", "ptr"), ("count", "ptr"), ("size", "int64"), ("index", "int64")])
    index, count = f.param("index"), f.load(f.param("count"), "int64")
    last = f.binary("sub", count, I64(1))
    with f.when(_goes_on(f)):
        with f.when(f.compare("icmp ult", index, count)):
            _clear_bytes(f, _slot(f, f.param("base"), index), I64(1))
        with f.when(f.compare("icmp eq", index, last)):
            f.store(last, f.param("count"))
    return f


def get_function(name: str) -> Function:
    """``get(control, base, length, size, index, out, check)``: element `index` to `out`, zeros if it does not exist."""
    f = _function(name, [*HELD, ("size", "int64"), ("index", "int64"), ("out", "ptr"), ("check", "int64")])
    goes_on, out = _goes_on(f), f.param("out")
    inside = f.binary("and", goes_on, f.compare("icmp ult", f.param("index"), f.param("length")))

    def missing() -> None:
        _clear_bytes(f, out, I64(1))
        with f.when(goes_on):
            _fail(f)

    f.either(inside, lambda: _copy_bytes(f, out, _slot(f, f.param("base"), f.param("index")), I64(1)), missing)
    return f


def join_function(name: str) -> Function:
    """``join(control, base, length, size, rows, out, check)``: the first `rows` elements to `out`, then zeros."""
    f = _function(name, [*HELD, ("size", "int64"), ("rows", "int64"), ("out", "ptr"), ("check", "int64")])
    length, rows = f.param("length"), f.param("rows")
    with f.when(_goes_on(f)):
        with f.when(f.compare("icmp sgt", length, rows)):
            _fail(f)
        given = f.intrinsic("smin", length, rows)
        _copy_bytes(f, f.param("out"), f.param("base"), given)
        _clear_bytes(f, _slot(f, f.param("out"), given), f.binary("sub", rows, given))
    return f
