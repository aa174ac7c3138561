"""The words of a run on a GPU, their way to it and back, and the arrays of a run.

In this order: the control words, the addresses of the arrays, and the table of stacks. A kernel copies them, which
reads or writes pinned memory in place: another copy, between two kernels of a graph, takes longer than both of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.codegen.cpus import generating_for
from core.codegen.llvm import I64, Function, IRValue
from core.codegen.module import Module
from core.device.driver import Driver, Event, Graph, Memory
from core.device.flow import CONTROL_WORDS
from core.device.gpu import GPU
from core.device.launches import PARAMETERS, DeviceCode, Launch
from core.device.leaving import host_array
from core.device.segments import flat
from core.device.threads import BLOCK, Threads
from core.plan.flow import Loop
from core.plan.plan import Plan
from core.runtime.control_words import STOP

__all__ = [
    "WORD",
    "DeviceArrays",
    "Words",
    "has_loops",
    "reports",
    "rounded",
    "word_copier_code",
    "word_count",
    "word_gatherer_code",
]

WORD = 8
"""Bytes of a word."""

TOGETHER = 64
"""Words are copied in multiples of this number, so that few kernels serve all steps."""


def word_count(plan: Plan) -> int:
    """The words of a run of this plan."""
    return CONTROL_WORDS + len(plan.params) + len(plan.results) + 3 * len(plan.stacks)


def has_loops(plan: Plan) -> bool:
    """Whether a run reads the stop word, and counts ops."""
    return any(isinstance(each, Loop) for each in flat(plan.body.instructions))


def reports(plan: Plan) -> bool:
    """Whether a run may fail, or changes its words: only then they come back."""
    return len(plan.checks) > 1 or has_loops(plan)


def rounded(count: int) -> int:
    """The words that are copied for `count` of them."""
    return -(-count // TOGETHER) * TOGETHER


def word_copier_code(count: int) -> DeviceCode:
    """``copy_words(target, source, ...)``: copy `count` words, as one launch. The last two addresses are not used."""

    def write(f: Function, at: IRValue) -> None:
        word = f.load(f.at(f.param("source"), at, "int64"), "int64")
        f.store(word, f.at(f.param("target"), at, "int64"))

    return _words_code("copy_words", ("target", "source"), count, write)


def word_gatherer_code(count: int) -> DeviceCode:
    """``gather_words(pairs, ...)``: copy one word for each of `count` pairs of addresses, as one launch.

    pairs: (target, source) of each, one after the other. The other three addresses are not used.
    """

    def write(f: Function, at: IRValue) -> None:
        pair = f.at(f.param("pairs"), f.op(f"shl {at}, 1", "int64"), "ptr")
        target, source = f.load(pair, "ptr"), f.load(f.at(pair, I64(1), "ptr"), "ptr")
        f.store(f.load(source, "int64"), target)

    return _words_code("gather_words", ("pairs",), count, write)


def _words_code(name: str, used: Sequence[str], count: int, write: Callable[[Function, IRValue], None]) -> DeviceCode:
    """A launch of one block, in which `write` is done for each number below `count`. used: its parameters."""
    threads = Threads(1, BLOCK)
    with generating_for(GPU):
        names = (*used, *(f"unused_{i}" for i in range(len(PARAMETERS) - len(used))))
        f = Function(name, [(each, "ptr") for each in names], noalias=False)
        with f.loop(threads.number(f), I64(count), threads.total) as at:
            write(f, at)
        module = Module()
        module.functions.append(f)
        text = module.text()
    return DeviceCode(text, (Launch(f.name, 1, BLOCK),), 0)


@dataclass(slots=True)
class Words:
    """The words of a run: on the GPU, and in pinned memory as they are sent and as they come back.

    stop: has the stop word at the position that it has among the control words. of_sent, of_back, of_stop: what the
    host reads and writes there. valid: whether the GPU has the words of `of_sent`, and no run has changed them.
    """

    device: Memory
    sent: Memory
    back: Memory
    stop: Memory
    of_sent: np.ndarray
    of_back: np.ndarray
    of_stop: Any
    valid: bool = False

    @classmethod
    def make(cls, driver: Driver, count: int) -> Words:
        """Raises DeviceFull, DeviceFault."""
        count = rounded(count)
        nbytes = count * WORD
        sent, back, stop = (driver.pinned(each) for each in (nbytes, nbytes, (STOP + 1) * WORD))
        of_sent, of_back = (host_array(each.address, (count,), np.dtype("int64")) for each in (sent, back))
        of_sent[:] = of_back[:] = 0
        of_stop = (ctypes.c_int64 * (STOP + 1)).from_address(stop.address)
        return cls(driver.allocate(nbytes), sent, back, stop, of_sent, of_back, of_stop)

    @property
    def stop_at(self) -> int:
        """The address of the stop word."""
        return self.stop.address + STOP * WORD


class DeviceArrays:
    """The arrays of a region's next runs; they stay alive as long as they are bound. See `BoundArrays`.

    changed: whether an address is another one than in the last run.
    words, graphs, ended: what the region keeps here between runs: the words, the launches for each set of addresses
    that a graph contains, and the event behind the last run.
    """

    __slots__ = ("_driver", "addresses", "arrays", "changed", "ended", "graphs", "in_words", "words")

    def __init__(self, driver: Driver, arrays: Sequence[Any]) -> None:
        self._driver = driver
        self.words: Words | None = None
        self.graphs: dict[tuple[Any, ...], Graph | None] = {}
        self.ended: Event | None = None
        self.set_all(arrays)

    def set_all(self, arrays: Sequence[Any]) -> None:
        """Replace all arrays."""
        self.arrays = list(arrays)
        self.addresses = [0 if each is None else self._driver.address(each) for each in arrays]
        self.in_words = np.array(self.addresses, "int64")  # as a run sends them
        self.changed = True

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
            self.addresses[i] = self.in_words[i] = address
            self.changed = True
