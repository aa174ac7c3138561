"""The turns of compilations: one of them runs Python code at a time, and it pauses while the worker serves a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.worker.compilation import Abandoned, Compilation

__all__ = ["YOUNG_S", "TurnOf", "Turns"]

SLICE_S = 0.005
"""Time for which a compilation runs between two decisions about whose turn it is."""

PAUSE_S, PAUSE_SHARE = 0.004, 2.0
"""A compilation pauses while the worker serves a call: for at most PAUSE_S at a time, and for at most PAUSE_SHARE times
as long as it runs. Under uninterrupted calls a compilation thus keeps a third of its speed."""

STEP_S = 0.0002
"""Time between two looks at the call during a pause."""

YOUNG_S = 1.0
"""Seconds for which a compilation counts as a new one."""


class Turns:
    """Decides which compilation runs Python code: the one that has run for the shortest time.

    serving: whether the worker serves a call.
    current: the compilation whose turn it is. ready: those that wait for their turn.
    """

    def __init__(self, grown_old: Callable[[], None]) -> None:
        """grown_old: called when a compilation has run for YOUNG_S."""
        self.grown_old = grown_old
        self.serving = False
        self.changed = threading.Condition()
        self.current: TurnOf | None = None
        self.ready: list[TurnOf] = []

    def first(self) -> TurnOf | None:
        """The ready compilation that has run for the shortest time. The caller holds `changed`."""
        return min(self.ready, key=lambda each: each.compilation.seconds, default=None)

    def look(self) -> None:
        """Let abandoned compilations end that wait for their turn."""
        with self.changed:
            self.changed.notify_all()


class TurnOf:
    """The turns of one compilation: a `core.ir.stop.Watch`."""

    def __init__(self, turns: Turns, compilation: Compilation) -> None:
        self.compilation = compilation
        self._turns = turns
        self._began = 0.0
        self._may_pause = PAUSE_S  # seconds
        self._waiting = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside the context, only this compilation runs, except where it polls or waits."""
        self._take()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self._leave()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
            self._take()

    def poll(self) -> None:
        if self.compilation.abandoned:
            raise Abandoned
        if self._waiting:
            return
        ran = time.perf_counter() - self._began
        if self._turns.serving and self._may_pause > STEP_S:
            self._pause(ran)
        elif ran > SLICE_S:
            self._count(ran)
            with self._turns.changed:
                first = self._turns.first()
                shorter = first is not None and first.compilation.seconds < self.compilation.seconds
            if shorter:
                self._leave()
                self._take()

    def _count(self, ran: float) -> None:
        before = self.compilation.seconds
        self.compilation.seconds += ran
        if before < YOUNG_S <= self.compilation.seconds:
            self._turns.grown_old()
        self._may_pause = min(PAUSE_S, self._may_pause + PAUSE_SHARE * ran)
        self._began = time.perf_counter()

    def _pause(self, ran: float) -> None:
        self._count(ran)
        end = self._began + self._may_pause
        while self._turns.serving and time.perf_counter() < end:
            time.sleep(STEP_S)
        now = time.perf_counter()
        self._may_pause -= now - self._began
        self._began = now

    def _take(self) -> None:
        """Wait for the turn. Raises Abandoned."""
        turns = self._turns
        with turns.changed:
            turns.ready.append(self)
            while turns.current is not None or turns.first() is not self:
                if self.compilation.abandoned:
                    turns.ready.remove(self)
                    turns.changed.notify_all()
                    raise Abandoned
                turns.changed.wait()
            turns.ready.remove(self)
            turns.current = self
        self._began = time.perf_counter()

    def _leave(self) -> None:
        turns = self._turns
        with turns.changed:
            if turns.current is self:
                self._count(time.perf_counter() - self._began)
                turns.current = None
                turns.changed.notify_all()
