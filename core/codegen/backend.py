"""The CPU's code generator as a backend of the runtime: from a plan to a region of machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np

from core.codegen.cpu_target import CPU_TARGET
from core.codegen.machine import load, parallel_modules
from core.codegen.module import Module
from core.codegen.row_writer import row_writer
from core.codegen.step import write_step
from core.codegen.threads import thread_count, thread_symbols
from core.codegen.timer import Timer
from core.plan import Plan, arrange
from core.plan.freeing import freed_early
from core.plan.instructions import Instructions
from core.plan.narrow import narrowed
from core.plan.side_by_side import stretches
from core.plan.target import Target
from core.runtime.region import NativeRegion

__all__ = ["CPU", "CpuBackend", "write_plan"]


class CpuBackend:
    """Machine code for the CPU of this process. See `core.runtime.backend.Backend`."""

    target: Target = CPU_TARGET

    def runs_on(self, xp: ModuleType) -> bool:
        """See `core.runtime.backend.Backend.runs_on`."""
        return xp is np

    def row_writer(self, row_bytes: int) -> Callable[[int, int, int, int], None]:
        """See `core.codegen.row_writer`."""
        return row_writer(row_bytes)

    def arena_bytes(self, plan: Plan) -> int:
        """Memory for intermediate arrays and partial results of threads, in bytes."""
        return write_plan(plan)[1]

    def compile(self, plan: Plan, timed: bool = False) -> NativeRegion:
        """The compiled plan. timed: its code measures the time of each kernel, if it has any.

        Raises ExecutionError (compiler_failed).
        """
        timer = Timer() if timed else None
        module, arena_bytes = write_plan(plan, timer)
        symbols = module.symbols | (thread_symbols() if module.uses_threads else {})
        kernels = () if timer is None else tuple(timer.kernels)
        if timed and not kernels:
            return self.compile(plan)
        library = load(*module.texts(parallel_modules()), symbols=symbols)
        enter = library.function("enter", ctypes.c_void_p, returns=ctypes.c_int64)
        return NativeRegion(plan, enter, library, arena_bytes, timed=kernels, polls=module.polls)


CPU = CpuBackend()


def write_plan(plan: Plan, timer: Timer | None = None) -> tuple[Module, int]:
    """The code of a plan as LLVM IR, and the arena bytes that it needs."""
    threads = thread_count()
    if not plan.in_order:
        plan = replace(plan, body=Instructions(freed_early(narrowed(plan.body.instructions))))
    beside = stretches(plan.body.instructions, threads) if timer is None and not plan.in_order else []
    arena = arrange(plan, (range(each.first, each.end) for each in beside), replaces=True)
    module = write_step(plan, arena, threads, timer, beside)
    return module, arena.size + module.scratch
