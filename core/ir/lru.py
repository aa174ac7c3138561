"""A bounded, thread-safe cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["LRU"]

Kept = TypeVar("Kept")


class LRU(Generic[Kept]):
    """Values by key. Evicts the least recently used values while the sum of all sizes exceeds `limit`.

    size: the size of one value, at least 1, in the unit of `limit`. It must not change while the value is cached.
    Every method is safe to call from any thread.
    """

    def __init__(self, limit: int, size: Callable[[Kept], int] = lambda value: 1) -> None:
        self.limit = limit
        self._size = size
        self._total = 0
        self._kept: dict[Hashable, Kept] = {}  # in the order of use
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Kept | None:
        """The value cached under `key`, or None."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
            return found

    def put(self, key: Hashable, value: Kept) -> None:
        """Cache `value` under `key`, replacing any earlier value. A value larger than the limit is not cached."""
        with self._lock:
            before = self._kept.pop(key, None)
            self._total += self._size(value) - (0 if before is None else self._size(before))
            self._kept[key] = value
            while self._total > self.limit:
                self._total -= self._size(self._kept.pop(next(iter(self._kept))))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._total = 0
