"""The functions of a GPU that the host calls: memory, streams, events, kernels and graphs.

`core.device.cupy_driver` has a GPU. Another implementation runs the same calls on the emulator of the tests. All work
on a stream is asynchronous: it may run at any time between its call and the next `synchronize`, so memory that it
reads must not change before.

A driver has arrays too: those of the array module `xp`, which the reference executor uses for ops between regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from core.device.launches import Launch
from core.device.multiplication import Multiplication
from core.ir.errors import InternalError

__all__ = ["DeviceFault", "DeviceFull", "DeviceProperties", "Driver", "Event", "Function", "Graph", "Memory", "Stream"]


class DeviceFault(InternalError):
    """The GPU failed in a way that makes it useless for this process: only a new process can use it."""


class DeviceFull(MemoryError):
    """The GPU, or the host's pinned memory, has no room for `nbytes` more."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"no memory for {nbytes} bytes")
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """processors: multiprocessors. shared_bytes: most shared memory of one block. driver: the version of the driver."""

    name: str
    architecture: str
    processors: int
    shared_bytes: int
    driver: int = 0


class Memory(Protocol):
    """`nbytes` bytes at `address`, as long as this object lives. Pinned memory has this address on host and GPU."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class Event(Protocol):
    """A moment in the work of a stream."""

    def synchronize(self) -> None:
        """Wait until all work before it has ended. Raises DeviceFault."""

    def seconds_since(self, earlier: Any) -> float:
        """The time between two timed events of a stream that have come. Raises DeviceFault."""


class Function(Protocol):
    """A kernel that is loaded. most_blocks: how many of its blocks run at once on the whole GPU."""

    @property
    def most_blocks(self) -> int: ...


class Graph(Protocol):
    """Work of a stream that was recorded and not run."""

    def launch(self, stream: Any) -> None:
        """Run it on a stream. Raises DeviceFault."""


class Stream(Protocol):
    """Work in order. Every method may raise DeviceFault, also for work that was given before."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy bytes between addresses of pinned or device memory."""

    def launch(self, function: Any, launch: Launch, addresses: Sequence[int], follows: bool = False) -> None:
        """Run a kernel with these arguments, one for each of `core.device.launches.PARAMETERS`, and its numbers.

        follows: whether the work before it on this stream is a launch or a product, so that its blocks may start
                 before that has ended; its code waits for the end.
        """

    def multiply(self, product: Multiplication, addresses: Sequence[int]) -> None:
        """Compute a product. addresses: of its `places`. Raises ExecutionError (compiler_failed), DeviceFull."""

    def record(self, timed: bool = False, again: Any = None) -> Event:
        """This moment. timed: the GPU notes its time. again: an event to use again, which nobody waits for any more."""

    def wait(self, event: Any) -> None:
        """Work that is given from now on waits for `event`."""

    def synchronize(self) -> None: ...

    def begin_capture(self) -> None:
        """Record the work that follows instead of running it. No memory may be allocated meanwhile."""

    def end_capture(self) -> Graph: ...


class Driver(Protocol):
    """One GPU of this process."""

    @property
    def xp(self) -> ModuleType: ...
    @property
    def properties(self) -> DeviceProperties: ...

    def allocate(self, nbytes: int) -> Memory:
        """Memory of the GPU; its address is a multiple of 256. Raises DeviceFull, DeviceFault."""

    def pinned(self, nbytes: int) -> Memory:
        """Memory of the host that both sides read and write in place. Raises DeviceFull, DeviceFault."""

    def free_bytes(self) -> int:
        """Memory of the GPU that is not allocated."""

    def stream(self) -> Stream:
        """A stream that does not wait for others."""

    def current(self) -> Stream:
        """The stream of the array module."""

    def load(self, code: bytes, launches: Sequence[Launch]) -> list[Any]:
        """The functions of the launches. code: a cubin or PTX. Raises ExecutionError (compiler_failed), DeviceFault."""

    @property
    def multiplies(self) -> bool:
        """Whether it has a library for products, whose results are right. May load it. Raises DeviceFault."""

    def prepare(self, product: Multiplication, addresses: Sequence[int]) -> None:
        """Do what a product needs before its first capture. Raises ExecutionError (compiler_failed), DeviceFull."""

    def address(self, array: Any) -> int:
        """The address of an array of `xp`."""
