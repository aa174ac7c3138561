"""Uploads: bytes that arrive in parts, over several requests and restarts, before they become a dataset.

Each part is a file of the object store, complete and synced before the row of the upload counts it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from service.ids import new_id
from service.objects import Objects
from service.problems import HttpProblem
from service.settings import Settings
from service.store import tables
from service.store.errors import StorageError, StorageFull
from service.store.newest import Place
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["UPLOAD_ID", "Upload", "Uploads"]

log = logging.getLogger("backpass.datasets")

table = tables.uploads
UPLOAD_ID = r"^upl_[a-z2-7]{26}$"
FOLDER = "uploads"
PARTS = 10_000
SWEEP_S = 60.0


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload of one tenant.

    length: bytes of the whole; offset: bytes that are stored. sha256: that the whole must have, or None.
    keys: of its parts. dataset: id of the dataset that it became, and `options` of its reading. Times since 1970.
    """

    id: str
    length: int
    offset: int
    purpose: str
    sha256: str | None
    keys: tuple[str, ...]
    dataset: str | None
    options: dict[str, Any] | None
    created: float
    expires: float


Check = Callable[[Upload], None]
"""Refuses a call that would change the upload."""


class Uploads:
    """All uploads. Every method takes the tenant, and sees the uploads of that tenant alone."""

    def __init__(self, settings: Settings, store: Store, objects: Objects) -> None:
        self._settings, self._store, self._objects = settings, store, objects
        self.suspended: Callable[[], Collection[str]] = lambda: ()
        """The suspended tenants: their uploads do not expire."""

    async def create(
        self,
        tenant: str,
        length: int,
        purpose: str = "dataset",
        sha256: str | None = None,
        id: str = "",
        check: Callable[[Connection], None] = lambda connection: None,
    ) -> Upload:
        """A new upload, without bytes. Raises HttpProblem 429 at the limit of uploads, StorageError.

        check: refuses the upload in its transaction, when it is stored.
        """
        now = time.time()
        about = {"length": length, "purpose": purpose, "sha256": sha256, "keys": [], "dataset": None, "options": None}
        row = {
            "tenant": tenant,
            "id": id or new_id("upl_"),
            "about": json.dumps(about),
            "size": length,
            "offset": 0,
            "created": now,
            "expires": now + self._settings.upload_lease,
        }

        def work(connection: Connection) -> None:
            open_ones = select(func.count()).where(table.c.tenant == tenant, table.c.size > 0)
            if connection.execute(open_ones).scalar_one() >= self._settings.uploads:
                limit = self._settings.uploads
                detail = f"the limit of {limit} uploads is reached; delete some of those that GET /v1/uploads lists"
                raise HttpProblem("quota-exceeded", detail)
            connection.execute(insert(table).values(row))
            check(connection)

        await self._store.write(work)
        return _of_row(row)

    async def get(self, tenant: str, id: str) -> Upload | None:
        """The upload, or None. Raises StorageError."""
        return await self._store.read(lambda connection: _found(connection, tenant, id))

    async def page(self, tenant: str, after: str, size: int) -> list[Upload]:
        """At most `size` uploads from the page token `after` on, the newest first. Raises StorageError."""
        wanted = Place.of(after).query(select(table).where(table.c.tenant == tenant), table).limit(size)
        return await self._store.read(
            lambda connection: [_of_row(dict(row)) for row in connection.execute(wanted).mappings()]
        )

    async def append(
        self, tenant: str, id: str, offset: int, file: Path, size: int, check: Check = lambda found: None
    ) -> Upload | None:
        """Add the `size` bytes in `file` at `offset`; the upload after that, None if there is none.

        Raises HttpProblem 409 if the upload has another offset, StorageError, OSError, and what `check` raises.
        """
        if not size:
            return await self.get(tenant, id)
        key = f"{FOLDER}/{id}/{offset}.{new_id('')}"
        await asyncio.to_thread(self._store_part, key, file)

        def work(connection: Connection) -> Upload | None:
            found = _found(connection, tenant, id)
            if found is None:
                return None
            check(found)
            self.check(found, offset, size)
            now = time.time()
            about = _about(found) | {"keys": [*found.keys, key]}
            wanted = update(table).where(table.c.tenant == tenant, table.c.id == id, table.c.offset == offset)
            values = {"offset": offset + size, "about": json.dumps(about)}
            expires = max(found.expires, now + self._settings.upload_lease)
            if not connection.execute(wanted.values(**values, expires=expires)).rowcount:
                raise _moved(offset)
            return _found(connection, tenant, id)

        try:
            found = await self._store.write(work)
        except HttpProblem as problem:
            # Other errors and a cancellation do not tell whether the part is counted: the sweep deletes it if not.
            if isinstance(problem, StorageFull) or not isinstance(problem, StorageError):
                await self._delete_parts((key,))
            raise
        if found is None:
            await self._delete_parts((key,))
        return found

    def _store_part(self, key: str, file: Path) -> None:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        self._objects.adopt(key, file)

    def check(self, upload: Upload, offset: int, size: int = 0) -> None:
        """Raises HttpProblem unless `size` bytes can be added at `offset`: 409 for another offset, 422 for too many."""
        if upload.dataset is not None:
            raise HttpProblem("invalid-state", f"the upload has become the dataset {upload.dataset}")
        if offset != upload.offset:
            raise _moved(upload.offset)
        if offset + size > upload.length:
            detail = f"{offset + size} bytes, but the upload was declared with {upload.length}"
            raise HttpProblem("limit-exceeded", detail)
        if len(upload.keys) >= PARTS:
            raise HttpProblem("limit-exceeded", f"the upload has {PARTS} parts already; send larger ones")

    async def used(self, tenant: str, upload: Upload, dataset: str, options: dict[str, Any]) -> None:
        """Note that the upload has become `dataset`, and delete its bytes. Raises StorageError."""
        about = json.dumps(_about(upload) | {"dataset": dataset, "options": options, "keys": []})
        wanted = update(table).where(table.c.tenant == tenant, table.c.id == upload.id)
        await self._store.write(lambda connection: connection.execute(wanted.values(about=about, size=0)).rowcount)
        await self._delete_parts(upload.keys)

    async def delete(
        self, tenant: str, id: str, check: Check = lambda found: None, *, ended_at: float | None = None
    ) -> bool:
        """Delete an upload; whether there was one. Raises StorageError, and what `check` raises for the upload, which
        then stays.

        ended_at: a time at which its own must be over, or it stays.
        """

        def work(connection: Connection) -> Upload | None:
            found = _found(connection, tenant, id)
            if found is not None and ended_at is not None and found.expires > ended_at:
                return None
            if found is not None:
                check(found)
            connection.execute(delete(table).where(table.c.tenant == tenant, table.c.id == id))
            return found

        found = await self._store.write(work)
        if found is not None:
            await self._delete_parts(found.keys)
        return found is not None

    async def _delete_parts(self, keys: tuple[str, ...]) -> None:
        try:
            for key in keys:
                await asyncio.to_thread(self._objects.delete, key)
        except OSError as error:
            log.warning("parts of an upload are not deleted: %s", error)

    async def delete_files(self, row: Any) -> None:
        """Delete the parts of the upload of a row with the column `about`. Raises OSError."""
        for key in json.loads(row.about)["keys"]:
            await asyncio.to_thread(self._objects.delete, key)

    async def watch(self) -> None:
        """Delete expired uploads, until cancelled. Run it as a task."""
        await keep_sweeping(self.sweep, SWEEP_S, log, "expired uploads are not deleted")

    async def sweep(self) -> None:
        """Delete the uploads whose time is over. Raises StorageError."""

        now = time.time()

        def work(connection: Connection) -> list[tuple[str, str]]:
            wanted = select(table.c.tenant, table.c.id).where(
                table.c.expires <= now, table.c.tenant.not_in(self.suspended())
            )
            return [(row.tenant, row.id) for row in connection.execute(wanted)]

        for tenant, id in await self._store.read(work):
            await self.delete(tenant, id, ended_at=now)  # unless more bytes have come meanwhile

    async def named(self, keys: set[str]) -> set[str]:
        """The parts of uploads among `keys`. Raises StorageError."""

        def work(connection: Connection) -> set[str]:
            rows = connection.execute(select(table.c.about)).scalars()
            return {key for about in rows for key in json.loads(about)["keys"]}

        return keys & await self._store.read(work)


def _found(connection: Connection, tenant: str, id: str) -> Upload | None:
    row = connection.execute(select(table).where(table.c.tenant == tenant, table.c.id == id)).mappings().first()
    return None if row is None else _of_row(dict(row))


def _of_row(row: dict[str, Any]) -> Upload:
    about = json.loads(row["about"])
    return Upload(
        row["id"],
        about["length"],
        row["offset"],
        about["purpose"],
        about["sha256"],
        tuple(about["keys"]),
        about["dataset"],
        about["options"],
        row["created"],
        row["expires"],
    )


def _about(upload: Upload) -> dict[str, Any]:
    return {
        "length": upload.length,
        "purpose": upload.purpose,
        "sha256": upload.sha256,
        "keys": list(upload.keys),
        "dataset": upload.dataset,
        "options": upload.options,
    }


def _moved(offset: int) -> HttpProblem:
    return HttpProblem("invalid-state", f"the upload has {offset} bytes; continue there", offset=offset)
