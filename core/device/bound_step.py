"""A step on a GPU with its arrays bound to it. Parameters, states and optimiser state stay on the GPU between steps.

Feeds are written to pinned memory, from where one copy takes them all to the GPU. Results leave through `send`: their
copies run on a stream of their own while the next step computes, since two steps in a row share no result.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from core.device.driver import DeviceFault, DeviceFull, Event, Memory
from core.device.region import DeviceArrays, DeviceRegion
from core.ir.errors import OutOfMemory
from core.ops.common.types import as_dtype
from core.runtime.bound_step import KEPT
from core.runtime.executable import Executable, Outputs, checked, key_of
from core.runtime.run import Run

__all__ = ["DeviceBoundStep", "Leaving", "bind_device_step"]


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

    pinned, device: the feeds. left: the end of the last copy of its results to the host.
    """

    given: DeviceArrays
    results: list[Any]
    outputs: Outputs
    pinned: Memory
    device: Memory
    left: Event | None = None


@dataclass(slots=True)
class Leaving:
    """Results on their way to the host."""

    _event: Event
    _pinned: Memory
    _places: Mapping[str, tuple[int, tuple[int, ...], np.dtype]]

    def arrays(self) -> dict[str, np.ndarray]:
        """Wait for the copies, and return arrays of the caller's own. Raises DeviceFault."""
        self._event.synchronize()
        found = {}
        for name, (offset, shape, dtype) in self._places.items():
            found[name] = _host_array(self._pinned.address + offset, shape, dtype).copy()
        return found


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
        first = [None if i in fed else self._own(v, values[v.name]) for i, v in enumerate(inputs)] + region.results()
        second = [*first[: len(inputs)], *region.results()]
        where = {v.name: i for i, v in enumerate(inputs)}
        for i, result in enumerate(executable.layout, len(inputs)):
            read = where.get(result.name) if result.place in KEPT else None
            if read is not None:
                second[read], second[i] = first[i], first[read]
        self._turns = [self._make_turn(arrays) for arrays in (first, second)]
        self._turn = 0
        self._last = self._turns[0]
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
        if self._feed_bytes:
            stream.copy(turn.device.address, turn.pinned.address, self._feed_bytes)
        try:
            self._region.run(turn.given, run)
        except DeviceFault:
            raise
        except BaseException:
            stream.synchronize()  # the feeds may be written again
            raise
        self._last = turn
        if run.messages:
            return replace(turn.outputs, messages=tuple(run.messages), unsaid=run.unsaid)
        return turn.outputs

    def keep(self) -> None:
        """Make the results of the last step the values of the next one."""
        self._turn = 1 - self._turn

    def send(self, results: Mapping[str, Any]) -> Leaving:
        """Copy some results of the last step to the host while the next step runs.

        results: arrays of its outputs, by any names. Raises OutOfMemory, DeviceFault.
        """
        places, size = {}, 0
        for name, array in results.items():
            places[name] = (size, tuple(array.shape), np.dtype(array.dtype))
            size = self._region.plan.target.aligned(size + array.nbytes)
        try:
            pinned = self._driver.pinned(max(size, 1))
        except DeviceFull as full:
            message = f"the results need {size} bytes of pinned memory, which the system does not have"
            raise OutOfMemory(message, wanted=size, allowed=0) from full
        for name, array in results.items():
            if array.nbytes:
                self._copies.copy(pinned.address + places[name][0], self._driver.address(array), array.nbytes)
        self._last.left = self._copies.record()
        return Leaving(self._last.left, pinned, places)

    def has_finite_gradients(self) -> bool:
        """Whether all gradients of the last step are finite."""
        xp = self._driver.xp
        return all(bool(xp.isfinite(each).all()) for each in self._last.outputs.gradients.values())

    def put_tables(self, values: Mapping[str, Any]) -> bool:
        """Nothing to do: steps that update tables by rows are not bound."""
        return True

    def drop_feeds(self) -> None:
        """Release the arrays of the feeds; the next step needs new ones."""
        self._taken = {}
        for turn in self._turns:
            for each in self._fed:
                turn.given.put_address(each.number, turn.device.address + each.offset)

    def _take(self, feeds: Mapping[str, Any]) -> None:
        self._taken = dict(feeds)
        for name, each in self._feeds.items():
            self._put(self._turns[self._turn], each, feeds[name])

    def _make_turn(self, arrays: Sequence[Any]) -> _Turn:
        count = len(self._executable.inputs)
        pinned, device = self._driver.pinned(max(self._feed_bytes, 1)), self._driver.allocate(max(self._feed_bytes, 1))
        given = self._region.bind(arrays)
        for each in self._fed:
            given.put_address(each.number, device.address + each.offset)
        return _Turn(given, list(arrays[count:]), self._executable.outputs(arrays[count:]), pinned, device)

    def _own(self, variable: Any, value: Any) -> Any:
        return self._region.readable(checked(variable, value, self._driver.xp))

    def _put(self, turn: _Turn, each: _Fed, value: Any) -> None:
        """Give the value of a feed to the next step of this turn."""
        if isinstance(value, np.ndarray):
            _host_array(turn.pinned.address + each.offset, each.shape, each.dtype)[...] = value
            turn.given.put_address(each.number, turn.device.address + each.offset)
        else:
            turn.given.put(each.number, self._region.readable(value))


def bind_device_step(executable: Executable, values: Mapping[str, Any]) -> DeviceBoundStep | None:
    """`executable` bound to its parameters and states; None unless it is a single region without rows of tables, or if
    the GPU has no memory for a second set of them.

    values: all inputs but feeds, by name: arrays of the GPU, which are overwritten from now on.
    Raises ProgramError (feed_shape, feed_dtype), DeviceFault.
    """
    machine = executable.machine
    region = machine.region if machine is not None else None
    if machine is None or not isinstance(region, DeviceRegion) or region.plan.cuts or machine.picks is not None:
        return None
    if any(each.table is not None for each in executable.layout):
        return None
    try:
        return DeviceBoundStep(executable, region, values)
    except MemoryError:
        return None


def _host_array(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array in pinned memory at `address`."""
    if not math.prod(shape):
        return np.empty(shape, dtype)
    room = (ctypes.c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(room), np.uint8).view(dtype).reshape(shape)
