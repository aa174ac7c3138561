"""Failed checks of generated code: the kernel writes the number of the check to the error word."""

from __future__ import annotations

from core.codegen.atomics import compare_exchange
from core.codegen.llvm import I64, Function, IRValue

__all__ = ["fail"]


def fail(f: Function, error: IRValue, check: IRValue) -> None:
    """Write the number of a failed check to the error word, unless an earlier op of the program failed as well.

    Checks are numbered from 1 in the order of the ops. A negative word means that the run has ended for another reason.
    """
    compare_exchange(f, error, I64(0), check, "monotonic", "monotonic")
    f.op(f"atomicrmw min {error}, {check} monotonic", "int64")
