"""The store in a data directory: a full disk, a directory that goes away, its owner, and damaged files."""

from __future__ import annotations

import asyncio
import errno
import json
import resource
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from service.store.errors import DirectoryInUse, StorageError, StorageFull, StorageUnavailable, StoreDamaged
from service.store.program_text import ProgramText, program_id
from service.store.programs import ProgramStore
from service.store.sqlite_file import FILE
from service.store.store import Store

SIGNATURE = b'{"feeds":[]}'


def document(number: int, size: int = 10) -> dict[str, Any]:
    return {"blocks": [{"ops": [], "n": number, "text": "x" * size}]}


def put(store: Store, number: int, size: int = 10) -> str:
    return asyncio.run(ProgramStore(store, 100).put("local", ProgramText.of(document(number, size)), SIGNATURE))[0].id


def get(store: Store, id: str) -> Any:
    found = asyncio.run(ProgramStore(store, 100).get("local", id))
    return None if found is None else json.loads(found.text)


@contextmanager
def opened(directory: Path) -> Iterator[Store]:
    store = Store(directory)
    store.open_now()
    try:
        yield store
    finally:
        store.close_now()


def test_programs_survive_a_restart(tmp_path):
    with opened(tmp_path / "new" / "data") as store:
        id = put(store, 1)
    with opened(tmp_path / "new" / "data") as store:
        assert get(store, id) == document(1)


def limit_pages(store: Store, pages: int) -> None:
    """Limit the size of the database; the one connection that writes keeps the limit."""
    asyncio.run(store.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages}").scalar()))


# --- a full disk -------------------------------------------------------------------------------------------------


def test_a_full_database_refuses_a_program_and_keeps_the_others(tmp_path):
    with opened(tmp_path) as store:
        kept = put(store, 1)
        pages = asyncio.run(store.write(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar()))
        limit_pages(store, pages)

        with pytest.raises(StorageFull) as refused:
            put(store, 2, size=100_000)

        assert (refused.value.code, refused.value.status) == ("storage-full", 507)
        assert get(store, program_id(document(2, 100_000))) is None
        assert get(store, kept) == document(1)
        limit_pages(store, 100_000)
        put(store, 2, size=100_000)  # the same store accepts it when there is room


def test_a_limit_of_file_sizes_counts_as_a_full_disk(tmp_path):
    with opened(tmp_path) as store:
        put(store, 1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        try:
            with pytest.raises(StorageFull):
                put(store, 2, size=200_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert get(store, program_id(document(2, 200_000))) is None
        put(store, 2, size=200_000)

    with opened(tmp_path) as store:
        assert get(store, program_id(document(2, 200_000))) == document(2, 200_000)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EFBIG, StorageFull),
        (errno.EROFS, StorageUnavailable),
        (errno.EACCES, StorageUnavailable),
        (errno.EIO, StorageUnavailable),
    ],
)
def test_an_input_output_error_of_sqlite_is_named_by_its_cause(tmp_path, monkeypatch, number, kind):
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, "refused")

    def failing(_: Connection) -> None:
        cause = sqlite3.OperationalError("disk I/O error")
        cause.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE
        raise OperationalError("INSERT", {}, cause)

    with opened(tmp_path) as store:
        monkeypatch.setattr("service.store.directory.tempfile.TemporaryFile", refused)

        with pytest.raises(StorageError) as error:
            asyncio.run(store.write(failing))

    assert type(error.value) is kind
    assert str(tmp_path) not in error.value.detail  # clients do not learn paths of the machine


# --- a directory that goes away ----------------------------------------------------------------------------------


def gone(directory: Path, away: Path) -> None:
    directory.rename(away)


def replaced_by_an_empty_one(directory: Path, away: Path) -> None:
    directory.rename(away)
    directory.mkdir()


def replaced_by_another_store(directory: Path, away: Path) -> None:
    directory.rename(away)
    with opened(directory):
        pass


def without_its_database(directory: Path, away: Path) -> None:
    away.mkdir()
    for each in directory.iterdir():
        each.rename(away / each.name)


def with_an_empty_database(directory: Path, away: Path) -> None:
    shutil.copytree(directory, away)
    (directory / FILE).unlink()
    (directory / FILE).touch()


LOSSES = (gone, replaced_by_an_empty_one, without_its_database, with_an_empty_database)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_a_store_without_its_directory_acknowledges_nothing_and_recovers_by_itself(tmp_path, lose):
    directory, away = tmp_path / "data", tmp_path / "away"
    with opened(directory) as store:
        kept = put(store, 1)
        lose(directory, away)

        failed = {name for name, reason in asyncio.run(store.health()).items() if reason is not None}
        for act in (lambda: put(store, 2), lambda: asyncio.run(ProgramStore(store, 100).delete("local", kept))):
            with pytest.raises(StorageUnavailable) as refused:
                act()
            assert (refused.value.code, refused.value.status) == ("storage-unavailable", 503)
            assert refused.value.retryable
        assert failed == {"data_directory"} or lose is with_an_empty_database

        shutil.rmtree(directory, ignore_errors=True)
        away.rename(directory)

        assert not any(asyncio.run(store.health()).values())
        assert get(store, kept) == document(1)
        assert get(store, program_id(document(2))) is None
        added = put(store, 3)
    with opened(directory) as store:
        assert get(store, kept) == document(1)
        assert get(store, added) == document(3)


def test_a_directory_that_is_lost_during_a_write_is_noticed_after_it(tmp_path):
    with opened(tmp_path / "data") as store, pytest.raises(StorageUnavailable, match="during the call"):
        asyncio.run(store.write(lambda _: (tmp_path / "data").rename(tmp_path / "away")))


def test_another_store_in_the_same_place_is_read_instead_of_the_old_one(tmp_path):
    directory = tmp_path / "data"
    with opened(directory) as store:
        old = put(store, 1)
        replaced_by_another_store(directory, tmp_path / "away")
        put(store, 2)

        assert get(store, old) is None
        assert get(store, program_id(document(2))) == document(2)


def test_a_write_ahead_log_that_is_deleted_loses_nothing(tmp_path):
    with opened(tmp_path) as store:
        kept = put(store, 1)
        (tmp_path / f"{FILE}-wal").unlink()

        assert get(store, kept) == document(1)
        added = put(store, 2)
        assert (tmp_path / f"{FILE}-wal").exists()
    with opened(tmp_path) as store:
        assert get(store, kept) == document(1)
        assert get(store, added) == document(2)


def test_a_store_that_takes_the_place_of_another_keeps_its_own_log(tmp_path):
    """SQLite deletes the log of a database that is closed, by its name."""
    directory = tmp_path / "data"
    with opened(tmp_path / "other") as other:
        theirs = put(other, 2)
        shutil.copytree(tmp_path / "other", tmp_path / "copy")  # with a log, as after a power failure
    with opened(directory) as store:
        mine = put(store, 1)
        directory.rename(tmp_path / "away")
        (tmp_path / "copy").rename(directory)

        assert get(store, theirs) == document(2)
        assert get(store, mine) is None
    with opened(tmp_path / "away") as store:
        assert get(store, mine) == document(1)


def test_a_lost_lock_file_is_made_again(tmp_path):
    with opened(tmp_path) as store:
        kept = put(store, 1)
        (tmp_path / "lock").unlink()

        put(store, 2)

        assert get(store, kept) == document(1)
        with pytest.raises(DirectoryInUse):
            Store(tmp_path).open_now()


# --- one owner ---------------------------------------------------------------------------------------------------


def test_a_directory_has_one_owner_at_a_time(tmp_path):
    told = r"process \d+ already uses the data directory .*BACKPASS_DATA_DIR"
    with opened(tmp_path), pytest.raises(DirectoryInUse, match=told):
        Store(tmp_path).open_now()
    with opened(tmp_path):
        pass  # a closed store owns nothing


def test_the_lock_file_of_a_process_that_ended_is_taken_over(tmp_path):
    (tmp_path / "lock").write_text("999999\n")
    with opened(tmp_path):
        assert (tmp_path / "lock").read_text() != "999999\n"


# --- damaged stores ----------------------------------------------------------------------------------------------


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096])


def cut_within_its_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def random_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 100)


def overwritten_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:-4096] = b"\xa5" * (len(content) - 8192)
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_a_later_version(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9'")
    db.close()


def of_a_later_layout(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()


def of_another_application(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE users (name TEXT)")
    db.close()


def with_other_columns(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE programs DROP COLUMN signature")
    db.close()


def only_its_journal(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-wal"))


DAMAGES: dict[Callable[[Path], None], str] = {
    truncated: "damaged",
    cut_within_its_header: "not a SQLite database",
    random_bytes: "not a SQLite database",
    overwritten_in_the_middle: "damaged",
    empty: "is empty",
    a_directory: "is a directory",
    of_a_later_version: "schema version 9",
    of_a_later_layout: "has layout 9",
    of_another_application: "another application",
    with_other_columns: "columns",
    only_its_journal: "is missing",
}


@pytest.mark.parametrize(("damage", "told"), DAMAGES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_damaged_store_is_refused_at_start_and_left_unchanged(tmp_path, damage, told):
    with opened(tmp_path) as store:
        for number in range(5):
            put(store, number, size=20_000)
    damage(tmp_path / FILE)

    def content() -> dict[str, bytes | None]:
        return {e.name: e.read_bytes() if e.is_file() else None for e in tmp_path.iterdir() if e.name != "lock"}

    before = content()
    for _ in range(2):
        with pytest.raises(StoreDamaged) as refused:
            Store(tmp_path).open_now()
        assert told in str(refused.value)
        assert str(tmp_path / FILE) in str(refused.value)
        assert "backup" in str(refused.value)
    assert content() == before


def test_a_start_that_ended_before_the_store_was_complete_leaves_no_damaged_store(tmp_path):
    (tmp_path / f"{FILE}.new").write_bytes(b"half")
    with opened(tmp_path) as store:
        put(store, 1)
    assert {each.name for each in tmp_path.iterdir()} == {FILE, "lock"}


def test_a_store_without_a_directory_keeps_programs_in_memory():
    store = Store(None)
    store.open_now()

    assert get(store, put(store, 1)) == document(1)
    assert not any(asyncio.run(store.health()).values())
    store.close_now()
