"""The programs a worker has read, with what it compiled from them: read once, compiled once, kept while there is room.

A program arrives as a document together with its id; later calls name the id alone. Room is counted in ops, because
that is what the memory of a compiled program grows with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from core.compiler.compile import (
    Clip,
    Executable,
    GradientQuery,
    LossScale,
    compile_forward,
    compile_gradient,
    compile_training,
    compile_update,
)
from core.cost.work import count_work
from core.ir import Block, Program, inner_blocks
from core.ir.errors import ExecutionError, ProgramError
from core.ir.lru import LRU
from core.ops.common.types import as_dtype
from core.optim.optimizers import Optimizer
from core.wire import Limits, read
from service.worker.compiling import Compilations
from service.worker.state import WorkerState

__all__ = ["Compiled", "Known", "blocks_of", "check_type", "known_program", "wire_limits"]

Machine = Literal["auto", "always", "never"]

LONG = 4_000_000_000
"""Floating-point operations of a call from which on compiling it pays even if it is never made again: as many as
numpy's products of matrices do in the time that it takes.
"""

PRODUCTS = ("matmul", "einsum")
SLOWER = 20
"""How much longer all else takes, which goes through memory op by op."""

TRIPS = 100
"""Of a loop whose number of trips nobody knows yet."""

SHORT_OPS = 200
"""Of a program whose backward pass and plan take some milliseconds, which is not worth parking a call."""

EXECUTABLE_ROOM = 200_000  # ops of all executables of one program


@dataclass(frozen=True, slots=True)
class Compiled:
    """Something that runs, and whether it had to be compiled for this call."""

    executable: Executable
    fresh: bool


@dataclass(slots=True)
class Known:
    """A program and its executables. note: receives the seconds of each compilation when its result is used."""

    program: Program
    machine: Machine = "never"
    compilations: Compilations | None = None
    note: Callable[[float], None] = lambda seconds: None
    _executables: LRU[Executable] = field(
        default_factory=lambda: LRU(EXECUTABLE_ROOM, lambda executable: op_count(executable.plan.block), at_least=1)
    )
    _ops: int | None = None

    def gradient(
        self,
        query: GradientQuery,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
        repeated: bool = False,
    ) -> Compiled:
        """Computes gradients, for feeds of these shapes. repeated: it will run again and again."""
        shapes = self._shapes(feeds)
        key = ("gradient", query, tuple(fetch), shapes, scale, repeated)
        return self._compiled(key, lambda: compile_gradient(self.program, query, fetch, dict(shapes), scale), repeated)

    def forward(self, fetch: Sequence[str], feeds: Mapping[str, Any]) -> Compiled:
        """Only evaluates."""
        shapes = self._shapes(feeds)
        key = ("forward", tuple(fetch), shapes)
        return self._compiled(key, lambda: compile_forward(self.program, fetch, dict(shapes)))

    def training(
        self,
        query: GradientQuery,
        optimizer: Optimizer,
        clip: Clip | None,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
    ) -> Compiled:
        """Forward, backward and optimiser."""
        shapes = self._shapes(feeds)
        key = ("training", query, _key(optimizer), clip, tuple(fetch), shapes, scale)
        return self._compiled(
            key,
            lambda: compile_training(self.program, query, optimizer, clip, fetch, dict(shapes), scale),
            repeated=True,
        )

    def update(self, names: Sequence[str], optimizer: Optimizer, clip: Clip | None, by_rows: Sequence[str]) -> Compiled:
        """Applies the optimiser to gradients that are given, as ``<parameter>@GRAD``.

        by_rows: those of `names` for which these are values of the rows ``<parameter>@GRAD@ROWS``.
        """
        key = ("update", tuple(names), _key(optimizer), clip, tuple(by_rows))
        return self._compiled(
            key, lambda: compile_update(self.program, names, optimizer, clip, by_rows).executable, repeated=True
        )

    def timed(self, compiled: Compiled) -> Compiled:
        """The same, with machine code that takes the time of its kernels."""
        executable = compiled.executable
        if executable.machine is None:
            return compiled
        key = ("timed", id(executable.plan))  # which the entry keeps alive
        found = self._executables.get(key)
        if found is None:
            found = self._beside(key, lambda: executable.compiled(timed=True))
            self._executables.put(key, found)
            return Compiled(found, fresh=True)
        return Compiled(found, fresh=False)

    def _shapes(self, feeds: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The shapes of the feeds whose declaration leaves sizes open. A given feed of a wrong type ends here.

        Raises ProgramError (feed_dtype, feed_shape): compiling for values that cannot be run would be in vain.
        """
        open_sizes = []
        for variable in self.program.feeds:
            value = feeds.get(variable.name)
            if value is None:
                continue
            check_type(variable.name, variable.type, value)
            if not variable.type.is_static:
                open_sizes.append((variable.name, tuple(value.shape)))
        return tuple(open_sizes)

    def _compiled(self, key: Hashable, compile: Callable[[], Executable], repeated: bool = False) -> Compiled:
        """repeated: it will run again and again."""
        found = self._executables.get(key)
        if found is not None:
            return Compiled(found, fresh=False)
        for_sure = self.machine == "always" or (self.machine == "auto" and repeated)
        if self.compilations is None or (self._is_short and not for_sure):
            executable = self._noted(_timed(lambda: self._planned(compile)))
            if self._becomes_code(executable, repeated):
                executable = self._beside(key, executable.compiled)
        else:
            executable = self._beside(key, lambda: self._whole(compile, repeated))
        self._executables.put(key, executable)
        return Compiled(executable, fresh=True)

    @property
    def ops(self) -> int:
        """Ops of the program, in all blocks."""
        if self._ops is None:
            self._ops = op_count(self.program.block)
        return self._ops

    @property
    def _is_short(self) -> bool:
        """Whether everything but machine code is there in no time."""
        return self.ops <= SHORT_OPS

    def _beside(self, key: Hashable, compile: Callable[[], Executable]) -> Executable:
        """What `compile` returns, made while other calls go on. Raises Parked as long as it is not there."""
        if self.compilations is None:
            return self._noted(_timed(compile))
        return self._noted(self.compilations.result((id(self), key), lambda: _timed(compile)))

    def _noted(self, made: tuple[Executable, float]) -> Executable:
        executable, seconds = made
        self.note(seconds)
        return executable

    def _whole(self, compile: Callable[[], Executable], repeated: bool) -> Executable:
        executable = self._planned(compile)
        return executable.compiled() if self._becomes_code(executable, repeated) else executable

    def _planned(self, compile: Callable[[], Executable]) -> Executable:
        executable = compile()
        return executable if executable.machine is not None else _reading_only(executable)

    def _becomes_code(self, executable: Executable, repeated: bool) -> bool:
        if executable.machine is not None or self.machine == "never":
            return False
        if not all(v.type.is_static for v in executable.inputs):  # it only shows whether the question is in order
            return False
        return self.machine == "always" or repeated or _is_long(executable.plan.block)


def known_program(state: WorkerState, args: Mapping[str, Any]) -> Known:
    """The program ``args["program_id"]``, read from the document ``args["document"]`` if that is new here.

    Without an id the document is read and not kept.
    Raises ExecutionError (program_unknown) when it is new and there is no document: the service sends it then.
    Raises ProgramError when the document is not a valid program.
    """
    id, document = args.get("program_id"), args.get("document")
    found: Known | None = state.programs.get(id)
    if found is not None:
        return found
    if document is None:
        raise ExecutionError("this worker has not seen the program yet", "program_unknown")
    # without an id the next try would be about another object, and wait again
    compilations = state.compilations if id is not None else None
    known = Known(read_program(state, document), machine_for(state), compilations, state.note_compilation)
    if id is not None:
        state.programs.put(id, known)
    return known


def machine_for(state: WorkerState) -> Machine:
    """Whether this worker's programs become machine code."""
    return state.settings.get("compile", "never") if state.device == "cpu" else "never"


def read_program(state: WorkerState, document: Any) -> Program:
    """`document` as a program, within the limits of the settings. Raises ProgramError with all problems."""
    return read(document, wire_limits(state.settings))


def wire_limits(s: Mapping[str, Any]) -> Limits:
    """How large a document may be, as the settings have it."""
    return Limits(
        max_blocks=s["blocks"],
        max_depth=s["block_nesting"],
        max_ops=s["ops"],
        max_vars=s["variables"],
        max_name=s["name_length"],
        max_rank=s["tensor_rank"],
        max_elements=s["tensor_elements"],
        max_bytes=s["tensor_bytes"],
    )


def check_type(name: str, wanted: Any, value: np.ndarray) -> None:
    """Raises ProgramError (feed_dtype, feed_shape) unless `value` has the type that `name` is declared with."""
    if value.dtype != as_dtype(wanted.dtype):
        raise ProgramError(f"{name!r} is declared as {wanted}, but is given {value.dtype}", "feed_dtype")
    same_rank = len(value.shape) == wanted.rank
    if not same_rank or any(m not in (-1, n) for m, n in zip(wanted.shape, value.shape, strict=True)):
        shape = list(value.shape)
        raise ProgramError(f"{name!r} is declared as {wanted}, but is given the shape {shape}", "feed_shape")


def blocks_of(root: Block) -> Iterator[Block]:
    """`root` and all blocks inside it."""
    level = [root]
    while level:
        yield from level
        level = [inner for block in level for op in block.ops for _, inner in inner_blocks(op)]


def op_count(root: Block) -> int:
    return sum(len(block.ops) for block in blocks_of(root))


def _timed(compile: Callable[[], Executable]) -> tuple[Executable, float]:
    """What `compile` returns, and the seconds that it took."""
    started = time.perf_counter()
    return compile(), time.perf_counter() - started


def _reading_only(executable: Executable) -> Executable:
    """`executable` without the inputs that nothing in it reads: an accuracy needs no dropout key, a logit no label."""
    block = executable.plan.block
    read = set(block.results).union(*(each.inputs for each in executable.plan.instructions))
    kept = [i for i, name in enumerate(block.params) if name in read]
    plan = replace(executable.plan, block=replace(block, params=tuple(block.params[i] for i in kept)))
    return replace(executable, plan=plan, inputs=tuple(executable.inputs[i] for i in kept))


def _is_long(block: Block) -> bool:
    """Whether one run takes longer than compiling; a rule of the program alone, so that calls repeat to the bit."""
    work = count_work(block, TRIPS)
    return sum(n if type in PRODUCTS else SLOWER * n for type, n in work.items()) >= LONG


def _key(optimizer: Optimizer) -> Hashable:
    schedule = optimizer.schedule and (optimizer.schedule.type, tuple(sorted(optimizer.schedule.attrs.items())))
    return optimizer.type, tuple(sorted(optimizer.attrs.items())), schedule
