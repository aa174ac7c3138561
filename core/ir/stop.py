"""Stop a long transformation of programs: the code polls between ops, and its caller decides whether it goes on.

Reading, differentiation, passes, planning and code generation call `poll` for each op. The caller sets a `Watch` with
`watched_by`; without one, `poll` does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

__all__ = ["Watch", "poll", "waiting", "watched_by"]


class Watch(Protocol):
    """The caller's side. Both methods run in the thread of the transformation."""

    def poll(self) -> None:
        """Raises an exception to stop the transformation. It is called often, so it must be fast."""

    def waiting(self) -> AbstractContextManager[None]:
        """Inside the context, the transformation waits for another process, and polls."""


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


def poll() -> None:
    """Raise the exception with which the caller of this transformation stops it, if it does."""
    watch = _WATCH.get()
    if watch is not None:
        watch.poll()


def waiting() -> AbstractContextManager[None]:
    """A context for a wait for another process."""
    watch = _WATCH.get()
    return nullcontext() if watch is None else watch.waiting()


@contextmanager
def watched_by(watch: Watch) -> Iterator[None]:
    """Inside the context, transformations in this thread poll `watch`."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)
