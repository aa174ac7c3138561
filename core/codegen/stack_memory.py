"""The memory of stacks in the step function.

A stack has its own memory, which grows when it is full: `stacks` is a table of (address, bytes) pairs that lives from
step to step, so that only the first steps allocate. The limit of one value holds in every step: memory of an earlier
step, or beyond the number of bytes that were needed, does not raise it.
"""

from __future__ import annotations

from core.codegen.atomics import compare_exchange
from core.codegen.llvm import I64, Function, IRValue
from core.runtime.control_words import CONTROL

__all__ = ["grow_function", "made_room", "slot_function"]


def made_room(
    f: Function, stack: IRValue, needed: IRValue, refusal: IRValue, goes_on: IRValue | None = None
) -> IRValue:
    """Whether a stack has memory for `needed` bytes, after it has grown if it must and may.

    If `needed` is above a limit, the error word is set; a stack that is large enough nevertheless counts as such.

    stack:   address of its pair in the table.
    refusal: the error word (`STACK`).
    goes_on: whether it may grow and set the error word; always by default.
    """
    size = f.at(stack, I64(8), "uint8")
    most = f.intrinsic("smin", f.load(size, "int64"), f.load(_word(f, "max_bytes"), "int64"))
    more = f.compare("icmp sgt", needed, most)
    with f.when(more if goes_on is None else f.binary("and", goes_on, more)):
        f.do(f"call void @grow({stack}, {needed}, {f.param('control')}, {refusal})")
    return f.compare("icmp sle", needed, f.load(size, "int64"))


def _word(f: Function, name: str) -> IRValue:
    return f.at(f.param("control"), I64(CONTROL.index(name)), "int64")


def slot_function() -> Function:
    """``slot(stack, index, needed, size, control, refusal)``: the address of slot `index`, of slot 0 without room."""
    params = [("stack", "ptr"), ("index", "int64"), ("needed", "int64"), ("size", "int64"), ("control", "ptr"),
              ("refusal", "int64")]  # fmt: skip
    f = Function("slot", params, "ptr", noalias=False)
    fits = made_room(f, f.param("stack"), f.param("needed"), f.param("refusal"))
    index = f.select(fits, f.param("index"), I64(0))
    address = f.at(f.load(f.param("stack"), "ptr"), f.binary("mul", index, f.param("size")), "uint8")
    f.do(f"ret {address}")
    return f


def grow_function(least: int) -> Function:
    """``grow(stack, needed, control, refusal)``: give a stack memory for `needed` bytes and keep its contents.

    The size is that of `Target.stack_bytes`: a power of two, at least `least` bytes.

    The contents are copied. If `needed` is above control's `max_bytes`, or the new memory above its `memory_left`, or
    the system has none, the error word is set and the stack stays as it is. refusal: the error word (`STACK`).
    """
    f = Function(
        "grow", [("stack", "ptr"), ("needed", "int64"), ("control", "ptr"), ("refusal", "int64")], noalias=False
    )
    f.declarations |= {
        "declare ptr @aligned_alloc(i64, i64)",
        "declare void @free(ptr)",
        "declare i64 @llvm.ctlz.i64(i64, i1)",
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
    }
    size = f.at(f.param("stack"), I64(8), "uint8")
    old = f.load(size, "int64")
    zeros = f.op(f"call i64 @llvm.ctlz.i64({f.binary('sub', f.param('needed'), I64(1))}, i1 false)", "int64")
    power = f.binary("shl", I64(1), f.binary("sub", I64(64), zeros))
    rounded = f.select(f.compare("icmp sgt", power, I64(least)), power, I64(least))
    allowed = f.compare("icmp sle", f.param("needed"), f.load(_word(f, "max_bytes"), "int64"))
    memory = _word(f, "memory_left")
    left = f.load(memory, "int64")
    fits = f.compare("icmp sle", rounded, left)  # old and new memory exist together while the contents are copied
    fresh = f.slot("ptr")
    f.write(IRValue("null", "ptr"), fresh)
    with f.when(f.binary("and", allowed, fits)):
        f.write(f.op(f"call ptr @aligned_alloc(i64 64, {rounded})", "ptr"), fresh)
    got = f.read(fresh, "ptr")
    missing = f.compare("icmp eq", got, IRValue("null", "ptr"))
    refused, granted, out = f.label("refused"), f.label("granted"), f.label("out")
    f.branch(missing, refused, granted)
    f.begin(refused)
    refusal = f.param("refusal")
    reason = f.select(allowed, refusal, f.binary("sub", refusal, I64(1)))
    compare_exchange(f, _word(f, "error"), I64(0), reason, "monotonic", "monotonic")  # an earlier error stays
    f.jump(out)
    f.begin(granted)
    f.store(f.binary("sub", left, f.binary("sub", rounded, old)), memory)
    before = f.load(f.param("stack"), "ptr")
    f.do(f"call void @llvm.memcpy.p0.p0.i64({got}, {before}, {old}, i1 false)")
    f.do(f"call void @free({before})")
    f.store(got, f.param("stack"))
    f.store(rounded, size)
    f.jump(out)
    f.begin(out)
    return f
