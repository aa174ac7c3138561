"""Backup and restore: a round trip while the service runs, and damaged backups."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select

from service.cli.main import main
from service.objects import Objects
from service.settings import Settings
from service.store.admin import AdminSocket
from service.store.backup import BackupError, Manifest, back_up, check_backup, restore, snapshot
from service.store.program_text import ProgramText
from service.store.programs import ProgramStore
from service.store.sqlite_file import FILE
from service.store.store import Store
from service.store.tables import checkpoints, tenants
from tests.service.prepared import prepared

PROGRAM = ProgramText.of({"blocks": [{"ops": []}]})
CONTENT = b"weights" * 100_000


def quiet(_: str) -> None:
    pass


def checkpoint(objects: Objects, number: int) -> Callable[[Connection], None]:
    """Store a file; a work that stores the row that names it."""
    key = f"checkpoints/{number}"
    written = objects.write(key, [CONTENT, str(number).encode()])
    row = {
        "id": f"ckp_{number}",
        "tenant": "local",
        "session": None,
        "program_id": PROGRAM.id,
        "name": f"number {number}",
        "kind": "client",
        "step": number,
        "key": key,
        "size": written.size,
        "sha256": written.sha256,
        "about": "{}",
        "created": 1.0,
        "expires": None,
    }
    known = {name: value for name, value in row.items() if name in checkpoints.c}
    return lambda connection: connection.execute(insert(checkpoints), known) and None


def keys(connection: Connection) -> list[str]:
    return [row.key for row in connection.execute(select(checkpoints.c.key).order_by(checkpoints.c.step))]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A data directory with a program and two checkpoints, whose service is stopped."""
    made = Settings(data_dir=tmp_path / "data")

    async def fill() -> None:
        store = Store(made.data_dir)
        await store.open()
        await ProgramStore(store, 10).put("local", PROGRAM, b"{}")
        for number in (1, 2):
            await store.write(checkpoint(prepared(made.objects), number))
        await store.close()

    asyncio.run(fill())
    return made


def test_a_restored_backup_has_every_row_and_every_file(settings, tmp_path):
    lines: list[str] = []
    manifest = back_up(settings, tmp_path / "backup", lines.append)
    back = Settings(data_dir=tmp_path / "restored")
    restore(back, tmp_path / "backup", lines.append)

    assert any("2, 1.4 MB" in line for line in lines)
    assert set(manifest.objects) == {"checkpoints/1", "checkpoints/2"}
    assert manifest.objects["checkpoints/1"].sha256 == hashlib.sha256(CONTENT + b"1").hexdigest()
    store, objects = Store(back.data_dir), prepared(back.objects)
    store.open_now()
    found = asyncio.run(ProgramStore(store, 10).get("local", PROGRAM.id))
    assert found is not None
    assert found.text == PROGRAM.text
    assert asyncio.run(store.read(keys)) == ["checkpoints/1", "checkpoints/2"]
    assert [objects.read(f"checkpoints/{number}") for number in (1, 2)] == [CONTENT + b"1", CONTENT + b"2"]
    store.close_now()


def test_a_backup_of_a_running_service_is_one_state_of_it(settings, tmp_path):
    """Rows and files come and go all the time, the files first and last; both always name each other."""
    objects = prepared(settings.objects)
    backups = [tmp_path / f"backup{n}" for n in range(3)]

    async def run() -> None:
        store = Store(settings.data_dir)
        await store.open()
        admin = AdminSocket(store, settings.data_dir)
        admin.actions["store.snapshot"] = snapshot
        await admin.start()
        number = 3

        def copies() -> None:
            """Repeat each backup until something changed while it was written."""
            for to in backups:
                for _ in range(100):
                    shutil.rmtree(to, ignore_errors=True)
                    before = number
                    back_up(settings, to, quiet)
                    if number > before:
                        break
                else:
                    shutil.rmtree(to)  # fails the test below

        thread = threading.Thread(target=copies)
        thread.start()
        while thread.is_alive():
            await store.write(checkpoint(objects, number))
            old = f"checkpoints/{number - 2}"
            await store.write(
                lambda c, key=old: c.execute(checkpoints.delete().where(checkpoints.c.key == key)) and None
            )
            objects.delete(old)
            number += 1
        await asyncio.to_thread(thread.join)
        left = sorted(objects.keys())
        await admin.stop()
        await store.close()
        assert left == sorted(f"checkpoints/{n}" for n in (number - 2, number - 1))

    asyncio.run(run())
    for number, to in enumerate(backups):
        check_backup(to, quiet)
        back = Settings(data_dir=tmp_path / f"restored{number}")
        restore(back, to, quiet)
        store = Store(back.data_dir)
        store.open_now()
        named = asyncio.run(store.read(keys))
        store.close_now()
        assert len(named) in (2, 3)
        assert all(prepared(back.objects).size(key) > len(CONTENT) for key in named)
    assert not list(settings.data_dir.glob("snapshot-*"))


def flipped(backup: Path) -> None:
    path = backup / "objects/checkpoints/1"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def cut(backup: Path) -> None:
    os.truncate(backup / "objects/checkpoints/1", 1000)


def without_a_file(backup: Path) -> None:
    (backup / "objects/checkpoints/1").unlink()


def with_a_damaged_database(backup: Path) -> None:
    path = backup / FILE
    path.write_bytes(path.read_bytes()[:-4096])


def not_complete(backup: Path) -> None:
    (backup / "manifest.json").unlink()


def with_a_torn_manifest(backup: Path) -> None:
    path = backup / "manifest.json"
    path.write_bytes(path.read_bytes()[:200])


def with_another_manifest(backup: Path) -> None:
    (backup / "manifest.json").write_text('{"format": 1}')


def of_a_later_format(backup: Path) -> None:
    (backup / "manifest.json").write_text('{"format": 2}')


def with_a_path_out_of_it(backup: Path) -> None:
    path = backup / "manifest.json"
    path.write_text(path.read_text().replace("checkpoints/1", "../../checkpoints/1"))


DAMAGES = {
    flipped: "objects/checkpoints/1 has 700001 bytes with the SHA-256",
    cut: "objects/checkpoints/1 has 1000 bytes",
    without_a_file: "objects/checkpoints/1 is missing",
    with_a_damaged_database: "is damaged: backpass.sqlite has",
    not_complete: "no complete backup",
    with_a_torn_manifest: "is not JSON",
    with_another_manifest: "is not a manifest",
    of_a_later_format: "has format 2",
    with_a_path_out_of_it: "is not a manifest",
}


@pytest.mark.parametrize(("damage", "told"), DAMAGES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_damaged_backup_is_refused_and_nothing_is_restored(settings, tmp_path, damage, told):
    backup = tmp_path / "backup"
    back_up(settings, backup, quiet)
    damage(backup)

    for act in (lambda: check_backup(backup, quiet), lambda: restore(Settings(data_dir=tmp_path / "r"), backup, quiet)):
        with pytest.raises(BackupError, match=told):
            act()
    assert not (tmp_path / "r").exists()


def test_a_backup_notices_stored_files_that_are_gone_or_damaged(settings, tmp_path):
    path = prepared(settings.objects).local_path("checkpoints/1")
    assert path is not None
    path.write_bytes(b"changed")
    with pytest.raises(BackupError, match="checkpoints/1 is damaged"):
        back_up(settings, tmp_path / "one", quiet)
    path.unlink()
    with pytest.raises(BackupError, match="names checkpoints/1"):
        back_up(settings, tmp_path / "two", quiet)

    assert not (tmp_path / "one" / "manifest.json").exists()
    assert not (tmp_path / "two" / "manifest.json").exists()


def test_nothing_is_written_over(settings, tmp_path, capsys):
    for name in ("backup", "data"):
        assert main(["backup", str(tmp_path / name), "--data-dir", str(settings.data_dir)]) == (name == "data")
    assert "is not empty: it has backpass.sqlite" in capsys.readouterr().err

    assert main(["restore", str(tmp_path / "backup"), "--data-dir", str(settings.data_dir)]) == 1
    assert "is not empty: it has backpass.sqlite" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "backup"), "--check"]) == 0
    assert main(["restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new")]) == 0
    assert main(["backup", str(tmp_path / "none"), "--data-dir", str(tmp_path / "nothing")]) == 1
    assert "has no store" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_a_backup_inside_the_data_directory_is_restored_there_once_the_store_is_removed(settings, tmp_path, capsys):
    data = settings.data_dir
    backup, given = data / "backups" / "monday", ["--data-dir", str(data)]
    assert main(["backup", str(backup), *given]) == 0
    assert main(["restore", str(backup), *given]) == 1
    assert "is not empty: it has backpass.sqlite" in capsys.readouterr().err
    before = (backup / FILE).read_bytes()
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        (data / name).unlink(missing_ok=True)
    shutil.rmtree(data / "objects", ignore_errors=True)
    (data / "code").mkdir(exist_ok=True)
    (data / "admin").touch()

    assert main(["restore", str(backup), *given]) == 0

    assert (backup / FILE).read_bytes() == before
    assert (data / FILE).stat().st_size > 0
    (data / FILE).unlink()
    assert main(["restore", str(data), *given]) == 1  # no backup, and no crash


@pytest.mark.parametrize("url", ["nothing://x", "s3://bucket/x"])
def test_a_store_that_cannot_be_opened_is_one_sentence_before_anything_is_written(
    settings, tmp_path, capsys, monkeypatch, url
):
    backup, new = tmp_path / "backup", tmp_path / "new"
    assert main(["backup", str(backup), "--data-dir", str(settings.data_dir)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("BACKPASS_OBJECTS_URL", url)

    for command in (["backup", str(tmp_path / "second"), "--data-dir", str(settings.data_dir)],
                    ["restore", str(backup), "--data-dir", str(new)]):  # fmt: skip
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.startswith("BACKPASS_OBJECTS_URL: a store of ") and said.count("\n") == 1
    assert not new.exists() and not (tmp_path / "second").exists()


def test_a_full_disk_fails_a_backup_with_its_reason(settings, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BackupError, match=r"is not complete: .*No space left on device"):
        back_up(settings, tmp_path / "backup", quiet)


def test_a_database_that_cannot_be_copied_is_one_sentence_and_leaves_no_copy(settings, tmp_path, monkeypatch, capsys):
    def full(source, to: Path) -> None:
        to.write_bytes(b"half")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("service.store.backup.copy_database", full)

    assert main(["backup", str(tmp_path / "backup"), "--data-dir", str(settings.data_dir)]) == 1

    found = capsys.readouterr().err
    assert "the database cannot be copied to" in found and found.endswith("database or disk is full\n")
    assert found.count("\n") == 1
    assert not [each for each in settings.data_dir.iterdir() if each.name.startswith("snapshot")]


def test_postgresql_is_backed_up_by_its_own_programs(postgres_server, postgres_url, tmp_path, monkeypatch):
    made = Settings(data_dir=tmp_path / "data", database_url=postgres_url)
    store = Store(made.data_dir, postgres_url)
    store.open_now()
    asyncio.run(store.write(checkpoint(prepared(made.objects), 1)))
    row = {"id": "ä", "limits": "{}", "created": 0, "changes": 0}
    asyncio.run(store.write(lambda c: c.execute(insert(tenants), row) and None))

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match=r"pg_dump is not installed: .* postgresql-client"):
        back_up(made, tmp_path / "none", quiet)
    monkeypatch.setenv("PATH", str(postgres_server.programs))
    back_up(made, tmp_path / "backup", quiet)
    store.close_now()

    url = postgres_server.new_database()
    back = Settings(data_dir=tmp_path / "restored", database_url=url)
    with pytest.raises(BackupError, match="set BACKPASS_DATABASE_URL"):
        restore(Settings(data_dir=tmp_path / "restored"), tmp_path / "backup", quiet)
    restore(back, tmp_path / "backup", quiet)
    again = Store(back.data_dir, url)
    again.open_now()
    assert asyncio.run(again.read(keys)) == ["checkpoints/1"]
    assert asyncio.run(again.read(lambda c: c.execute(select(tenants.c.id)).scalar())) == "ä"
    assert prepared(back.objects).read("checkpoints/1") == CONTENT + b"1"
    again.close_now()
    with pytest.raises(BackupError, match="pg_restore failed"):
        restore(Settings(data_dir=tmp_path / "more", database_url=url), tmp_path / "backup", quiet)
    postgres_server.drop(url)


def test_a_manifest_is_read_as_it_was_written(settings, tmp_path):
    written = back_up(settings, tmp_path / "backup", quiet)

    assert isinstance(written, Manifest)
    assert check_backup(tmp_path / "backup", quiet) == written
    assert json.loads((tmp_path / "backup" / "manifest.json").read_text())["format"] == 1
