"""The worker's cache of programs and of the executables compiled from them.

A program arrives as a document together with its id; later calls send the id alone. The cache is bounded by the number
of ops, because the memory of a compiled program grows with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import numpy as np

from core.backward.forward_only import clone
from core.compiler.compile import (
    Clip,
    Executable,
    GradientQuery,
    LossScale,
    Summed,
    compile_forward,
    compile_gradient,
    compile_training,
    compile_update,
)
from core.ir import Block, Program, inner_blocks
from core.ir.errors import ExecutionError, ProgramError
from core.ir.exact import exact
from core.ops.common.types import as_dtype
from core.optim.optimizers import Optimizer
from service.worker.compiling import Compilations
from service.worker.documents import SHORT_OPS, digest, has_derivatives, is_short, read_program
from service.worker.executables import OwnExecutables
from service.worker.given import with_sizes
from service.worker.predictions import is_long, is_quick
from service.worker.state import Handler, WorkerState

__all__ = [
    "Answer",
    "CachedProgram",
    "Prepared",
    "about_program",
    "blocks_of",
    "cached_program",
    "check_type",
]

Answer = tuple[dict[str, Any], dict[str, Any]]

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

    def gradient(
        self,
        query: GradientQuery,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
        repeated: bool = False,
        rounds: bool = True,
        adapts: bool = True,
        streamed: bool = False,
    ) -> Prepared:
        """The executable that computes gradients for feeds of these shapes.

        repeated: expect many runs. rounds: as of `compile_gradient`. adapts: as of `Executable`.
        streamed: the call sends each gradient during its run, which machine code cannot do.
        """
        key, compile = self._gradient(query, fetch, feeds, scale, repeated, rounds, adapts)
        return self._interpreted(key, compile) if streamed else self.compiled(key, compile, repeated)

    def begin_gradient(
        self,
        query: GradientQuery,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
        rounds: bool = True,
    ) -> None:
        """Begin the compilation of a repeated `gradient`, as `begin` does."""
        self.begin(*self._gradient(query, fetch, feeds, scale, True, rounds, True))

    def _gradient(
        self,
        query: GradientQuery,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None,
        repeated: bool,
        rounds: bool,
        adapts: bool,
    ) -> tuple[Hashable, Callable[[], Executable]]:
        """The key and the compilation of `gradient`."""
        shapes = self.shapes(feeds)

        def compile(sizes: Any) -> Executable:
            return replace(compile_gradient(self.program, query, fetch, sizes, scale, rounds), adapts=adapts)

        key = exact(("gradient", query, tuple(fetch), shapes, scale, repeated, rounds, adapts))
        return key, lambda: self._sized(shapes, compile)

    def forward(
        self, fetch: Sequence[str], feeds: Mapping[str, Any], repeated: bool = False, adapts: bool = True
    ) -> Prepared:
        """The executable that computes `fetch` without gradients. repeated, adapts: as of `gradient`."""
        shapes = self.shapes(feeds)
        key = exact(("forward", tuple(fetch), shapes, repeated, adapts))

        def compile(sizes: Any) -> Executable:
            return replace(compile_forward(self.program, fetch, sizes), adapts=adapts)

        return self.compiled(key, lambda: self._sized(shapes, compile), repeated)

    def for_test(self) -> CachedProgram:
        """The program with its ops as in a test: without dropout, with running statistics."""
        if self._tested is None:
            own = OwnExecutables(self._executables.shared)
            program = clone(self.program if self.in_test is None else self.in_test(), for_test=True)
            self._tested = CachedProgram(
                program, self.machine, self.compilations, self.note, own, capacity=self.capacity, largest=self.largest
            )
        return self._tested

    def training(
        self,
        query: GradientQuery,
        optimizer: Optimizer,
        clip: Clip | None,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
        streamed: bool = False,
    ) -> Prepared:
        """The executable of a training step: forward, backward and optimiser. Learning rates are inputs of the step.

        optimizer: with open rates, as all optimisers here (core.optim.rates). streamed: as of `gradient`.
        """
        key, compile = self._training(query, optimizer, clip, fetch, feeds, scale)
        return self._interpreted(key, compile) if streamed else self.compiled(key, compile, repeated=True)

    def _training(
        self,
        query: GradientQuery,
        optimizer: Optimizer,
        clip: Clip | None,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None,
    ) -> tuple[Hashable, Callable[[], Executable]]:
        """The key and the compilation of `training`."""
        shapes = self.shapes(feeds)

        def compile(sizes: Any) -> Executable:
            return compile_training(self.program, query, optimizer, clip, fetch, sizes, scale, open_rates=True)

        key = exact(("training", query, optimizer, clip, tuple(fetch), shapes, scale))
        return key, lambda: self._sized(shapes, compile)

    def first_training(
        self,
        query: GradientQuery,
        optimizer: Optimizer,
        clip: Clip | None,
        fetch: Sequence[str],
        feeds: Mapping[str, Any],
        scale: LossScale | None = None,
    ) -> Prepared | None:
        """The training step in the reference executor, if a session should not wait for machine code for its first one.

        The compilation of `training` begins. Whether a session waits depends on the program and the shapes alone.
        """
        if self.machine != "auto":
            return None
        key, compile = self._training(query, optimizer, clip, fetch, feeds, scale)
        first = self._interpreted(key, compile)
        executable = first.executable
        if not self._becomes_code(executable, repeated=True):
            return first
        self._begin(key, lambda: self._as_code(executable))
        return first if is_quick(executable) else None

    def begin(self, key: Hashable, compile: Callable[[], Executable]) -> None:
        """Begin the compilation that a later `compiled` with this key waits for.

        It ends when no session trains the program any more.
        """
        self._begin(key, lambda: self._whole(compile, True))

    def _begin(self, key: Hashable, make: Callable[[], Executable]) -> None:
        if self.compilations is not None and self._executables.get(key) is None:
            self.compilations.begin((id(self), key), lambda: _timed(make), owner=id(self))

    def end_training(self) -> None:
        """No session trains the program any more: end compilations that `first_training` and `begin` have begun."""
        if self.compilations is not None:
            self.compilations.release(id(self))

    def _interpreted(self, of: Hashable, compile: Callable[[], Executable]) -> Prepared:
        """The cached executable, or the result of `compile`, without machine code. of: its key with machine code."""
        found = self._executables.get(of)
        if found is not None and found.machine is None:
            return Prepared(found, fresh=False)
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
        """The shapes of the given feeds that are declared with open sizes, in words. Raises as `training` does."""
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

    def _sized(self, shapes: Shapes, compile: Callable[[Any], Executable]) -> Executable:
        """The result of `compile` for these shapes of feeds. Raises ProgramError, for sizes with the names of feeds."""
        return with_sizes(self.program, dict(shapes), compile)

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
        certain = self.machine == "always" or (self.machine == "auto" and repeated)
        if self.compilations is None or (self.is_short and not certain):
            executable = interpreted = self._noted(_timed(lambda: self._planned(compile)))
            if self._becomes_code(executable, repeated):
                executable = self._in_thread(key, lambda: self._as_code(interpreted))
        else:
            executable = self._in_thread(key, lambda: self._whole(compile, repeated))
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

    def _whole(self, compile: Callable[[], Executable], repeated: bool) -> Executable:
        executable = self._planned(compile)
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


def cached_program(state: WorkerState, args: Mapping[str, Any]) -> CachedProgram:
    """The program ``args["program_id"]``, read from ``args["document"]`` if the cache does not contain it.

    Without an id, a short program is read from the document and not cached; a long one is cached by its content, so
    that the call that is sent again finds it. Long documents are read in a compilation thread.
    Raises CompilationPending; ExecutionError (program_unknown) if the cache does not contain the program and there is
    no document: the service then sends the call again with the document. Raises ProgramError if the document is not a
    valid program.
    """
    id, document = args.get("program_id"), args.get("document")
    found: CachedProgram | None = state.programs.get(id)
    if found is not None:
        return found
    if document is None:
        raise ExecutionError("this worker does not have the program in its cache", "program_unknown")
    compilations = state.compilations
    if compilations is None or is_short(document):
        program = read_program(state.settings, document)
        if id is None:  # the call sent again would read another object and wait again
            compilations = None
    else:
        if id is None:
            id = digest(document)
            found = state.programs.get(id)
            if found is not None:
                return found
        program = compilations.result(("read", id), lambda: read_program(state.settings, document))
    own = OwnExecutables() if id is None else OwnExecutables(state.executables)
    capacity = None if state.memory is None else state.memory.capacity
    cached = CachedProgram(program, machine_for(state), compilations, state.note_compilation, own, capacity=capacity)
    cached.largest = state.settings.get("tensor_bytes")
    if has_derivatives(document):
        cached.in_test = lambda: read_program(state.settings, document, for_test=True)
    if id is not None:
        state.programs.put(id, cached)
    return cached


def about_program(examine: Callable[[CachedProgram, dict[str, Any]], Answer]) -> Handler:
    """The handler that calls `examine` with the program of a call, in a compilation thread unless that is short.

    examine: a pure function of the program and of the other arguments of the call.
    """

    def handler(state: WorkerState, args: dict[str, Any], tensors: dict[str, np.ndarray]) -> Answer:
        cached = cached_program(state, args)
        if cached.compilations is None or cached.is_short:
            return examine(cached, args)
        more = {name: value for name, value in args.items() if name != "document"}
        key = (examine.__name__, id(cached), msgspec.json.encode(more, order="sorted"))
        return cached.compilations.result(key, lambda: examine(cached, args))  # type: ignore[no-any-return]

    return handler


def machine_for(state: WorkerState) -> Machine:
    """Whether this worker compiles programs to machine code: "auto" decides for each program."""
    if state.device == "cuda" and state.gpu is None:
        return "never"
    return state.settings.get("compile", "never")  # type: ignore[no-any-return]


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
