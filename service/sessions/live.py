"""The recent steps of each session, kept in memory to be watched: loss, gradient norm, learning rate, time.

A history holds up to 10,000 points: at least the latest 5,000, and of earlier ones every second, fourth, eighth, ... so
that the whole training stays in it. Histories are not stored: they start again with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from service.http.sse import Event, Page

__all__ = ["COLUMNS", "MOST_POINTS", "History", "LiveMetrics", "LivePoints"]

MOST_POINTS = 10_000  # of one history
MOST_EARLIER = 4_000  # after thinning; room for new points until the next one
MOST_OF_ALL = 1_000_000  # 56 bytes each
MOST_HISTORIES = 5_000
GATHER_S = 0.1  # so at most ten events a second, each with all steps since the one before

COLUMNS = ("point", "step", "time", "loss", "gradient_norm", "learning_rate", "ms")
UNKNOWN = math.nan

Key = tuple[str, str]
"""Tenant and id of a session."""


class History:
    """The points of one session, in the order in which they were recorded.

    id:       distinguishes this history from one of the same session in another process.
    recorded: number of points so far, including dropped ones; the number of the last point.
    """

    __slots__ = ("_columns", "_stride", "id", "recorded")

    def __init__(self, id: str | None = None) -> None:
        self.id = secrets.token_hex(4) if id is None else id
        self.recorded = 0
        self._stride = 1
        self._columns: tuple[array[Any], ...] = tuple(
            array("q" if name in ("point", "step") else "d") for name in COLUMNS
        )

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, step: int, at: float, loss: float, norm: float, rate: float, ms: float) -> None:
        """Append a point. at: seconds since 1970; NaN for a number that is not known."""
        if len(self) >= MOST_POINTS:
            self._thin()
        self.recorded += 1
        points, steps, times, losses, norms, rates, durations = self._columns
        points.append(self.recorded)
        steps.append(step)
        times.append(at)
        losses.append(loss)
        norms.append(norm)
        rates.append(rate)
        durations.append(ms)

    def _thin(self) -> None:
        half, points = len(self) // 2, self._columns[0]
        kept: list[int] = []
        while not kept or len(kept) > MOST_EARLIER:
            self._stride *= 1 if self._stride > 1 and not kept else 2
            kept = [i for i in range(half) if (points[i] - 1) % self._stride == 0]
        self._columns = tuple(
            array(column.typecode, [column[i] for i in kept]) + column[half:] for column in self._columns
        )

    def columns(self, after: int = 0, most: int = MOST_POINTS) -> dict[str, list[Any]]:
        """Up to about `most` points with numbers above `after`, by column; None for an unknown or infinite value.

        Of more points, each of equal intervals gives those of its lowest and its highest loss, so that peaks stay.
        """
        first = bisect_right(self._columns[0], after)
        kept = self._chosen(first, max(2, most))
        found: dict[str, list[Any]] = {}
        for name, column in zip(COLUMNS, self._columns, strict=True):
            values = column[first:] if kept is None else [column[i] for i in kept]
            found[name] = [value if math.isfinite(value) else None for value in values]
        return found

    def _chosen(self, first: int, most: int) -> list[int] | None:
        """The indices of the points to show; None for all from `first`."""
        count = len(self) - first
        if count <= most:
            return None
        losses = self._columns[COLUMNS.index("loss")]
        cells = most // 2
        chosen = {len(self) - 1}
        for cell in range(cells):
            begin, end = first + cell * count // cells, first + (cell + 1) * count // cells
            indices = range(begin, end)
            chosen.add(min(indices, key=lambda i: losses[i] if math.isfinite(losses[i]) else math.inf))
            chosen.add(max(indices, key=lambda i: losses[i] if math.isfinite(losses[i]) else math.inf))
        return sorted(chosen)


class LiveMetrics:
    """The histories of all sessions, of which the least recently recorded are dropped above the limits."""

    def __init__(self) -> None:
        self._histories: OrderedDict[Key, History] = OrderedDict()
        self._points = 0
        self._watched: dict[Key, set[asyncio.Event]] = {}

    def history(self, key: Key) -> History:
        """The history of a session; an empty one if nothing was recorded."""
        return self._histories.get(key, NOTHING)

    def forget(self, key: Key) -> None:
        """Drop the history of a session."""
        dropped = self._histories.pop(key, None)
        self._points -= 0 if dropped is None else len(dropped)

    def forget_tenant(self, tenant: str) -> None:
        """Drop the histories of all sessions of a tenant."""
        for key in [key for key in self._histories if key[0] == tenant]:
            self.forget(key)

    def record(
        self, key: Key, result: Mapping[str, Any], tensors: Mapping[str, np.ndarray], timing_ms: Mapping[str, float]
    ) -> None:
        """Add the steps of an answer: `result` and `tensors` of the worker. Does nothing for one without a step.

        Called for every step, so it takes a microsecond or two.
        """
        rate = result.get("learning_rate")
        if rate is None and "applied" not in result:
            return
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = History()
        else:
            self._histories.move_to_end(key)
        before = len(history)
        loss, norms = tensors.get("loss"), result.get("gradient_norms")
        norm = norms.get("global") if norms else None
        now, ms = time.time(), timing_ms.get("compute", UNKNOWN)
        if isinstance(rate, dict):
            rate = rate.get("default", next(iter(rate.values()), None))
        if isinstance(rate, list) or (loss is not None and loss.ndim):
            self._several(history, result, loss, norm, rate, now, ms)
        else:
            value = UNKNOWN if loss is None else float(loss)
            history.add(result["step"], now, value, _number(norm), _number(rate), ms)
        self._points += len(history) - before
        if self._points > MOST_OF_ALL or len(self._histories) > MOST_HISTORIES:
            self._shrink()
        self.wake(key)

    def wake(self, key: Key) -> None:
        """Wake the streams that watch the session."""
        for event in self._watched.get(key, ()):
            event.set()

    def _several(
        self, history: History, result: Mapping[str, Any], loss: Any, norm: Any, rate: Any, now: float, ms: float
    ) -> None:
        """The points of a call with several steps; `ms` is divided evenly among them."""
        losses = [] if loss is None else np.asarray(loss, np.float64).reshape(-1).tolist()
        count = result.get("applied") or len(losses) or len(rate)
        first = result["step"] - count + 1
        for i in range(count):
            history.add(first + i, now, _at(losses, i), _at(norm, i), _at(rate, i), ms / count)

    def _shrink(self) -> None:
        while (self._points > MOST_OF_ALL or len(self._histories) > MOST_HISTORIES) and len(self._histories) > 1:
            self.forget(next(iter(self._histories)))

    @contextlib.contextmanager
    def watching(self, key: Key) -> Iterator[asyncio.Event]:
        """An event that is set whenever a point of the session is recorded, and when the session is closed."""
        event = asyncio.Event()
        self._watched.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            self._watched[key].discard(event)
            if not self._watched[key]:
                del self._watched[key]


class LivePoints:
    """The points of one session as a source of `service.http.sse`: an event has all points up to its number.

    The last event of a session that was closed is `closed`.
    """

    def __init__(self, live: LiveMetrics, key: Key, why_closed: Callable[[Key], str | None] = lambda key: None) -> None:
        """why_closed: completes "the session ..." for one that was closed."""
        self._live, self._key, self._why_closed = live, key, why_closed

    async def after(self, id: int, limit: int) -> Page:
        history, closed = self._live.history(self._key), self._why_closed(self._key)
        columns = history.columns(id, limit)
        if columns["point"]:
            data = {"history": history.id, "columns": columns}
            return Page(1, history.recorded, False, [Event(history.recorded, "steps", data)])
        if closed is None:
            return Page(1, history.recorded, False, [])
        last = Event(history.recorded + 1, "closed", {"reason": f"the session {closed}"})
        return Page(1, last.id, True, [last] if id < last.id else [])

    async def wait(self, id: int, seconds: float) -> None:
        with self._live.watching(self._key) as changed:
            if self._live.history(self._key).recorded > id or self._why_closed(self._key) is not None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await changed.wait()
                    await asyncio.sleep(GATHER_S)


NOTHING = History("")


def _at(values: Any, i: int) -> float:
    """The value of step `i`: of a list, or the same for all steps."""
    if isinstance(values, list):
        return _number(values[i]) if i < len(values) else UNKNOWN
    return _number(values)


def _number(value: Any) -> float:
    return UNKNOWN if value is None else float(value)
