"""A second stream: its launches overlap later launches of the main stream (`Launch.beside`).

The two streams wait for each other by events. A capture records them as branches of one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from core.device.driver import Event, Stream
from core.device.launches import Launch
from core.ir.errors import InternalError

__all__ = ["Beside"]


class Beside:
    """The overlapping launches of one run. main: the stream of the run. other: the second stream.

    At the end of the context the main stream waits for all of them, also after an exception.
    """

    def __init__(self, main: Stream, other: Stream) -> None:
        self._main, self._other = main, other
        self._ends: list[tuple[int, Event]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._join(self._ends)

    def launch(self, position: int, function: Any, launch: Launch, arguments: Sequence[int]) -> None:
        """Launch what stands at `position` of the work, behind all that was given to the main stream before.

        Its blocks may not wait for each other: the launches that it overlaps may leave no room for some of them.
        """
        if launch.cooperative or launch.cluster > 1:
            raise InternalError("blocks that wait for each other beside other launches")
        self._other.wait(self._main.record())
        self._other.launch(function, launch, arguments)
        self._ends.append((position + launch.beside, self._other.record()))

    def join(self, position: int) -> bool:
        """Let the main stream wait for what must end before `position` of the work. Returns whether it waits."""
        ended = [each for each in self._ends if each[0] < position]
        self._join(ended)
        return bool(ended)

    def _join(self, ended: Sequence[tuple[int, Event]]) -> None:
        self._ends = [each for each in self._ends if each not in ended]
        for _, event in ended:
            self._main.wait(event)
