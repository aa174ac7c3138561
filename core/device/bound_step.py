"""A step on a GPU with its arrays bound to it. Parameters, states and optimiser state stay on the GPU between steps.

Feeds are written to pinned memory, from where one copy takes them all to the GPU. Results leave through `send`: their
copies run on a stream of their own while the next step computes, since two steps in a row share no result.

A step writes new rows of a table to arrays of its own; `keep` writes them into the table, of which there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from core.device.driver import DeviceFault, Event, Memory
from core.device.leaving import Leaving, host_array, send
from core.device.region import DeviceArrays, DeviceRegion
from core.ops.common.types import as_dtype
from core.plan.data import bytes_of
from core.runtime.bound_step import KEPT, picks_of, updated_tables
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.memory_limit import MemoryLimit
from core.runtime.run import Run
from core.runtime.sparse_rows import RowArray

__all__ = ["DeviceBoundStep", "bind_region"]

COUNT = np.dtype("int64")

GAP = 4096
"""Bytes between two feeds that are copied with them: more would take longer than a copy of its own."""


@dataclass(frozen=True, slots=True)
class _Fed:
    """An input that the host gives anew to each step, and its place in the memory of feeds."""

    number: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class _Turn:
    """One of the two sets of arrays that steps use in turn.

    pinned, device: the feeds. places: number of each feed -> its array in pinned memory.
    written: the feeds that the host wrote, and that a copy must take to the GPU.
    left: the end of the last copy of its results to the host.
    counts: numbers of rows in pinned memory (`room`), by their positions among the results; counted: copies of them.
    """

    given: DeviceArrays
    results: list[Any]
    outputs: Outputs
    pinned: Memory
    device: Memory
    places: dict[int, np.ndarray]
    written: list[_Fed] = field(default_factory=list)
    left: Event | None = None
    room: Memory | None = None
    counts: dict[int, np.ndarray] = field(default_factory=dict)
    counted: list[tuple[int, int, int]] = field(default_factory=list)


class DeviceBoundStep:
    """See `core.runtime.bound_step.BoundStep`, whose methods these are. Runs one step at a time."""

    def __init__(self, executable: Executable, region: DeviceRegion, values: Mapping[str, Any]) -> None:
        """values: all inputs but feeds, by name; arrays of the GPU, which are overwritten from now on.

        Raises ProgramError (feed_shape, feed_dtype), DeviceFull, DeviceFault.
        """
        inputs, driver = executable.inputs, region.driver
        self._executable, self._region, self._driver = executable, region, driver
        self._copies = driver.stream()
        self._fed: list[_Fed] = []
        size = 0
        for i, v in enumerate(inputs):
            if v.role in ("feed", "key"):
                self._fed.append(_Fed(i, v.name, v.type.shape, as_dtype(v.type.dtype), size))
                size = region.plan.target.aligned(size + self._fed[-1].nbytes)
        self._feeds = {v.name: each for each in self._fed if (v := inputs[each.number]).role == "feed"}
        self._keys = [each for each in self._fed if inputs[each.number].role == "key"]
        self._feed_bytes = size
        fed = {each.number for each in self._fed}
        count, places = len(inputs), [i for i, _ in picks_of(executable)]
        first = [None if i in fed else self._own(v, values[v.name]) for i, v in enumerate(inputs)] + region.results()
        swapped = _swapped(executable)
        second = first[:count] + region.results(set(range(len(first) - count)) - {places[i] for _, i in swapped})
        for read, i in swapped:
            written = count + places[i]
            second[read], second[written] = first[written], first[read]
        self._tables = updated_tables(executable)
        self._table_arrays = {each.name: first[each.number] for each in self._tables}
        views = {each.name: region.plan.results[each.values] for each in self._tables}
        self._writers = {n: executable.backend.row_writer(bytes_of(v.shape[1:], v.dtype)) for n, v in views.items()}
        self._has_rows = any(each.table is not None for each in executable.layout)
        self._turns = [self._make_turn(arrays) for arrays in (first, second)]
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
        if turn.left is not None:  # the copies of its results may still run
            stream.wait(turn.left)
        for each in self._keys:
            self._put(turn, each, key_of(seed, step))
        for start, end in _spans(turn.written):
            stream.copy(turn.device.address + start, turn.pinned.address + start, end - start)
        del turn.written[len(turn.written) - len(self._keys) :]  # a step that runs again has the same feeds
        try:
            self._region.run(turn.given, run, turn.counted)
        except DeviceFault:
            raise
        except BaseException:
            stream.synchronize()  # the feeds may be written again
            raise
        if self._has_rows:  # only now their number is known
            turn.outputs = self._outputs(turn.results, turn.counts)
        self._last, self._out = turn, turn.outputs
        if run.messages:
            return replace(turn.outputs, messages=tuple(run.messages), unsaid=run.unsaid)
        return turn.outputs

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        self._turn = 1 - self._turn
        results, address = self._last.results, self._driver.address
        for each in self._tables:
            table = address(self._table_arrays[each.name])
            self._writers[each.name](table, *(address(results[i]) for i in (each.rows, each.values, each.count)))

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
            for each in self._fed:
                turn.given.put_address(each.number, turn.device.address + each.offset)

    def _take(self, feeds: Mapping[str, Any]) -> None:
        self._taken = dict(feeds)
        turn = self._turns[self._turn]
        turn.written.clear()
        for name, each in self._feeds.items():
            self._put(turn, each, feeds[name])

    def _make_turn(self, arrays: Sequence[Any]) -> _Turn:
        count = len(self._executable.inputs)
        pinned, device = self._driver.pinned(max(self._feed_bytes, 1)), self._driver.allocate(max(self._feed_bytes, 1))
        given = self._region.bind(arrays)
        for each in self._fed:
            given.put_address(each.number, device.address + each.offset)
        results = list(arrays[count:])
        outputs = Outputs() if self._has_rows else self._outputs(results, {})
        places = {each.number: host_array(pinned.address + each.offset, each.shape, each.dtype) for each in self._fed}
        turn = _Turn(given, results, outputs, pinned, device, places)
        ends = sorted({end for _, end in picks_of(self._executable) if end is not None})
        turn.room = self._driver.pinned(max(len(ends), 1) * COUNT.itemsize)
        for i, end in enumerate(ends):
            at = turn.room.address + i * COUNT.itemsize
            turn.counts[end] = host_array(at, (1,), COUNT)
            turn.counted.append((at, self._driver.address(results[end]), COUNT.itemsize))
        return turn

    def _outputs(self, results: Sequence[Any], counts: Mapping[int, np.ndarray]) -> Outputs:
        """The results by their meaning. counts: the numbers of rows, which the step has copied to the host."""
        picks = picks_of(self._executable)
        known = {end: count.item() for end, count in counts.items()}
        return self._executable.outputs([results[i] if end is None else results[i][: known[end]] for i, end in picks])

    def _own(self, variable: Any, value: Any) -> Any:
        return self._region.readable(checked(variable, value, self._driver.xp))

    def _put(self, turn: _Turn, each: _Fed, value: Any) -> None:
        """Give the value of a feed to the next step of this turn."""
        if isinstance(value, np.ndarray):
            turn.places[each.number][...] = value
            turn.given.put_address(each.number, turn.device.address + each.offset)
            turn.written.append(each)
        else:
            turn.given.put(each.number, self._region.readable(value))


def bind_region(
    executable: Executable, values: Mapping[str, Any], memory: MemoryLimit | None = None
) -> DeviceBoundStep | None:
    """`executable` bound to its parameters and states; None unless it is a single region, or if the GPU has no memory
    for two sets of its results.

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
    if memory is not None:
        needed = _bytes(executable, region)
        if needed > memory.available(needed):
            return None
    try:
        return DeviceBoundStep(executable, region, values)
    except MemoryError:
        return None


def _spans(fed: Sequence[_Fed]) -> list[tuple[int, int]]:
    """(start, end) of the memory of some feeds, as few as possible; what lies between two may be copied, too."""
    spans: list[tuple[int, int]] = []
    for each in sorted(fed, key=lambda one: one.offset):
        start, end = each.offset, each.offset + each.nbytes
        if spans and start - spans[-1][1] <= GAP:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


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


def _bytes(executable: Executable, region: DeviceRegion) -> int:
    """Bytes that a bound step allocates: two sets of results and feeds, of which one takes the place of the inputs."""
    places = [i for i, _ in picks_of(executable)]
    swapped = {places[i] for _, i in _swapped(executable)}
    views = list(enumerate(region.plan.results))
    results = sum(bytes_of(view.shape, view.dtype) * (1 if i in swapped else 2) for i, view in views)
    fed = [v.type for v in executable.inputs if v.role in ("feed", "key")]
    return results + 2 * sum(bytes_of(each.shape, each.dtype) for each in fed)
