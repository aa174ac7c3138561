"""A bound on the work that brings no result: refusals, reads of dripping bodies, and the rest of refused bodies.

Such work costs a client nothing, so its rate must not depend on the clients. Pieces of it run a few at a time between
the turns of accepted requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["Pacer"]

TURN_S = 0.001
PER_TURN = 2
"""Pieces in one turn. A piece takes up to 50 microseconds, so all of them take at most a tenth of the event loop."""


class Pacer:
    """Runs pieces of work in order, PER_TURN in each TURN_S."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, piece: Callable[[], None]) -> None:
        """Run `piece` when its turn has come. It must check that it is still wanted."""
        self._waiting.append(piece)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self._turn)

    def _turn(self) -> None:
        self._timer = None
        for _ in range(min(PER_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self._turn)
