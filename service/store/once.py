"""Writes that take effect once, though a write whose answer is lost is sent again.

The number of the last write is stored in its transaction, as a row of the table of idempotency keys. Its tenant is
empty, which no tenant of a client is, and its sweep deletes it a day after the last write.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, text

from service.ids import random_id
from service.store.store import Store

__all__ = ["Once"]

KEPT_S = 86_400.0

MARK = text(
    "INSERT INTO idempotency (tenant, key, digest, owner, created, expires) "
    "VALUES ('', :key, :number, '', :now, :expires) ON CONFLICT (tenant, key) DO UPDATE "
    "SET digest = excluded.digest, expires = excluded.expires WHERE idempotency.digest <> excluded.digest"
)


class Once:
    """The writes of one part of a process, one after the other."""

    def __init__(self, store: Store) -> None:
        self._store, self._key, self._number = store, f"once {random_id()}", 0

    async def write(self, work: Callable[[Connection], object]) -> None:
        """Run `work` in a transaction, unless the last call, which raised an error, has run the same one.

        A call that fails or is cancelled must be made again with the same work, before one with another. Raises
        StorageError.
        """
        number = self._number

        def marked(connection: Connection) -> None:
            now = time.time()
            row = {"key": self._key, "number": str(number), "now": now, "expires": now + KEPT_S}
            if connection.execute(MARK, row).rowcount:
                work(connection)

        await self._store.write(marked)
        self._number += 1
