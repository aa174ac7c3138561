"""A second stream for launches that may overlap the launches behind them (`Launch.beside`).

The two streams wait for each other by events. A capture records them as branches of one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.device.driver import Event, Stream
from core.device.launches import Launch

__all__ = ["Beside"]


class Beside:
    """The overlapping launches of one run. main: the stream of the run. other: the second stream."""

    def __init__(self, main: Stream, other: Stream) -> None:
        self._main, self._other = main, other
        self._ends: list[tuple[int, Event]] = []

    def launch(self, position: int, function: Any, launch: Launch, arguments: Sequence[int]) -> None:
        """Launch what stands at `position` of the work, behind all that was given to the main stream before."""
        self._other.wait(self._main.record())
        self._other.launch(function, launch, arguments)
        self._ends.append((position + launch.beside, self._other.record()))

    def join(self, position: int) -> bool:
        """Let the main stream wait for what must end before `position` of the work. Returns whether it waits."""
        ended = [event for last, event in self._ends if last < position]
        for event in ended:
            self._main.wait(event)
        self._ends = [each for each in self._ends if each[0] >= position]
        return bool(ended)
