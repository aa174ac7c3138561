"""Files that several rows may name. One is deleted when no row names it.

On SQLite all writes happen one after the other. On PostgreSQL a lock on the table orders them: it must be the first
statement of its transaction, because a transaction sees the rows of the time of its first query, and so those that
others committed while it waited for the lock.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection, Table, text

__all__ = ["keep_files", "order_deletion", "renewed"]


def keep_files(connection: Connection, table: Table) -> None:
    """Let no file that rows of `table` name be deleted until this transaction, which adds a row, ends."""
    _lock(connection, table, "ROW EXCLUSIVE")


def order_deletion(connection: Connection, table: Table) -> None:
    """Let no other transaction change `table` until this one, which deletes files without a row, ends."""
    _lock(connection, table, "SHARE ROW EXCLUSIVE")


def _lock(connection: Connection, table: Table, mode: str) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))


def renewed(path: Path) -> bool:
    """Change the time of the file, so that it is not the one whose deletion a backup may have postponed before its row
    appeared; whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
