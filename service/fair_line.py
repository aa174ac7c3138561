"""Waiting lines that serve tenants in turn: in order of arrival inside each tenant, and one of each among tenants."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["FairLine", "Turns"]

REMEMBERED = 4096  # tenants whose last turn is known; others count as never served


class OfTenant(Protocol):
    """A thing that waits. number: grows in order of arrival."""

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...


Waiting = TypeVar("Waiting", bound=OfTenant)


class Turns:
    """The order in which tenants were last served."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._count = 0

    def took(self, tenant: str) -> None:
        """Note that `tenant` was served now."""
        self._count += 1
        self._last.pop(tenant, None)
        self._last[tenant] = self._count
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]

    def rank(self, waiting: OfTenant) -> tuple[int, int]:
        """Sort key: the tenant that was served the longest time ago comes first; then the order of arrival."""
        return self._last.get(waiting.tenant, 0), waiting.number


class FairLine(Generic[Waiting]):
    """Things that wait, by tenant."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[Waiting]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        """All things, the tenants one after the other."""
        for line in self._lines.values():
            yield from line

    def of(self, tenant: str) -> int:
        """How many things of `tenant` wait."""
        line = self._lines.get(tenant)
        return 0 if line is None else len(line)

    def add(self, thing: Waiting) -> None:
        line = self._lines.get(thing.tenant)
        if line is None:
            line = self._lines[thing.tenant] = deque()
        line.append(thing)
        self._size += 1

    def remove(self, thing: Waiting) -> bool:
        """Take `thing` out of the line, usually the first of its tenant; whether it was there."""
        line = self._lines.get(thing.tenant)
        if line is None or thing not in line:
            return False
        line.remove(thing)
        self._size -= 1
        if not line:
            del self._lines[thing.tenant]
        return True

    def heads(self) -> list[Waiting]:
        """The first thing of each tenant."""
        return [line[0] for line in self._lines.values()]

    def last_of_longest(self) -> Waiting | None:
        """The thing that arrived last of the tenant with the most things; None if the line is empty."""
        return max(self._lines.values(), key=len)[-1] if self._lines else None
