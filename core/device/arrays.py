"""Tensor arrays that programs write, in a step on a GPU: all threads copy the elements, the first one writes lengths.

An array is the first slots of a stack, as on a CPU, and its length is a word of the arena. All threads read the length,
and an index, before the first one changes it, so they agree about what they do. A stack that is too small ends the step
(`core.device.flow`); until then nothing is written to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.codegen.array_parts import held
from core.codegen.llvm import I64, IRValue
from core.codegen.tensor_arrays import FURTHEST
from core.device.device_writer import DeviceWriter
from core.device.flow import wants
from core.ir.errors import InternalError
from core.plan.flow import Growing
from core.plan.growing import AddArrays, ArrayOp, ArrayWork
from core.plan.memory import View, bytes_of

__all__ = ["write_array"]

YES, NO = IRValue("true", "bool"), IRValue("false", "bool")


def write_array(step: DeviceWriter, each: ArrayWork) -> None:
    """Write an instruction on tensor arrays for all threads of the launch."""
    if isinstance(each, AddArrays):
        with _apart(step):
            _add(step, each)
    elif isinstance(each, ArrayOp) and each.kind in WRITERS:
        with _apart(step):
            WRITERS[each.kind](step, each)
    else:
        raise InternalError(f"no code for {type(each).__name__} on a GPU")


@contextmanager
def _apart(step: DeviceWriter) -> Iterator[None]:
    """The code inside may read and write memory of any place."""
    step.meet()
    yield
    step.touches_anything()


# --- parts ------------------------------------------------------------------------------------------------------


def _target(each: ArrayWork) -> Growing:
    assert each.target is not None
    return each.target


def _source(step: DeviceWriter, each: ArrayOp) -> tuple[IRValue, IRValue]:
    """The address of the first element of the source, and how many there are."""
    assert each.source is not None
    return held(step, each.source)


def _index(step: DeviceWriter, each: ArrayOp) -> IRValue:
    assert each.index is not None
    return step.f.load(step.address(each.index), "int64")


def _value(each: ArrayOp) -> View:
    assert each.value is not None
    return each.value


def _put_length(step: DeviceWriter, array: Growing, length: IRValue, changes: IRValue) -> None:
    """Behind a barrier, let the first thread write the length of an array, if it `changes`."""
    step.launch.barrier(step.f)
    with step.launch.alone(step.f), step.f.when(changes):
        step.f.store(length, step.address(array.count))


def _room(step: DeviceWriter, array: Growing, length: IRValue, needed: IRValue) -> IRValue:
    """Whether an array has memory for `length` elements, if that is `needed`. If not, the step ends with an error."""
    f = step.f
    nbytes = f.binary("mul", f.select(needed, length, I64(0)), I64(array.stack.slot_bytes))
    return f.binary("and", needed, wants(step, array.stack, nbytes))


def _fail(step: DeviceWriter, wrong: IRValue, check: int) -> None:
    """Let the first thread report a check."""
    if check:
        with step.launch.alone(step.f), step.f.when(wrong):
            step.fail(I64(check))


def _unit(*nbytes: int) -> tuple[str, int]:
    """The widest integers that lengths and distances of so many bytes are multiples of."""
    size = math.gcd(*nbytes, 8)
    return ("int64", 8) if size == 8 else ("int32", 4) if size == 4 else ("uint8", 1)


def _copy(step: DeviceWriter, target: IRValue, source: IRValue | None, count: IRValue, size: int, *apart: int) -> None:
    """Copy `count` elements of `size` bytes, all threads together; without a source they become zeros.

    apart: further distances in bytes from where memory is aligned.
    """
    f, (dtype, unit) = step.f, _unit(size, *apart)
    with f.loop(step.launch.number(f), f.binary("mul", count, I64(size // unit)), step.launch.total) as i:
        number = IRValue("0", dtype) if source is None else f.load(f.at(source, i, dtype), dtype)
        f.store(number, f.at(target, i, dtype))


def _slot(step: DeviceWriter, base: IRValue, index: IRValue, size: int) -> IRValue:
    return step.f.at(base, step.f.binary("mul", index, I64(size)), "uint8")


def _offset(view: View) -> int:
    """Bytes from the start of the memory of a view to its first element."""
    return view.offset * bytes_of((1,), view.dtype)


def _if(step: DeviceWriter, condition: IRValue, number: IRValue) -> IRValue:
    return step.f.select(condition, number, I64(0))


def _not(step: DeviceWriter, condition: IRValue) -> IRValue:
    return step.f.op(f"xor {condition}, true", "bool")


# --- the instructions -------------------------------------------------------------------------------------------


def _clear(step: DeviceWriter, each: ArrayOp) -> None:
    with step.launch.alone(step.f):
        step.f.store(I64(0), step.address(_target(each).count))


def _copy_array(step: DeviceWriter, each: ArrayOp) -> None:
    array = _target(each)
    base, length = _source(step, each)
    given = _if(step, _room(step, array, length, YES), length)  # before, the array may have had any length
    _copy(step, held(step, array)[0], base, given, array.stack.slot_bytes, *_start(each))
    _put_length(step, array, given, YES)


def _put(step: DeviceWriter, each: ArrayOp) -> None:
    f, array, value = step.f, _target(each), _value(each)
    own, count = held(step, array)
    index, size = _index(step, each), array.stack.slot_bytes
    good = f.compare("icmp ule", index, count if each.check else I64(FURTHEST))
    _fail(step, _not(step, good), each.check)
    longer = f.intrinsic("smax", count, f.binary("add", index, I64(1)))
    fits = _room(step, array, longer, good)
    gap = f.intrinsic("smax", f.binary("sub", index, count), I64(0))
    _copy(step, _slot(step, own, count, size), None, _if(step, fits, gap), size)
    there = _slot(step, own, _if(step, fits, index), size)
    _copy(step, there, step.address(value), _if(step, fits, I64(1)), size, _offset(value))
    _put_length(step, array, longer, fits)


def _erase(step: DeviceWriter, each: ArrayOp) -> None:
    f, array = step.f, _target(each)
    own, count = held(step, array)
    index, size = _index(step, each), array.stack.slot_bytes
    inside = f.compare("icmp ult", index, count)
    _copy(step, _slot(step, own, _if(step, inside, index), size), None, _if(step, inside, I64(1)), size)
    last = f.binary("sub", count, I64(1))
    _put_length(step, array, last, f.binary("and", inside, f.compare("icmp eq", index, last)))


def _extend(step: DeviceWriter, each: ArrayOp) -> None:
    f, array = step.f, _target(each)
    length = _source(step, each)[1]
    fits = _extended(step, array, length)
    shorter = f.compare("icmp slt", length, f.load(step.address(array.count), "int64")) if each.kind == "fit" else NO
    _put_length(step, array, length, f.binary("or", fits, shorter))


def _extended(step: DeviceWriter, array: Growing, length: IRValue) -> IRValue:
    """Write zeros behind an array up to `length`, and return whether it becomes so long."""
    f, size = step.f, array.stack.slot_bytes
    own, count = held(step, array)
    fits = _room(step, array, length, f.compare("icmp sgt", length, count))
    _copy(step, _slot(step, own, count, size), None, _if(step, fits, f.binary("sub", length, count)), size)
    return fits


def _get(step: DeviceWriter, each: ArrayOp) -> None:
    f, value = step.f, _value(each)
    base, length = _source(step, each)
    index, size = _index(step, each), bytes_of(value.shape, value.dtype)
    inside = f.compare("icmp ult", index, length)
    missing = _not(step, inside)
    out = step.address(value)
    there = _slot(step, base, _if(step, inside, index), size)
    _copy(step, out, there, _if(step, inside, I64(1)), size, _offset(value), *_start(each))
    _copy(step, out, None, _if(step, missing, I64(1)), size, _offset(value))
    _fail(step, missing, each.check)


def _join(step: DeviceWriter, each: ArrayOp) -> None:
    f, value = step.f, _value(each)
    base, length = _source(step, each)
    rows, *shape = value.shape
    size, out = bytes_of(tuple(shape), value.dtype), step.address(value)
    _fail(step, f.compare("icmp sgt", length, I64(rows)), each.check)
    given = f.intrinsic("smin", length, I64(rows))
    _copy(step, out, base, given, size, _offset(value), *_start(each))
    _copy(step, _slot(step, out, given, size), None, f.binary("sub", I64(rows), given), size, _offset(value))


def _start(each: ArrayOp) -> tuple[int, ...]:
    """The distance of the first element of the source from where memory is aligned, in bytes, if it is an array."""
    view = getattr(each.source, "view", None)
    return (_offset(view),) if isinstance(view, View) else ()


def _count(step: DeviceWriter, each: ArrayOp) -> None:
    length = _source(step, each)[1]
    with step.launch.alone(step.f):
        step.f.store(length, step.address(_value(each)))


def _same(step: DeviceWriter, each: ArrayOp) -> None:
    assert each.other is not None
    lengths = _source(step, each)[1], held(step, each.other)[1]
    _fail(step, step.f.compare("icmp ne", *lengths), each.check)


def _add(step: DeviceWriter, each: AddArrays) -> None:
    f, array = step.f, _target(each)
    assert each.source is not None
    size = array.stack.slot_bytes
    other, length = held(step, each.source)
    own, count = held(step, array)
    fits = _extended(step, array, length)
    _put_length(step, array, length, fits)
    step.forget()
    enough = f.binary("or", fits, f.compare("icmp sle", length, count))
    first, second = each.terms
    with f.loop(I64(0), _if(step, enough, length)) as i:
        at = f.binary("mul", i, I64(size))
        step.roots[first], step.roots[second] = f.at(own, at, "uint8"), f.at(other, at, "uint8")
        step.sequence(each.body)
        _copy(step, step.roots[first], step.address(each.total), I64(1), size)
        step.launch.barrier(f)
        step.forget()


WRITERS: dict[str, Callable[[DeviceWriter, ArrayOp], None]] = {
    "clear": _clear,
    "copy": _copy_array,
    "put": _put,
    "erase": _erase,
    "extend": _extend,
    "fit": _extend,
    "get": _get,
    "join": _join,
    "count": _count,
    "same": _same,
}
