"""A compiled block on a GPU, and the host's part of its runs.

A run copies its words to the GPU, launches the kernels, copies the words back, and waits. The first run does so call by
call; then the same calls are captured once, and later runs launch them as one graph. The addresses of arrays and stacks
are words, so they may change from run to run. Only a new arena needs a new graph, and so do other operands of a product
that the library computes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from core.device.arena import SharedArena
from core.device.driver import DeviceFull, Driver, Event, Graph, Memory
from core.device.flow import CONTROL_WORDS, STOP_AT, TOO_SMALL
from core.device.launches import DeviceCode, Launch
from core.device.leaving import host_array
from core.device.multiplication import Multiplication
from core.device.step import Timed
from core.device.tiles import VECTOR_BYTES
from core.ir.errors import ExecutionError, InternalError, Location
from core.ops.common.types import as_dtype
from core.plan.data import bytes_of
from core.plan.plan import Plan
from core.runtime.control_words import CONTROL, ERROR, OPS_LEFT, STOP, STOPPED
from core.runtime.reference import Interpreter, interpreter_of
from core.runtime.region import recorder
from core.runtime.run import Run
from core.runtime.stop import watched

__all__ = ["DeviceArrays", "DeviceRegion"]

MAX_TRIPS = CONTROL.index("max_trips")
WORD = 8

MOST_GRAPHS = 4
"""Graphs of a region at a time: a bound step has two sets of addresses, calls with arrays of their own any number."""


class DeviceArrays:
    """The arrays of a region's next runs; they stay alive as long as they are bound. See `BoundArrays`."""

    __slots__ = ("_driver", "addresses", "arrays", "words")

    def __init__(self, driver: Driver, arrays: Sequence[Any]) -> None:
        self._driver = driver
        self.arrays = list(arrays)
        self.addresses = [0 if each is None else driver.address(each) for each in arrays]
        self.words = np.array(self.addresses, "int64")  # as a run sends them

    def put(self, i: int, array: Any) -> None:
        """Replace array `i`."""
        if array is not self.arrays[i]:
            self.arrays[i] = array
            self._set(i, self._driver.address(array))

    def put_address(self, i: int, address: int) -> None:
        """Replace array `i` by memory that the caller keeps alive."""
        self.arrays[i] = None
        self._set(i, address)

    def drop(self, i: int) -> None:
        """Release array `i`; another one must be put there before the next run."""
        self.put_address(i, 0)

    def _set(self, i: int, address: int) -> None:
        if address != self.addresses[i]:
            self.addresses[i] = self.words[i] = address


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of a run: on the GPU, and in pinned memory as they are sent and as they come back.

    In this order: the control words, the addresses of the arrays, and the table of stacks. stop: has the stop word at
    the position that it has among the control words. of_sent, of_back, of_stop: what the host reads and writes there.
    """

    device: Memory
    sent: Memory
    back: Memory
    stop: Memory
    of_sent: np.ndarray
    of_back: np.ndarray
    of_stop: Any

    @classmethod
    def make(cls, driver: Driver, count: int) -> _Words:
        """Raises DeviceFull, DeviceFault."""
        nbytes = count * WORD
        sent, back, stop = (driver.pinned(each) for each in (nbytes, nbytes, (STOP + 1) * WORD))
        of_sent, of_back = (host_array(each.address, (count,), np.dtype("int64")) for each in (sent, back))
        of_stop = (ctypes.c_int64 * (STOP + 1)).from_address(stop.address)
        return cls(driver.allocate(nbytes), sent, back, stop, of_sent, of_back, of_stop)

    @property
    def stop_at(self) -> int:
        """The address of the stop word."""
        return self.stop.address + STOP * WORD


class DeviceRegion:
    """See `core.runtime.backend.Region`. Its arrays are those of the driver's array module.

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
        timed: Timed = (),
    ) -> None:
        self.plan, self.code, self.driver, self._timed = plan, code, driver, timed
        self.launched = self.captured = 0
        self._functions, self._products = list(functions), code.products
        self._arena = arena
        self._arrays = len(plan.params) + len(plan.results)
        self._first_sizes = [plan.target.stack_bytes(each.slot_bytes) for each in plan.stacks]
        self._stack_sizes = self._first_sizes
        self._stacks: list[Memory] = []
        self._words: _Words | None = None
        self._stream = driver.stream()
        self._graphs: dict[tuple[int, ...], Graph | None] = {}
        self._lock = threading.Lock()
        self._reference: Interpreter | None = None
        self._shapes = [view.shape for view in plan.params]

    @property
    def arena_bytes(self) -> int:
        return self.code.arena_bytes

    @property
    def own_bytes(self) -> int:
        """The arena is shared with all other regions."""
        return self._word_count * WORD

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
            self._stacks, self._stack_sizes = [], self._first_sizes
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
        self.run(self.bind([*arrays, *results]), run)
        for result, length in self.plan.cuts:
            results[result] = results[result][: int(results[length])]
        return tuple(results[: len(results) - len(self.plan.cuts)])

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

    def run(self, arrays: DeviceArrays, run: Run, leaving: Sequence[tuple[int, int, int]] = ()) -> None:
        """Run on bound arrays, after all work of the array module's stream.

        leaving: (target, source, bytes) of copies of results to pinned memory, which have ended too.
        Raises ExecutionError, DeviceFault.
        """
        with self._lock:
            self._stream.wait(self.driver.current().record())
            while True:
                run.poll()
                try:
                    error, wanted = self._run_once(arrays, run, leaving)
                except DeviceFull as full:
                    self._stacks, self._stack_sizes = [], self._first_sizes  # a later run may need less
                    raise run.refusal(full.nbytes, self.driver.free_bytes(), "the step") from full
                if error != TOO_SMALL:
                    break
                self._grow(run, wanted)
        if error == STOPPED:
            run.poll()
            raise ExecutionError("the run was canceled", "canceled")
        if error:
            check = self.plan.checks[error]
            raise ExecutionError(check.message, check.code, location=check.location)

    # --- one run -------------------------------------------------------------------------------------------------

    def _run_once(
        self, arrays: DeviceArrays, run: Run, leaving: Sequence[tuple[int, int, int]]
    ) -> tuple[int, list[int]]:
        """The error word, and the bytes that each stack wanted. Raises DeviceFull."""
        self._arena.make_room(self.arena_bytes, run)
        words = self._make_words()
        self._make_stacks(run)
        sent, stop = words.of_sent, words.of_stop
        stop[STOP] = 0
        sent[:CONTROL_WORDS] = 0
        sent[MAX_TRIPS], sent[OPS_LEFT], sent[STOP_AT] = run.limits.max_trips, run.ops_left, words.stop_at
        sent[CONTROL_WORDS : CONTROL_WORDS + self._arrays] = arrays.words
        if self._stacks:
            table = [word for each in self._stacks for word in (each.address, each.nbytes, 0)]
            sent[CONTROL_WORDS + self._arrays :] = table
        events: list[Event] | None = [] if run.times is not None and self._timed else None
        with self._arena.lent(self.arena_bytes) as arena, self._watched(run, stop):
            self._launch(words, arena, arrays.addresses, events)
            for copy in leaving:
                self._stream.copy(*copy)
            self._stream.synchronize()
        back = words.of_back
        error = STOPPED if stop[STOP] and not back[ERROR] else int(back[ERROR])
        if error != TOO_SMALL:
            run.ops_left = int(back[OPS_LEFT])
            if run.times is not None and events is not None:
                for part, spent in groupby(zip(self._timed, pairwise(events), strict=True), key=itemgetter(0)):
                    seconds = sum(after.seconds_since(before) for _, (before, after) in spent)
                    run.times.add_together(part, seconds)  # two launches of one instruction are one call
        return error, [int(word) for word in back[CONTROL_WORDS + self._arrays + 2 :: 3]]

    def _launch(self, words: _Words, arena: Memory, given: Sequence[int], events: list[Event] | None) -> None:
        """Give the work of a run to the stream: as a graph, from the second run at the same addresses on.

        A product of the library has its addresses in the graph; those that kernels use are words.
        events: receives the moments before, between and after the launches, which then are no graph.
        """
        self.launched += 1
        products = [self._addresses(each, arena, given) for each in self._products]
        if events is not None:
            self._work(words, arena, products, events)
            return
        key = (arena.address, *(address for each in products for address in each))
        if key not in self._graphs:  # the first run may load code, which a capture does not allow
            while self._graphs and (len(self._graphs) >= MOST_GRAPHS or next(iter(self._graphs))[0] != arena.address):
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = None
            self._work(words, arena, products)
            return
        graph = self._graphs[key]
        if graph is None:
            self._stream.begin_capture()
            try:
                self._work(words, arena, products)
            finally:
                graph = self._stream.end_capture()
            self.captured += 1
            self._graphs[key] = graph
        graph.launch(self._stream)

    def _work(
        self, words: _Words, arena: Memory, products: Sequence[Sequence[int]], events: list[Event] | None = None
    ) -> None:
        nbytes = words.sent.nbytes
        control = words.device.address
        given = control + CONTROL_WORDS * WORD
        stacks = given + self._arrays * WORD
        self._stream.copy(control, words.sent.address, nbytes)
        functions, operands = iter(self._functions), iter(products)
        if events is not None:
            events.append(self._stream.record(timed=True))
        for each in self.code.work:
            if isinstance(each, Launch):
                self._stream.launch(next(functions), each, (given, arena.address, control, stacks))
            else:
                self._stream.multiply(each, next(operands))
            if events is not None:
                events.append(self._stream.record(timed=True))
        self._stream.copy(words.back.address, control, nbytes)

    def _addresses(self, product: Multiplication, arena: Memory, given: Sequence[int]) -> list[int]:
        return [
            (arena.address if place.given is None else given[place.given]) + place.offset for place in product.places
        ]

    def _watched(self, run: Run, stop: Any) -> AbstractContextManager[None]:
        """Inside the context, the stop word is set as soon as the limits of the run are exceeded."""
        if run.limits.deadline is None and run.limits.should_stop is None:
            return nullcontext()
        return watched(stop, run)

    # --- memory --------------------------------------------------------------------------------------------------

    @property
    def _word_count(self) -> int:
        return CONTROL_WORDS + self._arrays + 3 * len(self.plan.stacks)

    def _make_words(self) -> _Words:
        if self._words is None:
            self._words = _Words.make(self.driver, self._word_count)
        return self._words

    def _make_stacks(self, run: Run) -> None:
        """Give each stack the room that `_stack_sizes` has. Nothing in a stack outlives a run."""
        if [each.nbytes for each in self._stacks] != self._stack_sizes:
            self._stacks = []
            run.require(self.stack_bytes, "the record of the loop")
            self._stacks = [self.driver.allocate(size) for size in self._stack_sizes]

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
