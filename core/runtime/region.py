"""A block as machine code that is called in this process, through one function with the address of its arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from core.ir.errors import ExecutionError, Location
from core.ir.recursion import headroom
from core.ops.common.types import as_dtype
from core.plan.flow import Branch, Loop, Recording
from core.plan.growing import ArrayWork
from core.plan.instructions import Instruction, Instructions
from core.plan.memory import Stack, bytes_of
from core.plan.plan import NOT_COVERED, OUTGROWN, Plan
from core.runtime.arguments import Arguments, readable
from core.runtime.callback import Callback
from core.runtime.control_words import CALLBACK, CONTROL, MEMORY_LEFT, OPS_LEFT, RAISED, STACK, STOP, STOPPED
from core.runtime.memory import Arenas, ResultPools, Stacks
from core.runtime.memory_limit import GRAIN
from core.runtime.reference import Interpreter, interpreter_of
from core.runtime.run import Run
from core.runtime.stop import watched

__all__ = ["NativeRegion", "recorder"]

LASTING = ("canceled", "deadline_exceeded", "out_of_memory", "too_large")
"""Codes of errors of an op that it would raise again."""


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
    _reference: Interpreter | None = None

    readable = staticmethod(readable)  # a method would take 0.05 us longer, and the smallest steps take 2 us

    def __post_init__(self) -> None:
        self._arenas = Arenas(self.arena_bytes)
        self._stacks = Stacks([self.plan.target.stack_bytes(s.slot_bytes) for s in self.plan.stacks])
        self._lock = self._stacks.in_use
        self._control = (ctypes.c_int64 * len(CONTROL))()
        self._callback = Callback(self.plan.interpreted, self._control) if self.plan.interpreted else None
        self._covers_all = all(check.code not in (NOT_COVERED, OUTGROWN) for check in self.plan.checks)
        self._enters_directly = self._arenas.is_small and not self.polls and self._callback is None
        self._shapes = [v.shape for v in self.plan.params]
        self._results = ResultPools((v.shape, as_dtype(v.dtype)) for v in self.plan.results)
        nbytes = sum([bytes_of(v.shape, v.dtype) for v in self.plan.results])
        self._result_bytes = nbytes if nbytes >= GRAIN else 0
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
        if self._result_bytes:
            run.require(self._results.missing, "the results of the step")
        results = self.results()
        bound = self.bind([*arrays, *results])
        if self._covers_all:
            self.run(bound, run)
            return self.plan.cut(results)
        found = self._run_or_leave(bound, run)
        if found is not None:
            return found
        return self.plan.cut(results)

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
        if not self._covers_all:
            found = self._run_or_leave(arrays, run)
            if found is not None:
                for target, value in zip(arrays.arrays[len(self._shapes) :], found, strict=True):
                    target[...] = value
            return
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

    def _run_or_leave(self, arrays: Arguments, run: Run) -> tuple[Any, ...] | None:
        """Run on bound arrays. If the code does not cover the run, the reference executor does it and its results are
        returned; else the results are in the arrays.
        """
        mark = run.mark()
        with self._lock:
            try:
                failed = self._enter_watched(arrays, run)
            except ExecutionError as error:
                if error.code in LASTING:
                    raise
                failed = RAISED  # an op may have read what a run that the code does not cover left there
        if not failed:
            return None
        code = self.plan.checks[failed].code if failed > 0 else ""
        if failed != RAISED and code not in (NOT_COVERED, OUTGROWN):
            raise self._failure(failed, run)
        run.back_to(mark)
        watch = None
        if code == OUTGROWN:
            run.outgrown = {}
            watch = {name: partial(_note, run.outgrown, name) for name in self.plan.expected}
        with np.errstate(all="ignore"), headroom():
            return self.reference(run, *arrays.arrays[: len(self._shapes)], watch=watch)

    def _failure(self, failed: int, run: Run) -> ExecutionError:
        """The error that the error word stands for."""
        if failed <= STACK:
            return self._stack_failure(failed, run)
        if failed == STOPPED:
            run.poll()
            return ExecutionError("the run was canceled", "canceled")
        check = self.plan.checks[failed]
        return ExecutionError(check.message, check.code, location=check.location)

    def _stack_failure(self, failed: int, run: Run) -> ExecutionError:
        """The error of a stack that could not grow."""
        number, is_long = divmod(STACK - failed, 2)
        at = recorder(self.plan.body, self.plan.stacks[number])
        wanted = 2 * self._stacks.size(number)
        if is_long:
            message = f"a loop or a tensor array recorded more than {run.limits.max_bytes} bytes of one value"
            return ExecutionError(message, "too_large", location=at)
        return run.refusal(wanted, self._control[MEMORY_LEFT], "the record of the loop").at(at)

    def _enter_watched(self, arrays: Arguments, run: Run) -> int:
        """Enter code that borrows its arena, has limits, calls back or measures times; return the error word."""
        control, limits = self._control, run.limits
        if run.times is not None:
            ctypes.memset(self._times, 0, ctypes.sizeof(self._times))
        control[:] = [0, 0, limits.max_trips, run.ops_left, limits.max_bytes, 0, 0]
        if self._callback is not None:
            self._callback.run, control[CALLBACK] = run, self._callback.address
        may_stop = self.polls and (limits.deadline is not None or limits.should_stop is not None)
        run.require(self._arenas.missing, "the step")
        with self._arenas.lent() as arena, watched(control, run) if may_stop else nullcontext():
            arrays.put_arena(arena.address)
            if self.plan.stacks:
                control[MEMORY_LEFT] = run.available()
            failed = self.enter(arrays.address)
        if run.times is not None:
            run.times.add(self.timed, list(self._times))
        run.ops_left = control[OPS_LEFT]
        if self._callback is not None:
            self._callback.check()
        return failed or (STOPPED if control[STOP] else 0)  # kernels were cut short, so the results are wrong

    @property
    def own_bytes(self) -> int:
        """Memory that the region holds between runs and shares with no other, without what its stacks grow by."""
        return self.arena_bytes if self._arenas.is_small else 0

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


def _note(shapes: dict[str, tuple[int, ...]], name: str, value: Any) -> None:
    shapes[name] = value.shape


def recorder(body: Instructions, stack: Stack) -> Location | None:
    """The client's op whose loop or tensor array enlarges `stack`."""
    for each in body.instructions:
        if isinstance(each, Branch):
            found = recorder(each.yes, stack) or recorder(each.no, stack)
        elif isinstance(each, Loop):
            records = [r.stack for r, _ in each.records if isinstance(r, Recording)]
            found = each.location if stack in records else recorder(each.body, stack)
        elif isinstance(each, ArrayWork) and each.stack is stack:
            found = each.location
        else:
            continue
        if found is not None:
            return found
    return None
