"""A driver of a GPU that is emulated: its calls, its streams and its failures.

Work on a stream is done late: only when someone waits for it, or when the seed says so. Code that forgets to wait reads
old values. Memory lies between guards, and every access of a copy or launch is checked against the live memory.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import numpy as np

from core.device.cublaslt import CublasLt
from core.device.driver import DeviceFault, DeviceFull, DeviceProperties
from core.device.launches import DeviceCode, Launch
from core.device.multiplication import Multiplication
from tests.device.emulator import Emulated, EmulatorFault
from tests.device.library import EmulatedCublasLt

__all__ = ["EmulatedDriver"]

ALIGNMENT = 256
GUARD = 256
PATTERN = 0x5C
GARBAGE = 0x7F
MICROSECOND = 1e-6


@dataclass(eq=False)
class EmulatedDriver:
    """See `core.device.driver.Driver`.

    watches:  whether the emulator looks for races.
    capacity: bytes of device memory.
    seconds: the clock of the GPU: each block of a launch takes a microsecond.
    followed: for each launch that was given, whether its blocks may start before the work before it has ended.
    failing:  call -> how many more of them succeed before one fails: "allocate", "pinned", "launch" (a sticky error),
              "timeout" (of a launch).
    """

    seed: int = 1
    watches: bool = False
    capacity: int = 1 << 30
    xp: ModuleType = np
    properties: DeviceProperties = field(default_factory=lambda: DeviceProperties("emulated", "sm_80", 2, 1 << 16))
    most_blocks: int = 64
    followed: list[bool] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)
    multiplies: bool = False  # products by `library`
    is_lost: bool = False
    allocated: int = 0
    allocations: int = 0
    launches: int = 0
    graph_launches: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._live: weakref.WeakValueDictionary[int, _Memory] = weakref.WeakValueDictionary()
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._arrays: dict[int, tuple[int, weakref.ref[np.ndarray]]] = {}
        self._current = _Stream(self)
        self._capturing: _Capture | None = None
        self._products: CublasLt | None = None
        self.library = EmulatedCublasLt(self._give_to, self.check_live, lambda: self._capturing is not None)

    def make(self, code: DeviceCode, architecture: str) -> bytes:
        """What `load` takes: the emulator runs the text itself. Another process can load it too."""
        return pickle.dumps(code)

    def allocate(self, nbytes: int) -> _Memory:
        self.check()
        assert self._capturing is None, "memory is allocated during a capture"
        if self.fails("allocate") or self.allocated + nbytes > self.capacity:
            raise DeviceFull(nbytes)
        self.allocations += 1
        return self._memory(nbytes, GARBAGE, counted=True)

    def pinned(self, nbytes: int) -> _Memory:
        self.check()
        assert self._capturing is None, "memory is allocated during a capture"
        if self.fails("pinned"):
            raise DeviceFull(nbytes)
        return self._memory(nbytes, GARBAGE, counted=False)

    def free_bytes(self) -> int:
        return self.capacity - self.allocated

    def stream(self) -> _Stream:
        self.check()
        return _Stream(self)

    def current(self) -> _Stream:
        return self._current

    def load(self, code: bytes, launches: Sequence[Launch]) -> list[_Function]:
        self.check()
        stored: DeviceCode = pickle.loads(code)  # noqa: S301  (of `make`)
        emulated = Emulated(replace(stored, work=tuple(launches)), self.watches)  # their numbers are no machine code
        return [_Function(emulated, i, self.most_blocks) for i, _ in enumerate(launches)]

    def prepare(self, product: Multiplication, addresses: Sequence[int]) -> None:
        self.products.prepare(product, addresses)

    @property
    def products(self) -> CublasLt:
        assert self.multiplies
        if self._products is None:
            self._products = CublasLt(self.library, self.allocate, 4096)
        return self._products

    def _give_to(self, stream: int, work: Callable[[], None]) -> None:
        next(each for each in self._streams if id(each) == stream)._give(work)

    def address(self, array: Any) -> int:
        array = getattr(array, "array", array)  # of the stand-in for cupy
        self._arrays[array.ctypes.data] = array.nbytes, weakref.ref(array)
        return array.ctypes.data

    # --- failures and checks -----------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.is_lost:
            raise DeviceFault("the GPU failed: it failed before")

    def fails(self, call: str) -> bool:
        """Count a call; whether it must fail."""
        left = self.failing.get(call)
        if left is None:
            return False
        self.failing[call] = left - 1
        if left > 0:
            return False
        del self.failing[call]
        return True

    def lose(self, why: str) -> None:
        self.is_lost = True
        raise DeviceFault(f"the GPU failed: {why}")

    def check_live(self, address: int, nbytes: int) -> None:
        """`address` is memory of this driver that still exists. Raises EmulatorFault."""
        for start, each in self._live.items():
            if start <= address and address + nbytes <= start + each.nbytes:
                each.check_guards()
                return
        for start, (size, array) in self._arrays.items():
            if array() is not None and start <= address and address + nbytes <= start + size:
                return
        raise EmulatorFault(f"{nbytes} bytes at {address} are no live memory of the GPU")

    def some_work(self) -> None:
        """Do some of the pending work of any stream, as the seed says."""
        while self._draw.random() < 0.3:
            ready = [each for each in self._streams if each.pending]
            if not ready:
                return
            self._draw.choice(ready).do_next()

    def _memory(self, nbytes: int, fill: int, counted: bool) -> _Memory:
        found = _Memory(self, nbytes, fill, counted)
        self._live[found.address] = found
        return found


class _Memory:
    def __init__(self, driver: EmulatedDriver, nbytes: int, fill: int, counted: bool) -> None:
        self._room = np.full(nbytes + ALIGNMENT + 2 * GUARD, PATTERN, np.uint8)
        self._start = GUARD + -(self._room.ctypes.data + GUARD) % ALIGNMENT
        self.address, self.nbytes = self._room.ctypes.data + self._start, nbytes
        self._room[self._start : self._start + nbytes] = fill
        self._driver, self._counted = driver, nbytes if counted else 0
        driver.allocated += self._counted

    def check_guards(self) -> None:
        before, behind = self._room[: self._start], self._room[self._start + self.nbytes :]
        if (before != PATTERN).any() or (behind != PATTERN).any():
            raise EmulatorFault("a write outside of the memory of the GPU")

    def __del__(self) -> None:
        self._driver.allocated -= self._counted


@dataclass(eq=False)
class _Function:
    emulated: Emulated
    number: int
    most_blocks: int


class _Stream:
    """given, done: numbers of pieces of work. leads: whether the last one was a kernel: the next may start early."""

    def __init__(self, driver: EmulatedDriver) -> None:
        self.driver = driver
        self.pending: deque[Callable[[], None]] = deque()
        self.given = self.done = 0
        self.leads = False
        self.capture: _Capture | None = None
        driver._streams.add(self)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        def work() -> None:
            self.driver.check_live(target, nbytes)
            self.driver.check_live(source, nbytes)
            ctypes.memmove(target, source, nbytes)

        self._give(work)

    def launch(self, function: _Function, launch: Launch, addresses: Sequence[int], follows: bool = False) -> None:
        driver, given = self.driver, tuple(addresses)
        assert self.leads or not follows, "a launch starts early, but no kernel is before it"
        driver.followed.append(follows)
        assert function.emulated.code.launches[function.number] == launch

        def work() -> None:
            if driver.fails("launch"):
                driver.lose("an illegal address")
            if driver.fails("timeout"):
                driver.lose("the launch timed out")
            driver.launches += 1
            driver.seconds += MICROSECOND * launch.grid
            for each in given:
                driver.check_live(each, 0)
            function.emulated.launch(function.number, given, driver.seed + driver.launches)
            for each in given:
                driver.check_live(each, 0)

        self._give(work)
        self.leads = True

    def multiply(self, product: Multiplication, addresses: Sequence[int]) -> None:
        self.driver.products.run(product, addresses, id(self))
        self.leads = True

    def record(self, timed: bool = False, again: _Event | None = None) -> _Event:
        self.driver.check()
        if self.capture is not None:
            assert not timed and again is None, "a timed event, or an old one, of a stream that is captured"
            return self.capture.record(self)
        event = _Event(self, self.given)
        if timed:
            self._give(event.note)
        return event

    def wait(self, event: _Event) -> None:
        if event.capture is None:
            assert self.capture is None, "a captured stream waits for work that is not captured"
            self._give(event.complete)
            return
        assert self.capture in (None, event.capture)
        self.driver.check()
        self.capture, self.leads = event.capture, False
        event.capture.wait(self, event)

    def synchronize(self) -> None:
        assert self.capture is None, "a wait for a stream that is captured"
        while self.pending:
            self.do_next()
        self.driver.check()

    def begin_capture(self) -> None:
        assert self.capture is None
        self.capture = self.driver._capturing = _Capture(self)
        self.leads = False

    def end_capture(self) -> _Graph:
        assert self.capture is not None and self.capture.origin is self
        graph = self.capture.end()
        self.driver._capturing = None
        return graph

    def do_next(self) -> None:
        work = self.pending.popleft()
        self.done += 1
        work()

    def _give(self, work: Callable[[], None]) -> None:
        self.driver.check()
        self.leads = False
        if self.capture is not None:
            self.capture.give(self, work)
            return
        self.pending.append(work)
        self.given += 1
        self.driver.some_work()
        if self is self.driver._current:
            self.synchronize()  # the ops of the stand-in run at once, and a GPU runs them behind this work


@dataclass(eq=False)
class _Event:
    """capture: of the stream, if it is captured: then the event stands for one of each launch of the graph."""

    stream: _Stream
    position: int
    capture: _Capture | None = None
    seconds: float | None = None

    def note(self) -> None:
        self.seconds = self.stream.driver.seconds

    def seconds_since(self, earlier: _Event) -> float:
        assert self.seconds is not None and earlier.seconds is not None, "timed events that have come"
        return self.seconds - earlier.seconds

    def complete(self) -> None:
        while self.stream.done < self.position:
            self.stream.do_next()

    def synchronize(self) -> None:
        self.complete()
        self.stream.driver.check()


@dataclass(eq=False)
class _Capture:
    """Work of a stream, and of those that wait for its events, which is recorded and not run.

    steps: (stream, what it does): a piece of work, or "record" or "wait" with an event.
    apart: streams with work for which the origin has not waited.
    """

    origin: _Stream
    steps: list[tuple[_Stream, str, Any]] = field(default_factory=list)
    apart: set[_Stream] = field(default_factory=set)

    def give(self, stream: _Stream, work: Callable[[], None]) -> None:
        self.steps.append((stream, "work", work))
        self.apart |= {stream} - {self.origin}

    def record(self, stream: _Stream) -> _Event:
        self.steps.append((stream, "record", event := _Event(stream, len(self.steps), self)))
        return event

    def wait(self, stream: _Stream, event: _Event) -> None:
        self.steps.append((stream, "wait", event))
        later = self.steps[event.position :]
        if stream is self.origin and not any(s is event.stream and kind == "work" for s, kind, _ in later):
            self.apart -= {event.stream}

    def end(self) -> _Graph:
        assert not self.apart, "a capture ends, but the stream has not waited for the others"
        for stream, _, _ in self.steps:
            stream.capture = None
        self.origin.capture = None
        return _Graph(self.origin, self.steps)


@dataclass(eq=False)
class _Graph:
    origin: _Stream
    steps: list[tuple[_Stream, str, Any]]

    def launch(self, stream: Any) -> None:
        stream.driver.graph_launches += 1
        events: dict[_Event, _Event] = {}
        for of, kind, what in self.steps:
            on = stream if of is self.origin else of
            if kind == "record":
                events[what] = _Event(on, on.given)
            else:
                on._give(what if kind == "work" else events[what].complete)
