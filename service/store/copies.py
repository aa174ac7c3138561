"""Copies of files of a remote store that this process has made: those of deleted datasets and programs are deleted.

The process that deletes a dataset deletes its own copy alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, select

from service.objects import copies
from service.store import tables
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["Copies"]

log = logging.getLogger("backpass.objects")

SWEEP_S = 300.0


class Copies:
    """The copies in the directory of this process and its workers."""

    def __init__(self, store: Store, directory: Path, deleted: Callable[[], None] = lambda: None) -> None:
        """deleted: called after copies were deleted, which workers may have mapped."""
        self._store, self._directory, self._deleted = store, directory, deleted

    def delete_unfinished(self) -> None:
        """Delete what killed processes left unfinished. Call it before anything is copied. A failure is logged."""
        try:
            copies.delete_unfinished(self._directory)
        except OSError as error:
            log.warning("unfinished copies are not deleted: %s", error)

    async def watch(self) -> None:
        """Sweep until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "copies that nothing names are not deleted")

    async def sweep(self) -> None:
        """Delete the copies whose files no row names. Raises StorageError, OSError."""
        found = await asyncio.to_thread(copies.copies, self._directory)
        if not found:
            return
        unnamed = found - await self._store.read(_named)
        if unnamed:
            await asyncio.to_thread(copies.delete_copies, self._directory, unnamed)
            self._deleted()


def _named(connection: Connection) -> set[str]:
    """The names of the copies that rows name."""
    keys = (
        key for table in (tables.datasets, tables.program_values) for key in connection.scalars(select(table.c.key))
    )
    return {key.rpartition("/")[2] for key in keys}
