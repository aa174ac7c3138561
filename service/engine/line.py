"""Whether the calls of a task wait for a worker, for those who tell clients why nothing goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["Line", "in_line", "waiting_line"]


class Line:
    """The calls of a task and of those that it starts, which wait for a worker.

    since: when the longest of them began to wait, in seconds since 1970; None if none waits.
    """

    def __init__(self) -> None:
        self._waiting: list[float] = []

    @property
    def since(self) -> float | None:
        return self._waiting[0] if self._waiting else None

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        began = time.time()
        self._waiting.append(began)
        try:
            yield
        finally:
            self._waiting.remove(began)


_LINE: ContextVar[Line | None] = ContextVar("line", default=None)


@contextlib.contextmanager
def waiting_line(line: Line) -> Iterator[None]:
    """Note in `line` the calls of the block, and of the tasks that it starts, while they wait for a worker."""
    token = _LINE.set(line)
    try:
        yield
    finally:
        _LINE.reset(token)


def in_line() -> contextlib.AbstractContextManager[None]:
    """A block in which a call waits for a worker."""
    line = _LINE.get()
    return contextlib.nullcontext() if line is None else line.joined()
