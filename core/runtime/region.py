"""A block as machine code that is called in this process, through one function with the address of its arguments."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from core.ir.errors import ExecutionError
from core.plan.data import Instruction
from core.plan.plan import Plan
from core.runtime.arguments import Arguments, readable
from core.runtime.callback import Callback
from core.runtime.control_words import CALLBACK, CONTROL, OPS_LEFT, STOP, STOPPED
from core.runtime.memory import Arenas, ResultPools, Stacks
from core.runtime.reference import Interpreter, interpreter_of
from core.runtime.run import Run
from core.runtime.stop import watched

__all__ = ["NativeRegion"]


@dataclass(eq=False)
class NativeRegion:
    """A compiled block on the CPU. Call it with a run and the block's arguments. See `core.runtime.backend.Region`.

    enter:       runs the code with the address of its words (see `Arguments`); returns the error word and clears it.
    code:        owns the machine code behind `enter`; kept alive with the region.
    arena_bytes: memory for intermediate arrays and partial results.
    timed:       the kernels whose time the code measures, in the order of its table; empty if it measures none.
    polls:       whether the code reads the stop word.
    """

    plan: Plan
    enter: Callable[[int], int]
    code: object
    arena_bytes: int
    timed: tuple[Instruction, ...] = ()
    polls: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reference: Interpreter | None = None

    readable = staticmethod(readable)  # a method would take 0.05 us longer, and the smallest steps take 2 us

    def __post_init__(self) -> None:
        self._arenas = Arenas(self.arena_bytes)
        self._stacks = Stacks([self.plan.target.stack_bytes(s.slot_bytes) for s in self.plan.stacks])
        self._control = (ctypes.c_int64 * len(CONTROL))()
        self._callback = Callback(self.plan.interpreted, self._control) if self.plan.interpreted else None
        self._enters_directly = self._arenas.is_small and not self.polls and self._callback is None
        self._shapes = [v.shape for v in self.plan.params]
        self._results = ResultPools((v.shape, np.dtype(v.dtype)) for v in self.plan.results)
        self._times = (ctypes.c_int64 * (2 * len(self.timed)))()
        times = (ctypes.addressof(self._times),) if self.timed else ()
        arena = self._arenas.small.address if self._arenas.is_small else 0
        self._words = (arena, ctypes.addressof(self._control), self._stacks.address, *times)

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        if run.xp is not np:
            return self.reference(run, *args)
        arrays = [readable(a) for a in args]
        if [a.shape for a in arrays] != self._shapes:
            return self.reference(run, *args)  # the run gave a size that differs from the declared one
        results = self.results()
        self.run(self.bind([*arrays, *results]), run)
        return tuple(results)

    def results(self) -> list[np.ndarray]:
        """Arrays for the results that nothing else refers to."""
        return self._results.arrays()

    def bind(self, arrays: Sequence[Any]) -> Arguments:
        """Arguments for `run`. arrays: arguments, then results, all `readable`; None for one that is put later."""
        return Arguments(arrays, self._words)

    def run(self, arrays: Arguments, run: Run) -> None:
        """Run on bound arrays, all of which must be there. Raises ExecutionError.

        One call runs at a time, since control words, stacks and times exist once.
        """
        self._lock.acquire()  # `with` takes 0.1 us longer, and the smallest steps take a few us
        try:
            if self._enters_directly and run.times is None:
                failed = self.enter(arrays.address)
            else:
                failed = self._enter_watched(arrays, run)
        finally:
            self._lock.release()
        if failed:
            raise self._failure(failed, run)

    def _failure(self, failed: int, run: Run) -> ExecutionError:
        """The error that the error word stands for."""
        if failed == STOPPED:
            run.poll()
            return ExecutionError("the run was canceled", "canceled")
        if failed < 0:
            return ExecutionError("a loop recorded more bytes than an array may have", "too_large")
        check = self.plan.checks[failed]
        return ExecutionError(check.message, check.code, location=check.location)

    def _enter_watched(self, arrays: Arguments, run: Run) -> int:
        """Enter code that borrows its arena, has limits, calls back or measures times; return the error word."""
        control, limits = self._control, run.limits
        if run.times is not None:
            ctypes.memset(self._times, 0, ctypes.sizeof(self._times))
        control[:] = [0, 0, limits.max_trips, run.ops_left, limits.max_bytes, 0]
        if self._callback is not None:
            self._callback.run, control[CALLBACK] = run, self._callback.address
        may_stop = self.polls and (limits.deadline is not None or limits.should_stop is not None)
        with self._arenas.lent() as arena, watched(control, run) if may_stop else nullcontext():
            arrays.put_arena(arena.address)
            failed = self.enter(arrays.address)
        if run.times is not None:
            run.times.add(self.timed, list(self._times))
        run.ops_left = control[OPS_LEFT]
        if self._callback is not None:
            self._callback.check()
        return failed or (STOPPED if control[STOP] else 0)  # kernels were cut short, so the results are wrong

    @property
    def stack_bytes(self) -> int:
        """Memory of the stacks at present, in bytes; it grows in a run that records more."""
        return self._stacks.nbytes

    @property
    def reference(self) -> Interpreter:
        """The reference executor of the same block, for arrays that the code cannot take."""
        if self._reference is None:
            self._reference = interpreter_of(self.plan.block)
        return self._reference
