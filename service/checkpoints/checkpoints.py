"""The rows and files of checkpoints. A row points to a whole file, except while a file is being deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from service.ids import random_id
from service.objects import Objects
from service.objects.tensor_file import DamagedFile, read_entries
from service.problems import HttpProblem
from service.store import checkpoints as rows
from service.store.checkpoints import StoredCheckpoint
from service.store.program_text import ProgramText
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["FOLDER", "PROGRAM", "Checkpoints", "damaged", "new_key"]

log = logging.getLogger("backpass.checkpoints")

FOLDER = "checkpoints/client"
PROGRAM = "program"
"""The member of a file's metadata that holds the program as JSON."""

SWEEP_S = 60.0


def new_key() -> str:
    """The key of a new file."""
    return f"{FOLDER}/{random_id()}.safetensors"


def damaged(detail: str) -> HttpProblem:
    return HttpProblem("checkpoint-damaged", detail)


class Checkpoints:
    """All checkpoints of clients. Every method with a tenant sees the checkpoints of this tenant alone."""

    def __init__(self, store: Store, objects: Objects) -> None:
        self.store, self.objects = store, objects

    async def add(
        self, tenant: str, checkpoint: StoredCheckpoint, check: Callable[[Connection], None] = lambda connection: None
    ) -> StoredCheckpoint:
        """Store the row of a written file; the checkpoint with this id. Raises StorageError.

        That is another one if an earlier execution of the request has stored it. Without a row the file is deleted, if
        need be by `Orphans`. check: refuses the checkpoint in its transaction, when it is stored.
        """

        def adding(db: Connection) -> None:
            rows.add(db, tenant, checkpoint)
            check(db)

        try:
            await self.store.write(adding)
        except IntegrityError:
            await self.delete_file(checkpoint.key)
            return await self.get(tenant, checkpoint.id)
        except HttpProblem:
            with contextlib.suppress(HttpProblem):  # the row may be stored although the store failed
                if await self.store.read(lambda db: rows.get(db, tenant, checkpoint.id, 0.0)) is None:
                    await self.delete_file(checkpoint.key)
            raise
        return checkpoint

    async def get(self, tenant: str, id: str) -> StoredCheckpoint:
        """Raises HttpProblem 404, StorageError."""
        now = time.time()
        found = await self.store.read(lambda db: rows.get(db, tenant, id, now))
        if found is None:
            raise HttpProblem("not-found", "there is no checkpoint with this id")
        return found

    async def page(
        self, tenant: str, after: str, size: int, session: str | None = None, labels: Sequence[str] = ()
    ) -> list[StoredCheckpoint]:
        """Up to `size` checkpoints from the page token `after` on, the newest first; of one session or of all.

        labels: that they have, as of `has_labels`.
        """
        now = time.time()
        return await self.store.read(lambda db: rows.page(db, tenant, after, size, now, session, labels))

    async def change(
        self, tenant: str, id: str, changed: Callable[[StoredCheckpoint], StoredCheckpoint]
    ) -> StoredCheckpoint:
        """Replace name, `about` and end of a checkpoint by those of `changed`. Raises HttpProblem 404, StorageError."""
        now = time.time()

        def changing(db: Any) -> StoredCheckpoint | None:
            found = rows.get(db, tenant, id, now)
            if found is None:
                return None
            new = changed(found)
            rows.change(db, tenant, replace(found, name=new.name, about=new.about, expires=new.expires))
            return new

        found = await self.store.write(changing)
        if found is None:
            raise HttpProblem("not-found", "there is no checkpoint with this id")
        return found

    async def remove(
        self, tenant: str, id: str, check: Callable[[StoredCheckpoint], None] = lambda found: None
    ) -> bool:
        """Delete a checkpoint with its file. Returns whether there was one. Raises StorageError, and what `check`
        raises for the checkpoint, which then stays."""
        now = time.time()

        def removing(db: Any) -> str | None:
            found = rows.get(db, tenant, id, now)
            if found is not None:
                check(found)
            return rows.remove(db, tenant, id)

        key = await self.store.write(removing)
        if key is not None:
            await self.delete_file(key)
        return key is not None

    async def bytes_of(self, tenant: str) -> int:
        """Bytes of the files of all checkpoints of a tenant."""
        return await self.store.read(lambda db: rows.bytes_of(db, tenant))

    async def delete_file(self, key: str) -> None:
        """Delete a file; one that cannot be deleted now is left to `Orphans`."""
        try:
            await asyncio.to_thread(self.objects.delete, key)
        except OSError as error:
            log.warning("the file %s is not deleted yet: %s", key, error)

    async def program(self, checkpoint: StoredCheckpoint) -> ProgramText:
        """The program in the checkpoint's file. Raises HttpProblem 409, 503."""
        return await asyncio.to_thread(self._program, checkpoint)

    def _program(self, checkpoint: StoredCheckpoint) -> ProgramText:
        with self.open(checkpoint) as file:
            try:
                _, metadata = read_entries(file, checkpoint.size)
                found = ProgramText.of(orjson.loads(metadata[PROGRAM]))
            except DamagedFile as error:
                raise damaged(f"the file of the checkpoint is damaged: {error}") from error
            except (KeyError, ValueError, TypeError) as error:
                raise damaged("the file of the checkpoint has no program") from error
        if found.id != checkpoint.program_id:
            raise damaged("the file of the checkpoint has another program")
        return found

    def open(self, checkpoint: StoredCheckpoint) -> IO[bytes]:
        """The file, open for reading; blocks. Raises HttpProblem 409 for a missing file or one of another size."""
        try:
            file = self.objects.open(checkpoint.key)
        except FileNotFoundError:
            raise damaged("the file of the checkpoint is missing") from None
        except OSError as error:
            raise HttpProblem("storage-unavailable", "the file of the checkpoint cannot be read now") from error
        size = file.seek(0, 2)
        file.seek(0)
        if size != checkpoint.size:
            file.close()
            raise damaged(f"the file of the checkpoint has {size} bytes in place of {checkpoint.size}")
        return file

    # Sweeping

    async def watch(self) -> None:
        """Delete expired checkpoints, until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "checkpoints are not swept")

    async def sweep(self) -> None:
        """Delete expired checkpoints. Raises StorageError, OSError."""
        now = time.time()
        while keys := await self.store.write(lambda db: rows.expired(db, now)):
            for key in keys:
                await self.delete_file(key)

    async def named(self, keys: set[str]) -> set[str]:
        """The files of checkpoints among `keys`. Raises StorageError."""
        return await self.store.read(lambda db: rows.known(db, keys))
