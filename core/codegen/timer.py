"""The profile clock: a timed step adds up the nanoseconds and the calls of each kernel in a table of its caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.codegen.llvm import I64, Function
from core.plan.instructions import Instruction

__all__ = ["Timer"]

_NOW = """define internal i64 @now() noinline nounwind {
  %moment = alloca [2 x i64], align 8
  %failed = call i32 @clock_gettime(i32 1, ptr %moment) ; CLOCK_MONOTONIC
  %seconds = load i64, ptr %moment, align 8
  %at = getelementptr i64, ptr %moment, i64 1
  %rest = load i64, ptr %at, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}"""


class Timer:
    """Writes the clock around kernels.

    kernels: the timed kernels in the order of the table, which has two int64 for each: nanoseconds and calls.
    """

    def __init__(self) -> None:
        self.kernels: list[Instruction] = []

    @contextmanager
    def around(self, f: Function, each: Instruction) -> Iterator[None]:
        """Time the instructions written inside the context as kernel `each`. `f` has the table as parameter `times`."""
        f.declarations |= {_NOW, "declare i32 @clock_gettime(i32, ptr)"}
        number = len(self.kernels)
        self.kernels.append(each)
        before = f.op("call i64 @now()", "int64")
        yield
        spent = f.binary("sub", f.op("call i64 @now()", "int64"), before)
        for at, more in ((2 * number, spent), (2 * number + 1, I64(1))):
            address = f.at(f.param("times"), I64(at), "int64")
            f.store(f.binary("add", f.load(address, "int64"), more), address)
