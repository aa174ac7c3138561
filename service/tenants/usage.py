"""The usage of each tenant by day (UTC): counted in memory, added to the store every few seconds.

compute_seconds: time in which workers ran its calls. steps: optimizer steps. requests, bytes_in, bytes_out: of HTTP,
without headers. A service that is killed loses the counts of the last few seconds, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, select, text

from service.store.errors import StorageError
from service.store.once import Once
from service.store.store import Store, StoreClosed
from service.store.tables import usage

__all__ = ["KINDS", "Usage", "day_of", "rows"]

log = logging.getLogger("backpass.tenants")

KINDS = ("compute_seconds", "steps", "requests", "bytes_in", "bytes_out")
FLUSH_S = 5.0
SERIES = 100  # tenants with metrics of their own; the others share the label OTHERS
OTHERS = "(others)"  # no tenant has this name

ADD = text(
    "INSERT INTO usage (tenant, day, kind, amount) VALUES (:tenant, :day, :kind, :amount) "
    "ON CONFLICT (tenant, day, kind) DO UPDATE SET amount = usage.amount + excluded.amount"
)


def day_of(seconds: float) -> str:
    """The day of a time, such as 2026-11-22, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def rows(connection: Connection, tenant: str | None, first: str, last: str, most: int) -> list[Any]:
    """(tenant, day, kind, amount) of the days from `first` to `last`, in this order; at most `most` rows.

    tenant: one tenant only.
    """
    query = select(usage).where(usage.c.day >= first, usage.c.day <= last)
    if tenant is not None:
        query = query.where(usage.c.tenant == tenant)
    return list(connection.execute(query.order_by(usage.c.day, usage.c.tenant, usage.c.kind).limit(most)))


class Usage(Collector):
    """The counters of one service. As a collector it gives the totals since the start, by tenant."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._once = Once(store)
        self._new: dict[tuple[str, str], float] = {}
        self._waiting: deque[tuple[str, dict[tuple[str, str], float]]] = deque()
        """(day, counts) of writes that may or may not have taken effect, or are not sent yet."""
        self._total: dict[str, dict[str, float]] = {}
        self._stored: dict[str, float] = {}  # tenant -> compute seconds of this day, as of the last flush
        self._day = day_of(time.time())
        self._turn = asyncio.Lock()

    def add(self, tenant: str, kind: str, amount: float) -> None:
        """Count `amount` of one of KINDS."""
        key = (tenant, kind)
        self._new[key] = self._new.get(key, 0.0) + amount

    def compute_today(self, tenant: str) -> float:
        """Compute seconds of this day, also those of other processes up to the last flush."""
        return self._stored.get(tenant, 0.0) + self._new.get((tenant, "compute_seconds"), 0.0)

    async def watch(self) -> None:
        """Flush every few seconds, until cancelled. Run it as a task."""
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except (StorageError, StoreClosed) as error:  # the counts stay in memory for the next try
                log.warning("usage is not stored: %s", error)

    async def flush(self) -> None:
        """Add the counts to the store, and read the compute seconds of this day. Raises StorageError."""
        async with self._turn:
            now = day_of(time.time())
            if self._day != now:  # counts of the seconds around midnight belong to the day before
                self._take(is_today=False)
                self._day, self._stored = now, {}
            await self._send()
            self._take(is_today=True)
            await self._send()
            self._stored = await self._store.read(lambda connection: _compute(connection, now))

    async def _send(self) -> None:
        while self._waiting:
            day, counts = self._waiting[0]
            await self._once.write(partial(_add, day=day, new=counts))
            self._waiting.popleft()

    def _take(self, *, is_today: bool) -> None:
        """Let the new counts wait for the store."""
        if not self._new:
            return
        new, self._new = self._new, {}
        self._waiting.append((self._day, new))
        for (tenant, kind), amount in new.items():
            self._total.setdefault(tenant, dict.fromkeys(KINDS, 0.0))[kind] += amount
            if is_today and kind == "compute_seconds":
                self._stored[tenant] = self._stored.get(tenant, 0.0) + amount

    def collect(self) -> Iterator[Metric]:
        """One counter for each kind, labelled by tenant."""
        totals = {tenant: dict(kinds) for tenant, kinds in self._total.items()}
        for (tenant, kind), amount in list(self._new.items()):
            kinds = totals.setdefault(tenant, dict.fromkeys(KINDS, 0.0))
            kinds[kind] += amount
        named = list(totals)[:SERIES]
        for kind in KINDS:
            family = CounterMetricFamily(f"backpass_tenant_{kind}", f"{HELP[kind]} by tenant.", labels=["tenant"])
            for tenant in named:
                family.add_metric([tenant], totals[tenant][kind])
            if len(totals) > SERIES:
                rest = sum(kinds[kind] for tenant, kinds in totals.items() if tenant not in named)
                family.add_metric([OTHERS], rest)
            yield family


HELP = {
    "compute_seconds": "Time in which workers ran calls",
    "steps": "Optimizer steps",
    "requests": "Requests",
    "bytes_in": "Bytes of request bodies",
    "bytes_out": "Bytes of answers",
}


def _add(connection: Connection, day: str, new: dict[tuple[str, str], float]) -> None:
    for (tenant, kind), amount in sorted(new.items()):  # one order for all processes, so that none waits for another
        connection.execute(ADD, {"tenant": tenant, "day": day, "kind": kind, "amount": amount})


def _compute(connection: Connection, day: str) -> dict[str, float]:
    found = connection.execute(
        select(usage.c.tenant, usage.c.amount).where(usage.c.day == day, usage.c.kind == "compute_seconds")
    )
    return {row.tenant: row.amount for row in found}
