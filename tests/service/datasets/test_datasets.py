"""Datasets of several tenants in one store: shared files, expiry, limits, and deletions at the wrong moment."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.datasets import Datasets
from service.datasets.ingest import Ingest, Named
from service.datasets.options import Options
from service.datasets.uploads import Upload, Uploads
from service.objects.tensor_file import mapped
from service.problems import HttpProblem
from service.settings import LEAST_WORKER_MEMORY, Settings
from service.store import orphans, tables
from service.store.errors import StorageFull, StorageUnavailable
from service.store.orphans import Orphans
from service.store.store import Store
from tests.processes import open_files
from tests.service.datasets.tables import as_csv, as_npz
from tests.service.prepared import prepared


class House:
    """The parts of a service that datasets need."""

    def __init__(self, directory: Path, objects: str = "", database: str = "", **settings: Any) -> None:
        self.settings = Settings(data_dir=directory, objects_url=objects, workers=1, **settings)
        self.store = Store(directory, database)
        self.objects = prepared(self.settings.objects)
        self.datasets = Datasets(self.store, self.objects, directory, self.settings.datasets)
        self.uploads = Uploads(self.settings, self.store, self.objects)
        self.ingest = Ingest(self.settings, self.datasets, self.uploads)

    async def add(self, tenant: str, seed: int, **named: Any) -> Any:
        columns = {"x": np.full((4, 2), seed, np.float32)}
        async with self.ingest.folder() as folder:
            found = await self.ingest.of_columns(tenant, columns, Options("safetensors"), Named(**named), folder)
        return found[0]

    @property
    def files(self) -> list[str]:
        return list(self.objects.keys("datasets"))


def run(directory: Path, scenario: Callable[[House], Awaitable[Any]], **settings: Any) -> Any:
    async def within() -> Any:
        house = House(directory, **settings)
        await house.store.open()
        try:
            return await scenario(house)
        finally:
            await house.ingest.stop()
            await house.store.close()

    return asyncio.run(within())


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process converts all files, whatever the number of cores."""
    monkeypatch.setattr("service.datasets.ingest.available_cores", lambda: 2)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request) -> str:
    return "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def test_a_file_that_ends_its_process_is_refused_and_the_next_one_is_read(tmp_path, monkeypatch):
    """The libraries for files end their process on some damaged ones."""
    monkeypatch.setattr("service.datasets.ingest.HANDLERS", "tests.service.datasets.crashing:HANDLERS")

    async def scenario(house):
        async with house.ingest.folder() as folder:
            (folder / "bad").write_bytes(b"crash")
            (folder / "good").write_bytes(as_csv({"a": np.arange(3)}))
            with pytest.raises(HttpProblem, match=r"ended two processes \(killed by SIGABRT\)") as refused:
                await house.ingest.of_file("a", folder / "bad", Options("csv"), Named(), folder)
            found, _ = await house.ingest.of_file("a", folder / "good", Options("csv"), Named(), folder)
        assert (refused.value.code, refused.value.retryable, found.rows) == ("limit-exceeded", False, 3)

    run(tmp_path, scenario)


def test_a_file_is_read_though_something_else_ends_the_first_process(tmp_path, monkeypatch):
    monkeypatch.setattr("service.datasets.ingest.HANDLERS", "tests.service.datasets.crashing:HANDLERS")

    async def scenario(house):
        async with house.ingest.folder() as folder:
            (folder / "good").write_bytes(as_csv({"a": np.arange(3)}))
            (folder / "ends once").touch()
            found, _ = await house.ingest.of_file("a", folder / "good", Options("csv"), Named(), folder)
        assert found.rows == 3

    run(tmp_path, scenario)


def test_tenants_share_a_file_until_the_last_of_them_deletes_it(tmp_path, database):
    async def scenario(house):
        a, b = await house.add("a", 1), await house.add("b", 1)
        assert a.id == b.id
        assert house.files == [a.key]
        assert await house.datasets.delete("a", a.id)
        assert not await house.datasets.delete("a", a.id)
        assert await house.datasets.get("a", a.id) is None
        assert house.files == [a.key]
        assert await house.datasets.delete("b", b.id)
        assert house.files == []

    run(tmp_path, scenario, database=database)


def test_random_adds_and_deletes_keep_files_and_rows_in_agreement(tmp_path, database):
    """Every dataset that can be read has its file, and no other file is left."""

    async def scenario(house):
        draw = np.random.default_rng(5)

        async def one() -> None:
            tenant, seed = "abc"[draw.integers(3)], int(draw.integers(2))
            added = await house.add(tenant, seed)
            if draw.integers(2):
                await house.datasets.delete(tenant, added.id)

        for _ in range(8):
            await asyncio.gather(*(one() for _ in range(6)))
            named = {each.key for tenant in "abc" for each in await house.datasets.page(tenant, "", 10)}
            assert set(house.files) == named
        assert await house.datasets.bytes_of("a") == sum(each.size for each in await house.datasets.page("a", "", 10))

    run(tmp_path, scenario)


def test_a_file_that_goes_while_its_row_is_written_is_stored_again(tmp_path):
    async def scenario(house):
        insert, losses = house.datasets._insert, [1]

        def losing(connection, tenant, dataset, check):
            if losses:
                losses.pop()
                house.objects.delete(dataset.key)
            return insert(connection, tenant, dataset, check)

        house.datasets._insert = losing
        added = await house.add("a", 1)
        assert house.files == [added.key]

    run(tmp_path, scenario)


def test_a_deletion_that_a_backup_postponed_does_not_take_a_dataset_that_came_back(tmp_path):
    async def scenario(house):
        first = await house.add("a", 1)
        with house.objects.held():
            await house.datasets.delete("a", first.id)
            await house.add("a", 1)
        assert house.files == [first.key]

    run(tmp_path, scenario)


def test_a_dataset_of_a_job_that_has_not_ended_is_not_deleted(tmp_path):
    async def scenario(house):
        added = await house.add("a", 1, expires=time.time() - 1)
        other = await house.add("b", 1)
        job = {
            "id": "job_aaaaaaaaaaaaaaaaaaaaaaaaaa", "tenant": "a", "session": "", "state": "running", "priority": 0,
            "dataset": added.id, "events": 0, "queued": 0.0,
            "spec": json.dumps({"dataset_id": added.id}), "progress": "{}", "epoch": 0, "created": 0.0,
        }  # fmt: skip
        await house.store.write(lambda db: db.execute(tables.jobs.insert(), job))
        with pytest.raises(HttpProblem) as refused:
            await house.datasets.delete("a", added.id)
        assert (refused.value.code, refused.value.extensions) == ("in-use", {"jobs": [job["id"]]})
        await house.datasets.sweep()
        assert await house.datasets.get("a", added.id) == added
        assert await house.datasets.delete("b", other.id)
        await house.store.write(lambda db: db.execute(tables.jobs.update().values(ended=1.0)))
        await house.datasets.sweep()
        assert house.files == []

    run(tmp_path, scenario)


def test_expired_datasets_and_uploads_are_deleted(tmp_path):
    async def scenario(house):
        await house.add("a", 1, expires=time.time() - 1)
        stays = await house.add("a", 2, expires=time.time() + 100)
        upload = await house.uploads.create("a", 3)
        part = tmp_path / "part"
        part.write_bytes(b"abc")
        await house.uploads.append("a", upload.id, 0, part, 3)
        await asyncio.sleep(0.05)
        await house.datasets.sweep()
        await house.uploads.sweep()
        assert [each.id for each in await house.datasets.page("a", "", 10)] == [stays.id]
        assert list(house.objects.keys()) == [stays.key]
        assert await house.uploads.get("a", upload.id) is None

    run(tmp_path, scenario, upload_lease=0.01)


def test_a_dataset_stays_if_it_is_stored_again_after_its_end(tmp_path):
    async def scenario(house):
        ended = await house.add("a", 1, expires=time.time() - 1, name="old")
        again = await house.add("a", 1, name="new")
        await house.datasets.sweep()

        assert again.id == ended.id
        found = await house.datasets.get("a", again.id)
        assert (found.name, found.expires, house.files) == ("new", None, [found.key])

    run(tmp_path, scenario)


def after_next_read(house: House, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[Any]]) -> None:
    """Let `act` happen between the next read of the store and what its reader does then."""
    read = house.store.read

    async def reading(work: Callable[[Any], Any]) -> Any:
        found = await read(work)
        monkeypatch.setattr(house.store, "read", read)
        await act()
        return found

    monkeypatch.setattr(house.store, "read", reading)


def test_a_dataset_whose_end_is_changed_during_a_sweep_stays(tmp_path, monkeypatch):
    async def scenario(house):
        dataset = await house.add("a", 1, expires=time.time() - 1)
        change = lambda: house.datasets.change("a", dataset.id, lambda known: replace(known, expires=None))
        after_next_read(house, monkeypatch, change)
        await house.datasets.sweep()

        assert (await house.datasets.get("a", dataset.id)).expires is None
        assert house.files == [dataset.key]

    run(tmp_path, scenario)


def test_an_upload_that_gets_bytes_during_a_sweep_stays(tmp_path, monkeypatch):
    async def scenario(house):
        upload = await house.uploads.create("a", 3)
        await asyncio.sleep(0.05)
        (tmp_path / "part").write_bytes(b"abc")
        house.uploads._settings = house.settings.model_copy(update={"upload_lease": 100.0})
        after_next_read(house, monkeypatch, lambda: house.uploads.append("a", upload.id, 0, tmp_path / "part", 3))
        await house.uploads.sweep()

        assert (await house.uploads.get("a", upload.id)).offset == 3

    run(tmp_path, scenario, upload_lease=0.01)


def test_parts_and_files_of_dead_processes_are_deleted(tmp_path, monkeypatch):
    async def scenario(house):
        kept = await house.add("a", 1)
        house.objects.write("datasets/" + "0" * 64, [b"x"])
        house.objects.write("uploads/upl_x/0.part", [b"x"])
        await house.datasets.collect_all()
        upload = await house.uploads.create("a", 10)
        (tmp_path / "part").write_bytes(b"123")
        known = await house.uploads.append("a", upload.id, 0, tmp_path / "part", 3)
        for path in (tmp_path / "objects" / "uploads").rglob("*.*"):
            os.utime(path, (time.time() - 3601.0,) * 2)
        monkeypatch.setattr(orphans, "CONFIRM_S", 0.0)
        await Orphans(house.objects, {"uploads": house.uploads.named}).sweep()
        assert {*house.objects.keys()} == {kept.key, *known.keys}

    run(tmp_path, scenario)


def test_two_writers_of_one_upload_cannot_both_add_at_an_offset(tmp_path, database):
    async def scenario(house):
        upload = await house.uploads.create("a", 10)
        parts = [tmp_path / "one", tmp_path / "two"]
        for i, part in enumerate(parts):
            part.write_bytes(b"12" if i else b"345")
        found = await asyncio.gather(
            *(house.uploads.append("a", upload.id, 0, part, 2 if i else 3) for i, part in enumerate(parts)),
            return_exceptions=True,
        )
        refused = [each for each in found if isinstance(each, HttpProblem)]
        assert len(refused) == 1 and refused[0].code == "invalid-state"
        after = await house.uploads.get("a", upload.id)
        assert refused[0].extensions["offset"] == after.offset
        assert [house.objects.size(key) for key in after.keys] == [after.offset]
        assert list(house.objects.keys("uploads")) == list(after.keys)

    run(tmp_path, scenario, database=database)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), StorageUnavailable("the directory was replaced")])
def test_a_part_that_was_counted_keeps_its_file_when_its_caller_gets_an_error(tmp_path, monkeypatch, error):
    async def scenario(house):
        upload = await house.uploads.create("a", 10)
        part = tmp_path / "part"
        part.write_bytes(b"123")
        write = house.store.write

        async def fails_after_commit(work):
            await write(work)
            raise error

        monkeypatch.setattr(house.store, "write", fails_after_commit)
        with pytest.raises(type(error)):
            await house.uploads.append("a", upload.id, 0, part, 3)
        after = await house.uploads.get("a", upload.id)
        assert after.offset == 3
        assert [house.objects.size(key) for key in after.keys] == [3]

    run(tmp_path, scenario)


def test_other_tenants_see_neither_datasets_nor_uploads(tmp_path):
    async def scenario(house):
        added, upload = await house.add("a", 1), await house.uploads.create("a", 10)
        assert await house.datasets.get("b", added.id) is None
        assert await house.datasets.change("b", added.id, lambda d: replace(d, name="taken")) is None
        assert not await house.datasets.delete("b", added.id)
        assert await house.datasets.page("b", "", 10) == []
        assert await house.uploads.get("b", upload.id) is None
        assert not await house.uploads.delete("b", upload.id)
        part = tmp_path / "part"
        part.write_bytes(b"abc")
        assert await house.uploads.append("b", upload.id, 0, part, 3) is None
        assert (await house.uploads.get("a", upload.id)).offset == 0

    run(tmp_path, scenario)


def test_a_dataset_in_a_remote_store_is_copied_once_to_be_mapped(tmp_path):
    async def scenario(house):
        added = await house.add("a", 3)
        path = await house.datasets.path(added)
        assert path.is_relative_to(tmp_path)
        assert mapped(path)[0]["x"].tolist() == [[3, 3]] * 4
        assert await house.datasets.path(added) == path
        assert (await house.datasets.rows(added, ["x"], 1, 2))["x"].tolist() == [[3, 3]] * 2
        await house.datasets.delete("a", added.id)
        assert not path.exists()
        assert house.files == []

    run(tmp_path, scenario, objects=f"memory://{tmp_path.name}")


def test_a_conversion_is_killed_when_its_client_leaves_and_leaves_no_file(tmp_path, one_process):
    async def scenario(house):
        async def convert() -> None:
            async with house.ingest.folder() as folder:
                (folder / "body").write_bytes(b"a,b\n" + b"1,2.5\n" * 3_000_000)
                await house.ingest.of_file("a", folder / "body", Options("csv"), Named(), folder)

        await (await house.ingest._running()).call("ingest", _args(house, as_npz({"a": np.ones(1)})), deadline=30)
        (before,) = house.ingest._pool.workers()
        task = asyncio.create_task(convert())
        while not any(path.startswith(str(tmp_path / "spool")) for path in open_files(before.pid)):
            assert not task.done()
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any((tmp_path / "spool").iterdir())
        assert await asyncio.to_thread(_has_ended, before.pid)
        assert house.files == []

    run(tmp_path, scenario)


async def uploaded_csv(house: Any, tmp_path: Path) -> Upload:
    """A complete upload of the tenant "a"."""
    text = b"a,b\n1,2.5\n3,4.5\n"
    made = await house.uploads.create("a", len(text), "dataset", None)
    (tmp_path / "part").write_bytes(text)
    return await house.uploads.append("a", made.id, 0, tmp_path / "part", len(text))


def test_a_conversion_whose_upload_another_request_has_converted_meanwhile_has_its_dataset(tmp_path):
    async def scenario(house):
        upload = await uploaded_csv(house, tmp_path)

        async def convert() -> Any:
            async with house.ingest.folder() as folder:
                return await house.ingest.of_upload("a", upload, Options("csv"), Named(), folder)

        first, _ = await convert()  # `upload` is what the second request has read before
        assert await convert() == (first, False)
        await house.uploads.delete("a", upload.id)
        with pytest.raises(HttpProblem, match="deleted during its conversion"):
            await convert()

    run(tmp_path, scenario)


def test_an_upload_whose_bytes_cannot_be_found_is_not_called_deleted(tmp_path):
    async def scenario(house):
        upload = await uploaded_csv(house, tmp_path)
        (tmp_path / "objects").rename(tmp_path / "away")
        async with house.ingest.folder() as folder:
            with pytest.raises(StorageUnavailable, match="bytes of the upload"):
                await house.ingest.of_upload("a", upload, Options("csv"), Named(), folder)
        (tmp_path / "away").rename(tmp_path / "objects")
        async with house.ingest.folder() as folder:
            found, is_new = await house.ingest.of_upload("a", upload, Options("csv"), Named(), folder)
        assert (found.rows, is_new) == (2, True)

    run(tmp_path, scenario)


def _has_ended(pid: int) -> bool:
    end = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < end:
        time.sleep(0.02)
    return not os.path.exists(f"/proc/{pid}")


def _args(house: House, data: bytes) -> dict[str, Any]:
    folder = house.settings.data_dir / "first"
    folder.mkdir()
    (folder / "body").write_bytes(data)
    limits = {"size": 2**20, "rank": 8, "columns": 10}
    options = Options("npz").document()
    return {"path": str(folder / "body"), "scratch": str(folder), "options": options, "limits": limits}


def test_a_full_disk_and_a_file_beyond_the_memory_of_its_process_are_told(tmp_path, one_process, monkeypatch):
    """A single text of a Parquet file that does not fit into memory, and a conversion whose files do not fit."""
    monkeypatch.setattr("service.datasets.ingest.MEMORY_BYTES", LEAST_WORKER_MEMORY)
    import io
    import resource

    import pyarrow as pa
    import pyarrow.parquet as pq

    async def scenario(house):
        file = io.BytesIO()
        pq.write_table(pa.table({"t": ["x" * 120_000_000]}), file, compression="zstd", write_statistics=False)
        assert len(file.getvalue()) < 10_000_000
        with pytest.raises(HttpProblem) as refused:
            await _converted(house, file.getvalue(), "parquet")
        assert refused.value.code in ("limit-exceeded", "invalid-dataset")
        (worker,) = house.ingest._pool.workers()
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(StorageFull):
            await _converted(house, as_csv({"a": np.arange(100_000)}), "csv")

    run(tmp_path, scenario)


async def _converted(house: House, data: bytes, format: Any) -> Any:
    async with house.ingest.folder() as folder:
        (folder / "body").write_bytes(data)
        return await house.ingest.of_file("a", folder / "body", Options(format), Named(), folder)
