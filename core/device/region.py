"""A compiled block on a GPU, and the host's part of its runs.

A run has its words on the GPU, launches the kernels, and copies the words back, which tell whether it failed. The first
run does so call by call; then the same calls are captured once, and later runs launch them as one graph. The addresses
of arrays and stacks are words, so they may change from run to run. Only a new arena needs a new graph, and so do other
operands of a product that the library computes.

`begin` returns at once, and `DeviceRun.end` waits, so that the next run may begin before that. All runs of a backend
are on one stream, one after the other, and share the arena.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from core.device.arena import SharedArena
from core.device.beside import Beside
from core.device.driver import DeviceFull, Driver, Event, Memory
from core.device.flow import CONTROL_WORDS, STOP_AT, TOO_SMALL
from core.device.launches import DeviceCode, Launch
from core.device.multiplication import Multiplication
from core.device.step import Timed
from core.device.tiles import VECTOR_BYTES
from core.device.words import WORD, DeviceArrays, Words, has_loops, reports, word_count
from core.ir.errors import ExecutionError, InternalError, Location
from core.ops.common.types import as_dtype
from core.plan.memory import bytes_of
from core.plan.plan import Plan
from core.runtime.control_words import CONTROL, ERROR, OPS_LEFT, STOP, STOPPED
from core.runtime.reference import Interpreter, interpreter_of
from core.runtime.region import recorder
from core.runtime.run import Run
from core.runtime.stop import watched

__all__ = ["Behind", "DeviceRegion", "DeviceRun", "WordCopier"]

MAX_TRIPS = CONTROL.index("max_trips")

MOST_GRAPHS = 4
"""Graphs of the same arrays at a time."""

Behind = Callable[[Any], None]
"""``(stream)``: gives the stream launches that follow a run; each call gives the same ones."""

WordCopier = Callable[[Any, int, int, bool], None]
"""``(stream, target, source, follows)``: copies the words of a run. follows: see `Stream.launch`."""


class DeviceRegion:
    """See `core.runtime.backend.Region`. Its arrays are those of the driver's array module.

    copy_words: for a plan that `reports`.
    timed: the instructions of each work of the code, whose times runs with `times` measure; empty for no times.
    launched: how often the kernels ran. captured: how often a graph was made. Tests read them.
    """

    def __init__(
        self,
        plan: Plan,
        code: DeviceCode,
        functions: Sequence[Any],
        driver: Driver,
        arena: SharedArena,
        copy_words: WordCopier | None = None,
        timed: Timed = (),
    ) -> None:
        self.plan, self.code, self.driver, self._timed = plan, code, driver, timed
        self.launched = self.captured = 0
        self._functions, self._products = list(functions), code.products
        self._arena = arena
        self._arrays = len(plan.params) + len(plan.results)
        self._count = word_count(plan)
        self._first_sizes = [plan.target.stack_bytes(each.slot_bytes) for each in plan.stacks]
        self._stack_sizes = self._first_sizes
        self._stacks: list[Memory] = []
        self._reports, self._has_loops = reports(plan), has_loops(plan)
        self._first_want = CONTROL_WORDS + self._arrays + 2
        self._copy_words = copy_words
        self._stream = arena.stream
        self._lock = threading.Lock()
        self._called: DeviceArrays | None = None
        self._calls = threading.Lock()
        self._reference: Interpreter | None = None
        self._shapes = [view.shape for view in plan.params]

    @property
    def arena_bytes(self) -> int:
        return self.code.arena_bytes

    @property
    def own_bytes(self) -> int:
        """The arena is shared with all other regions."""
        return self._count * WORD

    @property
    def stack_bytes(self) -> int:
        return sum(self._stack_sizes)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the stacks that `free_idle` would free."""
        return 0 if self._lock.locked() else sum(each.nbytes for each in self._stacks)

    def free_idle(self) -> None:
        """Free the stacks, unless a run uses them. The next run begins with small ones."""
        if self._lock.acquire(blocking=False):
            try:
                self._free_stacks()
            finally:
                self._lock.release()

    @property
    def stream(self) -> Any:
        """The stream that the kernels run on."""
        return self._stream

    def __call__(self, run: Run, *args: Any) -> tuple[Any, ...]:
        if run.xp is not self.driver.xp:
            return self.reference(run, *args)
        arrays = [self.readable(each) for each in args]
        if [each.shape for each in arrays] != self._shapes:
            return self.reference(run, *args)  # the run gave a size that differs from the declared one
        nbytes = sum(bytes_of(view.shape, view.dtype) for view in self.plan.results)
        run.require(nbytes, "the results of the step")
        results = self.results()
        with self._calls:
            if self._called is None:
                self._called = self.bind([*arrays, *results])
            else:
                self._called.set_all([*arrays, *results])
            try:
                self.run(self._called, run)
            finally:
                self._called.arrays.clear()  # their memory belongs to the caller
        return self.plan.cut(results)

    def readable(self, array: Any) -> Any:
        """`array` itself if it lies in order without gaps at an address that vectors can be read from, else a copy.

        A number of the host is copied to the GPU.
        """
        xp, address = self.driver.xp, self.driver.address
        if isinstance(array, xp.ndarray) and array.flags.c_contiguous and address(array) % VECTOR_BYTES == 0:
            return array
        found = xp.ascontiguousarray(array).reshape(array.shape)
        return found if self.driver.address(found) % VECTOR_BYTES == 0 else found.copy()

    def results(self, wanted: Collection[int] | None = None) -> list[Any]:
        """See `Region.results`. wanted: positions; the others are None."""
        xp, views = self.driver.xp, enumerate(self.plan.results)
        return [xp.empty(v.shape, as_dtype(v.dtype)) if wanted is None or i in wanted else None for i, v in views]

    def bind(self, arrays: Sequence[Any]) -> DeviceArrays:
        return DeviceArrays(self.driver, arrays)

    def run(self, arrays: DeviceArrays, run: Run) -> None:
        """Run on bound arrays, after all work of the array module's stream.

        Raises ExecutionError, DeviceFault.
        """
        self._stream.wait(self.driver.current().record())
        self.begin(arrays, run).end()

    def begin(self, arrays: DeviceArrays, run: Run, behind: Behind | None = None) -> DeviceRun:
        """Give a run to the stream, behind the runs that were given before. See `run`.

        The arrays must not change before it has ended. behind: launches that belong to the run.
        """
        begun = DeviceRun(self, arrays, run, behind)
        with self._lock:
            self._give(begun)
        return begun

    # --- one run -------------------------------------------------------------------------------------------------

    def _give(self, begun: DeviceRun) -> None:
        """Give a run to the stream. Raises OutOfMemory."""
        begun.run.poll()
        try:
            self._give_once(begun)
        except DeviceFull as full:
            self._free_stacks()  # a later run may need less
            raise begun.run.refusal(full.nbytes, self.driver.free_bytes(), "the step") from full

    def _give_once(self, begun: DeviceRun) -> None:
        """Raises DeviceFull."""
        arrays, run, nbytes = begun.arrays, begun.run, self.code.arena_bytes
        self._arena.make_room(nbytes, run)
        if arrays.words is None:
            arrays.words = Words.make(self.driver, self._count)
        if self._stack_sizes:
            self._make_stacks(run)
        words, begun.events = arrays.words, [] if run.times is not None and self._timed else None
        words.of_stop[STOP] = 0
        if self._has_loops or arrays.changed or not words.valid:
            self._fill(words, arrays, run)
            if not self._has_loops:
                self._stream.copy(words.device.address, words.sent.address, words.sent.nbytes)
        arrays.changed, words.valid = False, False
        with self._arena.lock:
            if self._has_loops:
                begun.watch()
            self._launch(begun, words, self._arena.at_least(nbytes))
            arrays.ended = self._stream.record(again=arrays.ended)

    def _fill(self, words: Words, arrays: DeviceArrays, run: Run) -> None:
        """Write the words that a run finds."""
        sent = words.of_sent
        sent[:CONTROL_WORDS] = 0
        sent[MAX_TRIPS], sent[OPS_LEFT], sent[STOP_AT] = run.limits.max_trips, run.ops_left, words.stop_at
        sent[CONTROL_WORDS : CONTROL_WORDS + self._arrays] = arrays.in_words
        if self._stacks:
            table = [word for each in self._stacks for word in (each.address, each.nbytes, 0)]
            sent[CONTROL_WORDS + self._arrays : self._count] = table

    def _repeat(self, begun: DeviceRun, wanted: Sequence[int]) -> None:
        """Run again with larger stacks. Raises ExecutionError (too_large), OutOfMemory."""
        with self._lock:
            self._grow(begun.run, wanted)
            self._give(begun)

    def _found(self, begun: DeviceRun) -> tuple[int, list[int]]:
        """The error word of a run that has ended, and the bytes that each stack wanted."""
        words, run, error = begun.arrays.words, begun.run, 0
        assert words is not None, "the run has begun"
        if self._reports:
            error = int(words.of_back[ERROR])
            if self._has_loops and words.of_stop[STOP] and not error:
                error = STOPPED
        words.valid = not error and not self._has_loops
        if error != TOO_SMALL:
            if self._has_loops:
                run.ops_left = int(words.of_back[OPS_LEFT])
            if run.times is not None and begun.events is not None:
                spans = zip(self._timed, pairwise(begun.events), strict=True)
                for part, spent in groupby(spans, key=itemgetter(0)):
                    seconds = sum(after.seconds_since(before) for _, (before, after) in spent)
                    run.times.add_together(part, seconds)  # two launches of one instruction are one call
        return error, words.of_back[self._first_want : self._count : 3].tolist() if self._stack_sizes else []

    def _launch(self, begun: DeviceRun, words: Words, arena: Memory) -> None:
        """Give the work of a run to the stream: as a graph, from the second run at the same addresses on.

        A product of the library has its addresses in the graph; those that kernels use are words. A run with events
        is no graph.
        """
        self.launched += 1
        graphs, addresses = begun.arrays.graphs, begun.arrays.addresses
        products = [self._addresses(each, arena, addresses) for each in self._products]
        if begun.events is not None:
            self._work(words, arena, products, begun.behind, begun.events)
            return
        key = (arena.address, begun.behind, *(address for each in products for address in each))
        if key not in graphs:  # the first run may load code, which a capture does not allow
            while graphs and (len(graphs) >= MOST_GRAPHS or next(iter(graphs))[0] != arena.address):
                del graphs[next(iter(graphs))]
            graphs[key] = None
            self._work(words, arena, products, begun.behind)
            return
        graph = graphs[key]
        if graph is None:
            self._stream.begin_capture()
            try:
                self._work(words, arena, products, begun.behind)
            finally:
                graph = self._stream.end_capture()
            self.captured += 1
            graphs[key] = graph
        graph.launch(self._stream)

    def _work(
        self,
        words: Words,
        arena: Memory,
        products: Sequence[Sequence[int]],
        behind: Behind | None,
        events: list[Event] | None = None,
    ) -> None:
        """Give the work of a run to the stream call by call.

        events: receives the moments before, between and after the launches.
        """
        control = words.device.address
        given = control + CONTROL_WORDS * WORD
        stacks = given + self._arrays * WORD
        follows = self._has_loops
        if self._has_loops:
            self._copied(control, words.sent.address, follows=False)
        functions, operands = iter(self._functions), iter(products)
        if events is not None:
            events.append(self._stream.record(timed=True))
        arguments = (given, arena.address, control, stacks)
        with Beside(self._stream, self._arena.beside) as apart:
            for i, each in enumerate(self.code.work):
                follows = not apart.join(i) and follows and events is None
                if isinstance(each, Launch) and each.beside:
                    apart.launch(i, next(functions), each, arguments)
                elif isinstance(each, Launch):
                    self._stream.launch(next(functions), each, arguments, follows)
                else:
                    self._stream.multiply(each, next(operands))
                follows = isinstance(each, Launch) and not each.beside  # a library product cannot start early
                if events is not None:
                    events.append(self._stream.record(timed=True))
            follows = not apart.join(len(self.code.work)) and follows and events is None
        if self._reports:
            self._copied(words.back.address, control, follows)
        if behind is not None:
            behind(self._stream)

    def _copied(self, target: int, source: int, follows: bool) -> None:
        assert self._copy_words is not None, "the plan reports"
        self._copy_words(self._stream, target, source, follows)

    def _addresses(self, product: Multiplication, arena: Memory, given: Sequence[int]) -> list[int]:
        return [
            (arena.address if place.given is None else given[place.given]) + place.offset for place in product.places
        ]

    # --- memory --------------------------------------------------------------------------------------------------

    def _make_stacks(self, run: Run) -> None:
        """Give each stack the room that `_stack_sizes` has. Nothing in a stack outlives a run."""
        if [each.nbytes for each in self._stacks] != self._stack_sizes:
            self._free_stacks(self._stack_sizes)
            run.require(self.stack_bytes, "the record of the loop")
            self._stacks = [self.driver.allocate(size) for size in self._stack_sizes]

    def _free_stacks(self, sizes: Sequence[int] | None = None) -> None:
        """Free the stacks, when no run uses them. sizes: of the next ones; by default those of the first run."""
        if self._stacks:
            self._stream.synchronize()
        self._stacks, self._stack_sizes = [], self._first_sizes if sizes is None else list(sizes)

    def _grow(self, run: Run, wanted: Sequence[int]) -> None:
        """Make the stacks larger that were too small. Raises ExecutionError (too_large)."""
        sizes = list(self._stack_sizes)
        for i, (stack, need) in enumerate(zip(self.plan.stacks, wanted, strict=True)):
            if need <= sizes[i]:
                continue
            sizes[i] = self.plan.target.stack_bytes(need)
            if sizes[i] > run.limits.max_bytes:
                raise ExecutionError(
                    f"a loop recorded more than {run.limits.max_bytes} bytes of one value",
                    "too_large",
                    location=self._recorder(stack),
                )
        if sizes == self._stack_sizes:
            raise InternalError("a stack was too small, but none wanted more room")
        self._stack_sizes = sizes

    def _recorder(self, stack: Any) -> Location | None:
        return recorder(self.plan.body, stack)

    @property
    def reference(self) -> Interpreter:
        """The reference executor of the same block, for arrays that the code cannot take."""
        if self._reference is None:
            self._reference = interpreter_of(self.plan.block)
        return self._reference


@dataclass(slots=True)
class DeviceRun:
    """A run that has begun. repeated: whether its end found that it must run again, with larger stacks.

    behind: see `DeviceRegion.begin`. events: the moments between its launches, if it measures times.
    """

    region: DeviceRegion
    arrays: DeviceArrays
    run: Run
    behind: Behind | None = None
    events: list[Event] | None = None
    repeated: bool = False
    _watch: ExitStack | None = None

    def watch(self) -> None:
        """From now on the stop word, which the code reads, is set as soon as the limits of the run are exceeded."""
        limits, words = self.run.limits, self.arrays.words
        if words is not None and (limits.deadline, limits.should_stop) != (None, None):
            self._watch = ExitStack()
            self._watch.enter_context(watched(words.of_stop, self.run))

    def end(self) -> None:
        """Wait until the run has ended. Raises ExecutionError, DeviceFault."""
        while True:
            self.wait()
            error, wanted = self.region._found(self)
            if error != TOO_SMALL:
                break
            self.repeated = True
            self.region._repeat(self, wanted)
        if error == STOPPED:
            self.run.poll()
            raise ExecutionError("the run was canceled", "canceled")
        if error:
            check = self.region.plan.checks[error]
            raise ExecutionError(check.message, check.code, location=check.location)

    def wait(self) -> None:
        """Wait until the GPU is done with the run, whether it failed or not. Raises DeviceFault."""
        try:
            if self.arrays.ended is not None:
                self.arrays.ended.synchronize()
        finally:
            if self._watch is not None:
                self._watch.close()
