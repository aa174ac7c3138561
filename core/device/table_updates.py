"""The new rows of a step, written into its tables behind it on its stream, so that the next step may begin at once.

Nobody knows then whether the step succeeds, and whether it will be kept. So the GPU itself looks at the error word:
rows of a step that failed, and of those behind it, are not written. And it saves the old rows, for a step that is not
kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from core.device.driver import Driver, Memory, Stream
from core.device.row_writer import OPERANDS
from core.device.words import WORD

__all__ = ["RowUpdater", "TableUpdates", "UpdatedRows"]

RowUpdater = Callable[[Stream, int], None]
"""``(stream, address of the words of an update)``."""


@dataclass(frozen=True, slots=True)
class UpdatedRows:
    """New rows of a table: addresses of their numbers, of the rows, and of how many they are.

    update, write: of the backend (`row_updater`, `row_writer`). nbytes: of all rows that may be new.
    """

    name: str
    rows: int
    values: int
    count: int
    nbytes: int
    update: RowUpdater
    write: Callable[[int, int, int, int], None]


@dataclass(slots=True)
class _Update:
    """sent: the words that `words` has or will have, in pinned memory. done: whether the rows were written."""

    of: UpdatedRows
    words: Memory
    sent: Memory
    saved: Memory
    done: Memory
    known: list[int] = field(default_factory=list)


class TableUpdates:
    """The updates of steps that take turns. Each turn has new rows of the same tables."""

    def __init__(self, driver: Driver, stream: Stream, turns: Sequence[Sequence[UpdatedRows]]) -> None:
        """Raises DeviceFull, DeviceFault."""
        self._stream = stream
        nbytes = len(OPERANDS) * WORD
        made = lambda of: _Update(
            of,
            driver.allocate(nbytes),
            driver.pinned(nbytes),
            driver.allocate(max(of.nbytes, 1)),
            driver.allocate(WORD),
        )
        self._turns = [[made(each) for each in rows] for rows in turns]
        self._word = driver.pinned(WORD)

    def begin(self, turn: int) -> None:
        """The next step, of this turn, is the first of a series: it does not depend on earlier ones."""
        self._put(1, self._before(turn, 0))

    def give(self, turn: int, tables: Mapping[str, int], error: int) -> None:
        """Write the new rows of the step that was given last. tables: their addresses. error: of its error word."""
        for i, each in enumerate(self._turns[turn]):
            of = each.of
            places = (tables[of.name], of.rows, of.values, of.count, each.saved.address, error)
            words = [*places, self._before(turn, i).address, each.done.address]
            if words != each.known:
                (ctypes.c_int64 * len(words)).from_address(each.sent.address)[:] = words
                self._stream.copy(each.words.address, each.sent.address, each.sent.nbytes)
                each.known = words
            of.update(self._stream, each.words.address)

    def undo(self, turns: Sequence[int], tables: Mapping[str, int]) -> None:
        """Put the old rows of the steps of these turns back, the last one first. Their work has ended."""
        for turn in reversed(turns):
            for each in self._turns[turn]:
                if self._read(each.done):
                    of = each.of
                    of.write(tables[of.name], of.rows, each.saved.address, of.count)

    def _before(self, turn: int, number: int) -> Memory:
        """Whether the update before this one has written its rows."""
        return self._turns[turn][number - 1].done if number else self._turns[turn - 1][-1].done

    def _put(self, value: int, target: Memory) -> None:
        ctypes.c_int64.from_address(self._word.address).value = value
        self._stream.copy(target.address, self._word.address, WORD)

    def _read(self, source: Memory) -> int:
        self._stream.copy(self._word.address, source.address, WORD)
        self._stream.synchronize()
        return int(ctypes.c_int64.from_address(self._word.address).value)
