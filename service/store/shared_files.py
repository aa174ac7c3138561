"""Files that several rows may name. One is deleted when no row names it.

On SQLite all writes happen one after the other. On PostgreSQL a lock on the table orders them: it must be the first
statement of its transaction, because a transaction sees the rows of the time of its first query, and so those that
others committed while it waited for the lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Table, text

from service.objects import Objects
from service.store.store import Store

__all__ = ["keep_files", "order_deletion", "write_with_file"]

T = TypeVar("T")


async def write_with_file(
    store: Store,
    objects: Objects,
    key: str,
    file: Path,
    insert: Callable[[Connection], T | None],
    collect: Callable[[str], Awaitable[None]],
) -> T:
    """Store the file at `file` under `key`, and the row that names it; returns the result of `insert`.

    insert:  adds the row, after `keep_files`; None if the file is not there. The last other row that named it may have
             gone, and the file with it: both are stored again.
    collect: deletes the file unless a row names it.
    Raises what `insert` raises, StorageError, OSError.
    """
    local = objects.local_path(key)
    while True:
        if local is not None or not await asyncio.to_thread(objects.exists, key):
            await asyncio.to_thread(objects.adopt, key, file)
        try:
            found = await store.write(insert)
        except BaseException:
            await collect(key)
            raise
        if found is not None and (local is None or await asyncio.to_thread(_renewed, local)):
            return found


def keep_files(connection: Connection, table: Table) -> None:
    """Let no file that rows of `table` name be deleted until this transaction, which adds a row, ends."""
    _lock(connection, table, "ROW EXCLUSIVE")


def order_deletion(connection: Connection, table: Table) -> None:
    """Let no other transaction change `table` until this one, which deletes files without a row, ends."""
    _lock(connection, table, "SHARE ROW EXCLUSIVE")


def _lock(connection: Connection, table: Table, mode: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))


def _renewed(path: Path) -> bool:
    """Change the time of the file, so that it is not the one whose deletion a backup may have postponed before its row
    appeared; whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
