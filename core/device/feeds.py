"""The feeds of a bound step: memory of the host, and memory of the GPU, to where one copy takes them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.device.driver import Driver, Stream
from core.device.leaving import host_array
from core.device.words import DeviceArrays
from core.ops.common.types import as_dtype
from core.runtime.executable import Executable

__all__ = ["GAP", "Fed", "FeedMemory", "fed_inputs", "spans_of"]

GAP = 4096
"""Bytes between two feeds that are copied with them: more would take longer than a copy of its own."""


@dataclass(frozen=True, slots=True)
class Fed:
    """An input that the host gives anew to each step, and its place in the memory of feeds."""

    number: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def fed_inputs(executable: Executable, aligned: Callable[[int], int]) -> list[Fed]:
    """The feeds and keys among the inputs. aligned: the first place of an array behind so many bytes."""
    found: list[Fed] = []
    end = 0
    for i, v in enumerate(executable.inputs):
        if v.role in ("feed", "key"):
            found.append(Fed(i, v.name, v.type.shape, as_dtype(v.type.dtype), end))
            end = aligned(end + found[-1].nbytes)
    return found


class FeedMemory:
    """The feeds of one set of arrays.

    written: those that the host wrote, and that a copy must take to the GPU.
    follows: whether it has just taken an array of the GPU: its next step runs behind the array module's work on that.
    """

    def __init__(self, driver: Driver, given: DeviceArrays, fed: Sequence[Fed], readable: Callable[[Any], Any]) -> None:
        """given: the arrays of the step. readable: an array of the GPU in a form that the step reads."""
        size = max([1, *(each.offset + each.nbytes for each in fed)])
        self._given, self._fed, self._readable = given, fed, readable
        self._pinned, self._device = driver.pinned(size), driver.allocate(size)
        self._places = {
            each.number: host_array(self._pinned.address + each.offset, each.shape, each.dtype) for each in fed
        }
        self.written: list[Fed] = []
        self.follows = False
        self.drop()

    def drop(self) -> None:
        """Release the arrays that it has taken; the next step needs new ones."""
        for each in self._fed:
            self._given.put_address(each.number, self._device.address + each.offset)

    def clear(self) -> None:
        """Begin with the feeds of another step."""
        self.written.clear()
        self.follows = False

    def put(self, each: Fed, value: Any) -> None:
        """Give the value of a feed to the next step."""
        if isinstance(value, np.ndarray):
            self._places[each.number][...] = value
            self._given.put_address(each.number, self._device.address + each.offset)
            self.written.append(each)
        else:
            self._given.put(each.number, self._readable(value))
            self.follows = True

    def copy(self, stream: Stream, keys: int) -> None:
        """Copy what the host wrote to the GPU. keys: how many of them, the last ones, another run writes anew."""
        if self.written:
            for start, end in spans_of(self.written):
                stream.copy(self._device.address + start, self._pinned.address + start, end - start)
            del self.written[len(self.written) - keys :]  # a step that runs again has the same feeds


def spans_of(fed: Sequence[Fed]) -> list[tuple[int, int]]:
    """(start, end) of the memory of some feeds, as few as possible; what lies between two may be copied, too."""
    spans: list[tuple[int, int]] = []
    for each in sorted(fed, key=lambda one: one.offset):
        start, end = each.offset, each.offset + each.nbytes
        if spans and start - spans[-1][1] <= GAP:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans
