"""The audit log: who created, changed or deleted what, and who used the rights of an administrator.

Entries are log lines at once, and rows of the store within a second. Training steps and gradients have none: they are
counted in the usage. Entries older than the setting `audit_days` are deleted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from service.store.errors import StorageError
from service.store.once import Once
from service.store.store import Store, StoreClosed
from service.store.tables import audit

__all__ = ["Audit", "Entry", "add", "page"]

log = logging.getLogger("backpass.audit")

FLUSH_S = 1.0
WAITING = 10_000  # entries that wait for the store; without one, older entries remain in the log lines only
SWEEP_S = 3600.0
DAY_S = 86_400.0
JUMP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One call. key: id of the caller's key. action: method and route. target: path, or id of the created thing.

    A command has the action `backpass keys create` or the like, and neither key nor request id.
    """

    tenant: str
    time: float
    key: str | None
    action: str
    target: str
    status: int
    request_id: str


def add(connection: Connection, entry: Entry) -> None:
    """Store the entry at once."""
    connection.execute(insert(audit), [asdict(entry)])


def page(connection: Connection, before: int | None, size: int, tenant: str | None) -> list[Any]:
    """Up to `size` rows, the newest first, with numbers less than `before`. tenant: of one tenant only."""
    query = select(audit).order_by(audit.c.n.desc()).limit(size)
    if before is not None:
        query = query.where(audit.c.n < before)
    if tenant is not None:
        query = query.where(audit.c.tenant == tenant)
    return list(connection.execute(query))


class Audit:
    """The entries that wait for the store. dropped: the number of those that found no place."""

    def __init__(self, store: Store, days: float) -> None:
        """days: age at which entries are deleted."""
        self._store, self._days = store, days
        self._once = Once(store)
        self._new: deque[Entry] = deque()
        self._sent: list[dict[str, Any]] = []  # entries that may or may not be stored
        self._turn = asyncio.Lock()
        self._offset = time.time() - time.monotonic()
        self.dropped = 0

    def note(self, entry: Entry) -> None:
        """Log the entry, and store it soon."""
        log.info(
            "%s %s %d by %s of %s (%s)",
            entry.action,
            entry.target,
            entry.status,
            entry.key or "a caller without a key",
            entry.tenant,
            entry.request_id,
        )
        if len(self._new) >= WAITING:
            self._new.popleft()
            self.dropped += 1
        self._new.append(entry)

    async def watch(self) -> None:
        """Store entries every second and delete old ones every hour, until cancelled. Run it as a task."""
        swept = -SWEEP_S
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
                if time.monotonic() - swept > SWEEP_S:
                    swept = time.monotonic()
                    await self.sweep()
            except (StorageError, StoreClosed) as error:
                waiting = len(self._sent) + len(self._new)
                log.warning("%d entries of the audit log wait for the store: %s", waiting, error)

    async def flush(self) -> None:
        """Store the waiting entries. Raises StorageError; they keep waiting."""
        async with self._turn:
            await self._send()
            self._sent, self._new = [asdict(entry) for entry in self._new], deque()
            await self._send()

    async def _send(self) -> None:
        if values := self._sent:
            await self._once.write(lambda connection: connection.execute(insert(audit), values))
            self._sent = []

    async def sweep(self) -> None:
        """Delete old entries. A wall clock that jumped deletes nothing."""
        now = time.time()
        if abs(now - time.monotonic() - self._offset) > JUMP_S:
            log.warning("the wall clock jumped: old entries of the audit log stay until a restart")
            return
        oldest = now - self._days * DAY_S
        await self._store.write(
            lambda connection: connection.execute(delete(audit).where(audit.c.time < oldest)) and None
        )
