"""A program of the worker's cache, and the executables compiled from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from core.backward.forward_only import clone
from core.compiler.compile import Clip, Executable, Summed, compile_update
from core.ir import Block, Program, inner_blocks
from core.ir.errors import ProgramError
from core.ir.exact import exact
from core.ops.common.types import as_dtype
from core.optim.optimizers import Optimizer
from service.worker.compiling import Compilations
from service.worker.documents import SHORT_OPS
from service.worker.executables import OwnExecutables
from service.worker.given import with_sizes
from service.worker.predictions import is_long, is_quick
from service.worker.step_kinds import StepKind

__all__ = ["CachedProgram", "Machine", "Prepared", "blocks_of", "check_type"]

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
Machine = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An executable. fresh: it was compiled for this call, and not found in the cache."""

    executable: Executable
    fresh: bool


@dataclass(slots=True)
class CachedProgram:
    """A program and its executables.

    note:     receives the seconds of each compilation when its result is used.
    in_test:  reads the program for a test, if it contains derivatives.
    capacity: bytes that a step may take. Machine code has memory for the largest sizes that results could have, the
              reference executor for those that they have.
    largest:  bytes that an array may have.
    rooms, fitting: of `service.worker.roomy`: the steps with room, and whether they may run; shapes that fit together.
    """

    program: Program
    machine: Machine = "never"
    compilations: Compilations | None = None
    note: Callable[[float], None] = lambda seconds: None
    _executables: OwnExecutables = field(default_factory=OwnExecutables)
    _ops: int | None = None
    _short: bool | None = None
    _tested: CachedProgram | None = None
    in_test: Callable[[], Program] | None = None
    capacity: int | None = None
    largest: int | None = None
    rooms: dict[Hashable, bool] = field(default_factory=dict)
    fitting: set[Hashable] = field(default_factory=set)

    def step(
        self, kind: StepKind, feeds: Mapping[str, Any], repeated: bool = False, streamed: bool = False
    ) -> Prepared:
        """The executable of a step on feeds of these shapes. Raises as `shapes` and `compiled` do.

        repeated: expect many runs.
        streamed: the call sends each gradient during its run, which machine code cannot do.
        """
        key, compile = self._of(kind, feeds, repeated)
        return self._interpreted(key, compile) if streamed else self.compiled(key, compile, repeated)

    def begin_step(self, kind: StepKind, feeds: Mapping[str, Any]) -> None:
        """Begin the compilation of a repeated `step`, as `begin` does."""
        self.begin(*self._of(kind, feeds, True))

    def first_step(self, kind: StepKind, feeds: Mapping[str, Any]) -> Prepared | None:
        """The step in the reference executor, if a session should not wait for machine code for its first one.

        The compilation of a repeated `step` begins. Whether a session waits depends on the program and the shapes
        alone.
        """
        if self.machine != "auto":
            return None
        key, compile = self._of(kind, feeds, True)
        first = self._interpreted(key, compile)
        executable = first.executable
        if not self._becomes_code(executable, repeated=True):
            return first
        self._begin(key, lambda: self._as_code(executable))
        return first if is_quick(executable) else None

    def _of(
        self, kind: StepKind, feeds: Mapping[str, Any], repeated: bool
    ) -> tuple[Hashable, Callable[[], Executable]]:
        """The key and the compilation of `step`."""
        shapes = self.shapes(feeds)

        def compile() -> Executable:  # the sizes may have the names of feeds
            return with_sizes(self.program, dict(shapes), lambda sizes: kind.compile(self.program, sizes))

        return exact((kind, shapes, repeated)), compile

    def for_test(self) -> CachedProgram:
        """The program with its ops as in a test: without dropout, with running statistics."""
        if self._tested is None:
            own = OwnExecutables(self._executables.shared)
            program = clone(self.program if self.in_test is None else self.in_test(), for_test=True)
            self._tested = CachedProgram(
                program, self.machine, self.compilations, self.note, own, capacity=self.capacity, largest=self.largest
            )
        return self._tested

    def begin(self, key: Hashable, compile: Callable[[], Executable]) -> None:
        """Begin the compilation that a later `compiled` with this key waits for.

        It ends when no session trains the program any more.
        """
        self._begin(key, lambda: self._whole(lambda: self._planned(compile), True))

    def _begin(self, key: Hashable, make: Callable[[], Executable]) -> None:
        if self.compilations is not None and self._executables.get(key) is None:
            self.compilations.begin((id(self), key), lambda: _timed(make), owner=id(self))

    def end_training(self) -> None:
        """No session trains the program any more: end compilations that `first_step` and `begin` have begun."""
        if self.compilations is not None:
            self.compilations.release(id(self))

    def _interpreted(self, of: Hashable, compile: Callable[[], Executable]) -> Prepared:
        """The cached executable, or the result of `compile`, without machine code. of: its key with machine code."""
        whole = self._executables.get(of)
        if whole is not None:  # machine code, which cannot report a gradient early, shares its plan
            return Prepared(whole if whole.machine is None else whole.without_code(), fresh=False)
        key = ("interpreted", of)
        found = self._executables.get(key)
        if found is not None:
            return Prepared(found, fresh=False)
        if self.compilations is None or self.is_short:
            found = self._noted(_timed(lambda: self._planned(compile)))
        else:
            found = self._in_thread(key, lambda: self._planned(compile))
        self._executables.put(key, found)
        return Prepared(found, fresh=True)

    def open_shapes(self, feeds: Mapping[str, Any]) -> str:
        """The shapes of the given feeds that are declared with open sizes, in words. Raises as `shapes` does."""
        return " ".join(f"{name}:{','.join(map(str, shape))}" for name, shape in self.shapes(feeds))

    def update(
        self,
        names: Sequence[str],
        optimizer: Optimizer,
        clip: Clip | None,
        by_rows: Sequence[str],
        summed: Summed | None = None,
    ) -> Prepared:
        """The executable that applies the optimiser to the given gradients ``<parameter>@GRAD``.

        by_rows: parameters whose gradient is sparse: values of the rows ``<parameter>@GRAD@ROWS``.
        summed:  as of `compile_update`.
        """
        key = exact(("update", tuple(names), optimizer, clip, tuple(by_rows), summed))
        return self.compiled(
            key,
            lambda: compile_update(self.program, names, optimizer, clip, by_rows, summed, open_rates=True).executable,
            repeated=True,
        )

    def timed(self, compiled: Prepared) -> Prepared:
        """The same executable with machine code that measures the time of each kernel."""
        executable = compiled.executable
        if executable.machine is None:
            return compiled
        key = ("timed", id(executable.interpreter))  # the cache entry keeps it alive, so its id is not reused
        found = self._executables.get(key)
        if found is None:
            found = self._in_thread(key, lambda: executable.compiled(timed=True))
            self._executables.put(key, found)
            return Prepared(found, fresh=True)
        return Prepared(found, fresh=False)

    def shapes(self, feeds: Mapping[str, Any]) -> Shapes:
        """The shapes of the given feeds that are declared with open sizes.

        Raises ProgramError (feed_dtype, feed_shape) for a feed of the wrong type, before any compilation.
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

    def compiled(self, key: Hashable, compile: Callable[[], Executable], repeated: bool = False) -> Prepared:
        """The cached executable, or the result of `compile`. repeated: expect many runs."""
        found = self._executables.get(key)
        if found is not None:
            return Prepared(found, fresh=False)
        without = self._executables.get(("interpreted", key))
        if without is not None and not self._becomes_code(without, repeated):
            self._executables.pop(("interpreted", key))
            self._executables.put(key, without)
            return Prepared(without, fresh=False)
        plan = (lambda: self._planned(compile)) if without is None else lambda: without
        certain = self.machine == "always" or (self.machine == "auto" and repeated)
        if self.compilations is None or (self.is_short and not certain):
            executable = interpreted = self._noted(_timed(plan))
            if self._becomes_code(executable, repeated):
                executable = self._in_thread(key, lambda: self._as_code(interpreted))
        else:
            executable = self._in_thread(key, lambda: self._whole(plan, repeated))
        self._executables.pop(("interpreted", key))
        self._executables.put(key, executable)
        return Prepared(executable, fresh=True)

    @property
    def ops(self) -> int:
        """The number of ops of the program, in all blocks."""
        if self._ops is None:
            self._ops = op_count(self.program.block)
        return self._ops

    @property
    def is_short(self) -> bool:
        """Whether the compilation without machine code takes only milliseconds."""
        if self._short is None:
            self._short = self.ops * _depth(self.program.block) <= SHORT_OPS
        return self._short

    def _in_thread(self, key: Hashable, compile: Callable[[], Executable]) -> Executable:
        """The result of `compile`, run in the compilation thread. Raises CompilationPending until it is done."""
        if self.compilations is None:
            return self._noted(_timed(compile))
        return self._noted(self.compilations.result((id(self), key), lambda: _timed(compile)))

    def _noted(self, made: tuple[Executable, float]) -> Executable:
        executable, seconds = made
        self.note(seconds)
        return executable

    def _whole(self, plan: Callable[[], Executable], repeated: bool) -> Executable:
        executable = plan()
        return self._as_code(executable) if self._becomes_code(executable, repeated) else executable

    def _as_code(self, executable: Executable) -> Executable:
        """`executable` with machine code, unless no run of the code fits into the memory."""
        found = executable.compiled()
        if self.capacity is not None and executable.peak(False).peak <= self.capacity < found.peak(True).peak:
            return executable
        return found

    def _planned(self, compile: Callable[[], Executable]) -> Executable:
        executable = compile()
        return executable if executable.machine is not None else _reading_only(executable)

    def _becomes_code(self, executable: Executable, repeated: bool) -> bool:
        if executable.machine is not None or self.machine == "never":
            return False
        if not all(v.type.is_static for v in executable.inputs):  # open sizes: compiled only to validate the query
            return False
        return self.machine == "always" or repeated or is_long(executable.interpreter.block)


def check_type(name: str, wanted: Any, value: np.ndarray) -> None:
    """Raises ProgramError (feed_dtype, feed_shape) unless `value` has the declared type `wanted` of `name`."""
    if value.dtype != as_dtype(wanted.dtype):
        raise ProgramError(f"{name!r} is declared as {wanted}, but its value is {value.dtype}", "feed_dtype")
    same_rank = len(value.shape) == wanted.rank
    if not same_rank or any(m not in (-1, n) for m, n in zip(wanted.shape, value.shape, strict=True)):
        shape = list(value.shape)
        raise ProgramError(f"{name!r} is declared as {wanted}, but its value has the shape {shape}", "feed_shape")


def blocks_of(root: Block) -> Iterator[Block]:
    """`root` and all its inner blocks."""
    level = [root]
    while level:
        yield from level
        level = [inner for block in level for op in block.ops for _, inner in inner_blocks(op)]


def _depth(root: Block) -> int:
    """The number of levels of blocks."""
    depth, level = 0, [root]
    while level:
        depth += 1
        level = [inner for block in level for op in block.ops for _, inner in inner_blocks(op)]
    return depth


def op_count(root: Block) -> int:
    return sum(len(block.ops) for block in blocks_of(root))


def _timed(compile: Callable[[], Executable]) -> tuple[Executable, float]:
    """The result of `compile`, and the seconds that it took."""
    started = time.perf_counter()
    return compile(), time.perf_counter() - started


def _reading_only(executable: Executable) -> Executable:
    """`executable` without its unread inputs: an accuracy needs no dropout key, and logits need no labels."""
    block = executable.interpreter.block
    read = set(block.results).union(*(each.inputs for each in executable.interpreter.ops))
    kept = [i for i, name in enumerate(block.params) if name in read]
    narrowed = replace(block, params=tuple(block.params[i] for i in kept))
    interpreter = replace(executable.interpreter, block=narrowed)
    return replace(executable, interpreter=interpreter, inputs=tuple(executable.inputs[i] for i in kept))
