"""The API processes that use the store, so that one can take over what belonged to another that ended.

On PostgreSQL several may run; each renews its row, by the clock of the database server. On SQLite one process owns the
store: all others have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass

from sqlalchemy import Connection, Double, cast, delete, func, insert, select, update

from service.store.errors import StorageError
from service.store.store import Store
from service.store.tables import instances

__all__ = ["BEAT_S", "DEAD_S", "Instance", "Presence", "alive", "ended", "now"]

BEAT_S = 3.0
DEAD_S = 15.0
"""Seconds without a renewal after which a process counts as ended."""

log = logging.getLogger("backpass.presence")


@dataclass(frozen=True, slots=True)
class Instance:
    """An API process. address: host and port; started, heartbeat: seconds since 1970."""

    id: str
    address: str
    started: float
    heartbeat: float


class Presence:
    """The row of this process, and those of others."""

    def __init__(self, store: Store, id: str, address: str) -> None:
        """id: `api_` and 26 characters, another one at each start."""
        self._store = store
        self.id, self._address = id, address

    async def start(self) -> None:
        """Add this process, and forget those that ended. Raises StorageError."""

        def work(connection: Connection) -> None:
            moment = now(connection)
            if self._store.is_sqlite:
                connection.execute(delete(instances))
            else:
                connection.execute(delete(instances).where(instances.c.heartbeat < moment - 10 * DEAD_S))
            self._insert(connection, moment)

        await self._store.write(work)

    def _insert(self, connection: Connection, moment: float) -> None:
        row = {"id": self.id, "address": self._address, "started": moment, "heartbeat": moment}
        connection.execute(insert(instances), row)

    async def watch(self) -> None:
        """Renew the row until cancelled. While the store is unavailable, others may count this process as ended.

        On SQLite no other process watches, so this ends as soon as there is a row.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self.renew()
                if self._store.is_sqlite:
                    return
            except StorageError as error:
                log.warning("this process cannot renew its presence: %s", error)

    async def renew(self) -> None:
        """Renew the row, or add it again if another process removed it. Raises StorageError."""

        def work(connection: Connection) -> None:
            moment = now(connection)
            mine = update(instances).where(instances.c.id == self.id).values(heartbeat=moment)
            if not connection.execute(mine).rowcount:
                self._insert(connection, moment)

        await self._store.write(work)

    async def stop(self) -> None:
        """Remove this process, so that others take over at once."""
        with contextlib.suppress(StorageError):
            await self._store.write(
                lambda connection: connection.execute(delete(instances).where(instances.c.id == self.id)) and None
            )

    async def alive(self) -> list[Instance]:
        """The processes that run, this one included, the oldest first. Raises StorageError."""
        return await self._store.read(alive)


def alive(connection: Connection) -> list[Instance]:
    """The processes that run, the oldest first. For use within a transaction that takes something over."""
    found = select(instances).order_by(instances.c.started, instances.c.id)
    if connection.dialect.name != "sqlite":
        found = found.where(instances.c.heartbeat > now(connection) - DEAD_S)
    rows = connection.execute(found)
    return [Instance(row.id, row.address, row.started, row.heartbeat) for row in rows]


def ended(connection: Connection, id: str) -> bool:
    """Whether another process has ended. For use within a transaction that takes something over from it."""
    if connection.dialect.name == "sqlite":
        return True
    return all(each.id != id for each in alive(connection))


def now(connection: Connection) -> float:
    """Seconds since 1970, by one clock for all processes that share the database."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(select(cast(func.extract("epoch", func.clock_timestamp()), Double))).scalar_one())
