"""A bounded, thread-safe cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

__all__ = ["LRU"]

Kept = TypeVar("Kept")


class LRU(Generic[Kept]):
    """Values by key. Evicts the least recently used values while the sum of all sizes exceeds `limit`.

    size:     the size of one value, at least 1, in the unit of `limit`. It must not change while the value is cached.
    at_least: number of most recently used values that stay even if they exceed `limit`.
    Every method is safe to call from any thread.
    """

    def __init__(self, limit: int, size: Callable[[Kept], int] = lambda value: 1, *, at_least: int = 0) -> None:
        self.limit = limit
        self._size = size
        self._at_least = at_least
        self._total = 0
        self._kept: dict[Hashable, Kept] = {}  # in the order of use
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, the least recently used first."""
        with self._lock:
            return iter(list(self._kept))

    def get(self, key: Hashable) -> Kept | None:
        """The value cached under `key`, or None."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
            return found

    def put(self, key: Hashable, value: Kept) -> None:
        """Cache `value` under `key`, replacing any earlier value. A value above the limit stays only by `at_least`."""
        with self._lock:
            self._remove(key)
            self._kept[key] = value
            self._total += self._size(value)
            while self._total > self.limit and len(self._kept) > self._at_least:
                self._remove(next(iter(self._kept)))

    def pop(self, key: Hashable) -> Kept | None:
        """Remove the value of `key` and return it, or None."""
        with self._lock:
            return self._remove(key)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._total = 0

    def _remove(self, key: Hashable) -> Kept | None:
        removed = self._kept.pop(key, None)
        if removed is not None:
            self._total -= self._size(removed)
        return removed
