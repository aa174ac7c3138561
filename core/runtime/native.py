"""Machine code at work: regions of a block compiled, and called between the ops that the reference executor runs."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from core.codegen.machine import Library, abreast, load
from core.codegen.module import Module
from core.codegen.pool import Pool
from core.codegen.pool import symbols as pool_symbols
from core.codegen.scalar import NATIVE as NATIVE_DTYPES
from core.codegen.scalar import traceable
from core.codegen.step import ARRAY_DATA, CONTROL, write_step
from core.codegen.timer import Timer
from core.ir import Block, Op, StackType, TensorType
from core.ir.errors import ExecutionError
from core.plan import Plan as NativePlan
from core.plan import Target, Unsupported, arrange, plan_block
from core.plan.data import Instruction
from core.plan.partition import partition
from core.runtime.callback import Callback
from core.runtime.memory import Arenas, Rooms, Stacks
from core.runtime.reference import NATIVE, Plan, Run, plan
from core.runtime.stop import watched

__all__ = [
    "SHARES",
    "Given",
    "Region",
    "compile_region",
    "native_plan",
    "parts_of",
    "plain",
    "refusals",
    "start_threads",
    "thread_count",
    "written",
]

assert ctypes.c_void_p.from_address(id(PROBE := np.zeros(3)) + ARRAY_DATA).value == PROBE.ctypes.data, "numpy's layout"


CALLBACK = CONTROL.index("callback")

CPU = Target(NATIVE_DTYPES, traceable)


@dataclass(eq=False)
class Region:
    """A compiled block. Call it with a run and the block's arguments.

    arena_bytes: what it needs beside its arguments and results.
    timed:       the kernels whose time its code takes, for runs that want to know; in the order of its table.
    polls:       whether its code asks if it should stop.
    """

    block: Block
    plan: NativePlan
    library: Library
    arena_bytes: int
    _entry: Callable[[int], int] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reference: Plan | None = None
    timed: tuple[Instruction, ...] = ()
    polls: bool = False

    def __post_init__(self) -> None:
        self._entry = self.library.function("enter", ctypes.c_void_p, returns=ctypes.c_int64)
        self._arenas = Arenas(self.arena_bytes)
        self._stacks = Stacks([s.slot_bytes for s in self.plan.stacks])
        self._control = (ctypes.c_int64 * len(CONTROL))()
        self._callback = Callback(self.plan.interpreted, self._control) if self.plan.interpreted else None
        self._plain = self._arenas.is_small and not self.polls and self._callback is None
        self._shapes = [v.shape for v in self.plan.params]
        self._results = Rooms((v.shape, np.dtype(v.dtype)) for v in self.plan.results)
        self._times = (ctypes.c_int64 * (2 * len(self.timed)))()
        times = (ctypes.addressof(self._times),) if self.timed else ()
        arena = self._arenas.small.address if self._arenas.is_small else 0
        self._words = (arena, ctypes.addressof(self._control), self._stacks.address, *times)

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        if run.xp is not np:
            return self.reference(run, *args)
        arrays = [plain(a) for a in args]
        if [a.shape for a in arrays] != self._shapes:
            return self.reference(run, *args)  # a size turned out different from what was declared
        results = self.results()
        self.run(self.given([*arrays, *results]), run)
        return tuple(results)

    def results(self) -> list[np.ndarray]:
        """Arrays for the results, which nobody holds."""
        return self._results.arrays()

    def given(self, arrays: Sequence[Any]) -> Given:
        """What to run on: arrays as the plan has them, arguments then results; None for one that is put there later."""
        return Given(arrays, self._words)

    def run(self, given: Given, run: Run) -> None:
        """Run on `given`, which must be complete.

        One call at a time runs, as it records and fails in one place. Raises ExecutionError.
        """
        self._lock.acquire()  # `with` takes a tenth of a microsecond longer, and the smallest steps only a few
        try:
            if self._plain and run.times is None:
                failed = self._entry(given.address)
            else:
                failed = self._watched(given, run)
        finally:
            self._lock.release()
        if failed:
            raise self._failure(failed, run)

    def _failure(self, failed: int, run: Run) -> ExecutionError:
        """What the error word says."""
        if failed < 0:
            run.poll()
            return ExecutionError("the values that a loop records exceed the limit of bytes of an array", "too_large")
        check = self.plan.checks[failed]
        return ExecutionError(check.message, check.code, location=check.location)

    def _watched(self, given: Given, run: Run) -> int:
        """Enter code that is lent its arena, knows limits, calls back or takes times; the error word."""
        control, limits = self._control, run.limits
        if run.times is not None:
            ctypes.memset(self._times, 0, ctypes.sizeof(self._times))
        control[:] = [0, 0, limits.max_trips, run.ops_left, limits.max_bytes, 0]
        if self._callback is not None:
            self._callback.run, control[CALLBACK] = run, self._callback.address
        may_stop = self.polls and (limits.deadline is not None or limits.should_stop is not None)
        with self._arenas.lent() as arena, watched(control, run) if may_stop else nullcontext():
            given.put_arena(arena.address)
            failed = self._entry(given.address)
        if run.times is not None:
            run.times.add(self.timed, list(self._times))
        run.ops_left = control[3]
        if self._callback is not None:
            self._callback.check()
        return failed

    @property
    def stack_bytes(self) -> int:
        """What loops have recorded has this much room by now; it grows in the run that first needs more."""
        return self._stacks.room

    @property
    def reference(self) -> Plan:
        """The same block for the reference executor."""
        if self._reference is None:
            self._reference = plan(self.block)
        return self._reference


class Given:
    """Arrays that machine code runs on, and the words that it is entered with, at `address`."""

    __slots__ = ("_table", "_words", "address", "arrays")

    def __init__(self, arrays: Sequence[Any], words: tuple[int, ...]) -> None:
        self.arrays = list(arrays)
        self._table = (ctypes.c_void_p * len(arrays))(*map(id, arrays))
        self._words = (ctypes.c_void_p * (1 + len(words)))(ctypes.addressof(self._table), *words)
        self.address = ctypes.addressof(self._words)

    def put(self, i: int, array: np.ndarray) -> None:
        self.arrays[i], self._table[i] = array, id(array)

    def put_arena(self, address: int) -> None:
        self._words[1] = address

    def drop(self, i: int) -> None:
        """Let go of an array; another must be put there before the next run."""
        self.arrays[i] = None


def compile_region(block: Block, timed: bool = False) -> Region:
    """Machine code for a block, which takes the time of each kernel if it is to be `timed`. Raises Unsupported."""
    timer = Timer() if timed else None
    native, module, arena_bytes = written(block, timer)
    symbols = module.symbols | (_pool_symbols() if module.forks else {})
    kernels = () if timer is None else tuple(timer.kernels)
    if not kernels and timed:
        return compile_region(block)
    library = load(*module.texts(abreast()), symbols=symbols)
    return Region(block, native, library, arena_bytes, timed=kernels, polls=module.polls)


def written(block: Block, timer: Timer | None = None) -> tuple[NativePlan, Module, int]:
    """A block's plan and its code in LLVM's words, and the bytes it needs beside arguments and results.

    Raises Unsupported.
    """
    native = plan_block(block, CPU)
    arena = arrange(native.body)
    module = write_step(native, arena, thread_count(), timer)
    return native, module, arena.size + module.scratch


def thread_count() -> int:
    """Threads that machine code may use, this one included: BACKPASS_THREADS, else one for each core it may run on."""
    return int(os.environ.get("BACKPASS_THREADS") or len(os.sched_getaffinity(0)))


def plain(array: Any) -> np.ndarray:
    """`array` itself if machine code can read it where it is, else a copy that it can read."""
    if type(array) is np.ndarray and array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


def _distinct(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)


@cache
def _pool() -> Pool:
    """The threads of this process; they sleep while there is nothing to do."""
    return Pool(thread_count())


def start_threads() -> None:
    """Start the threads that machine code shares its work with, which the first step would do otherwise.

    Their own code is compiled for that, after which LLVM is ready for more.
    """
    _pool()


def _pool_symbols() -> dict[str, int]:
    return {**pool_symbols(), "backpass_pool": _pool().address}


def refusals(block: Block) -> dict[int, str]:
    """The ops of `block`, by position, that have no machine code, and why."""
    refused = {i: reason for i, op in enumerate(block.ops) if (reason := _unfit(block, op))}
    while True:
        again = False
        for part in partition(block, frozenset(refused)):
            if isinstance(part, Op):
                continue
            crossing = {n for n in (*part.params, *part.results) if isinstance(part.types[n], StackType)}
            if crossing:  # a stack stays in one region
                for i, op in enumerate(block.ops):
                    if crossing.intersection((*op.inputs, *op.outputs)):
                        refused[i] = SHARES
                again = True
                break
            try:
                plan_block(part, CPU)
            except Unsupported as refusal:
                assert refusal.index is not None, refusal.reason
                at = next(i for i, op in enumerate(block.ops) if op is part.ops[refusal.index])
                refused[at] = refusal.why(block.ops[at])
                again = True
        if not again:
            return refused


SHARES = "shares a stack with an op that has no machine code"
"""Why an op is left to the reference executor that machine code could take: stacks do not leave a region."""

STACKING = frozenset({"loop", "if_else", "array_unstack", "array_join"})
"""Ops of which machine code handles the stacks."""


def _unfit(block: Block, op: Op) -> str | None:
    """Why machine code cannot take the arrays of `op`, if it cannot."""
    for name in (*op.inputs, *op.outputs):
        type = block.types[name] if name else None
        if isinstance(type, StackType) and op.type not in STACKING:
            return "tensor arrays that grow"
        if isinstance(type, TensorType):
            if not type.is_static:
                return f"the size of {name} is known only when it runs"
            if type.dtype not in NATIVE_DTYPES:
                return f"no machine code for {type.dtype}"
            if 0 in type.shape:
                return "empty arrays"
    return None


def parts_of(block: Block, refused: frozenset[int]) -> Iterator[Block | Op]:
    """The regions of `block` and the ops between them, in the order they run. refused: positions of those ops."""
    for part in partition(block, refused):
        if isinstance(part, Block) and len(part.ops) == len(block.ops):  # all of it: then called as the block is
            yield block if set(part.params) == set(block.params) and _distinct(block.results) else part
        else:
            yield part


def native_plan(block: Block, timed: bool = False) -> Plan:
    """A plan of `block` whose regions are machine code. timed: for runs that want the time of each kernel."""
    ops: list[Op] = []
    for part in parts_of(block, frozenset(refusals(block))):
        if isinstance(part, Op):
            ops.append(part)
        else:
            region = compile_region(part, timed)
            ops.append(Op(NATIVE, part.params, part.results, {"region": region}, part.ops[0].location))
    parts = plan(Block(block.params, tuple(ops), block.results, block.types))
    alone = len(ops) == 1 and ops[0].type == NATIVE and (ops[0].inputs, ops[0].outputs) == (block.params, block.results)
    return replace(parts, block=block, largest=plan(block).largest, direct=ops[0].attrs["region"] if alone else None)
