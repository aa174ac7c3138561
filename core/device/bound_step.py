"""A step on a GPU with its arrays bound to it. Parameters, states and optimiser state stay on the GPU between steps.

Feeds are written to pinned memory, from where one copy takes them all to the GPU. Results leave through `send`: their
copies run on a stream of their own while the next step computes, since two steps in a row share no result.

In `steps`, a step begins before the one before has ended, if there are three sets of arrays: of three steps in a row,
the last one writes to the values that the first one has read, and begins when that has succeeded.

A step writes new rows of a table to arrays of its own; `keep` writes them into the table, of which there is one. Where
steps begin early, that is work of their stream (`core.device.table_updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from core.device.backend import DeviceBackend
from core.device.driver import DeviceFault, Event, Memory, Stream
from core.device.feeds import FeedMemory, fed_inputs
from core.device.leaving import Leaving, host_array, send
from core.device.region import Behind, DeviceRegion, DeviceRun
from core.device.table_updates import TableUpdates, UpdatedRows
from core.device.words import DeviceArrays, has_loops
from core.plan.memory import bytes_of
from core.runtime.bound_step import KEPT, one_by_one, picks_of, updated_tables
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.memory_limit import MemoryLimit
from core.runtime.run import Run
from core.runtime.sparse_rows import RowArray

__all__ = ["DeviceBoundStep", "bind_region"]

COUNT = np.dtype("int64")

MOST_AHEAD = 1 << 28
"""Bytes of a third set of arrays. A step that writes more takes so long that it does not matter when it begins."""


@dataclass(slots=True)
class _Turn:
    """One of the sets of arrays that steps use in turn.

    left: the end of the last copy of its results to the host.
    counts: numbers of rows in pinned memory (`room`), by their positions among the results. known: those of `outputs`.
    gathers: copies the numbers there behind a step, by the words of `pairs`. updates: also writes new rows to tables.
    """

    given: DeviceArrays
    results: list[Any]
    outputs: Outputs
    feeds: FeedMemory
    left: Event | None = None
    room: Memory | None = None
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    known: list[int] | None = None
    pairs: Memory | None = None
    gathers: Behind | None = None
    updates: Behind | None = None


@dataclass(slots=True)
class _Begun:
    """A step that has begun. number: since the first one of its series."""

    of: DeviceRun
    turn: _Turn
    number_of_turn: int
    number: int
    run: Run


class DeviceBoundStep:
    """See `core.runtime.bound_step.BoundStep`, whose methods these are. Runs one step at a time."""

    def __init__(self, executable: Executable, region: DeviceRegion, values: Mapping[str, Any], sets: int = 3) -> None:
        """values: all inputs but feeds, by name; arrays of the GPU, which are overwritten from now on.
        sets: of arrays, 2 or 3.

        Raises ProgramError (feed_shape, feed_dtype), DeviceFull, DeviceFault.
        """
        inputs, driver = executable.inputs, region.driver
        self._executable, self._region, self._driver = executable, region, driver
        self._copies = driver.stream()
        self._fed = fed_inputs(executable, region.plan.target.aligned)
        self._feeds = {v.name: each for each in self._fed if (v := inputs[each.number]).role == "feed"}
        self._keys = [each for each in self._fed if inputs[each.number].role == "key"]
        fed = {each.number for each in self._fed}
        count, places = len(inputs), [i for i, _ in picks_of(executable)]
        first = [None if i in fed else self._own(v, values[v.name]) for i, v in enumerate(inputs)] + region.results()
        swapped = [(read, count + places[i]) for read, i in _swapped(executable)]
        turns = _sets_of_arrays(region, first, count, swapped, sets)
        self._tables = updated_tables(executable)
        self._table_arrays = {each.name: first[each.number] for each in self._tables}
        views = {each.name: region.plan.results[each.values] for each in self._tables}
        self._writers = {n: executable.backend.row_writer(bytes_of(v.shape[1:], v.dtype)) for n, v in views.items()}
        self._has_rows = any(each.table is not None for each in executable.layout)
        self._turns = [self._make_turn(arrays) for arrays in turns]
        self._updates: TableUpdates | None = None
        if self._tables and sets == 3 and not _waits(executable, region):
            self._updates = TableUpdates(driver, region.stream, [self._rows_of(turn) for turn in self._turns])
            for number, turn in enumerate(self._turns):
                turn.updates = partial(_gather_and_update, turn.gathers, self._updates, number)
        self._turn = 0
        self._last = self._turns[0]
        self._out = self._last.outputs
        self._taken: dict[str, Any] = {}

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Take the feeds for the next `step`; False if they are not arrays of exactly the declared types.

        Arrays of the host are copied at once. Arrays of the GPU are read by the step, and must not change before.
        """
        if feeds.keys() != self._feeds.keys():
            return False
        for name, each in self._feeds.items():
            value = feeds[name]
            if getattr(value, "shape", None) != each.shape or getattr(value, "dtype", None) != each.dtype:
                return False
        self._take(feeds)
        return True

    def series(self, stacked: Mapping[str, Any]) -> Callable[[int], None]:
        """A function that takes element i of each of `stacked`, feeds of many steps, in place of another `takes`.

        stacked: arrays [count, *shape] of feeds whose elements `takes` has accepted before. The other feeds stay.
        """
        others = {name: value for name, value in self._taken.items() if name not in stacked}

        def bind(number: int) -> None:
            self._take({**others, **{name: values[number, ...] for name, values in stacked.items()}})

        return bind

    def step(self, run: Run, seed: int, step: int) -> Outputs:
        """Run one step with the feeds that `takes` has taken. The values change only when `keep` is called.

        The arrays of the outputs are overwritten by the step after the next one if this step is kept, else by the next
        step. Raises ExecutionError, DeviceFault.
        """
        turn, stream = self._turns[self._turn], self._region.stream
        stream.wait(self._driver.current().record())  # ops may still read arrays of an earlier step
        self._end(self._begin(turn, run, seed, step), turn)
        return self._told(run)

    def steps(
        self, runs: Iterable[Run], seed: int, first: int, bind: Callable[[int], None] | None = None
    ) -> Generator[Outputs, None, None]:
        """See `BoundStep.steps`. A step begins before the one before has ended, unless that must be kept first.

        Whoever computes with outputs by ops of the array module must have waited for them before asking for more.
        Raises ExecutionError, DeviceFault.
        """
        fed, turns = self._taken, len(self._turns)

        def again(number: int) -> None:
            if 0 < number < turns:  # each turn takes the feeds once
                self._take(fed)

        if turns < 3 or (self._tables and self._updates is None):
            return one_by_one(self, runs, seed, first, bind or again)
        return self._overlapped(runs, seed, first, bind or again)

    def _overlapped(
        self, runs: Iterable[Run], seed: int, first: int, bind: Callable[[int], None]
    ) -> Generator[Outputs, None, None]:
        """The steps of `steps`. `_turn` is that of the step that takes feeds and begins next."""
        begun: list[_Begun] = []
        updates, address, tables = self._updates, self._driver.address, {}
        self._region.stream.wait(self._driver.current().record())
        if updates is not None:
            tables = {name: address(table) for name, table in self._table_arrays.items()}

        def begin(number: int, run: Run) -> None:
            turn = self._turns[self._turn]
            bind(number)
            if updates is not None:
                updates.put(self._turn, tables)
            begun.append(
                _Begun(self._begin(turn, run, seed, first + number, ahead=True), turn, self._turn, number, run)
            )
            self._advance()

        def end() -> Outputs:
            """Wait for the step that began first; those behind it run again if it has."""
            one = begun[0]
            self._end(one.of, one.turn)
            if one.of.repeated:
                for each in begun[1:]:
                    each.of.wait()
                    each.of = self._begin(each.turn, each.run, seed, first + each.number, ahead=True)
            return self._told(one.run)

        try:
            for number, run in enumerate(runs):
                begin(number, run)
                if len(begun) > 1:
                    yield end()
                    begun.pop(0)
            if begun:
                yield end()
                begun.pop(0)
        finally:
            if begun:  # the first of them has failed, or nobody keeps it
                for each in begun:
                    each.of.wait()
                self._turn = begun[0].number_of_turn
            if updates is not None:
                self._region.stream.synchronize()
                updates.undo([each.number_of_turn for each in begun], tables)

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        self._advance()
        results, address = self._last.results, self._driver.address
        for each in self._tables:
            table = address(self._table_arrays[each.name])
            self._writers[each.name](table, *(address(results[i]) for i in (each.rows, each.values, each.count)))

    def _advance(self) -> None:
        self._turn = (self._turn + 1) % len(self._turns)

    def _begin(self, turn: _Turn, run: Run, seed: int, step: int, ahead: bool = False) -> DeviceRun:
        """Begin a step on the arrays of this turn, whose feeds were taken.

        ahead: whether it writes new rows to their tables, if that is work of the stream (`_updates`).
        """
        stream = self._region.stream
        if turn.feeds.follows:
            stream.wait(self._driver.current().record())
            turn.feeds.follows = False
        if turn.left is not None:  # the copies of its results may still run
            stream.wait(turn.left)
            turn.left = None
        for each in self._keys:
            turn.feeds.put(each, key_of(seed, step))
        turn.feeds.copy(stream, len(self._keys))
        try:
            return self._region.begin(turn.given, run, turn.updates if ahead and turn.updates else turn.gathers)
        except DeviceFault:
            raise
        except BaseException:
            stream.synchronize()  # the feeds may be written again
            raise

    def _end(self, begun: DeviceRun, turn: _Turn) -> None:
        begun.end()
        if self._has_rows:  # only now their number is known
            known = [count.item() for count in turn.counts.values()]
            if known != turn.known:
                turn.known = known
                turn.outputs = self._outputs(turn.results, dict(zip(turn.counts, known, strict=True)))
        self._last, self._out = turn, turn.outputs

    def _told(self, run: Run) -> Outputs:
        """The outputs of the last step with its messages."""
        if run.messages:
            return replace(self._out, messages=tuple(run.messages), unsaid=run.unsaid)
        return self._out

    def send(self, results: Mapping[str, Any]) -> Leaving:
        """Copy some results of the last step to the host while the next step runs.

        results: arrays of its outputs, by any names. Raises OutOfMemory, DeviceFault.
        """
        self._copies.wait(self._driver.current().record())  # some results may have been computed from those of the step
        leaving = send(self._driver, self._copies, results)
        self._last.left = leaving.sent
        return leaving

    def has_finite_gradients(self) -> bool:
        """Whether all gradients of the last step are finite."""
        return all_finite(self._driver.xp, self._out)

    def put_tables(self, values: Mapping[str, Any]) -> bool:
        """Read and write the tables among `values` in place from now on; False if that is impossible.

        values: the tables whose rows the step updates, and others.
        """
        for each in self._tables:
            table = values[each.name]
            if not isinstance(table, self._driver.xp.ndarray):
                return False
            readable = self._region.readable(table)
            if self._driver.address(readable) != self._driver.address(table):
                return False
            self._table_arrays[each.name] = table
            for turn in self._turns:
                turn.given.put(each.number, table)
        return True

    def drop_feeds(self) -> None:
        """Release the arrays of the feeds; the next step needs new ones."""
        self._taken = {}
        for turn in self._turns:
            turn.feeds.drop()

    def _take(self, feeds: Mapping[str, Any]) -> None:
        self._taken = dict(feeds)
        turn = self._turns[self._turn]
        turn.feeds.clear()
        for name, each in self._feeds.items():
            turn.feeds.put(each, feeds[name])

    def _make_turn(self, arrays: Sequence[Any]) -> _Turn:
        count = len(self._executable.inputs)
        given, results = self._region.bind(arrays), list(arrays[count:])
        outputs = Outputs() if self._has_rows else self._outputs(results, {})
        turn = _Turn(given, results, outputs, FeedMemory(self._driver, given, self._fed, self._region.readable))
        ends = sorted({end for _, end in picks_of(self._executable) if end is not None})
        if ends:
            self._gather(turn, ends)
        return turn

    def _gather(self, turn: _Turn, ends: Sequence[int]) -> None:
        """Have steps of this turn copy numbers of rows to pinned memory. ends: positions among the results."""
        count, size, backend = len(ends), COUNT.itemsize, self._executable.backend
        assert isinstance(backend, DeviceBackend), "the backend of the region"
        room = turn.room = self._driver.pinned(3 * count * size)  # the numbers, and the words of `pairs`
        pairs = turn.pairs = self._driver.allocate(2 * count * size)
        words = host_array(room.address + count * size, (count, 2), COUNT)
        for i, end in enumerate(ends):
            at = room.address + i * size
            turn.counts[end] = host_array(at, (1,), COUNT)
            words[i] = at, self._driver.address(turn.results[end])
        self._region.stream.copy(pairs.address, room.address + count * size, pairs.nbytes)
        gather = backend.word_gatherer(count)
        turn.gathers = lambda stream: gather(stream, pairs.address)

    def _rows_of(self, turn: _Turn) -> list[UpdatedRows]:
        """The new rows that steps of this turn leave."""
        backend, address, found = self._executable.backend, self._driver.address, []
        assert isinstance(backend, DeviceBackend), "the backend of the region"
        for each in self._tables:
            rows, values, count = (turn.results[i] for i in (each.rows, each.values, each.count))
            row_bytes = bytes_of(values.shape[1:], str(values.dtype))
            places = (address(rows), address(values), address(count), values.nbytes)
            update = backend.row_updater(row_bytes, values.nbytes)
            found.append(UpdatedRows(each.name, *places, update, self._writers[each.name]))
        return found

    def _outputs(self, results: Sequence[Any], counts: Mapping[int, int]) -> Outputs:
        """The results by their meaning. counts: the numbers of rows, which the step has copied to the host."""
        picks = picks_of(self._executable)
        return self._executable.outputs([results[i] if end is None else results[i][: counts[end]] for i, end in picks])

    def _own(self, variable: Any, value: Any) -> Any:
        return self._region.readable(checked(variable, value, self._driver.xp))


def _sets_of_arrays(
    region: DeviceRegion, first: list[Any], count: int, swapped: Sequence[tuple[int, int]], sets: int
) -> list[list[Any]]:
    """The arrays of each turn. Each reads values where the turn before it writes them, the first one after the last.

    first:   the arrays of the first turn: `count` inputs, then the results.
    swapped: (position of an input, position of the result that is its next value) pairs.
    """
    turns = [first]
    for turn in range(1, sets):
        before, is_last = turns[-1], turn == sets - 1
        given = {written - count for _, written in swapped} if is_last else set()
        arrays = before[:count] + region.results(set(range(len(first) - count)) - given)
        for read, written in swapped:
            arrays[read] = before[written]
            if is_last:
                arrays[written] = first[read]
        turns.append(arrays)
    return turns


def _gather_and_update(gathers: Behind | None, updates: TableUpdates, number: int, stream: Stream) -> None:
    """Copy the numbers of rows of a step to the host, and write its new rows to the tables. number: of its turn.

    A graph keeps this function. It refers to no step, so that nothing keeps a step behind its last reference.
    """
    if gathers is not None:
        gathers(stream)
    updates.write(number, stream)


def bind_region(
    executable: Executable, values: Mapping[str, Any], memory: MemoryLimit | None = None
) -> DeviceBoundStep | None:
    """`executable` bound to its parameters and states; None unless it is a single region, or if the GPU has no memory
    for two sets of its results. There are three if there is memory for them, and a use.

    values: all inputs but feeds, by name: arrays of the GPU, which are overwritten from now on.
    Raises ProgramError (feed_shape, feed_dtype), DeviceFault.
    """
    machine = executable.machine
    region = machine.region if machine is not None else None
    if not isinstance(region, DeviceRegion) or region.plan.cuts:
        return None
    places = [i for i, _ in picks_of(executable)]
    kept = {i for i, each in zip(places, executable.layout, strict=True) if each.place in KEPT}
    if any(places.count(i) > 1 for i in kept):
        return None
    more = _bytes(executable, region, 3) - _bytes(executable, region, 2)
    for sets in (2,) if _waits(executable, region) or more > MOST_AHEAD else (3, 2):
        needed = _bytes(executable, region, sets)
        if memory is not None and needed > memory.available(needed):
            continue
        with suppress(MemoryError):
            return DeviceBoundStep(executable, region, values, sets)
    return None


def _waits(executable: Executable, region: DeviceRegion) -> bool:
    """Whether a step must be kept before the next one begins.

    A run whose stacks grow is repeated. With tables it would update their rows twice.
    """
    return bool(updated_tables(executable)) and has_loops(region.plan)


def write_rows(out: Outputs, tables: Mapping[str, Any]) -> None:
    """Write the new rows of tables among the outputs of a step to their places."""
    if not tables:
        return
    for name, value in (*out.parameters.items(), *out.optimizer_state.items()):
        if isinstance(value, RowArray) and name in tables:
            value.write(tables[name])


def all_finite(xp: Any, out: Outputs) -> bool:
    """Whether all gradients are finite."""
    dense = [each.values if isinstance(each, RowArray) else each for each in out.gradients.values()]
    return not dense or bool(xp.stack([xp.isfinite(each).all() for each in dense]).all())  # one copy to the host


def _swapped(executable: Executable) -> list[tuple[int, int]]:
    """(number among the inputs, number in the layout) of each value that a step reads, and writes as a whole."""
    where = {v.name: i for i, v in enumerate(executable.inputs)}
    whole = [(i, each) for i, each in enumerate(executable.layout) if each.place in KEPT and each.table is None]
    return [(where[each.name], i) for i, each in whole if each.name in where]


def _bytes(executable: Executable, region: DeviceRegion, sets: int) -> int:
    """Bytes that a bound step allocates: sets of results and feeds, of which one takes the place of the inputs."""
    places = [i for i, _ in picks_of(executable)]
    swapped = {places[i] for _, i in _swapped(executable)}
    views = list(enumerate(region.plan.results))
    results = sum(bytes_of(view.shape, view.dtype) * (sets - 1 if i in swapped else sets) for i, view in views)
    fed = [v.type for v in executable.inputs if v.role in ("feed", "key")]
    if sets == 3:
        tables = [region.plan.results[each.values] for each in updated_tables(executable)]
        results += sets * sum(bytes_of(view.shape, view.dtype) for view in tables)  # the old rows are saved
    return results + sets * sum(bytes_of(each.shape, each.dtype) for each in fed)
