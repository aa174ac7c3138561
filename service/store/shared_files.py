"""Files that several rows may name. One is deleted when no row names it.

On SQLite all writes happen one after the other, and on PostgreSQL a lock on the key of the file orders them, so that no
row can appear for a file that goes.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import Connection, text

__all__ = ["lock", "renewed"]


def lock(connection: Connection, key: str) -> None:
    """Let no other transaction add or remove rows that name the file `key`, until this one ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:key))"), {"key": key})


def renewed(path: Path) -> bool:
    """Change the time of the file, so that it is not the one whose deletion a backup may have postponed before its row
    appeared; whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True
