"""The standard output of the commands."""

from __future__ import annotations

import os
import sys

__all__ = ["OutputFailed", "say"]


class OutputFailed(Exception):
    """Standard output cannot be written. is_closed: because its reader has ended, as `head` does."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed = isinstance(error, BrokenPipeError)


def say(text: str) -> None:
    """Write a line at once. Raises OutputFailed."""
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit would fail as well
        raise OutputFailed(error) from error
