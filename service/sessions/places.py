"""The places of sessions that are being opened: requests at the same time share the quota of their tenant.

A session counts from its request on: as a place until it is open, and then as the session. One that is stored
already while its place still stands counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from service.problems import HttpProblem
from service.sessions.session import Kind, Session
from service.sessions.stored import StoredSessions

__all__ = ["Place", "Places", "Quota"]


class Quota(Protocol):
    """The limits of one tenant. sessions, tapes: their number; session_bytes: of their parameters and states."""

    @property
    def sessions(self) -> float: ...

    @property
    def session_bytes(self) -> float: ...

    @property
    def tapes(self) -> float: ...


@dataclass(slots=True, eq=False)
class Place:
    """The place of a session that is being opened, in the quotas of its tenant."""

    tenant: str
    id: str


class Places:
    """The sessions of one registry that are being opened.

    limit: of the sessions of all tenants that one process holds, where none are stored.
    """

    def __init__(
        self,
        kind: Kind,
        limit: float,
        quota: Callable[[str], Quota],
        sessions: Callable[[], Iterable[Session]],
        stored: StoredSessions | None,
    ) -> None:
        self._kind, self._limit, self._quota, self._sessions, self._stored = kind, limit, quota, sessions, stored
        self._opening: list[Place] = []
        self._checking = asyncio.Lock()  # two requests must not take the same place

    async def take(self, tenant: str, id: str) -> Place:
        """The place of another session. Raises HttpProblem 429 if the tenant may not open it, or StorageError."""
        async with self._checking:
            if self._stored is None:
                living, limit = self._held(tenant), getattr(self._quota(tenant), self._kind.plural)
                if living < limit:
                    living, limit = self._held(None), self._limit
            else:
                living, limit = (await self.used(tenant))[0], self._quota(tenant).sessions
            if living >= limit:
                raise self._too_many(living, limit)
            place = Place(tenant, id)
            self._opening.append(place)
            return place

    def check(self, tenant: str, living: int, taken: int, size: int) -> None:
        """Refuse a session that would exceed the limits of its tenant. Raises HttpProblem 429.

        living, taken: the number and the bytes of the tenant's other stored sessions. size: bytes of the new one.
        The transaction that stores the session calls it, so the limits hold across processes of the service.
        """
        limits = self._quota(tenant)
        if living >= limits.sessions:
            raise self._too_many(living, limits.sessions)
        if taken + size > limits.session_bytes:
            text = f"sessions may have {limits.session_bytes} bytes: {taken} are taken, and {size} more asked"
            raise HttpProblem("quota-exceeded", text, limit=limits.session_bytes)

    def leave(self, place: Place) -> None:
        """Give up a place: its session is open and counts by itself, or could not be opened."""
        self._opening.remove(place)

    async def used(self, tenant: str) -> tuple[int, int]:
        """(number of sessions of a tenant, with those that are being opened; bytes of the stored ones).

        Raises StorageError.
        """
        if self._stored is None:
            return self._held(tenant), 0
        opening = [place for place in self._opening if place.tenant == tenant]
        held = sum(1 for each in self._sessions() if each.tenant == tenant and not each.is_stored and not each.lost)
        living, size = await self._stored.usage(tenant, [place.id for place in opening])
        return living + held + len(opening), size

    def _too_many(self, living: int, limit: float) -> HttpProblem:
        text = f"{living} of {limit:g} {self._kind.plural} are already open; delete one first"
        return HttpProblem("quota-exceeded", text)

    def _held(self, tenant: str | None) -> int:
        """The sessions of a tenant, or of all, that this process holds or opens."""
        held = sum(1 for each in self._sessions() if each.lost is None and tenant in (None, each.tenant))
        return held + sum(1 for place in self._opening if tenant in (None, place.tenant))
