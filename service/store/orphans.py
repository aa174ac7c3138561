"""Files that nothing names: an interrupted creation or deletion leaves them. They are deleted after an hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from service.objects import Objects
from service.store.sweeping import keep_sweeping

__all__ = ["Named", "Orphans"]

log = logging.getLogger("backpass.objects")

SWEEP_S = 300.0
ORPHAN_S = 3600.0
"""Time after which a file without a row is deleted: its row may be on its way."""

Named = Callable[[set[str]], Awaitable[set[str]]]
"""A function that returns the keys, among those given, that rows name. Raises StorageError."""


class Orphans:
    """Deletes the files of one process that have had no row for an hour."""

    def __init__(self, objects: Objects, folders: Mapping[str, Named]) -> None:
        self._objects, self._folders = objects, folders
        self._seen: dict[str, float] = {}  # key -> when a sweep first saw the file without a row, of time.monotonic()

    async def watch(self) -> None:
        """Sweep until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "files without a row are not deleted")

    async def sweep(self) -> None:
        """Delete the files that have been seen without a row an hour ago. Raises StorageError, OSError."""
        found: set[str] = set()
        for folder, named in self._folders.items():
            keys = set(await asyncio.to_thread(list, self._objects.keys(folder)))
            found |= keys - await named(keys)
        now = time.monotonic()
        self._seen = {key: self._seen.get(key, now) for key in found}
        for key in [key for key, since in self._seen.items() if now - since >= ORPHAN_S]:
            await asyncio.to_thread(self._objects.delete, key)
            log.info("the file %s, which nothing named, is deleted", key)
