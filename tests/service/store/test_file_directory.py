"""The directory of files that belongs to a database."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.main import main
from service.objects import Objects, UnusableStore
from service.objects.marker import MARKER
from service.settings import Settings
from service.store.backup import BackupError, back_up, restore
from service.store.file_directory import directory_id, take_directory, why_unusable
from service.store.store import Store
from tests.service.prepared import prepared
from tests.service.store.test_backup import checkpoint, quiet


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path)
    opened.open_now()
    yield opened
    opened.close_now()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(str(tmp_path / "objects"))


def take(store: Store, objects: Objects) -> None:
    asyncio.run(take_directory(store, objects))


def with_file(store: Store, objects: Objects) -> None:
    """A row, and the file that it names."""
    asyncio.run(store.write(checkpoint(objects, 1)))


def test_the_directory_of_a_new_store_is_made_once(store, objects, tmp_path):
    take(store, objects)
    id = objects.id()
    take(store, objects)

    assert id is not None
    assert objects.id() == id == asyncio.run(store.read(directory_id))
    assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700


def test_a_directory_of_an_earlier_version_is_taken_with_its_files(store, objects):
    objects.prepare()
    with_file(store, objects)
    (objects.root / MARKER).unlink()

    take(store, objects)

    assert objects.exists("checkpoints/1")
    assert asyncio.run(why_unusable(store, objects)) is None


@pytest.mark.parametrize("left", ["nothing", "an empty directory"])
@pytest.mark.parametrize("version", ["this", "an earlier"])
def test_a_service_does_not_start_without_the_directory_of_its_files(store, objects, tmp_path, left, version):
    if version == "this":
        take(store, objects)
    objects.prepare()
    with_file(store, objects)
    (tmp_path / "objects").rename(tmp_path / "away")
    if left == "an empty directory":
        (tmp_path / "objects").mkdir()

    with pytest.raises(UnusableStore, match=str(tmp_path / "objects")):
        take(store, objects)

    assert left == "nothing" or list((tmp_path / "objects").iterdir()) == []
    shutil.rmtree(tmp_path / "objects", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "objects")
    take(store, objects)


def test_the_directory_of_another_store_is_refused(store, objects, tmp_path):
    take(store, objects)
    other = prepared(str(tmp_path / "other"))

    with pytest.raises(UnusableStore, match="is the directory of another store"):
        take(store, other)


def test_the_remedy_for_a_copy_without_the_marker_works(store, objects, tmp_path):
    take(store, objects)
    with_file(store, objects)
    shutil.copytree(tmp_path / "objects", tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    copy = Objects(str(tmp_path / "copy"))
    with pytest.raises(UnusableStore) as refused:
        take(store, copy)
    id = str(refused.value).rpartition("write ")[2].partition(" ")[0]

    (tmp_path / "copy" / MARKER).write_text(id)

    take(store, copy)
    assert copy.exists("checkpoints/1")


def test_a_remote_store_belongs_to_no_database(store, tmp_path):
    take(store, Objects(f"memory://{tmp_path.name}"))

    assert asyncio.run(store.read(directory_id)) is None


@pytest.mark.parametrize("url", ["", "elsewhere"])
def test_a_restored_store_has_a_directory_of_its_own(tmp_path, url):
    before = Settings(data_dir=tmp_path / "data")
    after = Settings(data_dir=tmp_path / "back", objects_url=url and str(tmp_path / url))
    store, objects = Store(before.data_dir), Objects(before.objects)
    store.open_now()
    take(store, objects)
    with_file(store, objects)
    store.close_now()

    back_up(before, tmp_path / "backup", quiet)
    restore(after, tmp_path / "backup", quiet)

    restored = Store(after.data_dir)
    restored.open_now()
    try:
        take(restored, Objects(after.objects))
        assert Objects(after.objects).id() not in (None, objects.id())
    finally:
        restored.close_now()


def test_a_backup_of_files_of_an_earlier_version_takes_their_directory(store, objects, tmp_path):
    objects.prepare()
    with_file(store, objects)
    (tmp_path / "objects" / MARKER).unlink()
    store.close_now()

    manifest = back_up(Settings(data_dir=tmp_path), tmp_path.parent / f"{tmp_path.name}.backup", quiet)

    assert list(manifest.objects) == ["checkpoints/1"]


def test_a_backup_without_the_files_fails(store, objects, tmp_path):
    take(store, objects)
    store.close_now()
    (tmp_path / "objects").rename(tmp_path / "away")

    with pytest.raises(BackupError, match="the directory of files is not in its place"):
        back_up(Settings(data_dir=tmp_path), tmp_path.parent / f"{tmp_path.name}.backup", quiet)
    assert not (tmp_path / "objects").exists()


def test_the_refusal_to_start_is_one_sentence(store, objects, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("service.logs.configure", lambda *_, **__: None)
    take(store, objects)
    store.close_now()
    (tmp_path / "objects").rename(tmp_path / "away")

    assert main(["serve", "--data-dir", str(tmp_path), "--port", "0"]) == 2

    told = capsys.readouterr().err
    assert told.startswith("BACKPASS_OBJECTS_URL: the directory of files is not in its place: mount or restore")
    assert told.count("\n") == 1
