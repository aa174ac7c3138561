"""Parts of the code of all instructions on tensor arrays: arguments, conditions, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from core.codegen.checks import fail
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.stack_memory import made_room
from core.codegen.step_writer import StepWriter
from core.plan.flow import Elements, Growing, Source, Span
from core.plan.memory import Stack, bytes_of
from core.runtime.control_words import CONTROL, STACK

__all__ = [
    "HELD",
    "TARGET",
    "call_shared",
    "clear_bytes",
    "copy_bytes",
    "fail_check",
    "function_of",
    "goes_on",
    "held",
    "refusal_of",
    "room",
    "slot_of",
    "target_of",
    "word_of",
]


def held(step: StepWriter, source: Source) -> tuple[IRValue, IRValue]:
    """The address of the first element of an array, and the number of elements."""
    f = step.f
    if isinstance(source, Elements):
        return step.address(source.view), I64(source.length)
    if isinstance(source, Span):
        start, length = step.recordings[source.places]
        size = bytes_of(source.view.shape[1:], source.view.dtype)
        return f.at(step.address(source.view), f.binary("mul", start, I64(size)), "uint8"), length
    base = f.load(step.stack_entry(source.stack), "ptr")
    if isinstance(source, Growing):
        return base, f.load(step.address(source.count), "int64")
    start, length = step.recordings[source]
    return f.at(base, f.binary("mul", start, I64(source.stack.slot_bytes)), "uint8"), length


def target_of(step: StepWriter, array: Growing) -> list[IRValue]:
    """The arguments for an array that a function changes: stack, count, bytes of an element, error of a full stack."""
    stack = array.stack
    return [step.stack_entry(stack), step.address(array.count), I64(stack.slot_bytes), refusal_of(step, stack)]


def refusal_of(step: StepWriter, stack: Stack) -> IRValue:
    """The error word of a stack that could not grow."""
    return I64(STACK - 2 * step.plan.stacks.index(stack))


def call_shared(step: StepWriter, name: str, make: Callable[[str], Function], *arguments: IRValue) -> None:
    function = step.module.function(("tensor array", name), f"array_{name}", make)
    step.f.do(f"call void @{function}({', '.join(map(str, [step.f.param('control'), *arguments]))})")


TARGET = [("stack", "ptr"), ("count", "ptr"), ("size", "int64"), ("refusal", "int64")]
HELD = [("base", "ptr"), ("length", "int64")]


def function_of(name: str, params: list[tuple[str, str]]) -> Function:
    f = Function(name, [("control", "ptr"), *params], noalias=False)
    f.declarations |= {
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
    }
    return f


def word_of(f: Function, name: str) -> IRValue:
    return f.at(f.param("control"), I64(CONTROL.index(name)), "int64")


def goes_on(f: Function) -> IRValue:
    """Whether no check has failed and the stop word is not set."""
    error = f.load(word_of(f, "error"), "int64")
    stop = f.op(f"load volatile i64, {word_of(f, 'stop')}, align 8", "int64")
    return f.compare("icmp eq", f.binary("or", error, stop), I64(0))


def fail_check(f: Function) -> None:
    """Report the check, if there is one."""
    check = f.param("check")
    with f.when(f.compare("icmp ne", check, I64(0))):
        fail(f, word_of(f, "error"), check)


@contextmanager
def room(f: Function, length: IRValue) -> Iterator[IRValue]:
    """Inside the context, the array has memory for `length` elements. The context's value is the address of it."""
    stack, needed = f.param("stack"), f.binary("mul", length, f.param("size"))
    with f.when(made_room(f, stack, needed, f.param("refusal"))):
        yield f.load(stack, "ptr")


def slot_of(f: Function, base: IRValue, index: IRValue) -> IRValue:
    return f.at(base, f.binary("mul", index, f.param("size")), "uint8")


def copy_bytes(f: Function, target: IRValue, source: IRValue, count: IRValue) -> None:
    nbytes = f.binary("mul", count, f.param("size"))
    f.do(f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, {nbytes}, i1 false)")


def clear_bytes(f: Function, target: IRValue, count: IRValue) -> None:
    nbytes = f.binary("mul", count, f.param("size"))
    f.do(f"call void @llvm.memset.p0.i64({target}, i8 0, {nbytes}, i1 false)")
