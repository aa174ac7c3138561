"""A block of threads that works on a matrix, and a function that its kernels share."""

from __future__ import annotations

from core.codegen.llvm import I64, Function, IRValue, itemsize
from core.codegen.reductions import combine, identity
from core.device.threads import WARP, Threads, one_block

__all__ = ["PANEL", "Block", "minus_product"]

PANEL = 16
"""Columns of a panel, or rows of a solution, whose numbers a thread has in registers."""


class Block:
    """The threads of one block, while a function for them is written. warp, lane: of this thread in the block."""

    def __init__(self, f: Function, launch: Threads) -> None:
        self.f, self.launch, self.team = f, launch, one_block(launch)
        self.number, self.total = self.team.number(f), launch.block
        self.first = f.compare("icmp eq", self.number, I64(0))
        self.warp, self.lane = f.op(f"udiv {self.number}, {WARP}", "int64"), self.team.lane(f)
        self.warps = launch.block // WARP

    def meet(self) -> None:
        self.team.barrier(self.f)

    def combined(self, op: str, value: IRValue) -> IRValue:
        """The reduction of the values of all threads, in each of them."""
        f, dtype, total = self.f, value.dtype, identity(op, value.dtype)
        one = self.team.reduce_warp(f, op, value)
        room = self.team.shared(f, self.warps * itemsize(dtype))
        with f.when(f.compare("icmp eq", self.lane, I64(0))):
            f.store(one, f.at(room, self.warp, dtype))
        self.meet()
        for each in [f.load(f.at(room, I64(warp), dtype), dtype) for warp in range(self.warps)]:  # all loads first
            total = combine(f, op, total, each)
        self.meet()
        return total


def minus_product(f: Function, value: IRValue, a: IRValue, b: IRValue) -> IRValue:
    return f.fma(f.op(f"fneg {a}", a.dtype), b, value)
