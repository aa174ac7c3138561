"""Files that nothing names: an interrupted creation or deletion leaves them. They are deleted after an hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from service.objects import Objects
from service.store.sweeping import keep_sweeping

__all__ = ["Named", "Orphans"]

log = logging.getLogger("backpass.objects")

SWEEP_S = 300.0
ORPHAN_S = 3600.0
"""Time after which a file without a row is deleted: its row may be on its way."""

CONFIRM_S = 60.0
"""Time after which a file that seems to be an hour old must still be without a row: the clock may have been set
forward just before the row is written. It is longer than one use of the store may take."""

Named = Callable[[set[str]], Awaitable[set[str]]]
"""A function that returns the keys, among those given, that rows name. Raises StorageError."""


class Orphans:
    """Deletes the files that have had no row for an hour, by the clock of this process or by their own time.

    Their own time lets a process delete the files that an earlier one left, even if no process lives for an hour.
    """

    def __init__(self, objects: Objects, folders: Mapping[str, Named]) -> None:
        self._objects, self._folders = objects, folders
        self._seen: dict[str, float] = {}  # key -> when a sweep first saw the file without a row, of time.monotonic()

    async def watch(self) -> None:
        """Sweep until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "files without a row are not deleted")

    async def sweep(self) -> None:
        """Delete the files without a row that are an hour old.

        It takes `CONFIRM_S` seconds if only the time of a file says so.
        Raises StorageError, OSError.
        """
        found = await self._without_row()
        now = time.monotonic()
        self._seen = {key: self._seen.get(key, now) for key in found}
        seen = {key for key, since in self._seen.items() if now - since >= ORPHAN_S}
        await self._delete(seen)
        if old := await asyncio.to_thread(self._old, found - seen):
            await asyncio.sleep(CONFIRM_S)
            await self._delete(old & await self._without_row())

    async def _without_row(self) -> set[str]:
        found: set[str] = set()
        for folder, named in self._folders.items():
            keys = set(await asyncio.to_thread(list, self._objects.keys(folder)))
            found |= keys - await named(keys)
        return found

    def _old(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._objects.age(key) >= ORPHAN_S}

    async def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            await asyncio.to_thread(self._objects.delete, key)
            log.info("the file %s, which nothing named, is deleted", key)
