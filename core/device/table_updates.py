"""The new rows of a step, written into its tables behind it on its stream, so that the next step may begin at once.

Nobody knows then whether the step succeeds, and whether it will be kept. So the old rows are saved, and are put back
behind a step that is not kept, and behind those that have begun after it. The numbers of the rows are in range even if
an id is not: the sort that finds them leaves such ids out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from core.device.driver import Driver, Memory, Stream
from core.device.row_writer import OPERANDS
from core.device.words import WORD

__all__ = ["RowUpdater", "TableUpdates", "UpdatedRows"]

RowUpdater = Callable[[Stream, int, bool], None]
"""``(stream, address of the words of an update, follows)``. follows: see `Stream.launch`."""


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
    """sent: the words of the update in pinned memory, from where they go to `words`. table: its address among them."""

    of: UpdatedRows
    words: Memory
    sent: Memory
    saved: Memory
    table: int = 0


class TableUpdates:
    """The updates of steps that take turns. Each turn has new rows of the same tables."""

    def __init__(self, driver: Driver, stream: Stream, turns: Sequence[Sequence[UpdatedRows]]) -> None:
        """Raises DeviceFull, DeviceFault."""
        self._stream = stream
        nbytes = len(OPERANDS) * WORD
        self._turns = [
            [
                _Update(of, driver.allocate(nbytes), driver.pinned(nbytes), driver.allocate(max(of.nbytes, 1)))
                for of in rows
            ]
            for rows in turns
        ]

    def put(self, turn: int, tables: Mapping[str, int]) -> None:
        """Give the addresses of the tables to the updates of this turn, before `write`."""
        for each in self._turns[turn]:
            of, table = each.of, tables[each.of.name]
            if table != each.table:
                words = (ctypes.c_int64 * len(OPERANDS)).from_address(each.sent.address)
                words[:] = [table, of.rows, of.values, of.count, each.saved.address]
                self._stream.copy(each.words.address, each.sent.address, each.sent.nbytes)
                each.table = table

    def write(self, turn: int, stream: Stream) -> None:
        """Write the new rows of the step of this turn that was given to the stream last."""
        for i, each in enumerate(self._turns[turn]):
            each.of.update(stream, each.words.address, i > 0)

    def undo(self, turns: Sequence[int], tables: Mapping[str, int]) -> None:
        """Put the old rows of the steps of these turns back, the last one first. Their work has ended."""
        for turn in reversed(turns):
            for each in self._turns[turn]:
                of = each.of
                of.write(tables[of.name], of.rows, each.saved.address, of.count)
