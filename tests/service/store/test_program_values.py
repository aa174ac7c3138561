"""The files of initial values of programs, on each kind of database."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from service.models import write_values
from service.objects import Objects
from service.objects.tensor_file import mapped
from service.settings import Settings
from service.store.backup import BackupError, back_up
from service.store.program_text import ProgramText
from service.store.program_values import NewValues
from service.store.programs import MissingValues, ProgramStore, TooManyPrograms
from service.store.store import Store
from tests.service.prepared import prepared

SIGNATURE = b'{"feeds":[]}'


@pytest.fixture
def objects(tmp_path):
    return prepared(str(tmp_path / "objects"))


@pytest.fixture
def programs(store, objects):
    return ProgramStore(store, 5, objects)


def new(folder: Path, number: float) -> NewValues:
    folder.mkdir(exist_ok=True)
    return write_values({"w": np.full(3, number), "b": np.arange(2)}, folder / os.urandom(8).hex())


def put(programs: ProgramStore, values: NewValues | None, tenant: str = "a", number: int = 0, sha: str = "") -> str:
    text = ProgramText.of({"blocks": [{"ops": [], "n": number}]}).with_values(sha or values.sha256)
    return asyncio.run(programs.put(tenant, text, SIGNATURE, values))[0].id


def files(objects: Objects) -> list[str]:
    return [key.rpartition("/")[2].partition(".")[0] for key in objects.keys("values")]


def test_equal_values_have_one_file_that_holds_them(programs, objects, tmp_path):
    first, second = new(tmp_path / "one", 2.0), new(tmp_path / "two", 2.0)
    ids = {put(programs, first), put(programs, second, number=1), put(programs, new(tmp_path, 2.0), "b")}

    assert files(objects) == [first.sha256] == [second.sha256]
    assert len(ids) == 2
    for id in ids:
        stored = asyncio.run(programs.get("a", id))
        arrays, _ = mapped(objects.local_path(stored.values.key))
        assert {name: each.tolist() for name, each in arrays.items()} == {"w": [2.0] * 3, "b": [0, 1]}


def test_a_file_goes_with_the_last_program_of_all_tenants(programs, objects, tmp_path):
    ids = [(tenant, put(programs, new(tmp_path, 2.0), tenant, n)) for tenant in "ab" for n in range(2)]
    other = new(tmp_path, 3.0)
    put(programs, other)

    for tenant, id in ids:
        assert len(files(objects)) == 2
        asyncio.run(programs.delete(tenant, id))
    assert files(objects) == [other.sha256]


def test_a_program_may_name_values_of_its_tenant_alone(programs, objects, tmp_path):
    values = new(tmp_path, 2.0)
    put(programs, values)

    put(programs, None, number=1, sha=values.sha256)
    with pytest.raises(MissingValues):
        put(programs, None, "b", sha=values.sha256)
    assert asyncio.run(programs.values_with("b", values.sha256)) is None


def test_a_refused_program_leaves_no_file(programs, objects, tmp_path):
    kept = [put(programs, new(tmp_path, n), number=n) for n in range(5)]

    with pytest.raises(TooManyPrograms):
        put(programs, new(tmp_path, 9.0), number=9)
    assert len(files(objects)) == len(kept)


def test_files_without_a_program_are_swept(programs, objects, tmp_path):
    kept, lost = new(tmp_path, 2.0), new(tmp_path, 3.0)
    put(programs, kept)
    objects.adopt(lost.stored.key, lost.file)

    asyncio.run(programs.collect_all())

    assert files(objects) == [kept.sha256]


def test_a_program_that_appears_while_the_file_goes_has_its_file(programs, objects, tmp_path):
    """Registrations and deletions of programs with equal values, all at the same time."""

    async def cycle(tenant: str, values: list[NewValues]) -> None:
        text = ProgramText.of({"blocks": []}).with_values(values[0].sha256)
        for each in values:
            stored, _ = await programs.put(tenant, text, SIGNATURE, each)
            assert objects.exists(stored.values.key)
            await programs.delete(tenant, stored.id)

    async def all_cycles() -> None:
        await asyncio.gather(*(cycle(f"t{n}", [new(tmp_path, 2.0) for _ in range(8)]) for n in range(4)))

    asyncio.run(all_cycles())

    assert files(objects) == []


def test_a_file_stays_when_a_sweep_begins_before_its_row_is_committed(programs, objects, tmp_path):
    values = new(tmp_path, 2.0)
    counting, known = threading.Event(), programs.limit_of

    def slow_limit(tenant: str) -> float:
        counting.set()
        time.sleep(0.3)
        return known(tenant)

    async def both() -> None:
        programs.limit_of = slow_limit
        text = ProgramText.of({"blocks": []}).with_values(values.sha256)
        registered = asyncio.create_task(programs.put("a", text, SIGNATURE, values))
        await asyncio.to_thread(counting.wait)
        await programs.collect_all()
        await registered

    asyncio.run(both())

    assert files(objects) == [values.sha256]


def test_the_id_of_a_program_with_values_is_that_of_its_document():
    text = ProgramText.of({"blocks": [{"ops": []}], "version": 1})
    sha = "0123456789abcdef" * 4
    named = text.with_values(sha)

    assert named == ProgramText(named.id, named.text, sha)
    assert ProgramText.of({"values": sha, "version": 1, "blocks": [{"ops": []}]}).id == named.id != text.id
    assert named.with_values(sha) is named
    other = named.with_values("f" * 64)
    assert other.id == text.with_values("f" * 64).id
    assert ProgramText.of({}).with_values(sha).text == b'{"values":"%b"}' % sha.encode()


def test_a_backup_has_the_values_or_says_that_they_are_missing(tmp_path):
    settings = Settings(data_dir=tmp_path / "data")
    objects = prepared(settings.objects)
    store = Store(settings.data_dir)
    store.open_now()
    values = new(tmp_path, 2.0)
    put(ProgramStore(store, 5, objects), values)
    store.close_now()
    key = values.stored.key

    assert back_up(settings, tmp_path / "one", lambda _: None).objects[key].sha256 == values.sha256
    objects.delete(key)
    with pytest.raises(BackupError, match=f"the table program_values names {key}"):
        back_up(settings, tmp_path / "two", lambda _: None)
