"""The erasure of deleted tenants: small transactions delete their rows and files, beside the work of other tenants.

The store has the state of the tenant, so that an erasure goes on after a restart. Each process ends the sessions, jobs
and operations of the tenant. While one still runs, it may store more rows, and its process notes that in the store. The
erasure ends when no row is left and no process has noted anything for `QUIET_S`. All processes that share a database
erase; each one ignores rows that another one has deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Table

from service.store import rows_of_tenant as rows
from service.store.store import Store
from service.store.sweeping import keep_sweeping
from service.tenants import states
from service.tenants.key_ring import KeyRing

__all__ = ["Erasing", "Files"]

log = logging.getLogger("backpass.tenants")

PAUSE_S = 1.0
BATCH = 100  # rows of a tenant in one transaction
BATCH_OF_PARTS = 1000  # rows of a job or a session


@dataclass(frozen=True, slots=True)
class Files:
    """The files of the rows of a table. columns: those that `delete` needs. Each function gets one row.

    delete:  deletes them, before the row, so that none is left without it. Raises OSError.
    collect: deletes them after the row, unless rows of other tenants name them too.
    """

    columns: Sequence[str]
    delete: Callable[[Row[Any]], Awaitable[None]] | None = None
    collect: Callable[[Row[Any]], Awaitable[None]] | None = None


@dataclass(slots=True)
class Erasing:
    """The erasure of deleted tenants by one process.

    files:   table -> the files of its rows.
    leaving: end what this process runs for a tenant, and forget what it keeps in memory.
    busy:    the tenants for which this process runs something.
    """

    store: Store
    ring: KeyRing
    files: Mapping[str, Files] = field(default_factory=dict)
    leaving: Sequence[Callable[[str], Awaitable[None]]] = ()
    busy: Callable[[], Collection[str]] = lambda: ()

    async def watch(self) -> None:
        """Erase until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, PAUSE_S, log, "a deleted tenant is not erased yet")

    async def sweep(self) -> None:
        """Erase what the deleted tenants have now. Raises StorageError, OSError."""
        for tenant, state in list(self.ring.states.items()):
            if state.state == states.DELETING:
                await self._erase(tenant)

    async def _erase(self, tenant: str) -> None:
        for leave in self.leaving:
            await leave(tenant)
        if tenant in self.busy():
            await self.store.write(lambda db: states.note_busy(db, tenant))
        for table in rows.ORDER:
            while await self._erase_some(tenant, table):
                pass
        if await self.store.write(lambda db: _is_empty(db, tenant) and states.finish(db, tenant, time.time())):
            log.info("the tenant %s is erased", tenant)

    async def _erase_some(self, tenant: str, table: Table) -> bool:
        """Erase some rows of a table with their files; whether there were any."""
        of_table = self.files.get(table.name, Files(()))
        found = await self.store.read(lambda db: rows.first_rows(db, table, tenant, BATCH, of_table.columns))
        if not found:
            return False
        while await self.store.write(lambda db: rows.remove_parts(db, table, found, BATCH_OF_PARTS)):
            pass
        if of_table.delete is not None:
            for row in found:
                await of_table.delete(row)
        await self.store.write(lambda db: rows.remove(db, table, found))
        if of_table.collect is not None:
            for row in found:
                await of_table.collect(row)
        await asyncio.sleep(0)
        return True


def _is_empty(connection: Connection, tenant: str) -> bool:
    return not any(rows.first_rows(connection, table, tenant, 1, ()) for table in rows.ORDER)
