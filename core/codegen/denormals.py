"""Denormal numbers in products: an x86 CPU takes a hundred times as long for them as for others.

Where the gradients of a recurrent network vanish, nearly all of its numbers are denormal after many trips. So products
in loops take denormal operands and sums for zero. The code around them keeps denormal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.cpus import cpu
from core.codegen.llvm import Function, IRValue

__all__ = ["keeping", "vanishing"]

ZEROS = 1 << 15 | 1 << 6
"""The bits of the control word of x86 (MXCSR) that make zeros of denormal results and of denormal operands."""


@contextmanager
def vanishing(f: Function, wanted: bool) -> Iterator[IRValue | None]:
    """Code written inside the context takes denormal numbers for zero, if `wanted` and the CPU is slow with them.

    Gives the slot of the control word that the function found, for `keeping`, or None.
    """
    if not wanted or not cpu().triple.startswith("x86_64"):
        yield None
        return
    found, other = f.slot("int32"), f.slot("int32")
    f.declarations.add("declare void @llvm.x86.sse.stmxcsr(ptr)")
    f.do(f"call void @llvm.x86.sse.stmxcsr({found})")
    f.write(f.op(f"or {f.read(found, 'int32')}, {ZEROS}", "int32"), other)
    _set(f, other)
    yield found
    _set(f, found)


@contextmanager
def keeping(f: Function, found: IRValue | None) -> Iterator[None]:
    """Code written inside the context keeps denormal numbers again. found: from the `vanishing` around it."""
    if found is None:
        yield
        return
    other = f.slot("int32")
    f.do(f"call void @llvm.x86.sse.stmxcsr({other})")
    _set(f, found)
    yield
    _set(f, other)


def _set(f: Function, slot: IRValue) -> None:
    f.declarations.add("declare void @llvm.x86.sse.ldmxcsr(ptr)")
    f.do(f"call void @llvm.x86.sse.ldmxcsr({slot})")
