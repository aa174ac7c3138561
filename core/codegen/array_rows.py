"""Tensor arrays whose elements have different numbers of rows: made of the rows of a tensor, and joined to one."""

from __future__ import annotations

from collections.abc import Callable

from core.codegen.array_parts import TARGET, call_shared, fail_check, function_of, goes_on, held, room, target_of
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.step_writer import StepWriter
from core.plan.flow import Growing, Recording
from core.plan.growing import CountRows, CutRows, JoinRows
from core.plan.memory import bytes_of

__all__ = ["count_rows", "cut_rows", "join_rows"]

LENGTHS = [("lengths", "ptr"), ("count_of_lengths", "int64")]
ROWS = [("row", "int64"), ("rows", "int64"), ("check", "int64")]


def count_rows(step: StepWriter, each: CountRows) -> None:
    """Append the code that adds the numbers of rows of all elements."""
    assert each.source is not None
    call_shared(step, "count_rows", count_function, *held(step, each.source), step.address(each.value))


def cut_rows(step: StepWriter, each: CutRows) -> None:
    """Append the code that makes rows of a tensor elements of an array."""
    assert each.target is not None
    assert each.source is not None
    row = I64(bytes_of(each.x.shape[1:], each.x.dtype))
    numbers = [step.f.load(step.address(view), "int64") for view in (each.rows, each.most)]
    lengths, x = held(step, each.source), step.address(each.x)
    how = [row, numbers[0], I64(each.check), numbers[1]]
    call_shared(step, "cut_rows", cut_function, *target_of(step, each.target), *lengths, x, *how)


def join_rows(step: StepWriter, each: JoinRows) -> None:
    """Append the code that copies the rows of all elements to a tensor."""
    row = I64(bytes_of(each.value.shape[1:], each.value.dtype))
    assert isinstance(each.source, Growing | Recording)
    size = I64(each.source.stack.slot_bytes)
    rows, out = step.f.load(step.address(each.rows), "int64"), step.address(each.value)
    given = [held(step, each.source)[0], *held(step, each.lengths), size, out, row, rows, I64(each.check)]
    call_shared(step, "join_rows", join_function, *given)


def _over_lengths(f: Function, combine: Callable[[IRValue, IRValue], IRValue]) -> IRValue:
    """An int64, 0 at first, that `combine` makes of itself and each length."""
    found = f.slot("int64")
    f.write(I64(0), found)
    with f.loop(I64(0), f.param("count_of_lengths")) as i:
        length = f.load(f.at(f.param("lengths"), i, "int64"), "int64")
        f.write(combine(f.read(found, "int64"), length), found)
    return f.read(found, "int64")


def _total(f: Function) -> IRValue:
    """The sum of all lengths."""
    return _over_lengths(f, lambda total, length: f.binary("add", total, length))


def _largest(f: Function) -> IRValue:
    """The largest length, as an unsigned number: a negative one is larger than all others."""
    return _over_lengths(f, lambda most, length: f.intrinsic("umax", most, length))


def count_function(name: str) -> Function:
    """``count_rows(control, lengths, count_of_lengths, out)``: the sum of the lengths to `out`."""
    f = function_of(name, [*LENGTHS, ("out", "ptr")])
    f.store(I64(0), f.param("out"))
    with f.when(goes_on(f)):
        f.store(_total(f), f.param("out"))
    return f


def cut_function(name: str) -> Function:
    """``cut_rows(control, stack, count, size, refusal, lengths, count_of_lengths, x, row, rows, check, most)``

    The rows at `x`, each of `row` bytes, become elements.
    """
    f = function_of(name, [*TARGET, *LENGTHS, ("x", "ptr"), *ROWS, ("most", "int64")])
    with f.when(goes_on(f)):
        each = f.compare("icmp ule", _largest(f), f.param("most"))
        fits = f.binary("and", each, f.compare("icmp eq", _total(f), f.param("rows")))
        with f.when(f.compare("icmp eq", fits, f.constant(False, fits))):
            fail_check(f)
        with f.when(fits), room(f, f.param("count_of_lengths")) as own:
            _move(f, own, f.param("x"), to_rows=False)
            f.store(f.param("count_of_lengths"), f.param("count"))
    return f


def join_function(name: str) -> Function:
    """``join_rows(control, base, lengths, count_of_lengths, size, out, row, rows, check)``: the rows of all
    elements to `out`, each element in `size` bytes of its own.
    """
    f = function_of(name, [("base", "ptr"), *LENGTHS, ("size", "int64"), ("out", "ptr"), *ROWS])
    with f.when(goes_on(f)):
        fits = f.compare("icmp eq", _total(f), f.param("rows"))
        with f.when(f.compare("icmp eq", fits, f.constant(False, fits))):
            fail_check(f)
        with f.when(fits):
            _move(f, f.param("base"), f.param("out"), to_rows=True)
    return f


def _move(f: Function, elements: IRValue, rows: IRValue, to_rows: bool) -> None:
    """Copy between elements and rows that follow each other."""
    at = f.slot("ptr")
    f.write(rows, at)
    with f.loop(I64(0), f.param("count_of_lengths")) as i:
        length = f.load(f.at(f.param("lengths"), i, "int64"), "int64")
        nbytes, here = f.binary("mul", length, f.param("row")), f.read(at, "ptr")
        element = f.at(elements, f.binary("mul", i, f.param("size")), "uint8")
        target, source = (here, element) if to_rows else (element, here)
        f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, {nbytes}, i1 false)")
        f.write(f.at(here, nbytes, "uint8"), at)
