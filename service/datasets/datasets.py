"""The datasets of all tenants: their rows in the store, their files in the object store.

Tenants with equal data share a file (`service.store.shared_files`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from service.datasets.dataset import Dataset
from service.objects import Objects
from service.objects.copies import delete_copies, local_file
from service.objects.tensor_file import DamagedFile, read_entries
from service.problems import HttpProblem
from service.store import tables
from service.store.errors import StorageError
from service.store.labelled import labelled_page
from service.store.newest import Place
from service.store.shared_files import keep_files, order_deletion, write_with_file
from service.store.store import Store
from service.store.sweeping import keep_sweeping

__all__ = ["Datasets", "is_absent"]

log = logging.getLogger("backpass.datasets")

table = tables.datasets
SWEEP_S = 60.0
FOLDER = "datasets"
SUMMARY = [column for column in table.c if column.name != "columns"]


class Datasets:
    """All datasets. Every method takes the tenant, and sees the datasets of that tenant alone."""

    def __init__(self, store: Store, objects: Objects, directory: Path, limit: int = 1_000) -> None:
        """directory: of this service, for copies of files that a remote object store keeps. limit: of each tenant."""
        self._store, self._objects, self._limit = store, objects, limit
        self._directory = directory
        self.deleted: Callable[[], None] = lambda: None
        """Called after a file may have been deleted."""

    async def get(self, tenant: str, id: str) -> Dataset | None:
        """The dataset, or None. Raises StorageError."""

        def work(connection: Connection) -> Dataset | None:
            return _found(connection, tenant, id)

        return await self._store.read(work)

    async def page(self, tenant: str, after: str, size: int, labels: Sequence[str] = ()) -> list[Dataset]:
        """Up to `size` datasets from the page token `after` on, the newest first, without their columns.

        labels: that they have, as of `has_labels`.
        """

        def work(connection: Connection) -> list[Dataset]:
            def read(after: str, size: int) -> list[Dataset]:
                wanted = Place.of(after).query(select(*SUMMARY).where(table.c.tenant == tenant), table)
                rows = connection.execute(wanted.limit(size)).mappings()
                return [Dataset.of_row({**row, "columns": "[]"}) for row in rows]

            return labelled_page(read, lambda each: each.labels, after, size, labels)

        return await self._store.read(work)

    async def bytes_of(self, tenant: str) -> int:
        """Bytes of all datasets of the tenant; shared files count in full."""
        wanted = select(func.coalesce(func.sum(table.c.size), 0)).where(table.c.tenant == tenant)
        return await self._store.read(lambda connection: int(connection.execute(wanted).scalar_one()))

    async def add(
        self,
        tenant: str,
        dataset: Dataset,
        file: Path,
        check: Callable[[Connection], None] = lambda connection: None,
    ) -> tuple[Dataset, bool]:
        """Store a dataset, whose file is at `file`: (the stored one, whether it is new).

        check: refuses the dataset in its transaction, when it is stored.
        Raises HttpProblem 429 at the limit of datasets, StorageError, OSError.
        """
        insert = lambda connection: self._insert(connection, tenant, dataset, check)
        return await write_with_file(self._store, self._objects, dataset.key, file, insert, self.collect)

    def _insert(
        self, connection: Connection, tenant: str, dataset: Dataset, check: Callable[[Connection], None]
    ) -> tuple[Dataset, bool] | None:
        keep_files(connection, table)
        known = _found(connection, tenant, dataset.id)
        if known is not None and not known.has_ended(time.time()):
            return known, False
        if not self._objects.exists(dataset.key):
            return None
        if known is not None:  # its time is over, but the sweep has not deleted it yet
            connection.execute(delete(table).where(table.c.tenant == tenant, table.c.id == dataset.id))
        count = connection.execute(select(func.count()).where(table.c.tenant == tenant)).scalar_one()
        if count >= self._limit:
            raise HttpProblem("quota-exceeded", f"the limit of {self._limit} datasets is reached; delete some")
        connection.execute(insert(table).values(dataset.row(tenant)))
        check(connection)
        return dataset, True

    async def change(self, tenant: str, id: str, change: Callable[[Dataset], Dataset]) -> Dataset | None:
        """Change name, labels or expiry; the changed dataset, None if there is none. Raises StorageError."""

        def work(connection: Connection) -> Dataset | None:
            found = _found(connection, tenant, id)
            if found is None:
                return None
            changed = change(found)
            row = changed.row(tenant)
            wanted = update(table).where(table.c.tenant == tenant, table.c.id == id)
            connection.execute(wanted.values({name: row[name] for name in ("name", "about", "expires")}))
            return changed

        return await self._store.write(work)

    async def delete(
        self,
        tenant: str,
        id: str,
        check: Callable[[Dataset], None] = lambda found: None,
        *,
        ended_at: float | None = None,
    ) -> bool:
        """Delete a dataset; whether there was one. Raises HttpProblem 409 while a job uses it, StorageError, and what
        `check` raises for the dataset, which then stays.

        ended_at: a time at which its own must be over, or it stays.
        """

        def work(connection: Connection) -> Dataset | None:
            found = _found(connection, tenant, id)
            if found is not None and ended_at is not None and not found.has_ended(ended_at):
                return None
            if found is not None:
                check(found)
                if used := _jobs(connection, tenant, id):
                    detail = f"{len(used)} jobs use this dataset; cancel them, or wait for their end"
                    raise HttpProblem("in-use", detail, jobs=used[:20])
                connection.execute(delete(table).where(table.c.tenant == tenant, table.c.id == id))
            return found

        found = await self._store.write(work)
        if found is not None:
            await self.collect(found.key)
        return found is not None

    async def collect(self, key: str) -> None:
        """Delete the file `key` if no row names it. A failure is logged: the next start tries again."""

        def work(connection: Connection) -> None:  # it changes no row: it may run twice
            order_deletion(connection, table)
            named = select(func.count()).select_from(table).where(table.c.key == key)
            if not connection.execute(named).scalar_one():
                self._objects.delete(key)
                delete_copies(self._directory, [key.rpartition("/")[2]])

        try:
            await self._store.write(work)
            self.deleted()
        except (StorageError, OSError) as error:
            log.warning("the file %s is not deleted: %s", key, error)

    async def collect_all(self) -> None:
        """Delete all files without a row: their process died before it wrote the row, or after it deleted it."""

        def work(connection: Connection) -> set[str]:
            return set(connection.execute(select(table.c.key).distinct()).scalars())

        named = await self._store.read(work)
        for key in await asyncio.to_thread(lambda: list(self._objects.keys(FOLDER))):
            if key not in named:
                await self.collect(key)

    async def watch(self) -> None:
        """Delete expired datasets, until cancelled. Run it as a task."""
        with contextlib.suppress(StorageError, OSError):
            await self.collect_all()
        await keep_sweeping(self.sweep, SWEEP_S, log, "expired datasets are not deleted")

    async def sweep(self) -> None:
        """Delete the datasets whose time is over, unless a job uses them. Raises StorageError."""

        now = time.time()

        def work(connection: Connection) -> list[tuple[str, str]]:
            wanted = select(table.c.tenant, table.c.id).where(table.c.expires <= now)
            return [(row.tenant, row.id) for row in connection.execute(wanted)]

        for tenant, id in await self._store.read(work):
            try:
                await self.delete(tenant, id, ended_at=now)  # unless a client has changed its end meanwhile
            except HttpProblem as problem:
                if problem.code != "in-use":
                    raise

    # Files

    async def path(self, dataset: Dataset) -> Path:
        """The file of the dataset on this machine, to map it; a file of a remote store is copied first.

        Raises FileNotFoundError if the file is lost, OSError.
        """
        return await asyncio.to_thread(local_file, self._objects, dataset.key, self._directory)

    async def rows(self, dataset: Dataset, names: list[str], first: int, count: int) -> dict[str, np.ndarray]:
        """`count` rows from row `first`, 0 is the first one, of some columns. Raises DamagedFile, OSError."""
        return await asyncio.to_thread(self._rows, dataset, names, first, count)

    def _rows(self, dataset: Dataset, names: list[str], first: int, count: int) -> dict[str, np.ndarray]:
        with self._objects.open(dataset.key) as file:
            entries, _ = read_entries(file, dataset.size)
            found = {}
            for name in names:
                dtype, shape, begin, _ = entries[name]
                width = int(np.prod(shape[1:])) * dtype.itemsize
                file.seek(begin + first * width)
                data = file.read(count * width)
                if len(data) != count * width:
                    raise DamagedFile(f"the file ends inside of {name!r}")
                found[name] = np.frombuffer(data, dtype).reshape(count, *shape[1:])
        return found


def changed(dataset: Dataset, members: Mapping[str, Any]) -> Dataset:
    """The dataset with other values of `name`, `labels` or `expires`."""
    return replace(dataset, **members)


def _found(connection: Connection, tenant: str, id: str) -> Dataset | None:
    row = connection.execute(select(table).where(table.c.tenant == tenant, table.c.id == id)).mappings().first()
    return None if row is None else Dataset.of_row(dict(row))


def is_absent(connection: Connection, tenant: str, id: str) -> bool:
    """Whether the tenant has no dataset with this id, in the transaction of `connection`."""
    return connection.execute(select(table.c.id).where(table.c.tenant == tenant, table.c.id == id)).first() is None


def _jobs(connection: Connection, tenant: str, id: str) -> list[str]:
    """The ids of unfinished jobs of the tenant that name the dataset."""
    jobs = tables.jobs
    wanted = select(jobs.c.id).where(jobs.c.tenant == tenant, jobs.c.ended.is_(None), jobs.c.spec.contains(id))
    return list(connection.execute(wanted).scalars())
