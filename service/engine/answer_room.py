"""A bound on the bytes of large answers in the API process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["AnswerRoom"]

COUNTED_BYTES = 2**20  # smaller answers fit into the buffers of their sockets


class AnswerRoom:
    """Counts the bytes of the answers that are being sent.

    An answer of a worker must fit into the rest of the limit. It counts only from the start of sending, so the sum can
    exceed the limit by one answer of each worker.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def check(self, size: int) -> None:
        """Raises MemoryError if an answer of `size` bytes does not fit. One answer alone always fits."""
        if size > COUNTED_BYTES and self.used and self.used + size > self.limit:
            raise MemoryError(f"{self.used} bytes of answers are being sent; the limit is {self.limit}")

    @contextmanager
    def sending(self, size: int) -> Iterator[None]:
        """Count an answer of `size` bytes while the block runs."""
        counted = size if size > COUNTED_BYTES else 0
        self.used += counted
        try:
            yield
        finally:
            self.used -= counted
