"""Quotas: the limits of each tenant, how much of them it uses, and the refusals beyond them."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, func, select

from core.ir.lru import LRU
from service.problems import HttpProblem
from service.settings import Settings
from service.store.store import Store
from service.store.tables import checkpoints, datasets, jobs, program_values, programs, sessions, uploads
from service.tenants.key_ring import KeyRing
from service.tenants.limits import Limits, default_limits, limits_of
from service.tenants.usage import Usage

__all__ = ["Quotas", "stored_use"]

ENDED = ("succeeded", "failed", "canceled", "aborted")
UNITS = {
    "programs": "programs",
    "sessions": "sessions",
    "session_bytes": "bytes of sessions",
    "tapes": "tapes",
    "checkpoint_bytes": "bytes of checkpoints",
    "program_bytes": "bytes of initial values of programs",
    "dataset_bytes": "bytes of datasets and uploads",
    "jobs": "jobs that wait or run",
    "compute_seconds": "compute seconds on this day (UTC)",
}
Check = Callable[[Connection], None]
"""Raises HttpProblem 429 if the stored things exceed a quota."""

BUCKETS = 10_000
DAY_S = 86_400


PARTS = {"dataset_bytes": ("dataset_bytes", "upload_bytes")}
"""Quota -> the parts of its use, if that has several."""


def stored_use(connection: Connection, tenant: str, only: str | None = None) -> dict[str, float]:
    """How much of each quota the stored things of `tenant` use. only: of this one."""
    of_client = (checkpoints.c.tenant == tenant, checkpoints.c.kind == "client")
    parts: dict[str, Any] = {
        "programs": select(func.count()).select_from(programs).where(programs.c.tenant == tenant),
        "sessions": select(func.count()).select_from(sessions).where(sessions.c.tenant == tenant),
        "session_bytes": select(func.sum(sessions.c.bytes)).where(sessions.c.tenant == tenant),
        "checkpoint_bytes": select(func.sum(checkpoints.c.size)).where(*of_client),
        "program_bytes": select(func.sum(program_values.c.size)).where(program_values.c.tenant == tenant),
        "dataset_bytes": select(func.sum(datasets.c.size)).where(datasets.c.tenant == tenant),
        "upload_bytes": select(func.sum(uploads.c.size)).where(uploads.c.tenant == tenant),
        "jobs": select(func.count()).select_from(jobs).where(jobs.c.tenant == tenant, jobs.c.state.not_in(ENDED)),
    }
    if only is not None:
        parts = {name: parts[name] for name in PARTS.get(only, (only,))}
    row = connection.execute(select(*(part.scalar_subquery().label(name) for name, part in parts.items()))).one()
    found = {name: float(value or 0) for name, value in row._mapping.items()}
    if "upload_bytes" in found:
        found["dataset_bytes"] += found.pop("upload_bytes")
    return found


class Quotas:
    """The quotas of all tenants."""

    def __init__(self, settings: Settings, ring: KeyRing, usage: Usage, store: Store) -> None:
        self._default = default_limits(settings)
        self._ring, self._usage, self._store = ring, usage, store
        self._known: dict[str, Limits] = {}
        self._buckets: LRU[_Bucket] = LRU(BUCKETS)
        self._pending: dict[tuple[str, str], list[float]] = {}
        ring.on_change = self._known.clear

    def limits(self, tenant: str) -> Limits:
        """The limits of a tenant."""
        found = self._known.get(tenant)
        if found is None:
            found = limits_of(self._default, self._ring.limits.get(tenant, {}))
            if len(self._known) < BUCKETS:
                self._known[tenant] = found
        return found

    # Rates, decided before a request is read

    def admit(self, tenant: str, computes: bool) -> HttpProblem | None:
        """The refusal of a request beyond the rate or the compute seconds of its tenant. computes: needs a worker."""
        limits = self.limits(tenant)
        if limits.requests_per_second != math.inf:
            bucket = self._buckets.get(tenant)
            if bucket is None:
                bucket = _Bucket(limits.burst)
                self._buckets.put(tenant, bucket)
            wait = bucket.take(limits.requests_per_second, max(1.0, limits.burst))
            if wait:
                detail = f"the limit is {limits.requests_per_second:g} requests per second, {limits.burst:g} in a burst"
                return HttpProblem("rate-limited", detail, headers=_retry(wait))
        if computes and not self.has_compute(tenant):
            left = DAY_S - time.time() % DAY_S
            return _exceeded("compute_seconds", limits.compute_seconds, headers=_retry(left), retryable=True)
        return None

    def has_compute(self, tenant: str) -> bool:
        """Whether `tenant` has compute seconds left on this day."""
        return self._usage.compute_today(tenant) < self.limits(tenant).compute_seconds

    # Things, decided before one is created

    @asynccontextmanager
    async def room_for(self, tenant: str, name: str, amount: float, used: float | None = None) -> AsyncIterator[Check]:
        """Run the block, which creates something of this `amount`, if the quota `name` has room for it.

        used: the present use; by default that of the stored things. Requests that run at the same time share the room.
        The block gets a check for the transaction that stores the thing, so that the limit holds across processes.
        Raises HttpProblem 429, or StorageError.
        """
        limit = getattr(self.limits(tenant), name)
        if limit == math.inf:
            yield _nothing
            return

        def check(connection: Connection) -> None:
            now = stored_use(connection, tenant, name)[name]
            if now > limit:
                raise _exceeded(name, limit, used=now - amount)

        key = (tenant, name)
        pending = self._pending.setdefault(key, [])
        pending.append(amount)
        try:
            if used is None:
                used = await self._store.read(lambda connection: stored_use(connection, tenant, name)[name])
            if used + sum(pending) > limit:
                raise _exceeded(name, limit, used=used)
            yield check
        finally:
            pending.remove(amount)
            if not pending:
                del self._pending[key]

    async def use(self, tenant: str) -> dict[str, float]:
        """How much of each quota `tenant` uses, but for rates. Raises StorageError."""
        stored = await self._store.read(lambda connection: stored_use(connection, tenant))
        return {**stored, "compute_seconds": round(self._usage.compute_today(tenant), 3)}

    async def told(self, tenant: str, **more: float) -> dict[str, dict[str, float | None]]:
        """Quota -> its limit (None without one) and its use, for the tenant. more: use that the store does not know."""
        used = {**await self.use(tenant), **more}
        counted = {name: value if name.endswith("seconds") else int(value) for name, value in used.items()}
        return {
            name: {"limit": limit, "used": counted.get(name)}
            for name, limit in self.limits(tenant).as_document().items()
        }

    def untold(self, tenant: str) -> dict[str, dict[str, float | None]]:
        """As `told`, without reading the store."""
        return {name: {"limit": limit, "used": None} for name, limit in self.limits(tenant).as_document().items()}


def _nothing(connection: Connection) -> None:
    pass


def _exceeded(name: str, limit: float, used: float | None = None, **more: Any) -> HttpProblem:
    so_far = "" if used is None else f", of which {used:g} are used"
    return HttpProblem("quota-exceeded", f"the quota is {limit:g} {UNITS[name]}{so_far}", quota=name, **more)


def _retry(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


class _Bucket:
    """A token bucket: it fills at a rate, up to a size, and each request takes one token."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, tokens: float) -> None:
        self._tokens, self._at = max(1.0, tokens), time.monotonic()

    def take(self, rate: float, size: float) -> float:
        """Take a token: 0, or the seconds until there is one."""
        now = time.monotonic()
        self._tokens = min(size, self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / rate
        self._tokens -= 1.0
        return 0.0
