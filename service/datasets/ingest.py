"""Ingest: an uploaded file becomes a dataset, in a process of its own with a limit of memory.

The file and the columns under construction lie in a folder of the data directory that is deleted at the end; what a
process leaves when it dies is deleted at the next start.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection

from service.datasets.dataset import Dataset, column_of, dataset_id, key_of
from service.datasets.datasets import Datasets
from service.datasets.options import Limits, Options
from service.datasets.read import Read
from service.datasets.stacking import stacked
from service.datasets.stored_form import ABOUT, RESULT, write_dataset
from service.datasets.tensor_files import check_table
from service.datasets.uploads import Upload, Uploads
from service.engine import EmbeddedPool, WorkerLost, run_stateless
from service.machine import available_cores, available_memory
from service.problems import FieldError, HttpProblem
from service.settings import LEAST_WORKER_MEMORY, MIB, Settings, service_memory
from service.store.errors import StorageFull, StorageUnavailable

__all__ = ["Ingest", "Named"]

HANDLERS = "service.datasets.handlers:HANDLERS"
MOST = 4  # processes
MEMORY_BYTES = 1024 * MIB  # of each process, or less on a small machine
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Room = Callable[[str, int], AbstractAsyncContextManager[Callable[[Connection], None]]]


@dataclass(frozen=True, slots=True)
class Named:
    """The name of a new dataset, its labels, and the time at which it expires, in seconds since 1970."""

    name: str = "dataset"
    labels: Mapping[str, str] = field(default_factory=dict)
    expires: float | None = None


class Ingest:
    """Conversions of one service. Its processes start with the first one.

    room: a context for the storing of so many bytes by a tenant, which raises HttpProblem beyond a quota.
    """

    def __init__(self, settings: Settings, datasets: Datasets, uploads: Uploads) -> None:
        self._settings, self._datasets, self._uploads = settings, datasets, uploads
        self._folder = settings.data_dir / "spool"
        self._limits = Limits(settings.dataset_bytes, settings.tensor_rank)
        self._pool: EmbeddedPool | None = None
        self._starting = asyncio.Lock()
        self.room: Room = lambda tenant, size: nullcontext(lambda connection: None)

    def sweep(self) -> None:
        """Delete the folders of processes that died. Call it before anything is uploaded."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def stop(self) -> None:
        async with self._starting:
            if self._pool is not None:
                await self._pool.stop()
                self._pool = None

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """A new folder for the files of one request. Raises StorageError."""
        try:
            made = await asyncio.to_thread(self._made)
        except OSError as error:
            raise storage_error(error) from error
        try:
            yield made
        except OSError as error:
            raise storage_error(error) from error
        finally:
            shutil.rmtree(made, ignore_errors=True)  # not in a thread: a cancelled task cannot wait

    def _made(self) -> Path:
        self._folder.mkdir(exist_ok=True)  # a lost data directory is not made again
        return Path(tempfile.mkdtemp(dir=self._folder))

    async def of_file(
        self, tenant: str, path: Path, options: Options, named: Named, folder: Path
    ) -> tuple[Dataset, bool]:
        """The dataset in a file, and whether it is new. folder: of this request.

        Raises HttpProblem 400 or 422 with the mistakes of the file, EngineError, StorageError.
        """
        return await self._stored(tenant, {"path": str(path)}, options, named, folder)

    async def of_columns(
        self, tenant: str, columns: Mapping[str, np.ndarray], options: Options, named: Named, folder: Path
    ) -> tuple[Dataset, bool]:
        """The dataset of arrays that are in memory already. Otherwise as `of_file`."""

        def write() -> None:
            check_table(dict(columns), options, self._limits)
            write_dataset(stacked(Read(dict(columns)), options, folder, self._limits), folder)

        await asyncio.to_thread(write)
        return await self._added(tenant, named, folder)

    async def of_upload(
        self, tenant: str, upload: Upload, options: Options, named: Named, folder: Path
    ) -> tuple[Dataset, bool]:
        """The dataset in an upload, which loses its bytes. Repeated, the same dataset. Otherwise as `of_file`.

        Raises HttpProblem 409 for an upload that is not complete, or was used with other options.
        """
        if upload.dataset is not None:
            found = await self._datasets.get(tenant, upload.dataset)
            if found is None or upload.options != options.document():
                detail = f"the upload has become the dataset {upload.dataset}; upload the file again"
                raise HttpProblem("invalid-state", detail)
            return found, False
        if upload.offset < upload.length:
            detail = f"the upload has {upload.offset} of {upload.length} bytes"
            raise HttpProblem("invalid-state", detail, offset=upload.offset)
        source = {"url": self._settings.objects, "keys": list(upload.keys), "sha256": upload.sha256}
        try:
            stored, is_new = await self._stored(tenant, source, options, named, folder)
        except HttpProblem as problem:
            again = await self._uploads.get(tenant, upload.id) if problem.code == "not-found" else None
            if again is None:
                raise
            if again.dataset is None:
                raise StorageUnavailable("the bytes of the upload are missing or cannot be read") from problem
            return await self.of_upload(tenant, again, options, named, folder)  # another request was faster
        await self._uploads.used(tenant, upload, stored.id, options.document())
        return stored, is_new

    async def _stored(
        self, tenant: str, source: dict[str, Any], options: Options, named: Named, folder: Path
    ) -> tuple[Dataset, bool]:
        args = {**source, "scratch": str(folder), "options": options.document(), "limits": asdict(self._limits)}
        pool = await self._running()
        try:
            reply = await run_stateless(pool, "ingest", args, deadline=self._settings.dataset_deadline)
        except WorkerLost as error:
            if not error.began:
                raise
            detail = f"the file cannot be read: its conversion ended two processes ({error.reason})"
            raise HttpProblem("limit-exceeded", detail, reason="conversion-ended") from error
        _check(reply.result)
        return await self._added(tenant, named, folder)

    async def _added(self, tenant: str, named: Named, folder: Path) -> tuple[Dataset, bool]:
        dataset = await asyncio.to_thread(self._described, folder, named)
        async with self.room(tenant, dataset.size) as check:
            return await self._datasets.add(tenant, dataset, folder / RESULT, check)

    @staticmethod
    def _described(folder: Path, named: Named) -> Dataset:
        about = json.loads((folder / ABOUT).read_text())
        return Dataset(
            dataset_id(about["sha256"]),
            named.name,
            key_of(about["sha256"]),
            about["rows"],
            tuple(column_of(each) for each in about["columns"]),
            about["size"],
            about["sha256"],
            time.time(),
            named.expires,
            named.labels,
        )

    async def _running(self) -> EmbeddedPool:
        """The processes. Raises EngineError if the machine has no memory for one."""
        async with self._starting:
            if self._pool is None:
                total = available_memory()
                count = max(1, min(MOST, available_cores() // 2))
                share = (total - service_memory(total)) // count
                changed: dict[str, Any] = {"workers": count, "device": "cpu", "compile": "never", "threads": 1}
                changed["worker_memory"] = max(LEAST_WORKER_MEMORY, min(MEMORY_BYTES, share))
                changed["cancel_grace"] = 0.0  # a conversion keeps no state, so that it can be killed
                pool = EmbeddedPool(self._settings.model_copy(update=changed), HANDLERS)
                await pool.start()
                self._pool = pool
            return self._pool


def _check(result: dict[str, Any]) -> None:
    """Raises the error of a conversion, if it failed."""
    if (problem := result.get("problem")) is not None:
        code, detail, status, errors = problem
        raise HttpProblem(code, detail, status=status, errors=[FieldError(*each) for each in errors])
    if (error := result.get("error")) is not None:
        if error[0] == errno.ENOENT:
            raise HttpProblem("not-found", "the upload was deleted during its conversion")
        raise storage_error(OSError(*error))


def storage_error(error: OSError) -> StorageFull | StorageUnavailable:
    """The refusal of a request because of an error of the file system."""
    if error.errno in FULL:
        return StorageFull("no space is left for datasets", f"no space is left for datasets: {error}")
    return StorageUnavailable("the files of datasets cannot be used now", f"the files of datasets: {error}")
